"""The door: a repository as the messages that load it.

    load(root, window=1_048_576) -> segments, one user message each

The segments depend on the files, the commits and the options only: no clock, no random id, no
path of this machine is in them.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from .base import Base, Segment, Store, Told
from .changes import NAMED, OPENING, change
from .errors import Cancelled, ContextError, Stop, never
from .manifest import manifest, news
from .pack import PREAMBLE, Framed, frame, frame_text, unpack
from .plan import GROWN_SHARE, LOAD_SHARE, TIGHT_SHARE, Budget, Level
from .selection import AS_ASKED, NO_ROOM, Options, Part, Selection, read_part, select
from .tokens import MESSAGE_TOKENS, Counter, Counts, Estimate, Exact, estimate
from .walk import IGNORED_BY_GIT, Left, Stamp, matcher

__all__ = [
    "Cancelled",
    "ContextError",
    "Counter",
    "Estimate",
    "Exact",
    "Left",
    "Load",
    "Options",
    "Segment",
    "estimate",
    "load",
]

ABSENT = "absent"
"""Stands in `Segment.files` for a file that is there no more."""

_PLAIN = Options()
_LARGEST_SEGMENT = 32_768
_SMALLEST_SEGMENT = 1_024
_SEGMENT_SHARE = 32
"""Segments of a window that is neither small nor large."""
_SEGMENT_CHARS = 400_000
"""Longer text is cut by K3's tokeniser, and counts of parts would no longer add up."""
_REBUILD_SHARE = 0.2
"""Part of the base that differences may grow to before it is built anew."""
_STALE_SHARE = 0.15
"""Part of it that differences to what keeps its place may cost then."""


@dataclass(frozen=True)
class Load:
    """A repository, ready to send."""

    segments: tuple[Segment, ...]
    """In the order of sending: the base with its manifest, then differences since."""
    tokens: int
    """Of all segments, with the room for the chat format around each."""
    exact: bool
    """Whether `tokens` was counted: with the model's vocabulary, or by the endpoint."""
    files: int
    """How many files are given whole."""
    size: int
    """Their bytes."""
    outlined: tuple[Left, ...]
    skipped: tuple[Left, ...]
    stored: int = 0
    """How many leading segments are those of the load before: an endpoint may have them cached."""
    costs: Mapping[str, int] = field(default_factory=dict[str, int])
    """Tokens of each file that is given, whole or as an outline."""
    began: int = 0
    """When reading began, in ns since the epoch."""
    stamps: Mapping[str, Stamp] = field(default_factory=dict[str, Stamp])
    """Of each file that is given, from before it was read."""
    note: str = ""
    """Who counted `tokens`, or why nobody did, where an endpoint was to."""
    keep: Callable[[], None] = field(default=lambda: None, compare=False, repr=False)
    """Stores the base for the next load, where `load` was told not to; blocking."""


