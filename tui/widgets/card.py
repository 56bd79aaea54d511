"""What all cards are: framed, between the conversation and the prompt."""

from __future__ import annotations

from rich.text import Text
from textual.containers import Vertical

from .choices import Choices


class Card(Vertical):
    """A framed card with a title."""

    def __init__(self, title: str, *, tone: str = "") -> None:
        super().__init__(classes=f"card {tone}".strip())
        self.border_title = Text(title)  # pyright: ignore[reportAttributeAccessIssue] - any text

    def caption(self, text: str) -> None:
        """The words in the lower edge."""
        self.border_subtitle = Text(text)  # pyright: ignore[reportAttributeAccessIssue] - any text


def close_field(card: Card, selector: str) -> bool:
    """Hide a part of a card and give its choices the keys; whether it was open."""
    for field in card.query(selector):
        if field.display:
            field.display = False
            card.query_one(Choices).focus()
            return True
    return False


def listed(text: str) -> tuple[str, ...]:
    """What stands between commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
