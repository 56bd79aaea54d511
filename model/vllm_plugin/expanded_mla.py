"""MLA as multi-head attention on vLLM's own kernels: keys and values of every head in its pages.

`UNABRIDGED_VLLM_MLA=mha` asks for it. A token takes 2 x heads x head size values instead of one
latent, 64 times as much for K3, so blocks are short and a prefix resumes close to its end. The state
store keeps latents and does not work with it.
"""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F
from vllm.model_executor.layers.attention.attention import Attention

from ..config import TextConfig
from ..mla import GatedMLA
from .arch_config import head_size

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class HeadPages:
    """The keys and values of one MLA layer in vLLM's pages, and its attention over them."""

    def __init__(self, config: TextConfig, vllm_config: VllmConfig, name: str, ranks: int) -> None:
        self.heads = config.num_attention_heads // ranks
        self.size = head_size(max(config.qk_head_dim, config.v_head_dim))
        self._attention = Attention(
            self.heads, self.size, config.qk_head_dim**-0.5, num_kv_heads=self.heads,
            cache_config=vllm_config.cache_config, prefix=name,
        )  # fmt: skip

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Keep the new keys and values, and attend: [N, heads, size] from the same with less."""
        wide = [F.pad(x, (0, self.size - x.shape[-1])).flatten(1) for x in (q, k, v)]
        return self._attention(*wide).view(len(q), self.heads, self.size)


class ExpandedMLA(GatedMLA):
    """The layer, whose only state is its `HeadPages`, for all sequences of a step at once."""

    def forward(
        self, x: Tensor, lengths: Sequence[int], states: Sequence[Any] | None = None
    ) -> Tensor:
        """As `GatedMLA.forward`."""
        if states is None:  # a trial run
            return super().forward(x, lengths)
        (pages,) = states
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).view(len(x), self.heads, -1)
        c, shared = self.kv_a_proj_with_mqa(x).split([self.latent, self.shared], -1)
        expanded = self.kv_b_proj(self.kv_a_layernorm(c)).view(len(x), self.heads, -1)
        k_own, v = expanded.split([self.nope, self.value], -1)
        k = torch.cat([k_own, shared[:, None].expand(-1, self.heads, -1)], -1)
        out = pages.attend(q, k, v)[..., : self.value].float()
        gate = torch.sigmoid(self.g_proj(x).float()).view(len(x), self.heads, -1)
        return self.o_proj((out * gate).to(x.dtype).flatten(1))
