"""`unabridged doctor`: check this machine, and say what to do."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

MARKS = {"ok": "ok   ", "note": "note ", "fault": "FAULT"}


def add_parser(commands: Any, name: str, line: str) -> None:
    """Define the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=line, description=line[0].upper() + line[1:] + ".", allow_abbrev=False
    )
    parser.add_argument("--repo", type=Path, metavar="PATH",
                        help="the repository (default: the one around here)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=doctor_command)


def doctor_command(args: argparse.Namespace) -> int:
    """Exit 1 where something stops the work."""
    from .config import ConfigError
    from .doctor import Check, examine
    from .headless import printable
    from .run_cli import find_repo

    checks: list[Check] = []
    try:
        for check in examine(find_repo(args.repo)):
            checks.append(check)
            if args.json:
                continue
            print(printable(f"{MARKS[check.status]} {check.name:10} {check.found}"), flush=True)
            if check.advice:
                print(printable(f"                 -> {check.advice}"))
    except ConfigError as error:
        print(f"unabridged: {error}", file=sys.stderr)
        return 2
    faults = sum(check.status == "fault" for check in checks)
    if args.json:
        print(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        print("Ready to work." if not faults else f"{faults} to correct before the work can begin.")
    return 1 if faults else 0
