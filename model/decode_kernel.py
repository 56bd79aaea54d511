"""Decoding with a small model on a CPU: one call into C for a token (decode_kernel.c).

A step of K3-nano in torch is a thousand calls on vectors of two hundred values, and costs what
the calls cost. Models that are larger, on another device or not float32 keep to torch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from . import mxfp4_kernel
from .kda import KDAState, KimiDeltaAttention
from .mla import GatedMLA, LatentCache
from .moe import PackedExperts, StableLatentMoE
from .situ import SituMLP
from .state import SequenceState

if TYPE_CHECKING:
    from .k3 import K3, DecoderLayer

SMALL = 1024
"""Hidden values up to which calls cost more than computing."""


class _Shape(ctypes.Structure):
    """`struct shape`."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in (
            "layers", "hidden", "vocab", "kda_heads", "kda_dim", "kernel", "heads", "q_rank",
            "latent", "nope", "shared", "value", "dense", "experts", "chosen", "routed", "width",
            "wide",
        )),
        *((name, ctypes.c_float) for name in (
            "eps", "latent_eps", "lower_bound", "beta", "linear_beta", "scaling",
        )),
        ("level", ctypes.c_int),
    ]  # fmt: skip


class _Layer(ctypes.Structure):
    """`struct layer`."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("is_mla", "is_dense", "starts_block")),
        *((name, ctypes.c_void_p) for name in (
            "attn_key", "attn_norm", "mlp_key", "mlp_norm",
            "q", "k", "v", "q_conv", "k_conv", "v_conv",
            "f_a", "f_b", "dt_bias", "a_log", "b", "o_norm",
            "q_a", "q_a_norm", "q_b", "kv_a", "kv_a_norm", "kv_b",
            "g", "o", "gate", "up", "down",
            "router", "router_bias", "to_latent", "latent_norm", "from_latent",
            "w1", "s1", "w2", "s2", "w3", "s3",
        )),
    ]  # fmt: skip


class _Memory(ctypes.Structure):
    """`struct memory`."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("S", "tail", "rows")),
        ("length", ctypes.c_size_t),
    ]


