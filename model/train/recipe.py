"""A recipe: everything that decides what a training run computes, but the data on disk."""

from __future__ import annotations

from itertools import accumulate
from math import cos, pi
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(gt=0)]


class RecipeError(ValueError):
    """A recipe that cannot be used; the message names the file and the field."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Phase(_Strict):
    """Some steps with the same data and the same precision."""

    steps: Positive
    pack_tokens: Positive
    """Tokens of a forward pass, about."""
    longest: Positive
    """Sessions of more tokens wait for a later phase."""
    copies: Fraction
    """Share of tokens that are pure copying; the rest are sessions."""
    drills: Fraction = 0.1
    """Share of the copying samples that are the plainest: random tokens, again."""
    bare: Fraction = 0.0
    """Share of sessions that are read without tools, system text and preamble."""
    words: Fraction = 0.0
    """Share of sessions that are read without the repository too."""
    renamed: Fraction = 0.0
    """Share of sessions that are read with other words in their names; see `renaming`."""
    qat: bool = False


class Recipe(_Strict):
    """How K3-nano is trained."""

    seed: int = 0
    packs: Positive = 1
    """Forward passes of a step, in all processes together."""
    muon_lr: Annotated[float, Field(gt=0)]
    adam_lr: Annotated[float, Field(gt=0)]
    warmup: Fraction = 0.01
    """Share of all steps in which the rates rise from 0, linearly."""
    final_lr: Fraction = 0.0
    """What the cosine falls to, as a share of the peak."""
    weight_decay: Fraction = 0.1
    clip: Annotated[float, Field(gt=0)] = 1.0
    """Largest norm of the gradient."""
    balance_memory: Fraction = 0.0
    """Share of a router's bias that stays when a step sets it anew; see `QuantileBalancer`."""
    context_weight: Fraction = 0.1
    """Weight of tokens that the model reads but does not write."""
    start_weight: Annotated[float, Field(ge=1)] = 1.0
    """Weight of the first two tokens of an argument."""
    phases: tuple[Phase, ...] = Field(min_length=1)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a JSON file.

        Raises:
            RecipeError: no such file, not JSON, or a field that cannot be used.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise RecipeError(f"{path}: {error.strerror or error}") from None
        except ValidationError as error:
            faults = [
                f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}"
                for fault in error.errors(include_url=False)
            ]
            raise RecipeError(f"{path}: " + "; ".join(faults)) from None

    @property
    def steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    def phase(self, step: int) -> Phase:
        """The phase of a step, counted from 0."""
        ends = accumulate(phase.steps for phase in self.phases)
        return next(p for p, end in zip(self.phases, ends, strict=True) if step < end)

    def rate(self, step: int) -> float:
        """The learning rates of a step as a share of their peak: linear warm-up, then a cosine."""
        warmup = max(1, round(self.warmup * self.steps))
        if step < warmup:
            return (step + 1) / warmup
        done = (step - warmup) / max(1, self.steps - warmup)
        return self.final_lr + (1 - self.final_lr) * (1 + cos(pi * done)) / 2
