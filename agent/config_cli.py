"""`unabridged config list|get|set|unset|path|check|schema`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .config import Config, ConfigError, Flags, load_config, project_file, user_file
from .guarded import Command, guarded


def add_parser(commands: Any, name: str, line: str) -> None:
    """Define the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=line, description=line[0].upper() + line[1:] + ".", allow_abbrev=False
    )
    inner = parser.add_subparsers(dest="config_command", required=True, metavar="COMMAND")

    def command(name: str, line: str, run: Command) -> argparse.ArgumentParser:
        one = inner.add_parser(name, help=line, description=line[0].upper() + line[1:] + ".")
        one.add_argument("--repo", type=Path, metavar="PATH",
                         help="the repository (default: the one around here)")  # fmt: skip
        one.set_defaults(run=guarded(run, ConfigError))
        return one

    listing = command("list", "list the settings that count here", _list)
    listing.add_argument("--origin", action="store_true", help="say where each comes from")
    listing.add_argument("--json", action="store_true", help="print one JSON document")
    get = command("get", "print one setting as it counts here", _get)
    get.add_argument("key", metavar="KEY", help="like model.effort")
    put = command("set", "write one setting into your file; the rest of it stays", _set)
    put.add_argument("key", metavar="KEY")
    put.add_argument("value", metavar="VALUE", help="as in TOML; words need no quotes")
    drop = command("unset", "take one setting out of your file", _unset)
    drop.add_argument("key", metavar="KEY")
    command("path", "print where your settings are", _path)
    command("check", "check your settings, the project's, and the examples of the rules", _check)
    command("schema", "print the JSON schema of the settings file", _schema)


def _load(args: argparse.Namespace) -> Config:
    from .run_cli import find_repo
    from .trust import examine

    return load_config(Flags(), project=examine(find_repo(args.repo)).settings)


def shown(config: Config) -> Iterator[tuple[str, Any, str]]:
    """Each setting that counts: its key, its value, where it comes from."""
    from .config import without_secrets
    from .config_edit import dotted

    for key, value in {
        "model.base_url": without_secrets(config.base_url),
        "model.name": config.model,
        "model.effort": config.effort,
        "model.window": config.window,
        "model.dialect": config.dialect,
        "model.vocabulary": config.vocabulary and str(config.vocabulary),
        "model.preload": config.preload,
        "model.count": config.count,
        "money.load_limit": config.load_limit,
        **{f"limits.{name}": limit for name, limit in config.limits},
    }.items():
        if value is not None:
            yield key, value, config.origin.get(key, "default")
    user = str(user_file())
    for model, prices in config.prices.items():
        for name, price in prices:
            yield dotted(("money", "prices", model, name)), price, user
    for name, server in config.mcp.items():
        yield (
            dotted(("mcp", name)),
            server.url or " ".join(server.command),
            config.origin[f"mcp.{name}"],
        )
    for rule in config.rules:
        yield "rule", rule.describe().rpartition(" [")[0], rule.origin


def _list(args: argparse.Namespace) -> int:
    found = list(shown(_load(args)))
    if args.json:
        rows = [{"key": key, "value": value, "origin": origin} for key, value, origin in found]
        print(json.dumps(rows, indent=2))
        return 0
    for key, value, origin in found:
        print(f"{key} = {json.dumps(value)}{f'  [{origin}]' if args.origin else ''}")
    return 0


def _get(args: argparse.Namespace) -> int:
    from .config_edit import checked_key, dotted

    key = dotted(checked_key(args.key))
    value = next((value for name, value, _ in shown(_load(args)) if name == key), None)
    if value is None:
        print(f"unabridged: {key} is not set.", file=sys.stderr)
        return 1
    print(value)
    return 0


def _set(args: argparse.Namespace) -> int:
    from .config_edit import checked_key, dotted, set_value

    value = set_value(user_file(), args.key, args.value)
    key = dotted(checked_key(args.key))
    print(f"{key} = {json.dumps(value)} in {user_file()}")
    counts = next((row for row in shown(_load(args)) if row[0] == key), None)
    if counts is not None and counts[2] != str(user_file()):
        print(f"unabridged: here {counts[2]} overrides it: {counts[1]}.", file=sys.stderr)
    return 0


def _unset(args: argparse.Namespace) -> int:
    from .config_edit import unset

    if unset(user_file(), args.key):
        print(f"{args.key} is no longer set in {user_file()}")
        return 0
    print(f"unabridged: {args.key} is not set in {user_file()}.", file=sys.stderr)
    return 1


def _path(_args: argparse.Namespace) -> int:
    print(user_file())
    return 0


def _check(args: argparse.Namespace) -> int:
    """Also a project's file that is not trusted yet: to check it is not to follow it."""
    from .run_cli import find_repo
    from .trust import examine

    root = find_repo(args.repo)
    theirs = project_file(root)
    config = load_config(Flags(), project=theirs if theirs.is_file() else None)
    trusted = examine(root).settings is not None
    for path, state in (
        (user_file(), "read" if user_file().is_file() else "not there; defaults count"),
        (theirs, "" if not theirs.is_file() else "read" if trusted else "not followed: see `unabridged trust`"),
    ):  # fmt: skip
        if state:
            print(f"{path}: {state}")
    print(f"The settings hold together: {len(config.rules)} rules, their examples included.")
    return 0


def _schema(_args: argparse.Namespace) -> int:
    from .config_schema import shipped

    sys.stdout.buffer.write(shipped())
    return 0
