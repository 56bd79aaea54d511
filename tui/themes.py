"""The two themes of the house; Textual's own can be chosen as well."""

from __future__ import annotations

import os
from collections.abc import Mapping

from textual.theme import Theme

DARK = Theme(
    name="unabridged-dark",
    primary="#7aa2f7",
    secondary="#9d8cd8",
    accent="#e0a458",
    foreground="#d7d9e0",
    background="#15171c",
    surface="#1b1e25",
    panel="#242832",
    success="#8ec07c",
    warning="#e5b567",
    error="#e06c75",
    dark=True,
)
LIGHT = Theme(
    name="unabridged-light",
    primary="#3566c4",
    secondary="#6d58b0",
    accent="#a85d00",
    foreground="#22252b",
    background="#fbfaf7",
    surface="#f2f0ea",
    panel="#e6e3da",
    success="#3d7a2e",
    warning="#8f6200",
    error="#b3343f",
    dark=False,
)


def usual_theme(few_colors: bool, env: Mapping[str, str] = os.environ) -> str:
    """The theme for this terminal, as far as it says what it is.

    Args:
        few_colors: it has 16 colours at most. Those are the user's own: ours would come out as
            whichever of them happens to be near.
        env: where the terminal may say which background it has.
    """
    back = env.get("COLORFGBG", "").rpartition(";")[2]
    light = back in ("7", "15")
    if few_colors:
        return "ansi-light" if light else "ansi-dark"
    return LIGHT.name if light else DARK.name
