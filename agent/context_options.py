"""The options that say what is loaded of a repository: the same for `run` and `context`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .context.selection import Options

_PATTERNS = {
    "include": "load files that the rules leave out: ignored, generated, vendored, locks",
    "exclude": "leave files out",
    "outline": "load files as outlines",
    "full": "load files whole, whatever else must make room",
    "named": "files the task names: whole if possible",
}


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
    names = [*_PATTERNS, "require_full", "submodules", "rebuild"]
    return [f"--{name.replace('_', '-')}" for name in names if getattr(args, name, None)]
