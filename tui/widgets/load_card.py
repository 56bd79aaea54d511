"""The card of the load plan: what of the repository is sent, and what it costs."""

from __future__ import annotations

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.strip import Strip
from textual.widgets import Input, Static

from ...agent.context.load import Load
from ..paint import Painter
from ..text import count, money, safe
from .card import Card, listed
from .lines import Lines


class LoadCard(Card):
    """What is loaded of the repository, and what it costs; nothing was sent yet."""

    class Changed(Message):
        """The user wants something else to be loaded."""

        def __init__(self, include: str, exclude: str, outline: str) -> None:
            super().__init__()
            self.patterns = {
                "include": listed(include), "exclude": listed(exclude),
                "outline": listed(outline),
            }  # fmt: skip

    FIELDS = (
        ("exclude", "Leave out (patterns as in .gitignore, separated by commas)"),
        ("outline", "As outlines only"),
        ("include", "Load although it is ignored, generated or vendored"),
    )

    def __init__(self, root: str, patterns: dict[str, list[str]]) -> None:
        super().__init__(f"Load plan · {root}")
        self._patterns = patterns
        self._words: list[tuple[str, str]] = [("Reading the repository …", "dim")]

    def compose(self) -> ComposeResult:
        """The plan and its form."""
        yield Lines(self._draw, widget_id="plan")
        with Vertical(id="form"):
            for name, label in self.FIELDS:
                yield Static(label, classes="label", markup=False)
                yield Input(value=", ".join(self._patterns.get(name, ())), id=name, compact=True)

    def on_mount(self) -> None:
        """The form is closed. The card may be gone again before its parts are there."""
        for form in self.query("#form"):
            form.display = False
        for plan in self.query("#plan"):
            plan.can_focus = False

    def _draw(self, painter: Painter, width: int) -> list[Strip]:
        p = painter.palette
        styles = {"dim": p.dim, "text": p.text, "strong": p.strong, "warn": p.warn, "bad": p.bad,
                  "good": p.good}  # fmt: skip
        lines: list[Strip] = []
        for words, tone in self._words:
            text = Text(safe(words), styles[tone])
            lines += painter.strips(text.wrap(painter.console, max(width, 20)))
        return lines

    def say(self, words: list[tuple[str, str]], caption: str) -> None:
        """Lines as (words, tone)."""
        self._words = words
        for lines in self.query(Lines):
            lines.show(self._draw)
        self.caption(caption)

    def edit(self) -> None:
        """Open the form."""
        self.query_one("#form").display = True
        self.query_one("#exclude", Input).focus()
        self.caption("Tab next field · Enter plans anew · Esc goes back")

    def back(self) -> bool:
        """Close the form; whether it was open."""
        for form in self.query("#form"):
            if form.display:
                form.display = False
                return True
        return False

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        value = {name: self.query_one(f"#{name}", Input).value for name, _ in self.FIELDS}
        self.back()
        self.post_message(self.Changed(**value))


def plan_words(
    loaded: Load, window: int, cold: float | None, warm: float | None
) -> list[tuple[str, str]]:
    """A load plan in a few lines."""
    share = loaded.tokens / window if window else 0.0
    exact = "" if loaded.exact else "about "
    filled = min(round(share * 30), 30)
    lines = [
        (f"{loaded.files:,} files whole · {exact}{loaded.tokens:,} tokens", "strong"),
        (f"{'█' * filled}{'░' * (30 - filled)} {share:.0%} of {count(window)}", "text"),
    ]
    if cold is None:
        lines.append(("The price of this model is not known.", "dim"))
    elif cold == 0:
        lines.append(("Free: the model runs in this process", "text"))
    else:
        lines.append((f"First request {money(cold)}, or {money(warm)} where it is cached", "text"))
    stored, total = loaded.stored, len(loaded.segments)
    if stored:
        lines.append((f"{stored} of {total} segments as last time", "good"))
    else:
        lines.append((f"{total} segments, all new", "dim"))
    left = [
        f"{len(group):,} {what}"
        for group, what in ((loaded.outlined, "as outlines"), (loaded.skipped, "by name only"))
        if group
    ]
    if left:
        lines.append((f"{', '.join(left)}: see /context", "dim"))
    return lines
