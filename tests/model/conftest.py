"""A small byte-level vocabulary, trained here (the real one is Moonshot's), and a model to play."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
import torch

from unabridged.model.chat.tokenizer import Tokenizer

_SAMPLE = (
    'message role="system" type="tool-declare" role="user" role="assistant" tool="name" index="1" '
    'think response tools call argument key="city" type="string" json object number boolean null '
    "<|open|> <|close|> <|sep|> <|end_of_msg|> def return self import class for in if else the and "
    "日本語の本 日本 你好世界 你好 naïve café Ünïcödé 👩‍💻 🎉🎉 don't we're I'll 123 456 12 == != -> \n\n    "
) * 3


def train_ranks(sample: str, merges: int) -> dict[bytes, int]:
    """Plain byte-pair training: join the commonest pair, again and again."""
    ranks = {bytes((byte,)): byte for byte in range(256)}
    words = Counter(tuple(bytes((b,)) for b in f" {word}".encode()) for word in sample.split(" "))
    for _ in range(merges):
        pairs: Counter[tuple[bytes, bytes]] = Counter()
        for word, count in words.items():
            for pair in pairwise(word):
                pairs[pair] += count
        if not pairs:
            break
        left, right = max(pairs, key=lambda pair: (pairs[pair], pair))
        ranks[left + right] = len(ranks)
        joined: Counter[tuple[bytes, ...]] = Counter()
        for word, count in words.items():
            pieces: list[bytes] = []
            for piece in word:
                if pieces and pieces[-1] == left and piece == right:
                    pieces[-1] = left + right
                else:
                    pieces.append(piece)
            joined[tuple(pieces)] += count
        words = joined
    return ranks


@pytest.fixture(scope="session")
def ranks() -> dict[bytes, int]:
    return train_ranks(_SAMPLE, 256)


@pytest.fixture(scope="session")
def tokenizer(ranks: dict[bytes, int]) -> Tokenizer:
    return Tokenizer(ranks)


class Playback:
    """A model for the tests of what stands around a model: it says what it is told to say.

    `say(tokens)` gives the next id after the tokens read so far, so everything is exact, and
    `read` counts what was really read.
    """

    def __init__(self, vocab_size: int, say: Callable[[list[int]], int]) -> None:
        self.vocab_size = vocab_size
        self.say = say
        self.read = 0
        self.batches: list[int] = []
        self.alive: weakref.WeakSet[PlaybackState] = weakref.WeakSet()

    def _state(self, tokens: list[int]) -> PlaybackState:
        state = PlaybackState(self, tokens)
        self.alive.add(state)
        return state

    def new_state(self) -> PlaybackState:
        return self._state([])

    def state_from_tensors(self, tensors: dict[str, torch.Tensor]) -> PlaybackState:
        return self._state(tensors["tokens"].tolist())

    def extend(self, state: PlaybackState, tokens: Sequence[int]) -> torch.Tensor:
        self.read += len(tokens)
        state.tokens += tokens
        logits = torch.zeros(self.vocab_size)
        logits[self.say(state.tokens)] = 50.0
        return logits

    def step(self, states: Sequence[PlaybackState], tokens: Sequence[int]) -> torch.Tensor:
        self.batches.append(len(states))
        rows = [self.extend(s, [t]) for s, t in zip(states, tokens, strict=True)]
        return torch.stack(rows)


class PlaybackState:
    def __init__(self, model: Playback, tokens: list[int]) -> None:
        self.model = model
        self.tokens = tokens

    def fork(self) -> PlaybackState:
        return self.model._state(list(self.tokens))

    def to_tensors(self) -> dict[str, torch.Tensor]:
        return {"tokens": torch.tensor(self.tokens, dtype=torch.int32)}


@pytest.fixture(scope="session")
def playback() -> type[Playback]:
    return Playback


class Actor(Playback):
    """Answers a conversation with the markup that `lines` gives for its last user message."""

    def __init__(self, tokenizer: Tokenizer, lines: dict[str, str]) -> None:
        super().__init__(tokenizer.vocab_size, self._next)
        self._tokenizer = tokenizer
        self._lines = {ask: tokenizer.encode_control(reply) for ask, reply in lines.items()}
        self._opening = tokenizer.encode_control("<|open|>think<|sep|>")

    def _next(self, tokens: list[int]) -> int:
        # Positions after the last opening of a think channel: the reply so far.
        width = len(self._opening)
        at = next(
            (
                n
                for n in range(len(tokens), width - 1, -1)
                if tokens[n - width : n] == self._opening
            ),
            None,
        )
        if at is None:
            return 0  # in the middle of a prompt; nobody looks
        heard = self._tokenizer.decode(tokens[:at]).rsplit('role="user"<|sep|>', 1)[-1]
        reply = self._lines[heard.split("<|close|>")[0]]
        return reply[len(tokens) - at] if len(tokens) - at < len(reply) else 0


@pytest.fixture(scope="session")
def actor() -> type[Actor]:
    return Actor
