"""Outlines: what a file declares, with line numbers, in a fraction of its tokens."""

from __future__ import annotations

_HEAD_LINES = 8
_LONGEST = 160


def outline(name: str, text: str) -> str:
    """The outline of a file's text."""
    lines = text.split("\n")
    kept = [f"{at}: {line.rstrip()[:_LONGEST]}" for at, line in enumerate(lines[:_HEAD_LINES], 1)]
    if len(lines) > _HEAD_LINES:
        kept.append(f"… {len(lines):,} lines in all")
    return "\n".join(kept) + "\n"
