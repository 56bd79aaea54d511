"""Made-up sequences with two things to learn: what was just said, and what is always so.

Recall: pairs of a key and a value, some keys with a new value later on; then keys alone, each to be
answered with its latest value. Nothing of it can be learnt by heart, and an answer depends on one
earlier place among many.

Chain: letters where each follows from the two before it, by a table of probabilities that is the
same in all sequences. It is learnt by heart, in the weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

KEYS = VALUES = 64
LETTERS = 16
VOCABULARY = KEYS + VALUES + LETTERS
_FOLLOWERS = 4
"""Letters that may follow two others, with probabilities 1/2, 1/4, 1/8 and 1/8."""
_PROBABILITIES = (0.5, 0.25, 0.125, 0.125)
CHAIN_ENTROPY = -sum(p * math.log(p) for p in _PROBABILITIES)
"""Nats a letter that nobody can predict."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences of one length."""

    tokens: Tensor  # [B, T] int64
    answers: Tensor  # [B, T] bool: the token after this one answers a key
    letters: Tensor  # [B, T] bool: the token after this one is a letter with two before it


@dataclass(frozen=True, slots=True)
class Recall:
    """How hard recalling is.

    Args:
        pairs: keys told at first.
        changed: of these, how many are told once more, with another value.
        asked: keys asked for.
        chain: letters that come before all that.
    """

    pairs: int
    changed: int
    asked: int
    chain: int = 0

    def draw(self, count: int, generator: torch.Generator) -> Batch:
        """`count` sequences of chain + 2 (pairs + changed + asked) tokens."""

        def numbers(width: int) -> Tensor:
            """Different numbers below KEYS, [count, width]."""
            return torch.rand(count, KEYS, generator=generator).argsort(1)[:, :width]

        def values(width: int) -> Tensor:
            return torch.randint(KEYS, KEYS + VALUES, (count, width), generator=generator)

        keys = numbers(self.pairs)
        first, second = values(self.pairs), values(self.changed)
        latest = torch.cat([second, first[:, self.changed :]], 1)  # the first ones are changed
        asked = torch.rand(count, self.pairs, generator=generator).argsort(1)[:, : self.asked]
        parts = [
            _pairs(keys, first),
            _pairs(keys[:, : self.changed], second),
            _pairs(keys.gather(1, asked), latest.gather(1, asked)),
        ]
        if self.chain:
            parts.insert(0, chain(count, self.chain, generator))
        tokens = torch.cat(parts, 1)
        answers = torch.zeros_like(tokens, dtype=torch.bool)
        answers[:, tokens.shape[1] - 2 * self.asked :: 2] = True
        letters = torch.zeros_like(answers)
        letters[:, 1 : max(self.chain - 1, 1)] = self.chain > 2
        return Batch(tokens, answers, letters)


def _pairs(keys: Tensor, values: Tensor) -> Tensor:
    """key, value, key, value, ..., [count, 2 width]."""
    return torch.stack([keys, values], 2).flatten(1)


def chain(count: int, length: int, generator: torch.Generator) -> Tensor:
    """Letters, [count, length]."""
    table = _table()
    at = torch.randint(LETTERS, (count, 2), generator=generator)
    letters = [at[:, 0], at[:, 1]]
    for _ in range(length - 2):
        choice = torch.multinomial(
            torch.tensor(_PROBABILITIES), count, replacement=True, generator=generator
        )
        letters.append(table[letters[-2], letters[-1], choice])
    return KEYS + VALUES + torch.stack(letters, 1)[:, :length]


def _table() -> Tensor:
    """The letters that may follow each two, [LETTERS, LETTERS, followers]: always the same."""
    generator = torch.Generator().manual_seed(0)
    order = torch.rand(LETTERS, LETTERS, LETTERS, generator=generator).argsort(2)
    return order[:, :, :_FOLLOWERS]
