"""The engine over the real model, small and random: numbers, not only bookkeeping."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from unabridged.model.chat.tokenizer import TokenizerError, write_ranks
from unabridged.model.checkpoint import CheckpointError
from unabridged.model.config import ConfigError
from unabridged.model.engine import Engine, Finished, Item, open_engine
from unabridged.model.generate import Sampling
from unabridged.model.k3 import K3
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
