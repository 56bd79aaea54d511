from __future__ import annotations

import asyncio
import gc
import hashlib
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import torch

from unabridged.model.engine import (
    Engine,
    EngineError,
    Finished,
    Item,
    Prefill,
    Usage,
)
from unabridged.model.sampling import Sampling
from unabridged.model.state_store import StateStore

END = 99  # ends a message
SIZE = 100


def chaotic(tokens: list[int]) -> int:
    """The next id as a hash of all before it: one wrong, lost or doubled token changes the rest."""
    digest = hashlib.sha256(bytes(tokens)).digest()
    return digest[0] % END if digest[1] % 8 or len(tokens) < 40 else END


def expected(prompt: list[int], limit: int) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < len(prompt) + limit:
        tokens.append(chaotic(tokens))
        if tokens[-1] == END:
            break
    return tokens[len(prompt) :]


def prompt_of(*messages: int, seed: int = 0) -> list[int]:
    """Messages of the given lengths, each ended, and an opening of two tokens for the reply."""
    tokens = [(seed + 7 * at) % END for at in range(sum(messages))]
    for end in (sum(messages[: n + 1]) for n in range(len(messages))):
        tokens[end - 1] = END
    return [*tokens, 1, 2]


@pytest.fixture
def model(playback: Any) -> Any:
    return playback(SIZE, chaotic)


@pytest.fixture
def engine(model: Any) -> Iterator[Engine]:
    engine = make(model)
    yield engine
    engine.close()


def make(model: Any, **options: Any) -> Engine:
    defaults: dict[str, Any] = {
        "end_token": END,
        "vocab_size": SIZE,
        "window": 4096,
        "prefill_span": 16,
        "save_every": 32,
    }
    return Engine(model, **(defaults | options))


GREEDY = Sampling(temperature=0)


async def collect(stream: AsyncIterator[Item]) -> tuple[list[int], Finished, list[Prefill]]:
    items = [item async for item in stream]
    finished = items.pop()
    assert isinstance(finished, Finished)
    tokens = [item for item in items if isinstance(item, int)]
    return tokens, finished, [item for item in items if isinstance(item, Prefill)]


async def test_tokens_counts_and_the_way_through_the_prompt(engine: Engine) -> None:
    prompt = prompt_of(20, 30)
    tokens, finished, prefill = await collect(engine.generate(prompt, 50, GREEDY))
    assert tokens == expected(prompt, 50)
    assert finished.usage == Usage(len(prompt), 0, len(tokens))
    assert finished.reason == ("stop" if tokens[-1] == END else "length")
    # Spans of 16, cut where a message ends.
    assert [step.read for step in prefill] == [0, 16, 20, 36, 50, 52]


async def test_length_ends_a_reply(engine: Engine) -> None:
    prompt = prompt_of(5)
    tokens, finished, _ = await collect(engine.generate(prompt, 3, Sampling(temperature=0)))
    assert tokens == expected(prompt, 3)
    assert finished == Finished("length", Usage(7, 0, 3))


async def test_concurrent_requests_equal_single_ones(model: Any) -> None:
    quick = model.step

    def step(states: Any, tokens: Any) -> Any:
        time.sleep(0.001)  # a model is slower than the coming in of requests
        return quick(states, tokens)

    model.step = step
    engine = make(model, prefill_span=512)
    prompts = [prompt_of(10 + 9 * n, 3, seed=n) for n in range(7)]
    results = await asyncio.gather(*(collect(engine.generate(p, 50, GREEDY)) for p in prompts))
    assert [tokens for tokens, _, _ in results] == [expected(p, 50) for p in prompts]
    assert max(model.batches) == 4
    assert engine.load == (0, 0)
    engine.close()


