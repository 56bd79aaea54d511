"""`unabridged doctor`: check this machine, and say what to do."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .doctor import Check

MARKS = {"ok": "ok   ", "note": "note ", "fault": "FAULT"}


def add_parser(commands: Any, name: str, line: str) -> None:
    """Define the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=line, description=line[0].upper() + line[1:] + ".", allow_abbrev=False
    )
    parser.add_argument("--repo", type=Path, metavar="PATH",
                        help="the repository (default: the one around here)")  # fmt: skip
    parser.add_argument("--endpoint", metavar="URL",
                        help="check what this endpoint keeps of K3's contract, instead")  # fmt: skip
    parser.add_argument("--model", metavar="NAME", help="with --endpoint (default: its first)")
    parser.add_argument("--api-key-env", metavar="NAME",
                        help="with --endpoint: the variable that holds its key")  # fmt: skip
    parser.add_argument("--vocabulary", type=Path, metavar="PATH",
                        help="with --endpoint: K3's tiktoken.model, to count tokens with")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=doctor_command)


def doctor_command(args: argparse.Namespace) -> int:
    """Exit 1 where something stops the work."""
    from .config import ConfigError
    from .doctor import examine
    from .headless import printable
    from .run_cli import find_repo

    checks: list[Check] = []
    try:
        for check in _endpoint(args) if args.endpoint else examine(find_repo(args.repo)):
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


def _endpoint(args: argparse.Namespace) -> Iterator[Check]:
    import os

    from .contract import examine_endpoint

    key = os.environ.get(args.api_key_env) if args.api_key_env else None
    return examine_endpoint(args.endpoint, args.model, key, args.vocabulary)
