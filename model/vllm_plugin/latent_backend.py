"""MLA latents in vLLM's pages: one row of 576 values (in K3) per token, for all heads.

The layer of `model/mla.py` asks its cache for two things, to append the rows of new tokens and to
give all rows so far; `PagedLatents` does both over a block table.
"""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backend import AttentionBackend, MultipleOf
from vllm.v1.kv_cache_interface import KVCacheLayout, MLAAttentionSpec

from ..config import TextConfig
from .metadata import LatentStep, LatentStepBuilder

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import AttentionSpec, KVCacheSpec

BLOCK_UNIT = 16
"""Blocks are multiples of so many tokens."""


class PagedLatents:
    """The latents of one sequence: a `model.mla.LatentCache` whose rows lie in pages.

    Args:
        rows: [blocks, block size, latent]: the layer's pages.
        table: [n] the sequence's blocks, in order.
        length: rows that are there.
        slots: where the rows of new tokens go, [T].
    """

    def __init__(self, rows: Tensor, table: Tensor, length: int, slots: Tensor) -> None:
        self._rows, self._table, self._length, self._slots = rows, table, length, slots

    @property
    def latents(self) -> Tensor:
        """[length, latent]: a copy, in order."""
        blocks = -(-self._length // self._rows.shape[1])
        return self._rows[self._table[:blocks].long()].flatten(0, 1)[: self._length]

    def append(self, latents: Tensor) -> None:
        """Write the rows of the new tokens, [T, latent]."""
        self._rows.flatten(0, 1)[self._slots] = latents
        self._length += len(latents)


class LatentBackend(AttentionBackend):
    """Tells vLLM how large a row is and how our MLA layers want their steps described."""

    supported_dtypes = [torch.float32, torch.bfloat16, torch.float16]  # noqa: RUF012
    width: int
    """Values of a row; `latent_backend` sets it."""

    @staticmethod
    def get_name() -> str:
        return "UNABRIDGED_MLA"

    @staticmethod
    def get_impl_cls() -> type:
        raise NotImplementedError("the layer itself is the implementation")

    @staticmethod
    def get_builder_cls() -> type[LatentStepBuilder]:
        return LatentStepBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(
        kv_cache_spec: KVCacheSpec | None = None,
    ) -> list[int | MultipleOf]:
        return [MultipleOf(BLOCK_UNIT)]

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        return (KVCacheLayout.LBHNC,)

    @classmethod
    def customize_spec(cls, spec: AttentionSpec) -> AttentionSpec:
        # vLLM sizes blocks by what it takes for the model's attention: keys and values per head.
        return replace(spec, num_kv_heads=1, head_size=cls.width, head_size_v=0)


@cache
def latent_backend(width: int) -> type[LatentBackend]:
    """The backend for rows of so many values."""
    return type("LatentBackend", (LatentBackend,), {"width": width})


class LatentPages(AttentionLayerBase):
    """The pages of one MLA layer."""

    def __init__(self, config: TextConfig, vllm_config: VllmConfig, name: str) -> None:
        self.width = config.latent_size
        self.kv_cache: Any = None
        vllm_config.compilation_config.static_forward_context[name] = self

    def get_attn_backend(self) -> type[AttentionBackend]:
        return latent_backend(self.width)

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> KVCacheSpec:
        return MLAAttentionSpec(
            block_size=vllm_config.cache_config.block_size,
            num_kv_heads=1,
            head_size=self.width,
            dtype=vllm_config.model_config.dtype,
        )

    @property
    def rows(self) -> Tensor:
        """[blocks, block size, latent]."""
        return self.kv_cache.squeeze(1)

    def caches(self, step: LatentStep) -> list[PagedLatents]:
        """The latents of each sequence of a step."""
        rows = self.rows
        slots = step.slots.split(step.lengths)
        return [
            PagedLatents(rows, *own) for own in zip(step.tables, step.computed, slots, strict=True)
        ]
