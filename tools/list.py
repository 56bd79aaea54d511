"""`list`: what is in a folder, in a fixed order, ignored entries marked."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ..agent.context.walk import walk
from ..agent.effects import Effect, EffectKind
from .base import Arguments, Context, Facts, Result, Tool, ToolError, path_effects
from .diff import visible
from .files import in_thread
from .text import plural

MOST_ENTRIES = 1_000
"""Most entries in one result."""


class ListArguments(Arguments):
    """A folder and how deep to look."""

    path: Annotated[
        str, Field(description="Folder, relative to the repository root. Default: the root.")
    ] = "."
    depth: Annotated[
        int, Field(ge=1, le=20, description="Levels of folders to show, 1 for this folder only.")
    ] = 1


class List(Tool[ListArguments]):
    """List a folder."""

    name = "list"
    description = (
        "List a folder, hidden entries included: folders end in /, files have their size in "
        "bytes, symlinks their target. What is ignored is marked and not entered."
    )
    arguments = ListArguments

    def effects(self, args: ListArguments, facts: Facts) -> tuple[Effect, ...]:
        return path_effects(EffectKind.READ, facts.locate(args.path))

    async def run(self, args: ListArguments, context: Context) -> Result:
        return await in_thread(lambda stop: _run(args, context, stop))


@dataclass
class _Count:
    folders: int = 0
    files: int = 0
    others: int = 0
    closed: int = 0
    """Entries left out because a rule does not allow reading them."""

    def __str__(self) -> str:
        text = f"{plural(self.folders, 'folder')}, {plural(self.files, 'file')}"
        return f"{text}, {plural(self.others, 'other')}" if self.others else text


def _run(args: ListArguments, context: Context, stop: threading.Event) -> Result:
    where = context.facts.locate(args.path)
    if not where.path.is_dir():
        hint = "is a file: use `read`" if where.path.exists() else "does not exist"
        raise ToolError(f"{where.name} {hint}.")
    count = _Count()
    lines: list[str] = []
    left = {entry.name: entry.reason for entry in walk(where.path, stop=stop.is_set).left}
    base = "" if where.name == "." else f"{where.name}/"
    _list(
        where.path, "", args.depth, left, count, lines, lambda name: context.readable(base + name)
    )
    levels = f", {args.depth} levels deep" if args.depth > 1 else ""
    name = "The root" if where.name == "." else f"{where.name}/"
    heading = f"{name} has {count}{levels}" if lines else f"{name} is empty"
    if len(lines) > MOST_ENTRIES:
        heading += (
            f"\nShown: the first {MOST_ENTRIES:,} of {len(lines):,} entries; list a folder below "
            f"it, or use a smaller depth"
        )
    if count.closed:
        entries = plural(count.closed, "entry", "entries")
        heading += f"\nLeft out, a rule does not allow reading them: {entries}"
    return Result("\n".join([heading, *lines[:MOST_ENTRIES]]))


def _list(
    folder: Path,
    prefix: str,
    depth: int,
    left: Mapping[str, str],
    count: _Count,
    lines: list[str],
    readable: Callable[[str], bool],
) -> None:
    """Add the entries of a folder, each followed by what is in it, sorted by name."""
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        lines.append(f"{visible(prefix)}  (cannot be read: {error.strerror})")
        return
    for entry in entries:
        name = prefix + entry.name
        if not readable(name):
            count.closed += 1
            continue
        if entry.is_dir(follow_symlinks=False):
            count.folders += 1
            reason = "git's own" if entry.name == ".git" else left.get(f"{name}/")
            lines.append(f"{visible(name)}/{f'  ({reason}, not entered)' if reason else ''}")
            if depth > 1 and not reason:
                _list(Path(entry.path), f"{name}/", depth - 1, left, count, lines, readable)
        else:
            ignored = left.get(name, "") if "ignore" in left.get(name, "") else ""
            mark = f"  ({ignored})" if ignored else ""
            lines.append(f"{visible(name)}{_describe(entry, count)}{mark}")


def _describe(entry: os.DirEntry[str], count: _Count) -> str:
    if entry.is_symlink():
        count.others += 1
        broken = "" if os.path.exists(entry.path) else "  (nothing there)"  # noqa: PTH110
        return f" -> {visible(os.readlink(entry.path))}{broken}"  # noqa: PTH115
    try:
        found = entry.stat(follow_symlinks=False)
    except OSError:
        return "  (gone just now)"
    if stat.S_ISREG(found.st_mode):
        count.files += 1
        return f"  {found.st_size:,}"
    count.others += 1
    kinds = {stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket"}
    return f"  ({kinds.get(stat.S_IFMT(found.st_mode), 'device')})"
