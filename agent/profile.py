"""What a model is told of its work, by the model's name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..model.nano import profile as nano
from ..tools.registry import declarations
from .calls import AnyTool
from .prompt import SYSTEM


@dataclass(frozen=True)
class Profile:
    """The part of a session's prefix that depends on the model."""

    system: str
    """The system text."""
    declare: Callable[[Sequence[AnyTool]], list[dict[str, Any]]]
    """Tools -> their declarations; a tool without one cannot be called."""
    effort: str | None = None
    """In place of the setting; empty to say nothing of it."""
    longest_reply: int | None = None
    """Tokens after which a reply is cut; None for what the window leaves."""


K3 = Profile(SYSTEM, declarations)
NANO = Profile(
    nano.SYSTEM,
    lambda tools: nano.declare(declarations(tools)),
    nano.EFFORT,
    nano.LONGEST_REPLY,
)


def profile_of(model: str) -> Profile:
    """K3-nano was trained on a profile of its own; every other model is told all there is."""
    return NANO if model == nano.MODEL else K3