class Decoder:
    """The weights of a model, as the kernel reads them.

    They are read where they lie, but for the products of depth queries and gains: whoever changes
    weights makes a new decoder.
    """

    def __init__(self, model: K3, kernel: mxfp4_kernel.Kernel) -> None:
        text = model.config.text_config
        linear = text.linear_attn_config
        self._run = kernel.decode
        self._held: list[Tensor] = []
        self._shape = _Shape(
            layers=text.num_hidden_layers,
            hidden=text.hidden_size,
            vocab=text.vocab_size,
            kda_heads=linear.num_heads,
            kda_dim=linear.head_dim,
            kernel=linear.short_conv_kernel_size,
            heads=text.num_attention_heads,
            q_rank=text.q_lora_rank,
            latent=text.kv_lora_rank,
            nope=text.qk_nope_head_dim,
            shared=text.qk_rope_head_dim,
            value=text.v_head_dim,
            dense=text.intermediate_size,
            experts=text.num_experts,
            chosen=text.num_experts_per_token,
            routed=text.routed_expert_hidden_size,
            width=text.moe_intermediate_size,
            wide=text.num_shared_experts * text.moe_intermediate_size,
            eps=text.rms_norm_eps,
            latent_eps=text.mla_latent_norm_eps,
            lower_bound=linear.gate_lower_bound,
            beta=text.activation_situ_beta,
            linear_beta=text.activation_situ_linear_beta or 0.0,
            scaling=text.routed_scaling_factor,
            level=kernel.level,
        )
        backbone = model.language_model.model
        keys = backbone.keys()
        layers = [cast("DecoderLayer", layer) for layer in backbone.layers]
        self._layers = (_Layer * len(layers))()
        for i, layer in enumerate(layers):
            self._layers[i] = self._layer(layer, keys[2 * i], keys[2 * i + 1])
        self._embedding = backbone.embed_tokens.weight.detach()
        self._tail = [
            self._at(tensor)
            for tensor in (keys[-1], backbone.norm.weight, model.language_model.lm_head.weight)
        ]

    def step(self, states: Sequence[SequenceState], tokens: Sequence[int]) -> Tensor:
        """`K3.step`: the logits [B, vocab], of each sequence as if it were alone."""
        logits = torch.empty(len(states), self._shape.vocab)
        for state, token, row in zip(states, tokens, logits, strict=True):
            memories = (_Memory * len(state.layers))()
            caches: list[LatentCache] = []
            for memory, layer in zip(memories, state.layers, strict=True):
                if isinstance(layer, KDAState):
                    memory.S, memory.tail = layer.S.data_ptr(), layer.tail.data_ptr()
                else:
                    layer.reserve(1)
                    memory.rows, memory.length = layer.rows.data_ptr(), layer.length
                    caches.append(layer)
            failed = self._run(
                ctypes.byref(self._shape),
                self._layers,
                memories,
                self._embedding[token].data_ptr(),
                *self._tail,
                row.data_ptr(),
            )
            if failed:
                raise MemoryError("no memory to decode a token")
            for cache in caches:
                cache.length += 1
            state.tokens.append(token)
        return logits

    def _layer(self, layer: DecoderLayer, attn_key: Tensor, mlp_key: Tensor) -> _Layer:
        mixer, channels = layer.self_attn, layer.channel_mixer
        tensors: dict[str, Any] = {
            "attn_key": attn_key,
            "attn_norm": layer.input_layernorm,
            "mlp_key": mlp_key,
            "mlp_norm": layer.post_attention_layernorm,
            "g": mixer.g_proj,
            "o": mixer.o_proj,
        }
        if isinstance(mixer, GatedMLA):
            tensors |= {
                "q_a": mixer.q_a_proj,
                "q_a_norm": mixer.q_a_layernorm,
                "q_b": mixer.q_b_proj,
                "kv_a": mixer.kv_a_proj_with_mqa,
                "kv_a_norm": mixer.kv_a_layernorm,
                "kv_b": mixer.kv_b_proj,
            }
        else:
            assert isinstance(mixer, KimiDeltaAttention)
            tensors |= {
                **{name: getattr(mixer, f"{name}_proj") for name in ("q", "k", "v", "b")},
                **{f"{name}_conv": getattr(mixer, f"{name}_conv1d") for name in ("q", "k", "v")},
                "f_a": mixer.f_a_proj,
                "f_b": mixer.f_b_proj,
                "dt_bias": mixer.dt_bias,
                "a_log": mixer.A_log,
                "o_norm": mixer.o_norm,
            }
        if isinstance(channels, StableLatentMoE):
            dense = channels.shared_experts
            tensors |= {
                "router": channels.gate,
                "router_bias": channels.gate.e_score_correction_bias,
                "to_latent": channels.routed_expert_down_proj,
                "latent_norm": channels.routed_expert_norm,
                "from_latent": channels.routed_expert_up_proj,
            }
            for n in (1, 2, 3):
                tensors[f"w{n}"] = getattr(channels.experts, f"w{n}_packed")
                tensors[f"s{n}"] = getattr(channels.experts, f"w{n}_scale")
        else:
            assert isinstance(channels, SituMLP)
            dense = channels
        for name in ("gate", "up", "down"):
            tensors[name] = getattr(dense, f"{name}_proj")
        return _Layer(
            is_mla=isinstance(mixer, GatedMLA),
            is_dense=isinstance(channels, SituMLP),
            starts_block=layer.starts_block,
            **{
                name: self._at(found if isinstance(found, Tensor) else found.weight)
                for name, found in tensors.items()
            },
        )

    def _at(self, tensor: Tensor) -> int:
        """The address of a tensor that is kept alive for as long as the decoder."""
        tensor = tensor.detach().contiguous()
        self._held.append(tensor)
        return tensor.data_ptr()


def decoder(model: K3) -> Decoder | None:
    """A decoder for the model; None where the kernel cannot be had or is not for such a model."""
    kernel = mxfp4_kernel.kernel()
    text = model.config.text_config
    plain = all(p.dtype == torch.float32 and p.is_cpu for p in model.parameters())
    experts = [module for module in model.modules() if isinstance(module, StableLatentMoE)]
    packed = all(isinstance(module.experts, PackedExperts) for module in experts)
    if kernel is None or not plain or not packed or text.hidden_size > SMALL:
        return None
    return Decoder(model, kernel)
