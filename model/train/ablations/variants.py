"""Small K3s, and the same with one idea taken out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...config import K3Config
from ...k3 import K3, Backbone, DecoderLayer
from ...kda import KimiDeltaAttention
from ...moe import Experts, StableLatentMoE
from ...situ import SituMLP
from ...state import SequenceState
from ..initial import initialise
from .sequences import VOCABULARY


def small_config(layers: int = 4, mla: Sequence[int] | None = None, **changes: Any) -> K3Config:
    """A K3 of width 64.

    Args:
        mla: the layers, from 1, that use full attention; by default every fourth.
        changes: other fields of the language model.
    """
    chosen = [layer for layer in range(1, layers + 1) if layer % 4 == 0] if mla is None else mla
    text = {
        "model_type": "kimi_linear",
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "intermediate_size": 128,
        "hidden_act": "situ",
        "activation_situ_beta": 4.0,
        "activation_situ_linear_beta": 25.0,
        "max_position_embeddings": 4096,
        "num_experts": 8,
        "num_experts_per_token": 2,
        "num_shared_experts": 1,
        "moe_intermediate_size": 32,
        "routed_expert_hidden_size": 32,
        "first_k_dense_replace": 1,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "attn_res_block_size": 2,
        "linear_attn_config": {
            "num_heads": 2,
            "head_dim": 16,
            "full_attn_layers": list(chosen),
            "kda_layers": [layer for layer in range(1, layers + 1) if layer not in chosen],
        },
    } | changes
    return K3Config.from_dict({"model_type": "kimi_k3", "eos_token_id": 0, "text_config": text})


def build(config: K3Config, seed: int) -> K3:
    """A model that starts as K3-nano does: it already looks back (`train/initial.py`)."""
    torch.manual_seed(seed)
    model = K3(config, packed_experts=False)
    initialise(model)
    return model


class AdditiveKDA(KimiDeltaAttention):
    """Without the delta rule: S <- diag(exp g) S + beta k v^T. What was written is never corrected,
    only forgotten.
    """

    def _chunks(
        self, *inputs: Tensor, S: Tensor | None, lengths: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        assert S is None, "for training"
        assert len(set(lengths)) == 1, "for sequences of one length"
        q, k, v, g, beta = (x.unflatten(0, (len(lengths), -1)).transpose(1, 2) for x in inputs)
        # [B, H, T, ...]; G is the decay since the sequence began. Between two places it is the
        # difference, taken before the exponential: no factor can overflow.
        G = g.cumsum(2)
        T = G.shape[2]
        later = torch.ones(T, T, dtype=torch.bool).tril()
        outputs: list[Tensor] = []
        for q_b, k_b, v_b, G_b, beta_b in zip(q, k, v, G, beta, strict=True):
            between = (G_b[:, :, None] - G_b[:, None]).masked_fill(~later[..., None], -torch.inf)
            P = torch.einsum("hid,hjd,hijd->hij", q_b, k_b, between.exp())
            outputs.append((P @ (beta_b[..., None] * v_b)).transpose(0, 1))
        return torch.cat(outputs), inputs[0].new_zeros(0)


class ScalarKDA(KimiDeltaAttention):
    """With one decay for each head in place of one for each channel."""

    def _chunks(
        self, *inputs: Tensor, S: Tensor | None, lengths: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        q, k, v, g, beta = inputs
        return super()._chunks(
            q, k, v, g.mean(-1, keepdim=True).expand_as(g), beta, S=S, lengths=lengths
        )


class ResidualBackbone(Backbone):
    """With the residual stream of other transformers in place of Attention Residuals."""

    def forward(
        self,
        embeddings: Tensor,
        lengths: Sequence[int],
        states: Sequence[SequenceState] | None = None,
    ) -> Tensor:
        assert states is None, "for training"
        h = embeddings
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            h = h + layer.self_attn(layer.input_layernorm(h), lengths)
            h = h + layer.channel_mixer(layer.post_attention_layernorm(h))
        return self.norm(h)


def without_delta_rule(model: K3) -> K3:
    return _recast(model, KimiDeltaAttention, AdditiveKDA)


def with_scalar_decay(model: K3) -> K3:
    return _recast(model, KimiDeltaAttention, ScalarKDA)


def without_attn_res(model: K3) -> K3:
    return _recast(model, Backbone, ResidualBackbone)


def with_swiglu(model: K3) -> K3:
    """Without the soft caps: SiTU in the limit of large betas."""
    for module in model.modules():
        if isinstance(module, SituMLP | Experts):
            module.beta, module.linear_beta = 1e4, None
    return model


def without_latent_norm(model: K3) -> K3:
    """LatentMoE without what makes it stable."""
    for module in model.modules():
        if isinstance(module, StableLatentMoE):
            module.register_module("routed_expert_norm", nn.Identity())
    return model


def _recast(model: K3, old: type[nn.Module], new: type[nn.Module]) -> K3:
    """Modules of one class become the other, which has the same weights and computes otherwise."""
    for module in model.modules():
        if type(module) is old:
            module.__class__ = new
    return model
