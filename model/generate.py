"""Generation: prompts in, tokens out, several sequences at a time.

Each sequence has its own random numbers, so that what it says does not depend on what runs beside
it. The embedded engine (`engine.py`) serves sequences that come and go; this is the plain loop.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from .config import ConfigError
from .k3 import K3
from .state import SequenceState


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. K3's own settings are temperature 1.0 and top-p 0.95."""

    temperature: float = 1.0
    """0 takes the likeliest token."""
    top_p: float = 0.95
    """Only the likeliest tokens that together reach this probability can be chosen."""
    seed: int = 0
    """Sequence i of a batch uses seed + i."""

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"temperature must be at least 0, not {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], not {self.top_p}")


@dataclass(frozen=True, slots=True)
class Defaults:
    """How a model is asked where a request does not say; K3's own settings."""

    temperature: float = 1.0
    top_p: float = 0.95
    effort: str | None = "max"
    """None says nothing of how much to think."""

    @classmethod
    def of_checkpoint(cls, folder: Path) -> Defaults:
        """From the checkpoint's `generation_config.json`, K3's where it has none.

        Reads `temperature`, `do_sample`, `top_p`, and `thinking_effort`, where null says nothing.
        Raises `ConfigError` naming the file and the field.
        """
        path = folder / "generation_config.json"
        try:
            stored: Any = json.loads(path.read_bytes())
        except FileNotFoundError:
            return cls()
        except ValueError as error:
            raise ConfigError(f"{path}: not JSON: {error}") from None
        if not isinstance(stored, dict):
            raise ConfigError(f"{path}: not a JSON object")
        temperature = 0.0 if stored.get("do_sample") is False else stored.get("temperature", 1.0)
        made = cls(temperature, stored.get("top_p", 0.95), stored.get("thinking_effort", "max"))
        try:
            Sampling(made.temperature, made.top_p)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{path}: {error}") from None
        if made.effort not in (None, "low", "high", "max"):
            raise ConfigError(f"{path}: thinking_effort {made.effort!r}: low, high, max or null")
        return made


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
