"""About beds."""

DEPTH = 30


def count_dry(levels):
    """How many levels are below 20."""
    return sum(1 for level in levels if level < 20)


def fits(size):
    """Whether the size is at most DEPTH."""
    return size <= DEPTH
