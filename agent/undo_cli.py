"""`unabridged undo`: put files back to what they were before a session touched them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def add_parser(commands: Any, name: str, line: str) -> None:
    """Define the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=line,
        description="Show what would be restored, then restore it. A file that was changed since "
        "the session touched it is left alone.",
        allow_abbrev=False,
    )
    parser.add_argument("session", nargs="?", default="last", metavar="SESSION",
                        help="id of a session, the start of one, or `last` (default)")  # fmt: skip
    parser.add_argument("--step", type=int, default=0, metavar="N",
                        help="undo only what step N and later ones did")  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="only show it")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--sessions-dir", type=Path, metavar="PATH", help="where sessions are kept")
    parser.set_defaults(run=undo_command)


def undo_command(args: argparse.Namespace) -> int:
    """Exit 0 when everything was restored, 1 when some path was left alone, 2 for usage."""
    from .events import SessionStarted
    from .headless import printable
    from .run_cli import sessions_folder
    from .store import Store, StoreError
    from .undo import Undo

    try:
        store = Store.open(sessions_folder(args), args.session)
    except StoreError as error:
        print(f"unabridged: {error}", file=sys.stderr)
        return 2
    with store:
        first = next((e for e in store.events if isinstance(e, SessionStarted)), None)
        if first is None or not Path(first.repo).is_dir():
            print("unabridged: the repository of this session is gone.", file=sys.stderr)
            return 2
        undo = Undo(Path(first.repo), store.files)
        planned = undo.plan(store.events, args.step)
        if not planned:
            print("Nothing to undo: everything is as it was.")
            return 0
        for item in planned:
            print(printable(undo.diff(item)), end="")
        restorable = [item for item in planned if not item.refusal]
        if args.dry_run or not restorable:
            return 0 if args.dry_run else 1
        if not args.yes and not _confirmed(len(restorable)):
            print("Nothing was changed.")
            return 0
        outcomes = undo.restore(planned)
    left = [item for item in outcomes if item.refusal]
    for item in left:
        print(f"left alone: {printable(item.name)}: {item.refusal}")
    print(f"{len(outcomes) - len(left)} restored, {len(left)} left alone.")
    return 1 if left else 0


def _confirmed(count: int) -> bool:
    if not sys.stdin.isatty():
        print("unabridged: give --yes to restore without being asked.", file=sys.stderr)
        return False
    return input(f"Restore {count} paths? [y/N] ").strip().lower() in ("y", "yes")
