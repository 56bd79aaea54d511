"""Kimi K3's tokenizer: a byte-pair vocabulary in a `tiktoken.model` file plus 256 reserved ids.

The file holds one line for each token, `BASE64 RANK`; ranks run from 0 and double as token ids.
The reserved ids follow the last rank, so a smaller vocabulary (K3-nano) keeps the same layout:
K3 itself has 163,584 base tokens and its `<|open|>` is 163,587.

Two doors, on purpose. `encode` is for text that somebody wrote: whatever it contains, no reserved
id comes out. `encode_control` is for markup that the renderer wrote. (Specification, section 11.)
"""

from __future__ import annotations

import base64
import binascii
import codecs
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import tiktoken

OPEN: Final = "<|open|>"
CLOSE: Final = "<|close|>"
SEP: Final = "<|sep|>"
END_OF_MSG: Final = "<|end_of_msg|>"
MEDIA_BEGIN: Final = "<|media_begin|>"
MEDIA_CONTENT: Final = "<|media_content|>"
MEDIA_END: Final = "<|media_end|>"
MEDIA_PAD: Final = "<|media_pad|>"

RESERVED = 256
# Offset of each named reserved token from the end of the base vocabulary.
_RESERVED_NAMES = {
    0: "[BOS]",
    1: "[EOS]",
    2: END_OF_MSG,
    3: OPEN,
    4: CLOSE,
    5: SEP,
    6: "[start_header_id]",
    7: "[end_header_id]",
    9: "[EOT]",
    18: MEDIA_BEGIN,
    19: MEDIA_CONTENT,
    20: MEDIA_END,
    21: MEDIA_PAD,
    65: "<osagent_mode>",
    254: "[UNK]",
    255: "[PAD]",
}

