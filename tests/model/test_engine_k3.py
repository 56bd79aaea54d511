"""The engine over a real model says what the plain forward pass says, from stored states too."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from unabridged.model.engine import Engine, Finished, Prefill
from unabridged.model.generate import Sampling
from unabridged.model.k3 import K3
from unabridged.model.state_store import StateStore

END = 1


@pytest.fixture(scope="module")
def model(make_config: Any, make_model: Any) -> K3:
    return make_model(make_config())


def prompt(n: int) -> list[int]:
    ids = torch.randint(2, 512, (n,), generator=torch.Generator().manual_seed(n)).tolist()
    return [*ids[:-10], END, *ids[-10:]]


def greedy(model: K3, ids: list[int], n: int) -> list[int]:
    """By the plain forward pass, from the start each time."""
    said: list[int] = []
    for _ in range(n):
        with torch.no_grad():
            said.append(int(model(torch.tensor(ids + said))[-1].argmax()))
        if said[-1] == END:
            break
    return said


async def ask(engine: Engine, ids: list[int], n: int) -> tuple[list[int], int, Finished]:
    said: list[int] = []
    cached = -1
    finished = None
    async for item in engine.generate(ids, n, Sampling(temperature=0)):
        if isinstance(item, int):
            said.append(item)
        elif isinstance(item, Prefill):
            cached = item.cached
        else:
            finished = item
    assert finished is not None
    return said, cached, finished


async def test_several_sequences_equal_the_plain_forward_pass(model: K3) -> None:
    prompts = [prompt(n) for n in (12, 90, 150)]
    engine = Engine(model, end_token=END, vocab_size=512, window=4096, prefill_span=64)
    try:
        replies = await asyncio.gather(*(ask(engine, ids, 8) for ids in prompts))
    finally:
        engine.close()
    for ids, (said, cached, finished) in zip(prompts, replies, strict=True):
        assert said == greedy(model, ids, 8)
        assert cached == 0
        assert finished.usage.prompt == len(ids)
        assert finished.usage.completion == len(said)


async def test_a_new_engine_goes_on_from_the_store(model: K3, tmp_path: Path) -> None:
    ids = prompt(150)
    for expected in (0, 141):  # up to the end of the last message
        store = StateStore(tmp_path, "ab" * 32)
        engine = Engine(model, end_token=END, vocab_size=512, window=4096, store=store)
        try:
            said, cached, _ = await ask(engine, ids, 8)
        finally:
            engine.close()
        assert cached == expected
        assert said == greedy(model, ids, 8)
