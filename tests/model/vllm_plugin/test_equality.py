"""K3 on the real engine gives what `model/` gives: same tokens, same probabilities."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from unabridged.model.checkpoint import load_model
from unabridged.model.k3 import K3
from unabridged.model.moe import Router, Routing

pytestmark = pytest.mark.vllm

TOKENS = 12
TIE = 5e-6
"""Experts whose scores lie closer than this may change places: what a router reads is a sum of
float32 in another order where other tokens are read beside it."""
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


class Reference(NamedTuple):
    """What `model/` gives for one prompt; each list has one item per new token."""

    tokens: list[int]
    logprobs: list[float]
    margins: list[float]
    """How narrowly an expert was preferred to the next one, at worst, up to that token."""


@torch.no_grad()
def reference(model: K3, prompt: list[int], tokens: int) -> Reference:
    """Greedy, one sequence at a time."""
    narrowest = math.inf

    def look(router: Router, _: Any, routing: Routing) -> None:
        nonlocal narrowest
        best = (routing.scores + router.e_score_correction_bias).topk(router.k + 1).values
        narrowest = min(narrowest, float((best[:, -2] - best[:, -1]).min()))

    routers = [module for module in model.modules() if isinstance(module, Router)]
    hooks = [router.register_forward_hook(look) for router in routers]
    told = Reference([], [], [])
    state = model.new_state()
    logits = model.extend(state, prompt)
    for _ in range(tokens):
        told.tokens.append(int(logits.argmax()))
        told.logprobs.append(float(logits.float().log_softmax(-1)[told.tokens[-1]]))
        told.margins.append(narrowest)
        (logits,) = model.step([state], told.tokens[-1:])
    for hook in hooks:
        hook.remove()
    return told


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
        assert [result["tokens"] for result in results] == [told.tokens for told in wanted]
        apart = [
            (abs(ours - theirs), margin)
            for told, result in zip(wanted, results, strict=True)
            for ours, theirs, margin in zip(
                result["logprobs"], told.logprobs, told.margins, strict=True
            )
        ]
        clear = [difference for difference, margin in apart if margin > TIE]
        assert max(clear) <= 1e-4
        assert len(clear) >= 0.9 * len(apart)
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