def load(
    root: Path,
    *,
    window: int,
    options: Options = _PLAIN,
    rebuild: bool = False,
    cache: Path | None = None,
    keep: bool = True,
    scale: float = 1.0,
    counter: Counter | None = None,
    stop: Stop = never,
) -> Load:
    """Read the repository at `root` into segments that fill at most 70 % of `window` tokens.

    With a `cache`, the segments begin with those of the load before; what changed since comes
    after them as differences, and with these they fill at most 78 %.

    Args:
        options: what a person asks for.
        rebuild: build the base anew instead of appending differences.
        cache: folder for bases and counts; may be deleted at any time.
        scale: corrects the total of an estimate, by what an endpoint reported before.
        keep: store the base for the next load; off to look first: `Load.keep` does it then.
        counter: `Exact` over the model's vocabulary; an estimate when there is none.
        stop: asked now and then; true raises Cancelled.

    Raises ContextError, one line for a person, when the root cannot be read, has no files, or
    what must be whole does not fit.
    """
    began = time.time_ns()
    counter = counter or Estimate()
    named, options = options.named, replace(options, named=())
    patterns = (options.include, options.exclude, options.outline, options.full)
    identity = window, counter.identity, list(map(list, patterns)), options.submodules
    store = Store(cache, str(root.resolve()), *identity)
    counts = Counts(cache, counter)
    collecting = gc.isenabled()
    # A hundred thousand files are millions of objects that stay: looking for garbage among them,
    # again and again, took a quarter of the time and could not be stopped.
    gc.disable()
    try:
        loader = _Loader(root, window, options, counts, stop)
        previous = store.read()
        opened = loader.extend(previous, store) if previous and not rebuild else None
        base, selection = opened or loader.build(previous, stale=0.0 if rebuild else _STALE_SHARE)
        store_base = partial(store.write, base, loader.contents) if base != previous else _nothing
        if keep:
            store_base()
        extra = loader.named(base, selection, named) if named else ()
        if extra is None:
            base, selection = loader.build(None, named)
            extra = ()
    finally:
        if collecting:
            gc.enable()
        counts.save()
    messages = (*base.messages, *extra)
    now_whole = {name for segment in extra for name in segment.files}
    whole = [part for part in selection.parts.values() if part.level is Level.WHOLE]
    before = previous.messages if previous else ()
    return Load(
        segments=messages,
        tokens=_cost(messages) if counter.exact else int(_cost(messages) * scale),
        exact=counter.exact,
        files=len(whole) + len(now_whole),
        size=sum(part.size for part in whole) + loader.extra_size,
        outlined=tuple(left for left in selection.outlined if left.name not in now_whole),
        skipped=tuple(left for left in selection.skipped if left.name not in now_whole),
        stored=_shared(before, messages),
        costs={name: part.tokens for name, part in selection.parts.items()},
        began=began,
        stamps=selection.stamps,
        keep=_nothing if keep else store_base,
    )


def _nothing() -> None:
    """There is nothing to store."""


def _cost(messages: Iterable[Segment]) -> int:
    return sum(message.tokens + MESSAGE_TOKENS for message in messages)


