"""K3 on the real engine gives what `model/` gives: same tokens, same probabilities."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from unabridged.model.checkpoint import load_model
from unabridged.model.k3 import K3

pytestmark = pytest.mark.vllm

TOKENS = 12
NANO = Path(__file__).parents[3] / "model/nano"


def mixed_prompts(vocab: int, count: int = 32) -> list[list[int]]:
    """Prompts of 1 to 330 tokens; every second one begins with the same 150."""
    dice = random.Random(5)
    shared = [dice.randrange(vocab) for _ in range(150)]
    lengths = [1, 2, 3, 17, 64, 65, 127, 128, 180, *(dice.randrange(4, 150) for _ in range(99))]
    return [
        (shared if i % 2 else []) + [dice.randrange(vocab) for _ in range(lengths[i])]
        for i in range(count)
    ]


@torch.no_grad()
def reference(model: K3, prompt: list[int], tokens: int) -> tuple[list[int], list[float]]:
    """Greedy, one sequence at a time."""
    state = model.new_state()
    logits = model.extend(state, prompt)
    out: list[int] = []
    logprobs: list[float] = []
    for _ in range(tokens):
        out.append(int(logits.argmax()))
        logprobs.append(float(logits.float().log_softmax(-1)[out[-1]]))
        (logits,) = model.step([state], out[-1:])
    return out, logprobs


@pytest.mark.parametrize(
    ("which", "parallel"),
    [("random", {}), ("nano", {}), ("random", {"tensor": 2}), ("random", {"pipeline": 2})],
    ids=["random", "nano", "random-tp2", "random-pp2"],
)
def test_greedy_tokens_are_those_of_the_model(
    which: str, parallel: dict[str, int], small_k3: Path, drive: Callable[..., Any]
) -> None:
    folder = NANO if which == "nano" else small_k3
    model = load_model(folder, torch.float32)
    prompts = mixed_prompts(model.config.text_config.vocab_size, 12 if parallel else 32)
    step = {"generate": prompts, "tokens": TOKENS}
    options: dict[str, Any] = {
        "dtype": "float32",
        "block_size": 16,
        "max_num_batched_tokens": 96,  # prompts are read in chunks
        "max_num_seqs": 8,  # sequences come and go
        "num_gpu_blocks_override": 40 if which == "random" else 20,  # and some are put back
        "max_model_len": 512,
    }
    if parallel:
        options |= {
            "tensor_parallel_size": parallel.get("tensor", 1),
            "pipeline_parallel_size": parallel.get("pipeline", 1),
        }
    done = drive(folder, options, [step, step])

    wanted = [reference(model, prompt, TOKENS) for prompt in prompts]
    for results in done["steps"]:
        assert [result["tokens"] for result in results] == [tokens for tokens, _ in wanted]
        apart = [
            abs(ours - theirs)
            for (_, logprobs), result in zip(wanted, results, strict=True)
            for ours, theirs in zip(result["logprobs"], logprobs, strict=True)
        ]
        # Where two experts are all but equally good, the last digit chooses between them.
        assert sum(difference > 1e-4 for difference in apart) <= len(apart) / 100
    assert done["preemptions"] > 0
    assert max(result["cached"] for result in done["steps"][1]) >= 48


def test_bfloat16_is_as_close_as_bfloat16_is_to_itself(
    drive: Callable[..., Any],
) -> None:
    exact = load_model(NANO, torch.float32)
    rounded = load_model(NANO, torch.bfloat16)
    prompts = mixed_prompts(exact.config.text_config.vocab_size, 8)
    options = {"dtype": "bfloat16", "block_size": 16, "max_num_batched_tokens": 96}
    done = drive(NANO, options, [{"generate": prompts, "tokens": 1}])

    def worst(logprobs: list[float]) -> float:
        return max(abs(a - b) for a, b in zip(logprobs, wanted, strict=True))

    ours = [result["logprobs"][0] for result in done["steps"][0]]
    chosen = [result["tokens"][0] for result in done["steps"][0]]
    wanted = [log_probability(exact, p, t) for p, t in zip(prompts, chosen, strict=True)]
    own = worst([log_probability(rounded, p, t) for p, t in zip(prompts, chosen, strict=True)])
    assert worst(ours) < max(2 * own, 0.05)


@torch.no_grad()
def log_probability(model: K3, prompt: list[int], token: int) -> float:
    logits = model.extend(model.new_state(), prompt)
    return float(logits.float().log_softmax(-1)[token])
