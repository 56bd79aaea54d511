"""Where a checkpoint is, from what a person names."""

from __future__ import annotations

from pathlib import Path

NANO = Path(__file__).with_name("nano")
"""K3-nano, as it is shipped."""


def folder(text: str) -> Path:
    """The folder of a path; `nano` is K3-nano."""
    return NANO if text == "nano" else Path(text).expanduser()
