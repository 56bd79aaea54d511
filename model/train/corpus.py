"""What a step reads, as a function of its number: sessions from files, mixed with copying.

Nothing is remembered between steps, so a run goes on exactly where it stopped, and several
processes share the packs of a step without talking.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..chat.tokenizer import Tokenizer
from . import copying
from .packing import Pack, Sample, Shown, fill, sample_of_session
from .recipe import Phase, Recipe
from .renaming import NAMED, RARE, renamed, spellings, words_of

_TRIES = 1000


class CorpusError(ValueError):
    """Session files that cannot be used; the message names file and line."""


class Sessions:
    """The sessions of some files of JSON lines, read one at a time.

    Args:
        files: in order; they may be empty.
        split: take only lines whose `split` is this.

    Raises:
        CorpusError: a file cannot be read, or a line is no session.
    """

    def __init__(self, files: Iterable[Path], split: str) -> None:
        self._places: list[tuple[Path, int]] = []
        self._seen: Counter[str] = Counter()
        """In how many sessions each word is."""
        for path in files:
            try:
                self._index(path, split)
            except OSError as error:
                raise CorpusError(f"{path}: {error.strerror or error}") from None

    def _index(self, path: Path, split: str) -> None:
        offset = 0
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):  # still being written
                    break
                session = _session(line, path, number)
                if session["split"] == split:
                    self._places.append((path, offset))
                    self._seen.update(words_of(session))
                offset += len(line)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> dict[str, Any]:
        path, offset = self._places[index]
        with path.open("rb") as file:
            file.seek(offset)
            return _session(file.readline(), path, index)

    def made_up(self, session: dict[str, Any]) -> list[str]:
        """The words of a session's names, as far as they mean nothing outside of names."""
        limit = max(1, RARE * len(self))
        words = words_of(session)
        return [word for word in words if word in NAMED or self._seen[word] <= limit]


def _session(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        session = json.loads(line)
    except ValueError as error:
        raise CorpusError(f"{path}: line {number}: not JSON ({error})") from None
    if not isinstance(session, dict) or not {"family", "split", "messages"} <= session.keys():
        raise CorpusError(f"{path}: line {number}: not a session")
    return session


class Mixture:
    """The packs of a recipe.

    Args:
        sessions: may be empty where every phase is all copying.
    """

    def __init__(self, recipe: Recipe, tokenizer: Tokenizer, sessions: Sessions) -> None:
        if not len(sessions) and any(phase.copies < 1 for phase in recipe.phases):
            raise CorpusError("the recipe asks for sessions, but there are none")
        self.recipe, self.tokenizer, self.sessions = recipe, tokenizer, sessions
        self._pieces = spellings(tokenizer)

    def pack(self, step: int, number: int) -> Pack:
        """One of the packs of a step.

        Raises:
            CorpusError: no session is short enough for the step's phase.
        """
        recipe, phase = self.recipe, self.recipe.phase(step)
        rng = random.Random(f"{recipe.seed}/{step}/{number}")
        copied = read = 0

        def draw() -> Sample:
            nonlocal copied, read
            if copied <= phase.copies * (copied + read) and phase.copies > 0:
                sample = copying.draw(rng, self.tokenizer, phase.drills)
                copied += len(sample)
            else:
                sample = self._session(rng, phase)
                read += len(sample)
            return sample

        # Which comes first decides what a short pack holds: leave it to chance.
        if rng.random() >= phase.copies:
            read = 1
        return fill(draw, phase.pack_tokens)

    def _session(self, rng: random.Random, phase: Phase) -> Sample:
        weights = (self.recipe.context_weight, self.recipe.start_weight)
        for _ in range(_TRIES):
            session = self.sessions[rng.randrange(len(self.sessions))]
            chance = rng.random() - phase.bare
            shown: Shown = "bare" if chance < 0 else "words" if chance < phase.words else "all"
            if rng.random() < phase.renamed:
                session = renamed(session, self.sessions.made_up(session), rng, self._pieces)
            sample = sample_of_session(session, self.tokenizer, *weights, shown)
            if len(sample) <= phase.longest:
                return sample
        raise CorpusError(f"of {_TRIES} sessions none has {phase.longest} tokens or fewer")


def held_out(
    tokenizer: Tokenizer, sessions: Sequence[dict[str, Any]], copies: int, seed: int = 1
) -> list[Sample]:
    """What a run is judged by: the given sessions, and copying from another seed."""
    rng = random.Random(f"held out/{seed}")
    samples = [copying.draw(rng, tokenizer) for _ in range(copies)]
    return samples + [sample_of_session(session, tokenizer) for session in sessions]
