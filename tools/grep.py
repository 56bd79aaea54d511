"""Line search without ripgrep: a small program that speaks ripgrep's JSON.

It is a process of its own because a regular expression can take forever in Python, and a process
can be stopped. Standard input is one JSON object: `pattern`, `ignore_case`, `context`, `files`.

Like ripgrep it takes lines to end in LF or CRLF, reads UTF-16 where a BOM says so, and says where a
file holds a NUL byte. Bytes that are not UTF-8 are surrogates to the pattern.
"""

from __future__ import annotations

import base64
import codecs
import json
import os
import re
import stat
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

_BLOCK = 1 << 20


def search(files: list[str], pattern: re.Pattern[str], context: int) -> Iterator[dict[str, Any]]:
    """ripgrep's `match`, `context` and `end` messages, file by file."""
    for name in files:
        try:
            data = _read(name)
        except OSError as error:
            sys.stderr.write(f"{name}: {error.strerror}\n")
            continue
        for bom, codec in ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")):
            if data.startswith(bom):
                data = data[2:].decode(codec, "replace").encode("utf-8")
        data = data.removeprefix(codecs.BOM_UTF8)
        nul = data.find(b"\0")
        found = _search_one(name, data.replace(b"\0", b"\n"), pattern, context)
        if first := next(found, None):
            if nul < 0:
                yield first
                yield from found
            yield _message("end", name, binary_offset=None if nul < 0 else nul)


def _read(name: str) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(0, "not a regular file")
        return file.read()


def _search_one(
    name: str, data: bytes, pattern: re.Pattern[str], context: int
) -> Iterator[dict[str, Any]]:
    before: deque[tuple[int, str]] = deque(maxlen=context)
    after = 0
    for number, line in enumerate(_lines(data), 1):
        match = pattern.search(line.removesuffix("\r"))
        if match:
            for earlier in before:
                yield _line("context", name, *earlier)
            before.clear()
            start = len(_encoded(line[: match.start()]))
            yield _line("match", name, number, line, submatches=[{"start": start}])
            after = context
        elif after:
            yield _line("context", name, number, line)
            after -= 1
        elif context:
            before.append((number, line))


def _lines(data: bytes) -> Iterator[str]:
    """Lines without their line feed, block by block: a list of all of them can be large."""
    at = 0
    while at < len(data):
        end = data.find(b"\n", at + _BLOCK)
        end = end if end >= 0 else len(data) - data.endswith(b"\n")
        yield from data[at:end].decode("utf-8", "surrogateescape").split("\n")
        at = end + 1


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _line(kind: str, name: str, number: int, line: str, **more: Any) -> dict[str, Any]:
    return _message(kind, name, lines=_value(_encoded(line)), line_number=number, **more)


def _message(kind: str, name: str, **data: Any) -> dict[str, Any]:
    return {"type": kind, "data": {"path": _value(os.fsencode(name)), **data}}


def _value(data: bytes) -> dict[str, str]:
    try:
        return {"text": data.decode("utf-8")}
    except UnicodeDecodeError:
        return {"bytes": base64.b64encode(data).decode("ascii")}


def main() -> int:
    """Search what standard input says; 0 whether or not anything was found."""
    asked = json.load(sys.stdin)
    flags = re.IGNORECASE if asked["ignore_case"] else 0
    files = [os.fsdecode(base64.b64decode(name)) for name in asked["files"]]
    for message in search(files, re.compile(asked["pattern"], flags), asked["context"]):
        sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.write('{"type": "summary", "data": {}}\n')
    return 0


if __name__ == "__main__":
    sys.exit(main())
