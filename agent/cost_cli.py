"""`unabridged cost`: what sessions used and what it costs at the prices of today's settings."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .config import Config, ConfigError, Flags, load_config
from .events import Usage
from .index import Entry, Used, entries
from .prices import cost

GROUPS = ("model", "repo", "day", "session")


@dataclass
class Row:
    """One line of the table."""

    label: str
    sessions: set[str] = field(default_factory=set[str])
    used: Used = field(default_factory=Used)
    usd: float = 0.0
    unpriced: set[str] = field(default_factory=set[str])
    """Models without a price, or steps without usage: `usd` is then the least it was."""

    def add(self, session: str, model: str, used: Used, config: Config) -> None:
        """Count what a model did in a session."""
        self.sessions.add(session)
        for name, value in asdict(used).items():
            setattr(self.used, name, getattr(self.used, name) + value)
        usage = Usage(prompt=used.prompt, cached=used.cached, completion=used.completion)
        price = cost(model, usage, config.prices)
        if price is None or used.unreported:
            self.unpriced.add(model)
        self.usd += price or 0.0


def add_parser(commands: Any, name: str, line: str) -> None:
    """Define the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=line, description=line[0].upper() + line[1:] + ".", allow_abbrev=False
    )
    parser.add_argument("--by", choices=GROUPS, default="model", help="one line for each")
    parser.add_argument("--repo", type=Path, metavar="PATH", help="only of this repository")
    parser.add_argument(
        "--since", metavar="DATE", default="", help="only from this day on, 2026-11-30"
    )
    parser.add_argument("--sessions-dir", type=Path, metavar="PATH", help="where sessions are kept")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=cost_command)


def cost_command(args: argparse.Namespace) -> int:
    """Add up and print."""
    from .run_cli import sessions_folder

    try:
        config = load_config(Flags())
        since = _day(args.since)
    except ConfigError as error:
        print(f"unabridged: {error}", file=sys.stderr)
        return 2
    folder = sessions_folder(args)
    found = entries(folder) if folder.is_dir() else []
    if args.repo is not None:
        found = [entry for entry in found if entry.repo == str(args.repo.resolve())]
    found = [entry for entry in found if entry.problem is None and entry.started >= since]
    rows, total = add_up(found, args.by, config)
    if args.json:
        print(
            json.dumps(
                {"rows": [_document(row) for row in rows], "total": _document(total)}, indent=2
            )
        )
    else:
        _print(rows, total)
    return 0


def _day(text: str) -> str:
    from datetime import date

    try:
        return date.fromisoformat(text).isoformat() if text else ""
    except ValueError:
        raise ConfigError(f"--since {text!r} is no day: write it as 2026-11-30.") from None


def add_up(found: Iterable[Entry], by: str, config: Config) -> tuple[list[Row], Row]:
    """The rows, the dearest first (days in order), and the sum."""
    rows: dict[str, Row] = {}
    total = Row("total")
    for entry in found:
        for model, used in entry.usage.items():
            label = {
                "model": model, "repo": entry.repo, "day": entry.started[:10],
                "session": f"{entry.session} {entry.name or entry.task.strip()[:40]}",
            }[by]  # fmt: skip
            rows.setdefault(label, Row(label)).add(entry.session, model, used, config)
            total.add(entry.session, model, used, config)
    in_order = sorted(rows.values(), key=lambda row: row.label)
    if by != "day":
        in_order.sort(key=lambda row: -row.usd)
    return in_order, total


def _document(row: Row) -> dict[str, Any]:
    return {
        "label": row.label, "sessions": len(row.sessions), **asdict(row.used),
        "usd": round(row.usd, 6), "incomplete": sorted(row.unpriced),
    }  # fmt: skip


def _print(rows: list[Row], total: Row) -> None:
    from .headless import printable

    if not rows:
        print("No sessions.", file=sys.stderr)
        return
    head = (
        f"{'USD':>10}  {'sessions':>8}  {'steps':>6}  {'tokens in':>13}  {'cached':>6}  {'out':>10}"
    )
    print(head)
    for row in (*rows, *([total] if len(rows) > 1 else [])):
        used = row.used
        share = used.cached / used.prompt if used.prompt else 0.0
        usd = f"{'>=' if row.unpriced else ''}{row.usd:.2f}"
        print(
            f"{usd:>10}  {len(row.sessions):>8}  {used.steps:>6,}  {used.prompt:>13,}  {share:>6.0%}  "
            f"{used.completion:>10,}  {printable(' '.join(row.label.split()))}"
        )
    if total.unpriced:
        print(
            f"No price, or no usage, for some of: {', '.join(sorted(total.unpriced))}. Give prices "
            "in [money.prices] of your settings.",
            file=sys.stderr,
        )
