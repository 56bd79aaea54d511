"""The state of one sequence: all that a model needs to go on from where it stopped.

For K3 that is, per KDA layer, a matrix per head and the tails of three convolutions, constant in
length; per MLA layer one latent per token; and the tokens themselves, whose hash names the state.
A state can be copied and stored, but not wound back: KDA forgets what it was.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from .kda import KDAState
from .mla import LatentCache


class StateMismatchError(ValueError):
    """Stored tensors that are not a state of this model; the message names the tensor."""


@dataclass(slots=True)
class SequenceState:
    """The state after `position` tokens. `K3.new_state` makes one."""

    layers: list[KDAState | LatentCache]
    tokens: array[int] = field(default_factory=lambda: array("I"))
    """The ids of all tokens read so far."""

    @property
    def position(self) -> int:
        return len(self.tokens)

    @property
    def token_hash(self) -> str:
        """SHA-256 of the ids, 32 bits each, little-endian: the name of the state's prefix."""
        ids = self.tokens[:]
        if sys.byteorder == "big":
            ids.byteswap()
        return hashlib.sha256(ids.tobytes()).hexdigest()

    def fork(self) -> Self:
        """An independent copy."""
        return type(self)([layer.fork() for layer in self.layers], self.tokens[:])

    def to_tensors(self) -> dict[str, Tensor]:
        """Everything in it, by name.

        `tokens` [position] int32; `layers.{i}.S` [H, K, V] float32 and `layers.{i}.tail`
        [kernel - 1, 3 H K] of KDA layers; `layers.{i}.latents` [position, latent] of MLA layers.
        """
        tensors = {"tokens": torch.tensor(self.tokens, dtype=torch.int32)}
        for i, layer in enumerate(self.layers):
            if isinstance(layer, KDAState):
                tensors[f"layers.{i}.S"] = layer.S.contiguous()
                tensors[f"layers.{i}.tail"] = layer.tail.clone()
            else:
                tensors[f"layers.{i}.latents"] = layer.latents.clone()
        return tensors

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `to_tensors` of a state of the same model returned, bit for bit.

        Raises:
            StateMismatchError: a tensor is missing, unknown, or of the wrong shape or dtype.
        """
        tokens = tensors.get("tokens")
        if tokens is None or tokens.dtype != torch.int32 or tokens.dim() != 1:
            raise StateMismatchError("not the state of a sequence: no int32 `tokens` [position]")
        wanted = self.to_tensors() | {"tokens": tokens}
        for name, like in wanted.items():
            shape = tuple(like.shape)
            if name.endswith(".latents"):
                shape = (len(tokens), *shape[1:])
            found = tensors.get(name)
            if found is None:
                raise StateMismatchError(f"the tensor {name} is missing")
            if tuple(found.shape) != shape or found.dtype != like.dtype:
                raise StateMismatchError(
                    f"the tensor {name} is {found.dtype} {list(found.shape)}; "
                    f"this model has {like.dtype} {list(shape)}"
                )
        if unknown := sorted(set(tensors) - set(wanted)):
            raise StateMismatchError(f"this model has no tensor {unknown[0]}")
        for i, layer in enumerate(self.layers):
            if isinstance(layer, KDAState):
                layer.S.copy_(tensors[f"layers.{i}.S"])
                layer.tail.copy_(tensors[f"layers.{i}.tail"])
            else:
                layer.length = 0
                layer.append(tensors[f"layers.{i}.latents"].to(layer.rows.device))
        self.tokens = array("I", tokens.tolist())
