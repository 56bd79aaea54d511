"""What a command prints: bounded in memory, whole on disk, readable for the model.

Short output stays in memory; longer output goes to a file as it comes, and the model gets its
head and tail with the cut stated.
"""

from __future__ import annotations

import codecs
import os
import re
from dataclasses import dataclass
from pathlib import Path

HEAD = 12 * 1024
TAIL = 20 * 1024
"""Bytes shown of a longer output; errors tend to be at its end."""

LIMIT = 256 * 1024 * 1024
"""Bytes after which a command is running away: it is stopped."""

LIVE = 8 * 1024
"""Bytes of output shown live at a time; a flood is thinned, on the screen only."""


class Output:
    """The bytes one command prints, standard output and standard error as they come."""

    def __init__(self, path: Path) -> None:
        self.path = path
        """The file with the whole output; exists once there is more than the model is shown."""
        self.total = 0
        """Bytes printed."""
        self.kept = 0
        """Bytes of them kept; fewer when the disk refuses more."""
        self.problem = ""
        """Why not all of it was kept."""
        self._memory = bytearray()
        self._file: int | None = None

    def feed(self, data: bytes) -> None:
        """Take what was printed next."""
        self.total += len(data)
        if self.problem:
            return
        if self._file is None and self.kept + len(data) <= HEAD + TAIL:
            self._memory += data
            self.kept += len(data)
            return
        try:
            self._spill()
            self._write(data)
        except OSError as error:
            self.problem = f"{self.path}: {error.strerror}"

    @property
    def on_disk(self) -> bool:
        """Whether the file exists."""
        return self._file is not None

    def between(self, start: int, end: int) -> bytes:
        """The kept bytes from `start` to `end`."""
        if self._file is None:
            return bytes(self._memory[start:end])
        return os.pread(self._file, max(0, end - start), start)

    def excerpt(self, start: int = 0) -> str:
        """What the model is shown of the output from byte `start` on."""
        shown, lossless = self._excerpt(start)
        if not lossless and self._file is None and not self.problem:
            try:
                self._spill()  # so that the bytes themselves are kept somewhere
            except OSError as error:
                self.problem = f"{self.path}: {error.strerror}"
        return shown

    def close(self) -> None:
        """Nothing more will come or be read."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            self._memory.clear()

    def _spill(self) -> None:
        if self._file is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._file = os.open(self.path, flags, 0o600)
            memory, self.kept = bytes(self._memory), 0
            self._write(memory)

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        rest = memoryview(data)
        while rest:
            count = os.write(self._file, rest)
            self.kept += count
            rest = rest[count:]

    def _excerpt(self, start: int) -> tuple[str, bool]:
        """(text, whether it says everything)."""
        size = self.kept - start
        lost = self.total - self.kept
        note = f"\n[{lost} more bytes were not kept: {self.problem}]" if lost else ""
        if size <= HEAD + TAIL:
            shown = readable(self.between(start, self.kept))
            return shown.text + note, shown.lossless
        head = self.between(start, start + HEAD)
        head = head[: head.rfind(b"\n", HEAD // 2) + 1] or head
        tail = self.between(self.kept - TAIL, self.kept)
        newline = tail.find(b"\n", 0, TAIL // 2)
        tail = tail[newline + 1 :] if newline >= 0 else tail
        cut = size - len(head) - len(tail)
        gap = f"[{cut} of {size} bytes cut here; the whole output is in {self.path}]"
        parts = [readable(head).text.rstrip("\n"), gap, readable(tail).text]
        return "\n".join(parts) + note, True


@dataclass(frozen=True)
class Shown:
    """Text made of bytes, and whether the text stands for them exactly."""

    text: str
    lossless: bool


_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|\Z)"  # OSC and other strings: titles, links
    r"|\x1b[ -/]*[0-~]",  # the short ones
    re.DOTALL,
)
_OVERWRITTEN = re.compile(r"[^\n]*\r(?=[^\n])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def readable(data: bytes) -> Shown:
    """Bytes as text: what a terminal would show, other controls and bad UTF-8 spelled `\\xNN`."""
    exact = data.decode("utf-8", "backslashreplace")
    text = _ESCAPES.sub("", exact)
    text = text.replace("\r\n", "\n")
    text = _OVERWRITTEN.sub("", text).replace("\r", "")
    text = _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
    return Shown(text, text.encode("utf-8") == data)


class Live:
    """Output for the eyes: text in order, thinned when there is more than anyone can read."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""
        self._skipped = 0

    def feed(self, data: bytes) -> None:
        """Take what was printed next."""
        if len(data) > LIVE:
            self._skipped += len(data) - LIVE
            data = data[-LIVE:]
        text = self._pending + self._decoder.decode(data)
        over = max(0, len(text) - LIVE)
        self._skipped += over
        self._pending = text[over:]

    def take(self) -> str:
        """What to show now; empty if nothing."""
        text, self._pending = self._pending, ""
        if self._skipped:
            text = f"[… {self._skipped} not shown …]\n{text}"
            self._skipped = 0
        return text


def free_path(folder: Path, call_id: str) -> Path:
    """A file for this call's output; ids come from the model's side and may repeat."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", call_id).strip(".")[:80] or "call"
    path, count = folder / f"{name}.out", 1
    while path.exists():
        count += 1
        path = folder / f"{name}-{count}.out"
    return path
