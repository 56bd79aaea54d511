"""About rounds."""

from beds import count_dry


def plan_round(levels):
    """What comes of the levels, plus 2."""
    stops = count_dry(levels)
    return stops + 2
