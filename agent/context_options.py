"""The options that say what is loaded of a repository: the same for `run` and `context`."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .context.selection import Options
    from .context.tokens import Counter

_PATTERNS = {
    "include": "load files that the rules leave out: ignored, generated, vendored, locks",
    "exclude": "leave files out",
    "outline": "load files as outlines",
    "full": "load files whole, whatever else must make room",
    "named": "files the task names: whole if possible",
}


def cache_folder() -> Path:
    """Where bases of repositories and token counts are kept; may be deleted at any time."""
    from platformdirs import user_cache_path

    return user_cache_path("unabridged") / "context"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Define them."""
    group = parser.add_argument_group("what is loaded (GLOB has .gitignore syntax)")
    for option, text in _PATTERNS.items():
        group.add_argument(
            f"--{option}",
            action="append",
            default=[],
            metavar="GLOB",
            help=f"{text}; may be repeated",
        )
    group.add_argument(
        "--require-full", action="store_true", help="fail if anything does not fit whole"
    )
    group.add_argument(
        "--vocabulary", type=Path, metavar="FILE", help="tiktoken.model to count exactly with"
    )
    group.add_argument("--submodules", action="store_true", help="load submodules as folders")
    group.add_argument(
        "--rebuild", action="store_true",
        help="build the base anew instead of appending differences to it",
    )  # fmt: skip


def read_options(args: argparse.Namespace) -> Options:
    """What was given; a command without these options gives the defaults."""
    from .context.selection import Options

    patterns = {option: getattr(args, option, []) for option in _PATTERNS}
    full, modules = getattr(args, "require_full", False), getattr(args, "submodules", False)
    return Options(**patterns, require_full=full, submodules=modules)


def given(args: argparse.Namespace) -> list[str]:
    """The options that were used, as they are spelled."""
    names = [*_PATTERNS, "require_full", "vocabulary", "submodules", "rebuild"]
    return [f"--{name.replace('_', '-')}" for name in names if getattr(args, name, None)]


def counter(vocabulary: Path | None) -> Counter | None:
    """What counts exactly, where a vocabulary is given. Raises ContextError."""
    if vocabulary is None:
        return None
    from .context.tokens import Exact

    return Exact(vocabulary)


_WORD = re.compile(r"[\w.@+~-]+(?:/[\w.@+~-]+)*")


def mentioned(text: str, root: Path) -> list[str]:
    """Patterns of the files of a repository that a task names by their paths."""
    found = _WORD.findall(text)
    words = {*found, *(word.rstrip(".") for word in found)} - {""}
    inside = (word for word in words if ".." not in word.split("/") and word[0] != "~")
    return sorted(f"/{word}" for word in inside if _is_file(root / word))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file() and not path.is_symlink()
    except OSError:
        return False
