"""`search`: lines that match, with ripgrep where it is installed and without it elsewhere.

Which files are searched is decided here and is the same either way; what runs only looks through
the files it is given.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from ..agent.context.errors import ContextError
from ..agent.context.secrets import is_secret
from ..agent.context.walk import IGNORED_BY_GIT, matcher, walk
from ..agent.effects import Effect, EffectKind
from .base import Arguments, Context, Facts, Location, Result, Tool, ToolError, path_effects
from .files import in_thread
from .pattern import PatternError, common, for_python
from .text import plural

_FALLBACK = Path(__file__).with_name("grep.py")
_ARGUMENT_BYTES = 200_000
"""Bytes of file names for one ripgrep; macOS allows a million with the environment."""
_LINE = 500
"""Most characters shown of one line."""


class SearchArguments(Arguments):
    """What to look for, and where."""

    pattern: Annotated[
        str,
        Field(
            min_length=1,
            description="Regular expression, matched within one line. No look-around, no "
            "references to groups.",
        ),
    ]
    path: Annotated[
        str, Field(description="Folder or file, relative to the repository root. Default: all.")
    ] = "."
    glob: Annotated[
        str | None,
        Field(description="Only files that match this git-ignore style pattern, such as *.py."),
    ] = None
    literal: Annotated[bool, Field(description="Take `pattern` as plain text.")] = False
    ignore_case: Annotated[bool, Field(description="Match letters in either case.")] = False
    context: Annotated[
        int, Field(ge=0, le=20, description="Lines to show before and after each match.")
    ] = 0
    limit: Annotated[int, Field(ge=1, le=5000, description="Most matching lines to show.")] = 200
    ignored: Annotated[bool, Field(description="Also search files that git ignores.")] = False


class Search(Tool[SearchArguments]):
    """Find lines."""

    name = "search"
    description = (
        "Find lines in the files of the repository, sorted by path. Matching lines are shown as "
        "number:text, lines around them as number-text. The heading always says how many lines "
        "match in all. Files that git ignores, symlinks and files that may hold secrets are left "
        "out."
    )
    arguments = SearchArguments

    def __init__(self, ripgrep: bool = True) -> None:
        """`ripgrep`: use it where it is installed."""
        self._ripgrep = ripgrep

    def effects(self, args: SearchArguments, facts: Facts) -> tuple[Effect, ...]:
        return path_effects(EffectKind.READ, facts.locate(args.path))

    async def run(self, args: SearchArguments, context: Context) -> Result:
        pattern = re.escape(args.pattern) if args.literal else args.pattern
        try:
            pattern = common(pattern)
        except PatternError as error:
            raise ToolError(
                f"`pattern` has {error}. Write it otherwise, or set `literal` to search for it as "
                f"plain text."
            ) from error
        where = context.facts.locate(args.path)
        wanted = await in_thread(lambda stop: _files(args, where, context.readable, stop.is_set))
        program = _ripgrep(context.facts.root) if self._ripgrep else None
        found = _Found(where, args.limit)
        for command, text in _commands(program, pattern, args, wanted.names):
            async for message in _messages(command, text, wanted.base, found):
                found.take(message)
        return Result(_report(args, where, wanted, found))


# --- which files -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Wanted:
    base: Path
    names: list[str]
    """Relative to `base`."""
    secrets: list[str]
    """Left out; relative to the root."""
    closed: int
    """Files left out because a rule does not allow reading them."""
    ignored: int
    """Ignored entries left out; a folder counts once."""


def _files(
    args: SearchArguments, where: Location, readable: Callable[[str], bool], stop: Any
) -> _Wanted:
    try:
        only = matcher([args.glob] if args.glob else [])
        if where.path.is_file():
            name = where.path.name
            return _Wanted(where.path.parent, [name] if not only or only(name) else [], [], 0, 0)
        if not where.path.exists():
            raise ToolError(f"{where.name} does not exist. Use `list` to see what is there.")
        include = ["*"] if args.ignored else []
        listing = walk(where.path, include=include, stop=stop)
    except ContextError as error:
        raise ToolError(str(error)) from error
    names = [file.name for file in listing.files if not only or only(file.name)]
    secrets = [name for name in names if is_secret(_full(where, name))]
    hidden = set(secrets)
    shown = [name for name in names if name not in hidden]
    open_ = [name for name in shown if readable(_full(where, name))]
    return _Wanted(
        where.path,
        open_,
        [_full(where, name) for name in secrets],
        len(shown) - len(open_),
        sum(1 for entry in listing.left if entry.reason == IGNORED_BY_GIT),
    )


def _full(where: Location, name: str) -> str:
    """Name of a file under the searched folder as the other tools take it."""
    if not where.path.is_dir():
        return where.name
    return name if where.name == "." else f"{where.name}/{name}"


# --- looking through them ----------------------------------------------------------------------


def _ripgrep(root: Path) -> str | None:
    """Full path of ripgrep; one that lies in the repository is not trusted to be it."""
    found = shutil.which("rg")
    real = Path(found).resolve() if found else None
    return None if real is None or root in real.parents else str(real)


def _commands(
    program: str | None, pattern: str, args: SearchArguments, names: list[str]
) -> Iterator[tuple[list[str], bytes]]:
    """Command lines with what each gets on standard input."""
    if program is None:
        encoded = [base64.b64encode(os.fsencode(name)).decode("ascii") for name in names]
        asked = {
            "pattern": for_python(pattern), "ignore_case": args.ignore_case, "context": args.context,
            "files": encoded,
        }  # fmt: skip
        yield [sys.executable, "-I", str(_FALLBACK)], json.dumps(asked).encode("ascii")
        return
    options = [
        "--no-config", "--json", "--crlf", "--threads=1", "--no-follow", "--no-pre",
        "--no-search-zip", "--no-mmap", "--ignore-case" if args.ignore_case else "--case-sensitive",
        # Two words: of one, `--regexp==x`, ripgrep 13 also takes the pattern's own sign away.
        f"--context={args.context}", "--regexp", pattern, "--",
    ]  # fmt: skip
    for some in _chunks(names):
        yield [program, *options, *some], b""


def _chunks(names: list[str]) -> Iterator[list[str]]:
    some: list[str] = []
    size = 0
    for name in names:
        some.append(name)
        size += len(os.fsencode(name)) + 9  # its zero byte and its pointer
        if size > _ARGUMENT_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


async def _messages(
    command: list[str], text: bytes, base: Path, found: _Found
) -> AsyncIterator[dict[str, Any]]:
    """Run a search and give its messages as they come. Raises ToolError when it cannot run."""
    environment = {k: v for k, v in os.environ.items() if k != "RIPGREP_CONFIG_PATH"}
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=base,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    problems = asyncio.create_task(process.stderr.read())
    complete = False
    try:
        process.stdin.write(text)
        process.stdin.close()
        rest = b""
        while data := await process.stdout.read(1 << 20):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                message = json.loads(line)
                complete |= message["type"] == "summary"
                yield message
        await process.wait()
        complaints = (await problems).decode("utf-8", "replace").strip()
    finally:
        problems.cancel()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    if not complete:
        raise ToolError(f"The search did not run: {complaints or 'it ended without a word'}")
    found.unread += len(complaints.splitlines())


@dataclass
class _Found:
    """What was found so far; only the first `limit` lines are kept."""

    where: Location
    limit: int
    lines: int = 0
    files: int = 0
    binary: int = 0
    unread: int = 0
    shown: int = 0
    out: list[str] = field(default_factory=list[str])
    _file: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    _matches: int = 0

    def take(self, message: dict[str, Any]) -> None:
        """Take one message of the search program."""
        kind, data = message["type"], message["data"]
        if kind in ("match", "context"):
            self._matches += kind == "match"
            if self.shown + self._matches <= self.limit:
                self._file.append(message)
        elif kind == "end":
            if data["binary_offset"] is not None:
                self.binary += 1
            elif self._matches:
                self._add(_bytes(data["path"]))
            self._file, self._matches = [], 0

    def _add(self, path: bytes) -> None:
        self.files += 1
        self.lines += self._matches
        if not self._file or self.shown >= self.limit:
            return
        self.out.append(_full(self.where, os.fsdecode(path)))
        before = None
        for message in self._file:
            data = message["data"]
            number = data["line_number"]
            if before is not None and number != before + 1 and self._has_context():
                self.out.append("--")
            before = number
            is_match = message["type"] == "match"
            self.shown += is_match
            start = data["submatches"][0]["start"] if is_match and data["submatches"] else 0
            line = _cut(_bytes(data["lines"]), start)
            self.out.append(f"{number}{':' if is_match else '-'}{line}")

    def _has_context(self) -> bool:
        return any(message["type"] == "context" for message in self._file)


def _bytes(value: dict[str, str]) -> bytes:
    return value["text"].encode("utf-8") if "text" in value else base64.b64decode(value["bytes"])


def _cut(line: bytes, match: int) -> str:
    """A line as text, a long one only around the match, with what is left out counted."""
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    text = line.decode("utf-8", "unabridged-escape").replace("\r", "\\r")
    if len(text) <= _LINE:
        return text
    at = len(line[:match].decode("utf-8", "unabridged-escape"))
    start = max(0, min(at - _LINE // 4, len(text) - _LINE))
    end = start + _LINE
    before = f"[{start:,} characters] " if start else ""
    after = f" [{len(text) - end:,} more characters]" if end < len(text) else ""
    return f"{before}{text[start:end]}{after}"


# --- saying it ---------------------------------------------------------------------------------


def _report(args: SearchArguments, where: Location, wanted: _Wanted, found: _Found) -> str:
    scope = f" in {where.name}" if where.name != "." else ""
    scope += f" in files like {args.glob}" if args.glob else ""
    if found.lines:
        lines = plural(found.lines, "matching line")
        heading = f"{lines} in {plural(found.files, 'file')}{scope}"
    else:
        heading = f"No line matches{scope}, of {plural(len(wanted.names), 'file')} searched"
    if found.shown < found.lines:
        heading += (
            f"\nShown: the first {found.shown:,}; narrow `pattern`, `path` or `glob`, or raise "
            f"`limit`"
        )
    return "\n".join([heading, *_left_out(wanted, found), *found.out])


def _left_out(wanted: _Wanted, found: _Found) -> Iterator[str]:
    if found.binary:
        yield f"Not shown: {plural(found.binary, 'binary file matches', 'binary files match')}"
    if wanted.secrets:
        names = ", ".join(wanted.secrets[:5]) + (", ..." if len(wanted.secrets) > 5 else "")
        yield f"Not searched, may hold secrets: {plural(len(wanted.secrets), 'file')} ({names})"
    if wanted.closed:
        yield f"Not searched, a rule does not allow reading them: {plural(wanted.closed, 'file')}"
    if wanted.ignored and not found.lines:
        yield f"Not searched, ignored by git: {plural(wanted.ignored, 'entry', 'entries')}"
    if found.unread:
        yield f"Could not be read: {plural(found.unread, 'file')}"
