"""The colours of what is drawn line by line, taken from the theme."""

from __future__ import annotations

from dataclasses import dataclass

from rich.style import Style
from textual.color import Color
from textual.theme import Theme


@dataclass(frozen=True)
class Palette:
    """Styles by meaning; they are told apart without colour too."""

    text: Style
    dim: Style
    strong: Style
    accent: Style
    good: Style
    warn: Style
    bad: Style
    thought: Style
    user: Style
    """Behind the user's words."""
    added: Style
    removed: Style
    found: Style
    """Behind what was searched for."""
    code_theme: str
    name: str


def palette_of(theme: Theme) -> Palette:
    """The palette of a theme."""
    fore = Color.parse(theme.foreground or ("#dddddd" if theme.dark else "#222222"))
    back = Color.parse(theme.background or ("#101010" if theme.dark else "#ffffff"))

    def style(color: str | None) -> Style:
        return Style(color=Color.parse(color or "ansi_default").rich_color)

    def tint(color: str | None, amount: float) -> Style:
        if theme.ansi or color is None:
            return Style()
        return Style(bgcolor=back.blend(Color.parse(color), amount).rich_color)

    if theme.ansi:
        text, dim = Style(), Style(dim=True)
    else:
        text = Style(color=fore.rich_color)
        dim = Style(color=fore.blend(back, 0.38).rich_color)
    return Palette(
        text=text,
        dim=dim,
        strong=text + Style(bold=True),
        accent=style(theme.accent) + Style(bold=True),
        good=style(theme.success),
        warn=style(theme.warning),
        bad=style(theme.error),
        thought=dim + Style(italic=True),
        user=tint(theme.primary, 0.16),
        added=tint(theme.success, 0.16),
        removed=tint(theme.error, 0.16),
        found=Style(reverse=True),
        code_theme=("ansi_dark" if theme.dark else "ansi_light")
        if theme.ansi
        else ("one-dark" if theme.dark else "friendly"),
        name=theme.name,
    )
