"""The door: a repository as the messages that load it.

    load(root, window=1_048_576) -> segments, one user message each

The segments depend on the files, the commits and the options only: no clock, no random id, no
path of this machine is in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import Cancelled, ContextError, Stop, never
from .manifest import manifest
from .pack import PREAMBLE
from .plan import LOAD_SHARE, Level
from .selection import Options, Part, Selection, select
from .tokens import MESSAGE_TOKENS, Counter, Counts, Estimate, Exact, estimate
from .walk import Left

__all__ = [
    "Cancelled",
    "ContextError",
    "Counter",
    "Estimate",
    "Exact",
    "Left",
    "Load",
    "Segment",
    "estimate",
    "load",
]

_LARGEST_SEGMENT = 32_768
_SMALLEST_SEGMENT = 1_024
_SEGMENT_SHARE = 32
"""Segments of a window that is neither small nor large."""
_SEGMENT_CHARS = 400_000
"""Longer text is cut by K3's tokeniser, and counts of parts would no longer add up."""


@dataclass(frozen=True)
class Segment:
    """One user message of whole files."""

    text: str
    files: dict[str, str]
    """Files held whole: name -> SHA-256 of their bytes."""


@dataclass(frozen=True)
class Load:
    """A repository, ready to send."""

    segments: tuple[Segment, ...]
    """In the order of sending; the manifest is in the last one."""
    tokens: int
    """Of all segments, with the room for the chat format around each."""
    exact: bool
    """Whether `tokens` was counted with the model's vocabulary."""
    files: int
    """How many files are given whole."""
    size: int
    """Their bytes."""
    outlined: tuple[Left, ...]
    skipped: tuple[Left, ...]


def load(
    root: Path,
    *,
    window: int,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    outline: Sequence[str] = (),
    full: Sequence[str] = (),
    named: Sequence[str] = (),
    require_full: bool = False,
    submodules: bool = False,
    cache: Path | None = None,
    counter: Counter | None = None,
    stop: Stop = never,
) -> Load:
    """Read the repository at `root` into segments that fill at most 70 % of `window` tokens.

    Args:
        include: patterns (.gitignore syntax) of what the rules would leave out but should not.
        exclude: patterns of what to leave out.
        outline: patterns of files to give as outlines only.
        full: patterns of files that must be whole; they are never demoted.
        named: names the task mentions; they make room last.
        require_full: fail instead of demoting anything.
        cache: folder for what makes the next load faster; may be deleted at any time.
        counter: `Exact` over the model's vocabulary; an estimate when there is none.
        stop: asked now and then; true raises Cancelled.

    Raises ContextError, one line for a person, when the root cannot be read, has no files, or
    what must be whole does not fit.
    """
    counter = counter or Estimate()
    counts = Counts(cache, counter)
    options = Options(include, exclude, outline, full, named, require_full, submodules)
    budget = int(window * LOAD_SHARE)
    limit = min(_LARGEST_SEGMENT, max(_SMALLEST_SEGMENT, window // _SEGMENT_SHARE))
    reserve = min(8_000, budget // 8)
    around = 2 * MESSAGE_TOKENS * (budget // limit + 1) + counts.text(PREAMBLE)
    if budget - reserve - around < _SMALLEST_SEGMENT:
        raise ContextError(f"a window of {window:,} tokens is too small to load a repository.")
    try:
        selection = select(root, options, budget - reserve - around, counts, stop)
        return _assemble(selection, limit, reserve, counts)
    finally:
        counts.save()


def _assemble(selection: Selection, limit: int, reserve: int, counts: Counts) -> Load:
    whole = [part for part in selection.parts.values() if part.level is Level.WHOLE]
    size = sum(len(part.data) for part in whole)
    closing = manifest(
        len(whole),
        size,
        selection.outlined,
        selection.skipped,
        lambda text: counts.text(text) <= reserve,
    )
    parts = [selection.parts[name] for name in selection.history.oldest_first(selection.parts)]
    pieces = [
        _Piece(PREAMBLE, counts.text(PREAMBLE)),
        *(_Piece(part.text, part.tokens, part) for part in parts),
        _Piece(closing, counts.text(closing)),
    ]
    cut = list(_cut(pieces, limit))
    return Load(
        segments=tuple(_segment(pieces) for pieces in cut),
        tokens=sum(piece.tokens for piece in pieces) + MESSAGE_TOKENS * len(cut),
        exact=counts.exact,
        files=len(whole),
        size=size,
        outlined=tuple(selection.outlined),
        skipped=tuple(selection.skipped),
    )


@dataclass(frozen=True, slots=True)
class _Piece:
    text: str
    tokens: int
    part: Part | None = None


def _cut(pieces: Iterable[_Piece], limit: int) -> Iterable[list[_Piece]]:
    """Whole pieces, at most `limit` tokens together; a larger one stands alone."""
    segment: list[_Piece] = []
    tokens = chars = 0
    for piece in pieces:
        over = tokens + piece.tokens > limit or chars + len(piece.text) > _SEGMENT_CHARS
        if segment and over:
            yield segment
            segment, tokens, chars = [], 0, 0
        segment.append(piece)
        tokens += piece.tokens
        chars += len(piece.text)
    yield segment


def _segment(pieces: Sequence[_Piece]) -> Segment:
    whole = [piece.part for piece in pieces if piece.part and piece.part.level is Level.WHOLE]
    text = "".join(piece.text for piece in pieces)
    return Segment(text, {part.name: part.digest for part in whole})
