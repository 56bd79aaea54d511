"""MLA as multi-head attention on vLLM's own kernels gives what the latents give."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.vllm


def test_keys_and_values_of_every_head_give_the_tokens_of_the_latents(
    small_k3: Path, drive: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks, sequences that come and go, and a second time from the prefix cache."""
    dice = random.Random(3)
    prompts = [[dice.randrange(512) for _ in range(length)] for length in (1, 2, 17, 96, 131, 250)]
    step = {"generate": prompts, "tokens": 8}
    options = {
        "dtype": "float32", "block_size": 16, "max_num_batched_tokens": 96, "max_num_seqs": 4,
        "max_model_len": 512,
    }  # fmt: skip
    latent = drive(small_k3, options, [step, step])
    monkeypatch.setenv("UNABRIDGED_VLLM_MLA", "mha")
    expanded = drive(small_k3, options, [step, step])

    assert expanded["block"] < latent["block"], "a token takes more memory, so a block holds fewer"
    for ours, theirs in zip(expanded["steps"], latent["steps"], strict=True):
        assert [one["tokens"] for one in ours] == [one["tokens"] for one in theirs]
        apart = [
            abs(a - b)
            for one, other in zip(ours, theirs, strict=True)
            for a, b in zip(one["logprobs"], other["logprobs"], strict=True)
        ]
        assert max(apart) < 1e-3
    assert max(one["cached"] for one in expanded["steps"][1]) >= expanded["block"]
