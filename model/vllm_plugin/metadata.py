"""What a step of vLLM's engine asks of our layers: which tokens, of whom, in which pages."""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from vllm.v1.attention.backend import AttentionMetadata, AttentionMetadataBuilder
from vllm.v1.attention.backends.utils import mamba_get_block_table_tensor

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.attention.backend import CommonAttentionMetadata
    from vllm.v1.kv_cache_interface import KVCacheSpec


@dataclass(frozen=True, slots=True)
class Step(AttentionMetadata):
    """The sequences of a step, in the order of their tokens."""

    lengths: list[int]
    """New tokens of each."""
    computed: list[int]
    """Tokens that each read before."""


@dataclass(frozen=True, slots=True)
class StateStep(Step):
    """A step for layers with one state per sequence."""

    blocks: list[int]
    """The block that holds each sequence's running state."""


@dataclass(frozen=True, slots=True)
class LatentStep(Step):
    """A step for layers with one row per token."""

    tables: Tensor
    """[sequences, blocks]: the blocks of each, in order."""
    slots: Tensor
    """[tokens]: block x block size + offset, where each new token's row goes."""


class _Builder(AttentionMetadataBuilder[Any]):
    reorder_batch_threshold = 1  # sequences that decode stand first

    def __init__(
        self,
        kv_cache_spec: KVCacheSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def _sequences(self, common: CommonAttentionMetadata) -> tuple[list[int], list[int]]:
        lengths = common.query_start_loc_cpu.diff().tolist()
        ends = common.seq_lens.tolist()
        return lengths, [end - length for end, length in zip(ends, lengths, strict=True)]


class StateStepBuilder(_Builder):
    """For KDA layers."""

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> StateStep:
        common = common_attn_metadata
        blocks = mamba_get_block_table_tensor(
            common.block_table_tensor,
            common.seq_lens,
            self.kv_cache_spec,
            self.vllm_config.cache_config.mamba_cache_mode,
        )
        return StateStep(*self._sequences(common), blocks=blocks[:, 0].tolist())


class LatentStepBuilder(_Builder):
    """For MLA layers."""

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> LatentStep:
        common = common_attn_metadata
        return LatentStep(
            *self._sequences(common),
            tables=common.block_table_tensor,
            slots=common.slot_mapping[: common.num_actual_tokens],
        )