# Alternatives of the pre-tokeniser, tried in order. `&&` is set intersection (Rust regex syntax).
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_PATTERN = "|".join(
    (
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)

# Long inputs are cut before the byte-pair encoder sees them. The cuts change token ids, so they
# are part of the format: every 400,000 characters, then every 25,000 of an unbroken run.
_MAX_CHARS = 400_000
_MAX_RUN = 25_000
_LONG_RUN = re.compile(rf"(?<!\S)\S{{{_MAX_RUN + 1},}}|(?<!\s)\s{{{_MAX_RUN + 1},}}")

_MAX_FILE_BYTES = 64 * 2**20  # K3's own file is 2.8 MB; nothing larger is read


class TokenizerError(ValueError):
    """A vocabulary file, a text or a token id that cannot be used; the message says which."""


class Tokenizer:
    """Text to token ids and back.

    Args:
        ranks: token bytes to rank; ranks are 0..n-1 and all 256 single bytes are present.
        source: where the vocabulary came from, for error messages.
    """

    def __init__(self, ranks: dict[bytes, int], source: str = "vocabulary") -> None:
        import tiktoken  # 25 ms, and absent from an installation that only talks to an endpoint

        _check_ranks(ranks, source)
        self.source = source
        self.base_size = len(ranks)
        self.vocab_size = self.base_size + RESERVED
        self._ranks = ranks
        self._control = {
            _RESERVED_NAMES.get(offset, f"<|reserved_token_{self.base_size + offset}|>"): (
                self.base_size + offset
            )
            for offset in range(RESERVED)
        }
        self._bpe: tiktoken.Encoding = tiktoken.Encoding(
            name=source,
            pat_str=_PATTERN,
            mergeable_ranks=ranks,
            special_tokens=self._control,
        )
        self.open_id = self._control[OPEN]
        self.close_id = self._control[CLOSE]
        self.sep_id = self._control[SEP]
        self.end_of_msg_id = self._control[END_OF_MSG]
        self.media_pad_id = self._control[MEDIA_PAD]

    @classmethod
    def from_file(cls, path: str | Path) -> Tokenizer:
        """Read a `tiktoken.model` file, or the one in a checkpoint's folder.

        Raises `TokenizerError` naming the file, and the line where there is one.
        """
        path = Path(path)
        if path.is_dir():
            path = path / "tiktoken.model"
        return cls(_read_ranks(path), source=str(path))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the vocabulary, independent of how its file was written."""
        digest = hashlib.sha256()
        for token in sorted(self._ranks, key=self._ranks.__getitem__):
            digest.update(len(token).to_bytes(4, "little") + token)
        return digest.hexdigest()

    def check(self, vocab_size: int, eos_token_id: int) -> None:
        """Hold the vocabulary against a model's configuration.

        Raises `TokenizerError` when the model cannot have been trained with this vocabulary.
        """
        if vocab_size < self.vocab_size or eos_token_id != self.end_of_msg_id:
            raise TokenizerError(
                f"{self.source}: this vocabulary does not belong to the model. It has "
                f"{self.vocab_size:,} ids and ends a message with {self.end_of_msg_id}; the "
                f"model has {vocab_size:,} ids and ends a message with {eos_token_id}."
            )

    def encode(self, text: str) -> list[int]:
        """Ids of ordinary text. Text that looks like a control token stays text.

        Raises `TokenizerError` for a lone surrogate, which has no bytes in UTF-8.
        """
        try:
            # The core rather than `encode_ordinary`, which would replace a surrogate silently.
            encode = self._bpe._core_bpe.encode_ordinary  # pyright: ignore[reportPrivateUsage]
            if len(text) <= _MAX_RUN:
                return encode(text)
            return [token for piece in _split_long(text) for token in encode(piece)]
        except UnicodeEncodeError as error:
            raise TokenizerError(
                f"text cannot be encoded: character {error.start} is the lone surrogate "
                f"U+{ord(error.object[error.start]):04X}, which UTF-8 cannot hold"
            ) from None

    def encode_control(self, text: str) -> list[int]:
        """Ids of markup: control tokens by name, anything between them as ordinary text."""
        token = self._control.get(text)
        if token is not None:
            return [token]
        return self._bpe.encode(text, allowed_special=set(self._control))

    def count(self, text: str) -> int:
        """How many ids `encode(text)` has."""
        return len(self.encode(text))

    def is_control(self, token: int) -> bool:
        """Whether the id is one of the 256 reserved ones."""
        return self.base_size <= token < self.vocab_size

    def decode_bytes(self, tokens: Sequence[int]) -> bytes:
        """The exact bytes of the ids; a control token gives its name.

        Raises `TokenizerError` for an id outside the vocabulary.
        """
        for token in tokens:
            if not 0 <= token < self.vocab_size:
                raise TokenizerError(
                    f"token id {token} is outside the vocabulary of {self.vocab_size:,} ids "
                    f"({self.source})"
                )
        return self._bpe.decode_bytes(tokens)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of the ids. Bytes that are not UTF-8 become U+FFFD; see `decode_bytes`."""
        return self.decode_bytes(tokens).decode("utf-8", errors="replace")


class StreamDecoder:
    """Turns ids into text as they arrive, holding back the bytes of an unfinished character.

    The pieces concatenate to exactly what `Tokenizer.decode` gives for all ids at once.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """Text that is certain after this id; may be empty."""
        return self._utf8.decode(self._tokenizer.decode_bytes((token,)))

    def flush(self) -> str:
        """Whatever is held back, U+FFFD if it is half a character. Ready for new ids after."""
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return rest


def write_ranks(ranks: Iterable[bytes], path: Path) -> None:
    """Write a `tiktoken.model` file: the tokens in rank order."""
    lines = (b"%s %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(ranks))
    path.write_bytes(b"".join(lines))


def _read_ranks(path: Path) -> dict[bytes, int]:
    try:
        size = path.stat().st_size
        if size > _MAX_FILE_BYTES:
            raise TokenizerError(
                f"{path}: {size:,} bytes is too large for a tiktoken vocabulary; is this the "
                "right file?"
            )
        data = path.read_bytes()
    except OSError as error:
        raise TokenizerError(f"{path}: cannot read the vocabulary: {error.strerror}") from error
    if data.startswith(b"version https://git-lfs"):
        raise TokenizerError(f"{path}: this is a Git LFS pointer, not the file; run `git lfs pull`")

    ranks: dict[bytes, int] = {}
    by_rank: dict[int, int] = {}
    for number, line in enumerate(data.splitlines(), start=1):
        if not line:
            continue
        try:
            encoded, digits = line.split()
            token, rank = base64.b64decode(encoded, validate=True), int(digits)
        except (ValueError, binascii.Error):
            raise TokenizerError(
                f"{path}: line {number} is not `BASE64 RANK` but {line[:40]!r}; the file is cut "
                "off or is not a tiktoken vocabulary"
            ) from None
        if token in ranks:
            raise TokenizerError(f"{path}: line {number} repeats the token {token!r}")
        if rank in by_rank:
            raise TokenizerError(
                f"{path}: line {number} repeats rank {rank}, which line {by_rank[rank]} has"
            )
        ranks[token] = rank
        by_rank[rank] = number
    return ranks


def _check_ranks(ranks: dict[bytes, int], source: str) -> None:
    missing = [byte for byte in range(256) if bytes((byte,)) not in ranks]
    if missing:
        raise TokenizerError(
            f"{source}: {len(missing)} of the 256 single bytes are missing, the first is "
            f"0x{missing[0]:02X}; the file is cut off or is not a byte-level vocabulary"
        )
    gaps = set(range(len(ranks))).difference(ranks.values())
    if gaps:
        raise TokenizerError(
            f"{source}: no token has rank {min(gaps)}; ranks must run from 0 to {len(ranks) - 1}"
        )


def _split_long(text: str) -> Iterator[str]:
    for start in range(0, len(text), _MAX_CHARS):
        part = text[start : start + _MAX_CHARS]
        cut = 0
        if _may_hold_long_run(part):
            for run in _LONG_RUN.finditer(part):
                for at in range(run.start() + _MAX_RUN, run.end(), _MAX_RUN):
                    yield part[cut:at]
                    cut = at
        yield part[cut:]


def _may_hold_long_run(part: str) -> bool:
    """A cheap test: a run that must be cut fills one of these half-sized windows."""
    half = _MAX_RUN // 2
    windows = (part[at : at + half] for at in range(0, len(part), half))
    return any(len(window.split(maxsplit=1)) < 2 for window in windows)
