"""`unabridged sessions list|show|search|rename|export|fork|rm`."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .events import (
    AnyEvent,
    AssistantMessage,
    FilesChanged,
    SessionNamed,
    TextPart,
    ToolResult,
    UserMessage,
    to_line,
)
from .store import SUFFIX, SessionInUseError, Store, StoreError, find, read

if TYPE_CHECKING:
    from .redact import Redactor


def add_parser(commands: Any, name: str, line: str) -> None:
    """Define the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=line, description=line[0].upper() + line[1:] + "."
    )
    inner = parser.add_subparsers(dest="sessions_command", required=True, metavar="COMMAND")

    def command(name: str, line: str, run: Callable[[argparse.Namespace, Path], int]) -> Any:
        one = inner.add_parser(name, help=line, description=line[0].upper() + line[1:] + ".")
        one.add_argument(
            "--sessions-dir", type=Path, metavar="PATH", help="where sessions are kept"
        )
        one.set_defaults(run=_guarded(run))
        return one

    listing = command("list", "list sessions, the latest first", _list)
    listing.add_argument("--repo", type=Path, metavar="PATH", help="only of this repository")
    listing.add_argument("--json", action="store_true", help="print one JSON document")
    show = command("show", "show a session: steps, calls, how it ended", _show)
    show.add_argument("session", metavar="SESSION", help="id, the start of one, or `last`")
    show.add_argument("--json", action="store_true", help="print one JSON document")
    search = command("search", "find text in words, reasoning, answers and results", _search)
    search.add_argument("text", metavar="TEXT")
    search.add_argument("--json", action="store_true", help="print one JSON document")
    rename = command("rename", "give a session a name; an empty one takes it away", _rename)
    rename.add_argument("session", metavar="SESSION")
    rename.add_argument("name", metavar="NAME")
    export = command("export", "write a session out, reasoning whole", _export)
    export.add_argument("session", metavar="SESSION")
    export.add_argument(
        "--format",
        choices=("markdown", "html", "atif", "jsonl", "stream-json"),
        default="markdown",
    )
    export.add_argument("--no-redact", action="store_true",
                        help="leave keys, tokens and passwords in, as they are in the log")  # fmt: skip
    export.add_argument("--out", type=Path, metavar="FILE", help="instead of standard output")
    fork = command("fork", "copy a session up to a step, to go on another way", _fork)
    fork.add_argument("session", metavar="SESSION")
    fork.add_argument("--at", type=int, metavar="STEP", help="the last step to keep (default: all)")
    remove = command("rm", "remove sessions, their files included", _remove)
    remove.add_argument("session", nargs="+", metavar="SESSION")


def _guarded(run: Callable[[argparse.Namespace, Path], int]) -> Callable[[argparse.Namespace], int]:
    def guarded(args: argparse.Namespace) -> int:
        from .run_cli import sessions_folder

        try:
            return run(args, sessions_folder(args))
        except (StoreError, OSError) as error:
            print(f"unabridged: {error}", file=sys.stderr)
            return 2

    return guarded


def _list(args: argparse.Namespace, folder: Path) -> int:
    from .headless import printable
    from .index import entries

    found = entries(folder)
    if args.repo is not None:
        found = [entry for entry in found if entry.repo == str(args.repo.resolve())]
    if args.json:
        print(json.dumps([asdict(entry) for entry in found], indent=2))
        return 0
    for entry in found:
        if entry.problem is not None:
            print(f"{entry.session}  unreadable: {printable(entry.problem)}")
            continue
        end = entry.exit_name or "running or killed"
        words = entry.name or entry.task.strip()
        task = words.splitlines()[0][:60] if words else "(no task)"
        print(f"{entry.session}  {end:15} {entry.steps:4} steps  {printable(task)}")
    if not found:
        print("No sessions.", file=sys.stderr)
    return 0


def _show(args: argparse.Namespace, folder: Path) -> int:
    from .headless import printable
    from .index import describe

    path = find(folder, args.session)
    events = read(path)
    session = path.name.removesuffix(SUFFIX)
    if args.json:
        print(json.dumps(asdict(describe(session, events)), indent=2))
        return 0
    entry = describe(session, events)
    print(f"session  {entry.session}")
    if entry.name:
        print(printable(f"name     {entry.name}"))
    print(f"repo     {entry.repo}\nmodel    {entry.model}")
    print(f"started  {entry.started}\nupdated  {entry.updated}")
    print(f"ended    {entry.exit_name or 'running or killed'}\nlog      {path}\n")
    for event in events:
        match event:
            case UserMessage():
                words = " ".join(p.text for p in event.parts if isinstance(p, TextPart))
                print(printable(f"{event.origin}: {words}"))
            case AssistantMessage():
                calls = ", ".join(f"{c.name} {c.arguments}" for c in event.calls)
                print(
                    printable(f"step {event.step}: {event.content.strip() or calls or '(thought)'}")
                )
                if calls and event.content.strip():
                    print(printable(f"        {calls}"))
            case FilesChanged():
                names = ", ".join(sorted({*event.files, *event.left}))
                print(printable(f"harness: changed by others: {names}"))
            case ToolResult(error=True):
                print(printable(f"        failed: {event.text.strip().splitlines()[0]}"))
            case _:
                pass
    return 0