def _shared(before: Sequence[Segment], now: Sequence[Segment]) -> int:
    same = (a.text == b.text for a, b in zip(before, now, strict=False))
    return sum(1 for _ in itertools.takewhile(bool, same))


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a message."""

    text: str
    tokens: int
    files: dict[str, str] = field(default_factory=dict[str, str])
    name: str = ""
    """Of the file, in a base."""
    told: Told | None = None
    """What of the file, in a base."""


class _Loader:
    """One load: the limits that follow from the window, and what is read on the way."""

    def __init__(
        self, root: Path, window: int, options: Options, counts: Counts, stop: Stop
    ) -> None:
        self._root = root
        self._options = options
        self._counts = counts
        self._stop = stop
        self._window = window
        self._most = int(window * LOAD_SHARE)
        self._limit = min(_LARGEST_SEGMENT, max(_SMALLEST_SEGMENT, window // _SEGMENT_SHARE))
        self._reserve = min(8_000, self._most // 8)
        self.contents: dict[str, bytes] = {}
        """Digest -> bytes of files told by a diff: later diffs start from them."""
        self.extra_size = 0
        around = 2 * MESSAGE_TOKENS * (self._most // self._limit + 2) + counts.text(PREAMBLE)
        self._fixed = self._reserve + around
        if self._most - self._fixed < _SMALLEST_SEGMENT:
            raise ContextError(f"a window of {window:,} tokens is too small to load a repository.")

    def build(
        self, previous: Base | None, named: Sequence[str] = (), stale: float = _STALE_SHARE
    ) -> tuple[Base, Selection]:
        """A base from the files as they are.

        As much of what `previous` froze keeps its place as can, `stale` of its tokens being the
        most that differences to it may cost. The rest, which is sent again anyway, is sorted so
        that what changes stands late.
        """
        budget = Budget(self._most - self._fixed, int(self._window * TIGHT_SHARE) - self._fixed)
        options = replace(self._options, named=named)
        selection = select(self._root, options, budget, self._counts, stop=self._stop)
        kept = list(self._kept(previous, selection, stale)) if previous else []
        names = {piece.name for piece in kept}
        rest = [one for one in _order(selection, previous) if one not in names]
        parts = selection.parts
        sizes = [part.size for part in parts.values() if part.level is Level.WHOLE]
        closing = manifest(
            len(sizes),
            sum(sizes),
            selection.outlined,
            selection.skipped,
            lambda text: self._counts.text(text) <= self._reserve,
        )
        frozen = {piece.name: piece.told for piece in kept if piece.told}
        frozen |= {name: Told(parts[name].level, parts[name].identity) for name in rest}
        files = itertools.chain(kept, (_release(parts, name) for name in rest))
        # The manifest stands alone: where the files end, a state can be kept and found again.
        segments = (
            *_cut(itertools.chain([self._piece(PREAMBLE)], files), self._limit),
            _segment([self._piece(closing)]),
        )
        base = Base(segments, (), frozen, frozen, _left(selection))
        pieces = self._differences(base, selection, Store(None))
        if pieces:
            news = tuple(_cut([self._piece(OPENING), *pieces], self._limit))
            base = replace(base, appended=news, told=_told(selection))
        if _cost(base.messages) > self._most and kept and stale:
            return self.build(previous, named, stale=0)
        return base, selection

    def _kept(self, previous: Base, selection: Selection, stale: float) -> Iterator[_Piece]:
        """The frozen pieces that keep their place."""
        frozen = [part for segment in previous.segments for part in unpack(segment.text)]
        room = stale * sum(segment.tokens for segment in previous.segments)
        for was in frozen:
            told = previous.frozen.get(was.name)
            if told is None:
                return
            piece = self._frozen_piece(was, told)
            part = selection.parts.get(was.name)
            if part is None:
                room -= piece.tokens
            elif told != Told(part.level, part.identity):
                news = part.text
                if told.level is part.level is Level.WHOLE:
                    news = change(was.name, was.data, part.data)
                tokens = self._counts.text(news)
                room -= tokens + (piece.tokens if tokens >= part.tokens else 0)
            if room < 0:
                return
            yield piece

    def _frozen_piece(self, was: Framed, told: Told) -> _Piece:
        if told.level is Level.WHOLE:
            text = frame(was.name, was.data)
            files = {was.name: told.identity}
        else:
            text = frame_text("outline", was.name, was.data.decode())
            files = {}
        return _Piece(text, self._counts.text(text), files, was.name, told)

    def extend(self, base: Base, store: Store) -> tuple[Base, Selection] | None:
        """`base` with the differences since; None when it should be built anew."""
        named = {name for name, why in base.left.items() if _no_room(why)}
        told = {**base.told, **dict.fromkeys(named, Told(Level.NAME, ""))}
        room = int(self._window * GROWN_SHARE) - _cost(base.messages)
        try:
            budget = Budget(room, room)
            selection = select(
                self._root, self._options, budget, self._counts, told, stop=self._stop
            )
        except ContextError:
            return None
        demoted = {name for name, why in selection.skipped if _no_room(why)}
        demoted |= {name for name, why in selection.outlined if why != AS_ASKED}
        if any(name not in told for name in demoted):
            return None  # a new file lacks room: everything is weighed anew
        pieces = self._differences(base, selection, store)
        if not pieces:
            return base, selection
        news = tuple(_cut([self._piece(OPENING), *pieces], self._limit))
        appended = (*base.appended, *news)
        frozen = sum(segment.tokens for segment in base.segments)
        grown = sum(segment.tokens for segment in appended)
        if _cost(news) > room or grown > _REBUILD_SHARE * frozen:
            return None
        base = replace(base, appended=appended, told=_told(selection), left=_left(selection))
        return base, selection

    def named(
        self, base: Base, selection: Selection, patterns: Sequence[str]
    ) -> tuple[Segment, ...] | None:
        """Messages with what the task names and the base does not hold whole.

        They belong to one session and are not kept. None when they do not fit.
        """
        match = matcher(patterns)
        lacking = [*selection.outlined, *(one for one in selection.skipped if _no_room(one.reason))]
        names = sorted(left.name for left in lacking if match(left.name))
        if not names:
            return ()
        parts: list[Part] = []
        for name in names:
            part = read_part(self._root, name, Level.WHOLE, self._options, self._counts)
            if isinstance(part, Part):
                parts.append(part)
        messages = tuple(_cut([self._piece(NAMED), *map(_piece, parts)], self._limit))
        if _cost(base.messages) + _cost(messages) > self._window * GROWN_SHARE:
            return None
        self.extra_size = sum(part.size for part in parts)
        return messages

    def _differences(self, base: Base, selection: Selection, store: Store) -> list[_Piece]:
        """What the model does not know yet, by name."""
        pieces: list[_Piece] = []
        for name, part in sorted(selection.parts.items()):
            told = base.told.get(name)
            if told == Told(part.level, part.identity):
                continue
            old = None
            if told and told.level is part.level is Level.WHOLE:
                old = store.content(base, name)
            if old is None:
                pieces.append(_piece(part))
            else:
                pieces.append(self._piece(change(name, old, part.data), {name: part.digest}))
            if part.level is Level.WHOLE:
                self.contents[part.digest] = part.data
        left = [
            one
            for one in selection.skipped
            if base.left.get(one.name) != one.reason and one.reason != IGNORED_BY_GIT
        ]
        present = {one.name for one in selection.skipped} | set(selection.parts)
        gone = sorted((set(base.told) | set(base.left)) - present)
        if left or gone:
            lost = [*gone, *(one.name for one in left if one.reason.startswith("deleted"))]
            pieces.append(self._piece(news(left, gone), dict.fromkeys(lost, ABSENT)))
        return pieces

    def _piece(self, text: str, files: dict[str, str] | None = None) -> _Piece:
        return _Piece(text, self._counts.text(text), files or {})


def _piece(part: Part) -> _Piece:
    files = {part.name: part.digest} if part.level is Level.WHOLE else {}
    told = Told(part.level, part.identity)
    return _Piece(part.text, part.tokens, files, part.name, told)


def _release(parts: dict[str, Part], name: str) -> _Piece:
    """The piece of a part, whose content it holds from here on."""
    piece = _piece(parts[name])
    parts[name] = parts[name].released
    return piece


def _no_room(reason: str) -> bool:
    return reason.startswith(NO_ROOM)


def _left(selection: Selection) -> dict[str, str]:
    return {name: why for name, why in selection.skipped if why != IGNORED_BY_GIT}


def _told(selection: Selection) -> dict[str, Told]:
    return {name: Told(part.level, part.identity) for name, part in selection.parts.items()}


def _order(selection: Selection, previous: Base | None) -> list[str]:
    """The files of a new base in their order.

    Without a previous one: longest unchanged first, which is the same on every clone. Else by
    recent changes per byte, fewest first.
    """
    history, parts = selection.history, selection.parts
    if previous is None:
        return history.oldest_first(parts)

    def rate_per_byte(name: str) -> float:
        told = Told(parts[name].level, parts[name].identity)
        changed_since = previous.frozen.get(name) != told
        return (history.rate.get(name, 0.0) + changed_since) / (parts[name].size + 1)

    return sorted(parts, key=lambda name: (rate_per_byte(name), name))


def _cut(pieces: Iterable[_Piece], limit: int) -> Iterable[Segment]:
    """Messages of whole pieces, at most `limit` tokens each; a larger piece stands alone."""
    held: list[_Piece] = []
    tokens = chars = 0
    for piece in pieces:
        over = tokens + piece.tokens > limit or chars + len(piece.text) > _SEGMENT_CHARS
        if held and over:
            yield _segment(held)
            held, tokens, chars = [], 0, 0
        held.append(piece)
        tokens += piece.tokens
        chars += len(piece.text)
    yield _segment(held)


def _segment(pieces: Sequence[_Piece]) -> Segment:
    text = "".join(piece.text for piece in pieces)
    files = {name: digest for piece in pieces for name, digest in piece.files.items()}
    return Segment(text, files, sum(piece.tokens for piece in pieces))
