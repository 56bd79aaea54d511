"""From a listing to what is given of each file: read, measured, and fitted into the budget.

Files are read only as far as needed: those whose size alone says that they will not fit are never
opened. What a file turns out to be (binary, generated, gone) can change the choice, so choosing
and measuring alternate until every chosen file is measured.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

from . import kinds
from .base import Told
from .errors import ContextError, Stop, check, never
from .history import History, read_history
from .outline import outline
from .pack import decode, frame, frame_text
from .plan import Budget, Candidate, Level, choose, in_order_of_room
from .tokens import Counts, key
from .walk import File, Left, Matcher, Stamp, matcher, read_regular, walk

LARGEST_FILE = 16 << 20
"""Bytes above which a file is not opened."""

AS_ASKED = "as asked"
NO_ROOM = "does not fit"
"""Reasons: of an outline that was asked for; how that of a file begins which lacked room."""

_GUESS_WHOLE = 0.28
"""Tokens a byte, for files not measured yet."""
_BATCH = 32


@dataclass(frozen=True, slots=True)
class Options:
    """What a person or a task asks for. Patterns have .gitignore syntax."""

    include: Sequence[str] = ()
    """Give what the rules leave out: ignored, generated, vendored, minified, lock files."""
    exclude: Sequence[str] = ()
    """Leave out."""
    outline: Sequence[str] = ()
    """Give as outlines only."""
    full: Sequence[str] = ()
    """Give whole or fail; includes what `include` would."""
    named: Sequence[str] = ()
    """Names or patterns the task mentions: they make room last."""
    require_full: bool = False
    """Fail if anything does not fit whole."""
    submodules: bool = False
    """Load submodules as folders."""


@dataclass(frozen=True, slots=True)
class Part:
    """What is given of one file."""

    name: str
    level: Level
    digest: str
    """SHA-256 of the file's bytes."""
    identity: str
    """SHA-256 of what the model is given of it."""
    size: int
    """Bytes of the file."""
    data: bytes
    outline: str
    """Its outline, where `level` says so."""
    tokens: int
    """Of `text`."""

    @property
    def released(self) -> Part:
        """The same without its content, once nobody needs it: a repository is large."""
        return replace(self, data=b"", outline="")

    @property
    def key(self) -> bytes:
        """What stands for `text` where counts are kept."""
        return key(self.level.name.encode(), self.name.encode(), self.identity.encode())

    def count(self, counts: Counts) -> int:
        """Tokens of `text`."""
        return counts.count(self.key, lambda: self.text)

    @property
    def text(self) -> str:
        """The frame that is sent."""
        if self.level is Level.WHOLE:
            return frame(self.name, self.data)
        return frame_text("outline", self.name, self.outline)


@dataclass(slots=True)
class Selection:
    """Everything that is known about what will be given."""

    parts: dict[str, Part] = field(default_factory=dict[str, Part])
    outlined: list[Left] = field(default_factory=list[Left])
    skipped: list[Left] = field(default_factory=list[Left])
    history: History = field(default_factory=History)
    stamps: dict[str, Stamp] = field(default_factory=dict[str, Stamp])
    """Of the files in `parts`, from before they were read."""


def select(
    root: Path,
    options: Options,
    budget: Budget,
    counts: Counts,
    told: Mapping[str, Told] | None = None,
    stop: Stop = never,
) -> Selection:
    """Choose what of the files below `root` fits.

    `told` is what the model already has: levels stay, `budget` is for the others, and the content
    of what has not changed since is not kept.
    Raises ContextError when there is nothing to load, or what must be whole does not fit.
    """
    listing = walk(
        root,
        include=[*options.include, *options.full],
        exclude=options.exclude,
        submodules=options.submodules,
        stop=stop,
    )
    if not listing.files and not listing.left:
        raise ContextError(f"{root}: there are no files here, nothing to run on.")
    check(stop)
    selection = Selection(skipped=list(listing.left), history=read_history(root, stop))
    told = told or {}
    levels = {name: one.level for name, one in told.items()}
    candidates = in_order_of_room(consider(listing.files, options, selection, levels, stop), stop)
    _settle(root, candidates, budget, options, counts, told, selection, stop)
    short = [left for left in selection.skipped if left.reason.startswith(NO_ROOM)]
    short += [left for left in selection.outlined if left.reason != AS_ASKED]
    if options.require_full and short:
        raise ContextError(
            f"{len(short):,} files do not fit whole, {short[0].name} among them: leave some out, "
            "allow outlines, or use a model with a larger window."
        )
    selection.stamps = {name: stamp for name, stamp in listing.files if name in selection.parts}
    selection.outlined.sort()
    selection.skipped.sort()
    return selection


