"""A small byte-level vocabulary, trained here: the real one belongs to Moonshot."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
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