async def test_a_place_is_free_before_its_end_is_told(model: Any) -> None:
    engine = make(model)
    loads: list[tuple[int, int]] = []
    real = type(engine)._end

    def end(self: Engine, sequence: Any, item: Any) -> None:
        deliver = sequence.deliver
        sequence.deliver = lambda told: (loads.append(self.load), deliver(told))
        real(self, sequence, item)

    engine._end = end.__get__(engine)  # pyright: ignore[reportAttributeAccessIssue] - to look in
    await collect(engine.generate(prompt_of(5), 5, GREEDY))
    assert loads == [(0, 0)]
    engine.close()


async def test_a_long_prompt_does_not_stop_the_others(model: Any, engine: Engine) -> None:
    # In the order in which the engine chooses tokens: readers may wake in another.
    order: list[str] = []
    short, long = prompt_of(5), prompt_of(1500)
    real = engine._emit

    def emit(sequence: Any, logits: Any) -> None:
        order.append("short" if len(sequence.prompt) == len(short) else "long")
        real(sequence, logits)

    engine._emit = emit
    await asyncio.gather(*(collect(engine.generate(p, 50, GREEDY)) for p in (short, long)))
    assert order.index("long") >= min(40, len(expected(short, 50)))
    assert order[0] == "short"


async def test_the_next_turn_reads_only_what_is_new(model: Any, engine: Engine) -> None:
    first = prompt_of(40, 50)
    reply, _, _ = await collect(engine.generate(first, 50, GREEDY))
    assert reply[-1] == END  # the whole reply, its end included, is part of the next prompt
    second = [*first, *reply, *prompt_of(10)]
    model.read = 0
    tokens, finished, _ = await collect(engine.generate(second, 50, GREEDY))
    assert tokens == expected(second, 50)
    assert finished.usage.cached == len(first) + len(reply) - 1
    assert model.read == len(second) - finished.usage.cached + len(tokens) - 1


async def test_a_changed_conversation_starts_at_the_last_common_message(
    model: Any, engine: Engine
) -> None:
    first = prompt_of(40, 50, 60)
    await collect(engine.generate(first, 50, GREEDY))
    second = list(first)
    second[120] = 3  # in the third message
    model.read = 0
    tokens, finished, _ = await collect(engine.generate(second, 50, GREEDY))
    assert tokens == expected(second, 50)
    assert finished.usage.cached == 90
    assert model.read == len(second) - 90 + len(tokens) - 1


async def test_the_same_prompt_again_still_reads_its_last_token(engine: Engine) -> None:
    prompt = prompt_of(40)
    before = await collect(engine.generate(prompt, 50, GREEDY))
    after = await collect(engine.generate(prompt, 50, GREEDY))
    assert after[0] == before[0]
    assert after[1].usage.cached == 40


async def test_short_messages_are_not_all_kept_but_the_last_is(
    playback: Any, tmp_path: Path
) -> None:
    store = StateStore(tmp_path, "f" * 64)
    engine = make(playback(SIZE, chaotic), store=store)
    prompt = prompt_of(10, 10, 10, 10, 10, 10, 10)
    tokens, _, _ = await collect(engine.generate(prompt, 50, GREEDY))
    engine.close()
    assert store.positions([*prompt, *tokens]) == [40, 70, len(prompt) + len(tokens) - 1]


async def test_memory_keeps_the_most_recently_used_states(playback: Any) -> None:
    model = playback(SIZE, chaotic)
    engine = make(model, kept_states=2)
    prompts = [prompt_of(40, seed=seed) for seed in range(3)]
    for prompt in prompts:
        await collect(engine.generate(prompt, 1, Sampling(temperature=0)))
    async with asyncio.timeout(10):  # the thread lets go of the last state a moment later
        while gc.collect() >= 0 and len(model.alive) != 2:
            await asyncio.sleep(0.01)
    _, finished, _ = await collect(engine.generate(prompts[0], 50, GREEDY))
    assert finished.usage.cached == 0
    engine.close()


