"""The two lines at the bottom: what happens, and where the session stands."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from ..palette import palette_of
from ..text import count, duration, money, one_line

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


@dataclass(frozen=True)
class Standing:
    """What the footer says. None: not known yet."""

    model: str = ""
    endpoint: str = ""
    effort: str = ""
    window: int = 0
    used: int = 0
    """Tokens of the next request, about."""
    cached: float | None = None
    """Share of the last prompt."""
    spent: float | None = None
    next: float | None = None
    """US dollars for the prompt of the next request."""
    steps: int = 0
    scope: str = ""
    mode: str = ""
    sandbox: str = ""
    jobs: int = 0


class Status(Widget):
    """Activity and footer."""

    def __init__(self, widget_id: str | None = None) -> None:
        super().__init__(id=widget_id)
        self.standing = Standing()
        self.activity = ""
        """Empty while nothing runs."""
        self.since = 0.0
        self.hint = ""
        self._frame = 0

    def show(self, standing: Standing) -> None:
        """Another standing."""
        if standing != self.standing:
            self.standing = standing
            self.refresh()

    def act(self, activity: str, seconds: float, hint: str) -> None:
        """What happens now."""
        self._frame += bool(activity)
        if activity or (activity, hint) != (self.activity, self.hint):
            self.activity, self.since, self.hint = activity, seconds, hint
            self.refresh(Region(0, 0, self.size.width, 1))

    def render_line(self, y: int) -> Strip:
        """The activity, which changes ten times a second, or the footer, which seldom does."""
        width = self.size.width
        text = self._activity() if y == 0 else self._footer(width)
        text.truncate(width, overflow="ellipsis")
        strip = Strip(text.render(self.app.console)).extend_cell_length(width)
        return strip.apply_style(self.rich_style)

    def _activity(self) -> Text:
        p = palette_of(self.app.current_theme)
        first = Text(no_wrap=True, overflow="ellipsis", end="")
        if self.activity:
            first.append(f"{SPINNER[self._frame % len(SPINNER)]} ", p.accent)
            first.append(f"{self.activity} ", p.strong)
            first.append(f"{duration(self.since)}  ", p.dim)
        first.append(self.hint, p.dim)
        return first

    def _footer(self, width: int) -> Text:
        p, s = palette_of(self.app.current_theme), self.standing
        share = s.used / s.window if s.window else 0.0
        tone = p.bad if share >= 0.92 else p.warn if share >= 0.8 else p.text
        parts: list[tuple[str, object]] = [(s.model, p.strong)]
        if s.effort:
            parts.append((s.effort, p.dim))
        if s.window:
            parts.append((f"{share:.0%} of {count(s.window)}", tone))
        if s.cached is not None:
            parts.append((f"{s.cached:.0%} cached", p.good if s.cached > 0.5 else p.warn))
        if s.next == 0 and not s.spent:
            parts.append(("free", p.dim))
        else:
            if s.spent is not None and s.steps:
                parts.append((money(s.spent), p.text))
            if s.next is not None:
                parts.append((f"next {money(s.next)}", p.dim))
        parts.append((s.mode, p.warn if s.mode == "read-only" else p.dim))
        if s.scope:
            parts.append((f"scope {one_line(s.scope, 24)}", p.good))
        if s.sandbox:
            parts.append((f"sandbox {s.sandbox}", p.dim if s.sandbox != "off" else p.warn))
        if s.jobs:
            parts.append((f"{s.jobs} job{'s' * (s.jobs > 1)}", p.warn))
        if s.endpoint:
            parts.append((s.endpoint, p.dim))
        line, room = Text(no_wrap=True, end=""), width
        for words, style in parts:
            size = cell_len(words) + (3 if line.plain else 0)
            if not words or size > room:
                continue
            if line.plain:
                line.append(" · ", p.dim)
            line.append(words, style)  # pyright: ignore[reportArgumentType] - styles of the palette
            room -= size
        return line