def consider(
    files: Iterable[File],
    options: Options,
    selection: Selection,
    told: Mapping[str, Level],
    stop: Stop = never,
) -> Iterable[Candidate]:
    """Files worth considering, by their names and sizes; the others go to `selection.skipped`."""
    wanted, whole = matcher([*options.include, *options.full]), matcher(options.full)
    outlined, named = matcher(options.outline), matcher(options.named)
    rates = selection.history.rate
    for number, (name, (size, _)) in enumerate(files):
        if number % 1024 == 0:
            check(stop)
        reason = kinds.never_sent(name) or (None if wanted(name) else kinds.left_out(name))
        if reason is None and size > LARGEST_FILE:
            reason = f"larger than {LARGEST_FILE >> 20} MiB"
        if reason is not None:
            selection.skipped.append(Left(name, reason))
            continue
        guess = int(size * _GUESS_WHOLE) + 24
        best = Level.WHOLE
        worst = Level.NAME
        if whole(name):
            worst = Level.WHOLE
        elif name in told:
            best = worst = told[name]
        elif outlined(name):
            best = Level.OUTLINE
        yield Candidate(
            name,
            size,
            kinds.kind(name),
            rates.get(name, 0.0),
            named=named(name),
            best=best,
            worst=worst,
            whole=guess,
            outline=min(guess, 60 + guess // 8),
            told=told.get(name) is best,
        )


def _settle(
    root: Path,
    ordered: list[Candidate],
    budget: Budget,
    options: Options,
    counts: Counts,
    told: Mapping[str, Told],
    selection: Selection,
    stop: Stop,
) -> None:
    """Choose levels and measure what is chosen until the choice stands; fill in `selection`."""
    wanted, asked = matcher([*options.include, *options.full]), matcher(options.outline)
    known: dict[tuple[str, Level], Part] = {}

    def read(job: tuple[str, Level]) -> Part | str:
        name, level = job
        whole = known.get((name, Level.WHOLE))
        data = whole.data if whole and whole.data else _read(root, name, wanted)
        return data if isinstance(data, str) else make_part(name, level, data)

    while True:
        check(stop)
        levels = choose(ordered, budget, stop)
        check(stop)
        jobs = [
            (one.name, level)
            for one, level in zip(ordered, levels, strict=True)
            if level is not Level.NAME and (one.name, level) not in known
        ]
        if not jobs:
            break
        gone: set[str] = set()
        results: list[Part | str] = []
        for number, job in enumerate(jobs):
            if number % _BATCH == 0:
                check(stop)
            results.append(read(job))
        _count([part for part in results if isinstance(part, Part)], counts, stop)
        for number, (job, result) in enumerate(zip(jobs, results, strict=True)):
            if number % _BATCH == 0:
                check(stop)
            if isinstance(result, str):
                selection.skipped.append(Left(job[0], result))
                gone.add(job[0])
            else:
                part = replace(result, tokens=result.count(counts))
                same = told.get(part.name) == Told(part.level, part.identity)
                known[job] = part.released if same else part
        ordered = [one for one in ordered if one.name not in gone]
        for one in ordered:
            if (one.name, Level.WHOLE) in known:
                one.whole = known[one.name, Level.WHOLE].tokens
            if (one.name, Level.OUTLINE) in known:
                one.outline = known[one.name, Level.OUTLINE].tokens

    total = sum(one.tokens(level) for one, level in zip(ordered, levels, strict=True))
    if total > budget.most:
        raise ContextError(
            f"what must be whole has {total:,} tokens and {budget.most:,} fit: ask for less in full, "
            "or use a model with a larger window."
        )
    for one, level in zip(ordered, levels, strict=True):
        if level is Level.NAME:
            selection.skipped.append(Left(one.name, f"{NO_ROOM} ({_KIND_NAMES[one.kind]})"))
            continue
        selection.parts[one.name] = known[one.name, level]
        if level is Level.OUTLINE:
            reason = AS_ASKED if asked(one.name) else f"to make room ({_KIND_NAMES[one.kind]})"
            selection.outlined.append(Left(one.name, reason))


_KIND_NAMES = {
    kinds.Kind.DATA: "data",
    kinds.Kind.GENERATED_LOOKING: "looks generated",
    kinds.Kind.DOCS: "documentation",
    kinds.Kind.TESTS: "tests",
    kinds.Kind.SOURCE: "source",
}


def read_part(root: Path, name: str, level: Level, options: Options, counts: Counts) -> Part | str:
    """One file at a level, or why it is left out."""
    data = _read(root, name, matcher([*options.include, *options.full]))
    if isinstance(data, str):
        return data
    part = make_part(name, level, data)
    return replace(part, tokens=part.count(counts))


def _read(root: Path, name: str, wanted: Matcher) -> bytes | str:
    """The bytes of a file, or why it is left out."""
    data = read_regular(f"{root}/{name}", LARGEST_FILE)
    if isinstance(data, str):
        return data
    reason = kinds.unreadable(data)
    if reason is None and not wanted(name):
        reason = kinds.left_out_content(name, data)
    return data if reason is None else reason


def make_part(name: str, level: Level, data: bytes) -> Part:
    """A file at a level, its tokens not yet counted."""
    digest = sha256(data).hexdigest()
    if level is Level.WHOLE:
        return Part(name, level, digest, digest, len(data), data, "", 0)
    text = outline(name, decode(data)[0])
    identity = sha256(text.encode()).hexdigest()
    return Part(name, level, digest, identity, len(data), b"", text, 0)


def _count(parts: Sequence[Part], counts: Counts, stop: Stop) -> None:
    """Count what was never counted, on all cores.

    Only that: the rest of the work holds the interpreter lock, and threads would slow it down.
    """
    if not counts.exact:
        return
    new: list[Part] = []
    for number, part in enumerate(parts):
        if number % _BATCH == 0:
            check(stop)
        if not counts.knows(part.key):
            new.append(part)
    if len(new) < 2:
        return

    def count(batch: Sequence[Part]) -> None:
        for part in batch:
            part.count(counts)

    batches = [new[at : at + _BATCH] for at in range(0, len(new), _BATCH)]
    pool = ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1))
    try:
        for _ in pool.map(count, batches):
            check(stop)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