async def test_a_slow_disk_delays_no_first_token_and_loses_no_state(
    playback: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States are stored beside the work; who has the reply finds all of them there."""
    store, prompt = StateStore(tmp_path, "f" * 64), prompt_of(40, 40, 40)
    may_write, write = threading.Event(), store.save
    monkeypatch.setattr(store, "save", lambda *a: (may_write.wait(10), write(*a))[1])
    engine = make(playback(SIZE, chaotic), store=store)
    stream = engine.generate(prompt_of(40), 3, GREEDY)
    items = [await anext(stream) for _ in range(6)]
    assert isinstance(items[-1], int)
    assert store.positions(prompt) == []
    may_write.set()
    async for _ in stream:
        pass
    assert store.positions(prompt) == [40]
    tokens, _, _ = await collect(engine.generate(prompt, 9, GREEDY))
    assert store.positions([*prompt, *tokens])[:3] == [40, 80, 120]
    engine.close()


async def test_states_outlive_the_engine_in_a_store(playback: Any, tmp_path: Path) -> None:
    store = StateStore(tmp_path, "a" * 64)
    prompt = prompt_of(40, 50)
    before = make(playback(SIZE, chaotic), store=store)
    reply, _, _ = await collect(before.generate(prompt, 50, GREEDY))
    before.close()
    model = playback(SIZE, chaotic)
    after = make(model, store=StateStore(tmp_path, "a" * 64))
    second = [*prompt, *reply, *prompt_of(10)]
    tokens, finished, _ = await collect(after.generate(second, 50, GREEDY))
    after.close()
    assert tokens == expected(second, 50)
    assert finished.usage.cached == len(prompt) + len(reply) - 1
    assert model.read == len(second) - finished.usage.cached + len(tokens) - 1


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


async def test_cancelling_frees_the_place_and_the_state(playback: Any) -> None:
    endless = playback(SIZE, lambda tokens: len(tokens) % 50)
    engine = make(endless, max_batch=1, kept_states=0)
    async with aclosing(engine.generate(prompt_of(5), 4000, Sampling(temperature=0))) as stream:
        async for item in stream:
            if isinstance(item, int):
                break
        assert engine.load == (1, 0)
        waiting = asyncio.ensure_future(collect(engine.generate(prompt_of(6), 2, Sampling())))
        await until(lambda: engine.load == (1, 1))
    tokens, finished, _ = await waiting
    assert (len(tokens), finished.reason) == (2, "length")
    await until(lambda: engine.load == (0, 0))
    # The engine's thread lets go of its last one a moment after it has told of the end.
    await until(lambda: gc.collect() >= 0 and not endless.alive)
    engine.close()


async def test_cancelling_the_task_while_the_prompt_is_read_or_waits(playback: Any) -> None:
    endless = playback(SIZE, lambda tokens: 3)
    engine = make(endless, max_batch=1, window=10**6)
    reading = asyncio.ensure_future(collect(engine.generate(prompt_of(500_000), 50, GREEDY)))
    await until(lambda: engine.load == (1, 0))
    waiting = asyncio.ensure_future(collect(engine.generate(prompt_of(5), 50, GREEDY)))
    await until(lambda: engine.load == (1, 1))
    waiting.cancel()
    await until(lambda: engine.load == (1, 0))
    reading.cancel()
    await until(lambda: engine.load == (0, 0))
    assert endless.read < 500_000
    engine.close()


async def test_a_failing_model_fails_its_sequences_and_the_engine_lives(playback: Any) -> None:
    def fails(tokens: list[int]) -> int:
        if 77 in tokens:
            raise ArithmeticError("no such state")
        return chaotic(tokens)

    engine = make(playback(SIZE, fails))
    with pytest.raises(EngineError, match="no such state"):
        await collect(engine.generate([77, 1], 50, GREEDY))
    prompt = prompt_of(5, seed=1)
    assert 77 not in expected(prompt, 50)
    tokens, _, _ = await collect(engine.generate(prompt, 50, GREEDY))
    assert tokens == expected(prompt, 50)
    engine.close()


async def test_what_does_not_fit_is_refused(engine: Engine) -> None:
    for prompt, limit, message in (
        ([], 50, "the prompt is empty"),
        ([1], 0, "max_tokens is 0"),
        ([1] * 4047, 50, "do not fit the window of 4,096"),
        ([1, 100], 50, "token id 100 is outside"),
        ([-1], 50, "token id -1 is outside"),
    ):
        with pytest.raises(EngineError, match=message):
            await collect(engine.generate(prompt, limit, GREEDY))
    tokens, _, _ = await collect(engine.generate([1] * 4046, 50, GREEDY))
    assert tokens


async def test_closing_ends_generations_and_the_thread(playback: Any) -> None:
    others = set(threading.enumerate())
    engine = make(playback(SIZE, lambda tokens: 3))
    stream = engine.generate(prompt_of(5), 4000, Sampling(temperature=0))
    await anext(stream)
    await asyncio.to_thread(engine.close)
    with pytest.raises(EngineError, match="closed"):
        await collect(stream)
    with pytest.raises(EngineError, match="closed"):
        await collect(engine.generate([1], 50, GREEDY))
    started = set(threading.enumerate()) - others
    assert all(thread.name != "engine" for thread in started)


class Flat:
    """A model with the same logits everywhere."""

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits

    def new_state(self) -> Any:
        return self

    def fork(self) -> Any:
        return self

    def to_tensors(self) -> dict[str, torch.Tensor]:
        return {}

    def state_from_tensors(self, tensors: dict[str, torch.Tensor]) -> Any:
        return self

    def extend(self, state: Any, tokens: Any) -> torch.Tensor:
        return self.logits

    def step(self, states: Any, tokens: Any) -> torch.Tensor:
        return self.logits.expand(len(states), -1)


async def test_sampling_follows_temperature_and_top_p() -> None:
    probabilities = torch.tensor([0.05, 0.4, 0.15, 0.1, 0.3])
    engine = make(Flat(probabilities.log()), vocab_size=5, window=10_000, end_token=-1)

    async def frequencies(**options: Any) -> dict[int, float]:
        tokens, _, _ = await collect(engine.generate([0], 2000, Sampling(seed=1, **options)))
        return {token: count / 2000 for token, count in sorted(Counter(tokens).items())}

    assert await frequencies(top_p=1.0) == pytest.approx(
        dict(enumerate(probabilities.tolist())), abs=0.04
    )
    # 0.4 + 0.3 reach 0.7 but not 0.75, so 0.15 stays as well.
    assert await frequencies(top_p=0.75) == pytest.approx(
        {1: 0.4 / 0.85, 2: 0.15 / 0.85, 4: 0.3 / 0.85}, abs=0.04
    )
    assert await frequencies(top_p=1e-9) == {1: 1.0}
    assert await frequencies(temperature=0.0) == {1: 1.0}
    squared = probabilities.square() / probabilities.square().sum()
    assert await frequencies(top_p=1.0, temperature=0.5) == pytest.approx(
        dict(enumerate(squared.tolist())), abs=0.04
    )
    engine.close()


async def test_a_seed_fixes_a_reply_whatever_runs_beside_it() -> None:
    engine = make(Flat(torch.zeros(SIZE)), end_token=-1)

    async def reply(seed: int) -> list[int]:
        return (await collect(engine.generate([0], 60, Sampling(top_p=1, seed=seed))))[0]

    alone = await reply(7)
    beside = await asyncio.gather(reply(7), reply(8), reply(9), reply(7))
    assert beside[0] == beside[3] == alone
    assert len({tuple(tokens) for tokens in beside}) == 3
    engine.close()


async def test_padding_of_the_embedding_is_never_sampled() -> None:
    logits = torch.zeros(SIZE)
    logits[90:] = 100.0
    engine = make(Flat(logits), vocab_size=90, end_token=-1)
    for temperature in (0.0, 1.0):
        sampling = Sampling(temperature=temperature)
        tokens, _, _ = await collect(engine.generate([0], 50, sampling))
        assert max(tokens) < 90
    engine.close()
