"""How many tokens text has: exactly, with the model's vocabulary, or as an estimate marked as such.

Counting costs 15 to 25 MB/s a core. A vocabulary is loaded only when something must be counted,
tiktoken's core releases the interpreter lock while it counts, and counts are kept on disk by
content, so that a second run counts only what changed.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from hashlib import blake2b, sha256
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from .errors import ContextError

if TYPE_CHECKING:
    from ...model.chat.tokenizer import Tokenizer

MESSAGE_TOKENS = 16
"""Room for what the chat format puts around one message."""


class Counter(Protocol):
    """Counts tokens of ordinary text."""

    exact: bool
    identity: str
    """Names what the counts depend on, for stores of counts."""

    def count(self, text: str) -> int:
        """Tokens of `text`, encoded on its own. May be called from several threads."""
        ...


# --- estimate ----------------------------------------------------------------------------------


def _others(kept: bytes) -> bytes:
    return bytes(byte for byte in range(256) if byte not in kept)


# Tokens for each byte of a class, fitted to the larger of the counts of two public vocabularies
# over 5,155 files (Python, C, C++, JavaScript, Markdown, JSON, locales), then raised by 10 %.
# Against that larger count, by file: half within -1 % … +14 %, nine in ten within -12 % … +27 %;
# the sum over all files is 3 % too high.
_CLASSES = (
    (_others(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"), 0.23),
    (_others(b"0123456789"), 0.90),
    (_others(b"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"), 0.57),
    (_others(b" \t"), 0.11),
    (_others(b"\r\n"), 0.78),
    (_others(bytes(range(128, 256))), 0.57),
)


def estimate(data: bytes) -> int:
    """About how many tokens `data` has, rather too many than too few; see the measured error."""
    total = sum(len(data.translate(None, others)) * tokens for others, tokens in _CLASSES)
    return int(total) + 1


class Estimate:
    """The counter where no vocabulary is known."""

    exact = False
    identity = "estimate"

    def count(self, text: str) -> int:
        """The estimate for `text`."""
        return estimate(text.encode("utf-8", "surrogatepass")) + 1


# --- exact -------------------------------------------------------------------------------------


class Exact:
    """The counter over a `tiktoken.model` file, or a folder that holds one.

    Raises ContextError when the file cannot be used, some of that only at the first count.
    """

    exact = True

    def __init__(self, vocabulary: Path) -> None:
        self.path = vocabulary / "tiktoken.model" if vocabulary.is_dir() else vocabulary
        try:
            self.identity = sha256(self.path.read_bytes()).hexdigest()
        except OSError as error:
            raise ContextError(
                f"{self.path}: cannot read the vocabulary: {error.strerror}"
            ) from error
        self._lock = Lock()
        self._tokenizer: Tokenizer | None = None

    def count(self, text: str) -> int:
        """The number of tokens of `text`."""
        with self._lock:
            tokenizer = self._tokenizer or self._load()
            self._tokenizer = tokenizer
        return tokenizer.count(text)

    def _load(self) -> Tokenizer:
        try:
            from ...model.chat.tokenizer import Tokenizer

            return Tokenizer.from_file(self.path)
        except ImportError as error:
            raise ContextError(
                "exact token counts need tiktoken: install `unabridged[model]`, or leave the "
                "vocabulary out of the settings to work with estimates."
            ) from error
        except ValueError as error:
            raise ContextError(str(error)) from error


# --- kept counts -------------------------------------------------------------------------------

_RECORD = struct.Struct("<16sI")
_MOST_RECORDS = 2_000_000


class Counts:
    """Counts on disk by content: an append-only file of 20-byte records. Losing it costs time only.

    A torn or foreign tail is ignored; a file that cannot be written is done without.
    """

    def __init__(self, folder: Path | None, counter: Counter) -> None:
        name = blake2b(counter.identity.encode(), digest_size=16).hexdigest()
        self._path = folder / f"{name}.counts" if folder and counter.exact else None
        self._known: dict[bytes, int] = {}
        self._new: list[bytes] = []
        self._counter = counter
        self.exact = counter.exact
        if self._path is not None:
            with contextlib.suppress(OSError):
                data = self._path.read_bytes()
                whole = len(data) - len(data) % _RECORD.size
                self._known = dict(_RECORD.iter_unpack(memoryview(data)[:whole]))

    def count(self, key: bytes, text: Callable[[], str]) -> int:
        """Tokens of what `text` gives, which `key` (16 bytes) determines."""
        tokens = self._known.get(key)
        if tokens is None:
            tokens = self._known[key] = self._counter.count(text())
            self._new.append(_RECORD.pack(key, tokens))
        return tokens

    def knows(self, key: bytes) -> bool:
        """Whether `count` would answer at once."""
        return key in self._known

    def text(self, text: str) -> int:
        """Tokens of a text that nothing shorter stands for."""
        return self.count(key(b"text", text.encode()), lambda: text)

    def save(self) -> None:
        """Append what was counted since."""
        if self._path is None or not self._new:
            return
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if len(self._known) > _MOST_RECORDS:
                self._path.unlink(missing_ok=True)
            with self._path.open("ab", buffering=0) as file:
                file.truncate(file.tell() - file.tell() % _RECORD.size)
                file.write(b"".join(self._new))
        self._new.clear()


def key(*parts: bytes) -> bytes:
    """16 bytes that stand for the parts."""
    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()
