"""`write`: make a file, or replace the whole content of one that was read before."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from ..agent.effects import Effect, EffectKind
from .base import (
    ABSENT,
    Arguments,
    Context,
    Facts,
    Location,
    Result,
    Tool,
    ToolError,
    digest,
    path_effects,
)
from .diff import whole_diff
from .files import (
    Snapshot,
    create_file,
    hold_to,
    in_thread,
    read_if_exists,
    refuse_dangling,
    refuse_read_only,
    replace_file,
)
from .text import UTF8, Encoding, detect, endings, plural, split_lines


class WriteArguments(Arguments):
    """A file and its whole content."""

    path: Annotated[str, Field(description="File, relative to the repository root.")]
    content: Annotated[str, Field(description="The whole content.")]


@dataclass(frozen=True)
class Plan:
    """A file that can be written."""

    where: Location
    was: Snapshot | None
    """None for a new file."""
    old_encoding: Encoding
    encoding: Encoding
    data: bytes
    notes: str

    def effects(self) -> tuple[Effect, ...]:
        """The write, bound to the bytes it replaces."""
        before = self.was.digest if self.was else ABSENT
        return path_effects(EffectKind.WRITE, self.where, before=before)

    def diff(self) -> str:
        """Unified diff of the bytes that will be written."""
        before = self.was.data if self.was else None
        return whole_diff(self.where.name, before, self.data, self.encoding, self.old_encoding)


class Write(Tool[WriteArguments]):
    """Make or replace a file."""

    name = "write"
    description = (
        "Make a file with this content, and the folders above it. An existing file is replaced "
        "as a whole, but only after all of it was shown to you; to change a part of it use "
        "`edit`. New files are UTF-8; an existing file keeps its encoding, its BOM and, when all "
        "of its lines end alike, its line endings."
    )
    arguments = WriteArguments

    def effects(self, args: WriteArguments, facts: Facts) -> tuple[Effect, ...]:
        return make_plan(args, facts).effects()

    def preview(self, args: WriteArguments, facts: Facts) -> str:
        plan = make_plan(args, facts)
        return plan.notes + (plan.diff() or f"{plan.where.name}: an empty file\n")

    async def run(self, args: WriteArguments, context: Context) -> Result:
        return await in_thread(lambda stop: _run(args, context, stop))


def _run(args: WriteArguments, context: Context, stop: threading.Event) -> Result:
    facts = context.facts
    plan = make_plan(args, facts)
    hold_to(context.granted, plan.effects())
    if plan.was:
        replace_file(plan.where, facts, plan.was, [plan.data], stop)
    else:
        create_file(plan.where, facts, [plan.data], stop)
    name = plan.where.name
    text = plan.encoding.decode(plan.data[len(plan.encoding.bom) :])
    lines = len(split_lines(text, endings(text).separator))
    return Result(
        text=f"{'Replaced' if plan.was else 'Created'} {name}: {plural(lines, 'line')}, "
        f"{plural(len(plan.data), 'byte')}. {plan.notes}".rstrip(),
        seen={name: digest(plan.data)},
        diff=plan.diff(),
        changed=(name,),
    )


def make_plan(args: WriteArguments, facts: Facts) -> Plan:
    """Work out the bytes. Raises ToolError when the file may not be written; quotes nothing."""
    refuse_dangling(args.path, facts)
    where = facts.locate(args.path)
    if where.path == facts.root or args.path.endswith("/"):
        raise ToolError(f"{args.path} names a folder: give the path of a file.")
    was = read_if_exists(where, facts)
    if was is None:
        return Plan(where, None, UTF8, UTF8, _encode(args.content, UTF8, where), "")
    refuse_read_only(where, was.stat)
    _refuse_unseen(where, was, facts)
    old = detect(was.data)
    encoding = old if old and not old.damaged else UTF8
    old_text = encoding.decode(was.data[len(encoding.bom) :])
    doubt = encoding.doubt("".join(set(args.content) - set(old_text)))
    if doubt:
        raise ToolError(
            f"The encoding of {where.name} is not certain: {doubt}. Nothing was written. Ask the "
            f"user for the encoding, or keep to ASCII and the characters that are there."
        )
    content, notes = _with_old_endings(args.content, old_text)
    data = encoding.bom + _encode(content, encoding, where)
    if encoding.codec != "utf-8" or encoding.bom:
        notes = f"The file's encoding is kept: {encoding.label}.\n{notes}"
    if data == was.data:
        raise ToolError(f"{where.name} has exactly this content already: nothing to write.")
    if was.stat.st_nlink > 1:
        notes += "The file has hard links: this name gets its own copy, others keep the old one.\n"
    return Plan(where, was, old or UTF8, encoding, data, notes)


def _refuse_unseen(where: Location, was: Snapshot, facts: Facts) -> None:
    seen = facts.seen.get(where.name)
    if seen == was.digest:
        return
    if seen is None or seen == ABSENT:
        raise ToolError(
            f"{where.name} exists and was not shown to you: read all of it first, so that nothing "
            f"in it is lost unseen."
        )
    raise ToolError(
        f"{where.name} changed since it was shown to you; nothing was written. Read it again."
    )


def _with_old_endings(content: str, old_text: str) -> tuple[str, str]:
    """The content with the line endings of the file it replaces, where that is plain."""
    only = endings(old_text).only
    if only in (None, "\n") or "\r" in content or "\n" not in content:
        return content, ""
    kept = {"\r\n": "CRLF", "\r": "CR"}[only]
    return content.replace("\n", only), f"The file's line endings are kept: {kept}.\n"


def _encode(content: str, encoding: Encoding, where: Location) -> bytes:
    try:
        return encoding.encode(content)
    except UnicodeEncodeError as error:
        char = content[error.start]
        line = content.count("\n", 0, error.start) + 1
        raise ToolError(
            f"{where.name} is written in {encoding.label}, which has no {char!r} "
            f"(U+{ord(char):04X}, line {line} of `content`); nothing was written."
        ) from None
