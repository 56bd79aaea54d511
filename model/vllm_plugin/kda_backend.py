"""KDA states in vLLM's pages.

vLLM gives each layer with a recurrent state one page per sequence (and, with prefix caching, one
more at each boundary it keeps). Our state is laid out as that page is, so a page *is* a `KDAState`:
the layer of `model/kda.py` updates it in place.
"""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.model_executor.layers.mamba.mamba_utils import (
    MambaStateDtypeCalculator,
    MambaStateShapeCalculator,
    is_conv_state_dim_first,
)
from vllm.v1.attention.backend import AttentionBackend
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.kv_cache_interface import KVCacheLayout

from ..config import TextConfig
from ..kda import KDAState
from .metadata import StateStep, StateStepBuilder

if TYPE_CHECKING:
    from vllm.config import VllmConfig

NULL_BLOCK = 0
"""The block that stands for none."""


class KDABackend(AttentionBackend):
    """Tells vLLM how our KDA layers want their steps described."""

    @staticmethod
    def get_name() -> str:
        return "UNABRIDGED_KDA"

    @staticmethod
    def get_impl_cls() -> type:
        raise NotImplementedError("the layer itself is the implementation")

    @staticmethod
    def get_builder_cls() -> type[StateStepBuilder]:
        return StateStepBuilder

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        return (KVCacheLayout.LBHNC,)

    @classmethod
    def is_ssm(cls) -> bool:
        return True


class KDAPages(MambaBase):
    """The pages of one KDA layer."""

    def __init__(self, config: TextConfig, vllm_config: VllmConfig, name: str) -> None:
        self.shapes = state_shapes(config, vllm_config)
        self.dtypes = state_dtypes(vllm_config)
        self.kv_cache: tuple[Tensor, ...] = ()
        vllm_config.compilation_config.static_forward_context[name] = self

    def get_state_shape(self) -> tuple[tuple[int, ...], ...]:
        return self.shapes

    def get_state_dtype(self) -> tuple[torch.dtype, ...]:
        return self.dtypes

    @property
    def mamba_type(self) -> MambaAttentionBackendEnum:
        return MambaAttentionBackendEnum.GDN_ATTN

    def get_attn_backend(self) -> type[AttentionBackend]:
        return KDABackend

    def states(self, step: StateStep) -> list[KDAState]:
        """The state of each sequence of a step, to be updated in place; zero where it begins."""
        states: list[KDAState] = []
        for block, computed in zip(step.blocks, step.computed, strict=True):
            state = self.state(block)
            if computed == 0:  # a page keeps what its last owner left
                state.S.zero_()
                state.tail.zero_()
            states.append(state)
        return states

    def state(self, block: int) -> KDAState:
        """The page of a block, seen as a state."""
        tails, recurrent = self.kv_cache
        tail = tails[block].mT if is_conv_state_dim_first() else tails[block]
        return KDAState(recurrent[block].mT, tail)  # [H, V, K] in the page, [H, K, V] here


def state_shapes(config: TextConfig, vllm_config: VllmConfig) -> tuple[tuple[int, ...], ...]:
    """Shapes of a rank's convolution tail and recurrent state."""
    linear = config.linear_attn_config
    return MambaStateShapeCalculator.kda_state_shape(
        vllm_config.parallel_config.tensor_parallel_size,
        linear.num_heads,
        linear.head_dim,
        conv_kernel_size=linear.short_conv_kernel_size,
    )


def state_dtypes(vllm_config: VllmConfig) -> tuple[torch.dtype, ...]:
    """Dtypes of the two: the model's, and float32 in any case."""
    return MambaStateDtypeCalculator.kda_state_dtype(
        vllm_config.model_config.dtype, vllm_config.cache_config.mamba_cache_dtype, "float32"
    )