def _search(args: argparse.Namespace, folder: Path) -> int:
    from .headless import printable
    from .index import entries

    wanted = args.text.casefold()
    hits: list[dict[str, object]] = []
    for entry in entries(folder):
        if entry.problem is not None:
            continue
        for event in read(find(folder, entry.session)):
            for where, text in _texts(event):
                at = text.casefold().find(wanted)
                if at >= 0:
                    excerpt = " ".join(text[max(at - 60, 0) : at + len(wanted) + 60].split())
                    hit = {"session": entry.session, "event": event.seq, "in": where}
                    hits.append({**hit, "excerpt": excerpt})
    if args.json:
        print(json.dumps(hits, indent=2))
    for hit in hits if not args.json else ():
        print(printable(f"{hit['session']} #{hit['event']} {hit['in']}: {hit['excerpt']}"))
    return 0 if hits else 1


def _texts(event: AnyEvent) -> Iterator[tuple[str, str]]:
    match event:
        case UserMessage():
            yield from (("user", p.text) for p in event.parts if isinstance(p, TextPart))
        case AssistantMessage():
            yield "reasoning", event.reasoning
            yield "answer", event.content
            yield from (("call", call.arguments) for call in event.calls)
        case ToolResult():
            yield "result", event.text
        case FilesChanged():
            yield "note", event.text
        case _:
            pass


def _rename(args: argparse.Namespace, folder: Path) -> int:
    with Store.open(folder, find(folder, args.session).name.removesuffix(SUFFIX)) as store:
        store.append(SessionNamed(name=" ".join(args.name.split())), sync=True)
    return 0


def _export(args: argparse.Namespace, folder: Path) -> int:
    from .export import markdown, stream_json
    from .export_html import html

    path = find(folder, args.session)
    session = path.name.removesuffix(SUFFIX)
    events, redactor = read(path), _redactor()
    if not args.no_redact:
        events = [redactor.event(event) for event in events]
    match args.format:
        case "markdown":
            data = markdown(session, events).encode("utf-8", "backslashreplace")
        case "html":
            data = html(session, events).encode("utf-8", "backslashreplace")
        case "atif":
            from .atif import trajectory

            data = json.dumps(trajectory(session, events), indent=2).encode("ascii") + b"\n"
        case "stream-json":
            data = b"".join(stream_json(session, events))
        case _:
            data = b"".join(map(to_line, events)) if redactor.count else path.read_bytes()
    if redactor.count:
        print(
            f"unabridged: {redactor.count} secrets were redacted; --no-redact leaves them in.",
            file=sys.stderr,
        )
    if args.out is not None:
        args.out.write_bytes(data)
    else:
        sys.stdout.buffer.write(data)
    return 0


def _redactor() -> Redactor:
    from .config import ConfigError, Flags, load_config
    from .redact import Redactor, known_values

    try:
        base_url = load_config(Flags()).base_url
    except ConfigError:
        base_url = ""  # settings that are broken keep nobody from exporting
    return Redactor(known_values(os.environ, base_url))


def _fork(args: argparse.Namespace, folder: Path) -> int:
    from .fork import fork, until_step

    events = read(find(folder, args.session))
    print(fork(folder, args.session, until_step(events, args.at)))
    return 0


def _remove(args: argparse.Namespace, folder: Path) -> int:
    paths = [find(folder, name) for name in args.session]
    for path in paths:
        session = path.name.removesuffix(SUFFIX)
        try:
            Store.open(folder, session).close()
        except SessionInUseError:
            raise
        except StoreError:
            pass  # damaged: all the more reason to let it go
        path.unlink()
        shutil.rmtree(path.with_suffix(".files"), ignore_errors=True)
        for suffix in (".result.json", ".lock"):
            path.with_suffix(suffix).unlink(missing_ok=True)
        print(f"removed {session}")
    return 0
