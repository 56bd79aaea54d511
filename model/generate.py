"""Generation: prompts in, tokens out, several sequences at a time.

Each sequence has its own random numbers, so that what it says does not depend on what runs beside
it. The embedded engine (`engine.py`) serves sequences that come and go; this is the plain loop.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from .k3 import K3
from .sampling import Sampling
from .state import SequenceState


@dataclass(slots=True)
class Completion:
    """What a sequence said."""

    tokens: list[int] = field(default_factory=list)
    """Without the stop token."""
    finish_reason: Literal["stop", "length"] = "length"
    stop_token: int | None = None


def sample(logits: Tensor, sampling: Sampling, generator: torch.Generator | None) -> int:
    """Choose a token from logits [vocab]."""
    if sampling.temperature == 0:
        return int(logits.argmax())
    probability = torch.softmax(logits.float().cpu() / sampling.temperature, -1)
    ordered, ids = probability.sort(descending=True)
    # The smallest set that reaches top_p: a token stays if those before it do not reach it yet.
    ordered[ordered.cumsum(0) - ordered >= sampling.top_p] = 0
    return int(ids[torch.multinomial(ordered, 1, generator=generator)])


def stream(
    model: K3,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    sampling: Sampling | None = None,
    stop: Collection[int] | None = None,
    states: Sequence[SequenceState] | None = None,
) -> Generator[tuple[int, int]]:
    """Generate for several prompts at once, token by token.

    Args:
        prompts: token ids, at least one each.
        max_tokens: per sequence; the stop token counts.
        stop: ids that end a sequence; the configuration's `eos_token_id` when None.
        states: where each sequence goes on from, extended in place: at the end each has read its
            prompt and all its tokens but the last. Fresh ones when None.

    Yields:
        (sequence, token) as they are chosen, a stop token included.
    """
    sampling = sampling or Sampling()
    stop = {model.config.eos_token_id} if stop is None else set(stop)
    states = [model.new_state() for _ in prompts] if states is None else states
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, not {max_tokens}")
    if len(states) != len(prompts):
        raise ValueError(f"{len(states)} states for {len(prompts)} prompts")
    window = model.config.text_config.max_position_embeddings
    for prompt, state in zip(prompts, states, strict=True):
        if not prompt:
            raise ValueError("a prompt needs at least one token")
        if state.position + len(prompt) + max_tokens > window:
            raise ValueError(
                f"{state.position + len(prompt)} tokens and {max_tokens} more do not fit "
                f"the window of {window}"
            )
    generators = [torch.Generator().manual_seed(sampling.seed + i) for i in range(len(prompts))]
    last: dict[int, int] = {}  # the newest token of each sequence that goes on
    for i, (prompt, state) in enumerate(zip(prompts, states, strict=True)):
        token = sample(model.extend(state, prompt), sampling, generators[i])
        yield i, token
        if token not in stop:
            last[i] = token
    for _ in range(max_tokens - 1):
        if not last:
            return
        logits = model.step([states[i] for i in last], list(last.values()))
        for i, row in zip(list(last), logits, strict=True):
            last[i] = sample(row, sampling, generators[i])
            yield i, last[i]
            if last[i] in stop:
                del last[i]


def generate(
    model: K3,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    sampling: Sampling | None = None,
    stop: Collection[int] | None = None,
    states: Sequence[SequenceState] | None = None,
) -> list[Completion]:
    """Generate for several prompts at once; see `stream`."""
    stop = {model.config.eos_token_id} if stop is None else set(stop)
    completions = [Completion() for _ in prompts]
    for i, token in stream(model, prompts, max_tokens, sampling, stop, states):
        if token in stop:
            completions[i].finish_reason, completions[i].stop_token = "stop", token
        else:
            completions[i].tokens.append(token)
    return completions
