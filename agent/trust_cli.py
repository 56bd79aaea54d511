"""`unabridged trust`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from .config import ConfigError


def add_parser(commands: Any, name: str, line: str) -> None:
    """Define the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=line, description=line[0].upper() + line[1:] + ".", allow_abbrev=False
    )
    parser.add_argument("path", nargs="?", type=Path, metavar="PATH",
                        help="the repository (default: here)")  # fmt: skip
    parser.add_argument("--repo", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--revoke", action="store_true", help="trust it no longer")
    parser.set_defaults(run=trust_command)


def trust_command(args: argparse.Namespace) -> int:
    """Trust, or revoke."""
    from .run_cli import find_repo
    from .trust import grant, revoke

    try:
        root = find_repo(args.path or args.repo)
        if args.revoke:
            known = revoke(root)
            print(f"{root}: {'no longer trusted' if known else 'was not trusted'}.")
            return 0
        names = grant(root)
    except ConfigError as error:
        print(f"unabridged: {error}", file=sys.stderr)
        return 2
    what = ", ".join(names) if names else "nothing in it needs trust yet; later files will"
    print(f"{root}: trusted ({what}). A change of these files ends it.")
    return 0
