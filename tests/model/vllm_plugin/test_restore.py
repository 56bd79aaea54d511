"""A prefix that one process read is not read again by the next; a damaged one is."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from unabridged.model.checkpoint import load_model
from unabridged.model.state_store import StateStore, entries, fingerprint_states

pytestmark = pytest.mark.vllm

NANO = Path(__file__).parents[3] / "model/nano"
FLIPS = 10


def options(root: Path, **more: Any) -> dict[str, Any]:
    return {
        "dtype": "float32",
        "kv_transfer_config": {
            "kv_connector": "StateStoreConnector",
            "kv_connector_module_path": "unabridged.model.vllm_plugin.state_connector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"root": str(root), **more},
        },
    }


def tokens(count: int, seed: int) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(1700) for _ in range(count)]


def test_a_fresh_process_goes_on_where_the_last_one_was(
    tmp_path: Path, drive: Callable[..., Any]
) -> None:
    prefix, short = tokens(6000, 1), tokens(700, 2)
    ask = [prefix + tokens(50, 3)]
    first = drive(
        NANO,
        options(tmp_path),
        [
            {"generate": [prefix], "tokens": 1},
            {"generate": ask, "tokens": 8},
            {"generate": [short], "tokens": 8},
            {"settle": True},
        ],
    )
    computed, plain = first["steps"][1][0], first["steps"][2][0]
    small = min(entries(tmp_path), key=lambda e: e.position)
    flips = [
        step
        for flip in range(FLIPS)
        for step in (
            {"flip": str(small.path), "at": random.Random(flip).randrange(small.size)},
            {"forget": True},
            {"generate": [short], "tokens": 8},
            {"settle": True},
        )
    ]
    second = drive(NANO, options(tmp_path), [{"generate": ask, "tokens": 8}, *flips])

    restored = second["steps"][0][0]
    assert restored["cached"] >= 0.9 * len(ask[0])
    assert restored["tokens"] == computed["tokens"]
    assert restored["logprobs"] == pytest.approx(computed["logprobs"], abs=1e-4)
    for at in range(FLIPS):
        answer = second["steps"][1 + 4 * at + 2][0]
        assert answer["tokens"] == plain["tokens"]
        assert answer["cached"] == 0

    # The embedded engine reads what vLLM wrote.
    store = StateStore(tmp_path, fingerprint_states(NANO, torch.float32))
    found = store.longest(ask[0])
    assert found is not None
    assert found.position >= 0.9 * len(prefix)
    model = load_model(NANO, torch.float32)
    state = model.state_from_tensors(found.tensors)
    logits = model.extend(state, ask[0][found.position :])
    assert int(logits.argmax()) == computed["tokens"][0]


def test_ranks_keep_their_own_and_restore_together(
    tmp_path: Path, small_k3: Path, drive: Callable[..., Any]
) -> None:
    prompt = [token % 512 for token in tokens(400, 4)]
    split = options(tmp_path, save_every=48) | {"tensor_parallel_size": 2, "block_size": 16}
    steps = [{"generate": [prompt], "tokens": 6}]
    first = drive(small_k3, split, steps)
    assert {(e.rank, e.world_size) for e in entries(tmp_path)} == {(0, 2), (1, 2)}
    second = drive(small_k3, split, steps)
    assert second["steps"][0][0]["cached"] >= 0.85 * len(prompt)
    assert second["steps"][0][0]["tokens"] == first["steps"][0][0]["tokens"]
