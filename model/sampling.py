"""How the next token is chosen, and what a checkpoint says of it where a request does not."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .config import ConfigError


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
