"""Prices in whole cents."""


def percent_of(cents: int, percent: int) -> int:
    """`percent` per cent of an amount."""
    return int(cents * (percent / 100))


def format_price(cents: int) -> str:
    """An amount for people, like `12.30`."""
    return f"{cents // 100}.{cents % 100:02}"
