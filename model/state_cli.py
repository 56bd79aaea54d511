"""`unabridged state list|show|prune|verify`: look after the sequence states on disk."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .cli import size
from .sizes import human
from .state_store import (
    DEFAULT_MAX_BYTES,
    Entry,
    StateError,
    default_root,
    entries,
    prune,
    read_entry,
    read_header,
    strangers,
)


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser], name: str, line: str
) -> None:
    """Add the command. Each sub-command sets `run`: arguments to exit code."""
    description = "Sequence states on disk: prefixes that need not be computed again."
    state = subparsers.add_parser(name, help=line, description=description)
    commands = state.add_subparsers(dest="state_command", required=True, metavar="COMMAND")

    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--dir", type=Path, default=None, help="folder of the store (default: in the user's cache)"
    )
    common.add_argument("--json", action="store_true", help="print one JSON document")

    listing = commands.add_parser("list", parents=[common], help="list the stored states")
    listing.set_defaults(run=_list)

    show = commands.add_parser("show", parents=[common], help="what one state holds")
    show.add_argument("id", help="id from `state list`, or an unambiguous part of it")
    show.set_defaults(run=_show)

    pruning = commands.add_parser("prune", parents=[common], help="remove the least recently used")
    pruning.add_argument(
        "--max-size",
        type=size,
        default=DEFAULT_MAX_BYTES,
        metavar="SIZE",
        help="what may stay, such as 500M or 20G (default: 64G)",
    )
    pruning.add_argument(
        "--unused-for",
        type=float,
        default=None,
        metavar="DAYS",
        help="also remove what was not used for so long",
    )
    pruning.add_argument("--all", action="store_true", help="remove every state")
    pruning.set_defaults(run=_prune)

    verify = commands.add_parser(
        "verify", parents=[common], help="hold states against their checksums"
    )
    verify.add_argument("id", nargs="*", help="ids to check (default: everything)")
    verify.set_defaults(run=_verify)


def _list(args: argparse.Namespace) -> int:
    found = entries(_root(args))
    total = sum(entry.size for entry in found)
    if args.json:
        _print_json(
            {"root": str(_root(args)), "bytes": total, "states": [_facts(e) for e in found]}
        )
        return 0
    for entry in found:
        used = datetime.fromtimestamp(entry.used).astimezone().strftime("%Y-%m-%d %H:%M")
        print(f"{entry.id}  {entry.position:>9,} tokens  {human(entry.size):>9}  used {used}")
    print(f"{len(found)} states, {human(total)}, in {_root(args)}")
    return 0


def _show(args: argparse.Namespace) -> int:
    found = _find(args, args.id)
    if found is None:
        return 2
    try:
        header = read_header(found.path)
    except (StateError, OSError) as error:
        print(f"{found.path}: {error}", file=sys.stderr)
        return 1
    facts = _facts(found) | {
        "fingerprint": header.fingerprint,
        "created": header.created,
        "metadata": header.metadata,
        "tensors": {name: [dtype, *shape] for name, (dtype, shape) in header.shapes.items()},
    }
    if args.json:
        _print_json(facts)
        return 0
    for key in (
        "id",
        "path",
        "position",
        "bytes",
        "created",
        "used",
        "rank",
        "world_size",
        "fingerprint",
    ):
        print(f"{key:12} {facts[key]}")
    for key, value in header.metadata.items():
        print(f"{key:12} {value}")
    for name, (dtype, shape) in header.shapes.items():
        print(f"  {name}  {dtype} {list(shape)}")
    return 0


def _prune(args: argparse.Namespace) -> int:
    unused_for = None if args.unused_for is None else args.unused_for * 86_400
    removed = prune(_root(args), 0 if args.all else args.max_size, unused_for=unused_for)
    freed = sum(entry.size for entry in removed)
    if args.json:
        _print_json({"removed": [entry.id for entry in removed], "bytes": freed})
    else:
        print(f"removed {len(removed)} states, {human(freed)}")
    return 0


def _verify(args: argparse.Namespace) -> int:
    root = _root(args)
    chosen = entries(root)
    faults: dict[str, str] = {}
    if args.id:
        chosen = []
        for wanted in args.id:
            entry = _find(args, wanted)
            if entry is None:
                return 2
            chosen.append(entry)
    else:
        faults = {str(path): "not a state of this store" for path in strangers(root)}
    for entry in chosen:
        try:
            header, _ = read_entry(entry.path)
        except (StateError, OSError) as error:
            faults[str(entry.path)] = str(error)
            continue
        named = (
            entry.path.parent.name,
            entry.position,
            entry.token_hash,
            entry.rank,
            entry.world_size,
        )
        inside = (
            header.fingerprint[:16],
            header.position,
            header.token_hash[:32],
            header.rank,
            header.world_size,
        )
        if named != inside:
            faults[str(entry.path)] = "it is another state than its name says"
    if args.json:
        _print_json({"checked": len(chosen), "faults": faults})
    else:
        for path, fault in faults.items():
            print(f"{path}: {fault}")
        print(f"{len(chosen)} states checked, {len(faults)} faults")
    return 1 if faults else 0


def _root(args: argparse.Namespace) -> Path:
    return args.dir or default_root()


def _find(args: argparse.Namespace, wanted: str) -> Entry | None:
    found = [entry for entry in entries(_root(args)) if wanted in entry.id]
    if len(found) == 1:
        return found[0]
    what = "no state has" if not found else f"{len(found)} states have"
    print(f"{what} {wanted!r} in the id; see `unabridged state list`", file=sys.stderr)
    return None


def _facts(entry: Entry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "path": str(entry.path),
        "position": entry.position,
        "bytes": entry.size,
        "used": datetime.fromtimestamp(entry.used, UTC).isoformat(timespec="seconds"),
        "rank": entry.rank,
        "world_size": entry.world_size,
    }


def _print_json(document: dict[str, Any]) -> None:
    print(json.dumps(document, indent=2, ensure_ascii=False))
