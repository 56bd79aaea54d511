"""What a git command would lose, as a list of what is there now."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..agent.effects import Effect, EffectKind
from .base import ToolError
from .diff import visible
from .repository import Repository

MOST_LINES = 20
SECONDS = 3.0
"""A look at a very large repository ends by then, without a list."""

_LOOKS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("uncommitted", ("status", "--porcelain", "--untracked-files=no"), ()),
    ("untracked", ("status", "--porcelain", "--untracked-files=normal", "--ignored"), ("??", "!!")),
    ("stashed", ("stash", "list"), ()),
    ("work tree", ("worktree", "list"), ()),
)
"""A word of the effect's detail, the command that lists what it means, and which of its lines."""


def losses(effects: Iterable[Effect], root: Path) -> str:
    """Lines for a person, each beginning with `# `; empty where nothing is lost that is known."""
    lines: list[str] = []
    for effect in effects:
        if effect.kind is EffectKind.GIT_DESTRUCTIVE:
            lines.append(f"# would lose {effect.detail}")
            lines += [f"#   {line}" for line in _there(effect.detail, root)]
    return "\n".join(dict.fromkeys(lines))


def _there(detail: str, root: Path) -> list[str]:
    look = next((look for look in _LOOKS if look[0] in detail), None)
    if look is None:
        return []
    _, words, beginnings = look
    try:
        repository = Repository.around(root)
        text = repository.output(*words, limit=SECONDS).decode(errors="backslashreplace")
    except ToolError as error:
        return [f"({error})"]
    found = [visible(line) for line in text.splitlines() if line.startswith(beginnings or "")]
    more = len(found) - MOST_LINES
    return found if more <= 0 else [*found[:MOST_LINES], f"and {more} more"]
