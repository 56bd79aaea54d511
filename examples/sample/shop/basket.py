"""A basket of things to buy."""

from dataclasses import dataclass, field

from .prices import format_price, percent_of


@dataclass
class Basket:
    """Lines of a unit price in cents and a count."""

    lines: list[tuple[int, int]] = field(default_factory=list)

    def add(self, cents: int, count: int = 1) -> None:
        self.lines.append((cents, count))

    def total(self, discount: int = 0) -> int:
        """What to pay, after `discount` per cent."""
        total = 0
        for cents, count in self.lines:
            total += (cents - percent_of(cents, discount)) * count
        return total

    def receipt(self, discount: int = 0) -> str:
        return f"to pay: {format_price(self.total(discount))}"
