"""About water."""

import beds


def need(levels):
    """5 times what comes of the levels."""
    dry = beds.count_dry(levels)
    return dry * 5


def share(total, count):
    """The total in equal parts."""
    return total / count
