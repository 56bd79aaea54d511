"""The engine over the real model, small and random: numbers, not only bookkeeping."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from unabridged.model.chat.tokenizer import TokenizerError, write_ranks
from unabridged.model.checkpoint import CheckpointError
from unabridged.model.config import ConfigError
from unabridged.model.engine import Engine, Finished, Item, open_engine
from unabridged.model.k3 import K3
from unabridged.model.sampling import Sampling
from unabridged.model.state_store import StateStore, entries

GREEDY = Sampling(temperature=0)
END = 1


@pytest.fixture(scope="module")
def model(make_config: Any, make_model: Any) -> K3:
    return make_model(make_config())


def make(model: K3, **options: Any) -> Engine:
    return Engine(model, end_token=END, vocab_size=512, window=4096, save_every=32, **options)


def prompt_of(length: int, *ends: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(2, 512, (length,), generator=generator).tolist()
    for end in ends:
        tokens[end] = END
    return tokens


@torch.inference_mode()
def plain_greedy(model: K3, prompt: list[int], count: int) -> list[int]:
    """Each token from a forward pass over everything before it: no state, no engine."""
    tokens = list(prompt)
    for _ in range(count):
        logits = model(torch.tensor(tokens))[-1]
        tokens.append(int(logits.argmax()))
        if tokens[-1] == END:
            break
    return tokens[len(prompt) :]


async def collect(stream: AsyncIterator[Item]) -> tuple[list[int], Finished]:
    items = [item async for item in stream]
    finished = items[-1]
    assert isinstance(finished, Finished)
    return [item for item in items if isinstance(item, int)], finished


async def test_the_engine_says_what_plain_forward_says(model: K3) -> None:
    engine = make(model, prefill_span=50)
    prompts = [prompt_of(90, 40, 70), prompt_of(50, seed=1), prompt_of(3, seed=2)]
    results = await asyncio.gather(
        *(collect(engine.generate(prompt, 6, GREEDY)) for prompt in prompts)
    )
    engine.close()
    for prompt, (tokens, finished) in zip(prompts, results, strict=True):
        assert tokens == plain_greedy(model, prompt, 6)
        assert finished.usage.completion == len(tokens)


async def test_concurrent_replies_equal_single_ones(model: K3) -> None:
    prompts = [prompt_of(20 + 15 * n, seed=n) for n in range(3)]
    sampling = [Sampling(seed=n) for n in range(3)]
    alone: list[list[int]] = []
    for prompt, how in zip(prompts, sampling, strict=True):
        engine = make(model)
        alone.append((await collect(engine.generate(prompt, 8, how)))[0])
        engine.close()
    engine = make(model)
    beside = await asyncio.gather(
        *(collect(engine.generate(p, 8, how)) for p, how in zip(prompts, sampling, strict=True))
    )
    engine.close()
    assert [tokens for tokens, _ in beside] == alone


async def test_a_prefix_from_disk_gives_the_same_reply(model: K3, tmp_path: Path) -> None:
    base = prompt_of(120, 40, 80, 119)
    question = [*base, *prompt_of(20, seed=5)]
    first = make(model, store=StateStore(tmp_path, "f" * 64))
    await collect(first.generate([*base, 7], 1, GREEDY))
    first.close()
    second = make(model, store=StateStore(tmp_path, "f" * 64))
    tokens, finished = await collect(second.generate(question, 6, GREEDY))
    second.close()
    assert finished.usage.cached == 120
    assert tokens == plain_greedy(model, question, 6)


async def test_a_stored_state_of_another_model_is_not_used(
    model: K3, make_config: Any, make_model: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prompt = prompt_of(100, 60)
    other = make_model(make_config(kv_lora_rank=16))
    for one in (other, model):  # the same fingerprint, as if somebody had given it by mistake
        engine = make(one, store=StateStore(tmp_path, "f" * 64))
        tokens, finished = await collect(engine.generate(prompt, 4, GREEDY))
        engine.close()
    assert finished.usage.cached == 0
    assert tokens == plain_greedy(model, prompt, 4)
    assert "ignoring a stored state" in caplog.text


def test_a_checkpoint_answers_over_http_and_remembers(
    checkpoint: Path, over_http: Any, tmp_path: Path
) -> None:
    body = {
        "model": "k3-test",
        "messages": [{"role": "user", "content": "hello " * 60}],
        "max_tokens": 8,
        "temperature": 0,
    }
    answers: list[dict[str, Any]] = []
    for _ in range(2):  # two servers, one after the other, over one store
        engine, tokenizer = open_engine(checkpoint, states=tmp_path)
        served = over_http(engine, tokenizer)
        answers.append(served.post(body).json())
        card = httpx.get(f"{served.url}/v1/models").json()["data"][0]
        assert card["unabridged"] == {"state_store": True}
        served.close()
    first, second = answers
    assert first["choices"] == second["choices"]
    assert first["choices"][0]["finish_reason"] == "length"
    assert first["usage"]["completion_tokens"] == 8
    assert first["usage"]["cached_tokens"] == 0
    assert second["usage"]["cached_tokens"] > 60
    assert {entry.rank for entry in entries(tmp_path)} == {0}


def test_another_precision_has_other_states(checkpoint: Path, tmp_path: Path) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        engine, tokenizer = open_engine(checkpoint, states=tmp_path, dtype=dtype)
        prompt = [*tokenizer.encode("a" * 50), tokenizer.end_of_msg_id, 5]
        _, finished = asyncio.run(collect(engine.generate(prompt, 1, GREEDY)))
        engine.close()
        assert finished.usage.cached == 0
    assert len({entry.path.parent for entry in entries(tmp_path)}) == 2


def test_a_folder_that_is_no_checkpoint_is_explained(
    checkpoint: Path, make_config: Any, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        open_engine(tmp_path)
    (tmp_path / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    with pytest.raises(TokenizerError, match=r"tiktoken\.model"):
        open_engine(tmp_path)
    write_ranks([bytes((byte,)) for byte in range(256)], tmp_path / "tiktoken.model")
    with pytest.raises(TokenizerError, match="does not belong to the model"):
        open_engine(tmp_path)
    vocabulary = (checkpoint / "tiktoken.model").read_bytes()
    (tmp_path / "tiktoken.model").write_bytes(vocabulary)
    with pytest.raises(CheckpointError, match="safetensors"):
        open_engine(tmp_path)


def watched(call: Callable[..., torch.Tensor], seen: list[torch.Tensor]) -> Any:
    """The call, keeping what it returns."""

    def wrapper(*args: Any) -> torch.Tensor:
        seen.append(call(*args))
        return seen[-1]

    return wrapper


async def test_a_reply_from_a_kept_state_is_the_same_bit_for_bit(
    model: K3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read as a prompt, in whatever process, leaves the state that reading it again would.

    The last message that both prompts have in common is shorter than the distance at which states
    are kept, so the second prompt alone would not keep one there.
    """
    first = prompt_of(100, 40, 80, 99)
    second = [*first, *prompt_of(190, seed=5), END, *prompt_of(9, seed=6)]
    logits: list[list[torch.Tensor]] = []
    for warm in (False, True):
        folder = tmp_path / str(warm)
        if warm:
            engine = make(model, prefill_span=64, store=StateStore(folder, "f" * 64))
            await collect(engine.generate([*first, 7], 1, GREEDY))
            engine.close()
        logits.append([])
        with monkeypatch.context() as patch:
            for name in ("extend", "step"):
                patch.setattr(model, name, watched(getattr(model, name), logits[-1]))
            engine = make(model, prefill_span=64, store=StateStore(folder, "f" * 64))
            _, finished = await collect(engine.generate(second, 6, GREEDY))
            engine.close()
        assert finished.usage.cached == (100 if warm else 0)
    cold, warm_ones = logits
    pairs = list(zip(cold[-6:], warm_ones[-6:], strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("together", [2, 4])
def test_replies_side_by_side_differ_by_rounding_only(model: K3, together: int) -> None:
    """The tolerance that docs/model.md states for batches: products of more rows round otherwise."""
    states = [model.new_state() for _ in range(together)]
    for i, state in enumerate(states):
        model.extend(state, prompt_of(60 + 20 * i, seed=i))
    alone = [state.fork() for state in states]
    for i in range(20):
        tokens = [2 + i + n for n in range(together)]
        rows = model.step(states, tokens)
        for row, state, token in zip(rows, alone, tokens, strict=True):
            single = model.step([state], [token])[0]
            assert (row - single).abs().max() <= 1e-4 * single.abs().max()
