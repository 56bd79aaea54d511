"""What a configuration costs: counted on the meta device, where tensors have shapes and no memory.

Parameters count what a checkpoint's tensors stand for: a packed byte is two weights, a scale byte
is none. Active parameters are those that one token is multiplied with, the head included and the
embedding, which is only looked up, left out.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any

import torch

from .checkpoint import Spec, expected_tensors
from .config import K3Config, TextConfig
from .k3 import K3
from .sizes import human
from .skeleton import skeleton

_STATE_BYTES = 4
"""KDA states are float32."""
_CACHE_BYTES = 2
"""Latents and convolution tails are in the model's precision, bfloat16."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What a given memory holds besides the weights."""

    memory: int
    """Bytes."""
    free: int
    """Bytes left beside the weights; negative when they do not fit."""
    sequences: dict[int, int]
    """How many sequences of each length, in tokens, fit into the rest."""
    longest_sequence: int
    """Tokens of the longest single sequence that fits; 0 when none does."""


@dataclass(frozen=True, slots=True)
class Audit:
    """Counts of one configuration; sizes in bytes."""

    tensors: int
    parameters: int
    active_parameters: int
    parameters_by_part: dict[str, int]
    bytes: int
    bytes_by_precision: dict[str, int]
    kda_layers: int
    mla_layers: int
    kda_recurrent_bytes: int
    """Per sequence, whatever its length."""
    kda_conv_bytes: int
    kda_state_bytes: int
    """Both together."""
    latent_bytes_per_token: int
    sequence_bytes_at_window: int
    """State and latents of one sequence that fills the window."""
    window: int
    matmul_flops_per_token: int
    """Products with weights, 2 per active parameter."""
    kda_flops_per_token: int
    """The recurrence: decay, predict, write, read."""
    prefill_attention_flops: int
    """MLA, materialised, per token and earlier token."""
    decode_attention_flops: int
    """MLA, absorbed, per token and earlier token."""
    fit: Fit | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def audit(config: K3Config, memory: int | None = None) -> Audit:
    """Build the model on the meta device and count.

    Args:
        memory: bytes; asks what fits in them.
    """
    with skeleton():
        specs = expected_tensors(K3(config, getattr(torch, config.dtype)))
    text = config.text_config
    parameters = {name: _parameters(name, spec, text) for name, spec in specs.items()}
    by_part: Counter[str] = Counter()
    precision: Counter[str] = Counter()
    active = 0
    for name, count in parameters.items():
        part = _part(name, text)
        by_part[part] += count
        precision[_precision(name, specs[name])] += specs[name].nbytes
        if part == "routed experts":
            active += count * text.num_experts_per_token
        elif part not in ("embedding", "vision"):
            active += count * text.num_experts
    active //= text.num_experts  # all experts are alike

    linear, mla = text.linear_attn_config, len(text.linear_attn_config.full_attn_layers)
    kda = text.num_hidden_layers - mla
    heads, K = linear.num_heads, linear.head_dim
    recurrent = kda * heads * K * K * _STATE_BYTES
    conv = kda * 3 * heads * K * (linear.short_conv_kernel_size - 1) * _CACHE_BYTES
    latent = mla * text.latent_size * _CACHE_BYTES
    result = Audit(
        tensors=len(specs),
        parameters=sum(parameters.values()),
        active_parameters=active,
        parameters_by_part=dict(by_part),
        bytes=sum(spec.nbytes for spec in specs.values()),
        bytes_by_precision=dict(precision),
        kda_layers=kda,
        mla_layers=mla,
        kda_recurrent_bytes=recurrent,
        kda_conv_bytes=conv,
        kda_state_bytes=recurrent + conv,
        latent_bytes_per_token=latent,
        sequence_bytes_at_window=recurrent + conv + latent * text.max_position_embeddings,
        window=text.max_position_embeddings,
        matmul_flops_per_token=2 * active,
        kda_flops_per_token=kda * heads * 7 * K * K,
        prefill_attention_flops=_attention_flops(text, text.qk_head_dim + text.v_head_dim),
        decode_attention_flops=_attention_flops(text, text.latent_size + text.kv_lora_rank),
    )
    if memory is None:
        return result
    return replace(result, fit=fit(result, memory))


def _parameters(name: str, spec: Spec, text: TextConfig) -> int:
    if name.endswith(".weight_scale"):
        return 0
    if name.endswith(".A_log"):  # one per head; the stored tail is padding
        return text.linear_attn_config.num_heads
    return prod(spec.shape) * (2 if name.endswith(".weight_packed") else 1)


def _part(name: str, text: TextConfig) -> str:
    layer = re.search(r"\.layers\.(\d+)\.self_attn\.", name)
    if layer is not None:
        return "MLA" if text.is_mla(int(layer[1])) else "KDA"
    for mark, part in (
        (".vision_tower.", "vision"),
        (".mm_projector.", "vision"),
        (".embed_tokens.", "embedding"),
        (".lm_head.", "head"),
        (".block_sparse_moe.experts.", "routed experts"),
        (".shared_experts.", "shared experts"),
        (".block_sparse_moe.", "router and latent"),
        (".mlp.", "dense GLU"),
    ):
        if mark in f".{name}":
            return part
    return "norms and depth mixing"


def fit(counts: Audit, memory: int) -> Fit:
    """What `memory` bytes hold of a model and its sequences."""
    free = memory - counts.bytes
    lengths = sorted({min(length, counts.window) for length in (8_192, 131_072, counts.window)})
    size = {n: counts.kda_state_bytes + n * counts.latent_bytes_per_token for n in lengths}
    room = free - counts.kda_state_bytes
    longest = room // counts.latent_bytes_per_token if counts.latent_bytes_per_token else room
    return Fit(
        memory=memory,
        free=free,
        sequences={n: max(free // size[n], 0) for n in lengths},
        longest_sequence=max(min(longest, counts.window), 0) if room >= 0 else 0,
    )


def _precision(name: str, spec: Spec) -> str:
    if spec.dtype == "U8":
        return "MXFP4 scales" if name.endswith("_scale") else "MXFP4 weights"
    return {"BF16": "bfloat16", "F32": "float32"}[spec.dtype]


def _attention_flops(text: TextConfig, width: int) -> int:
    layers = len(text.linear_attn_config.full_attn_layers)
    return layers * 2 * text.num_attention_heads * width


def report(counts: Audit) -> str:
    """The audit as a table for people."""
    rows = [
        ("tensors", f"{counts.tensors:,}"),
        ("parameters", f"{counts.parameters:,}"),
        *((f"  {part}", f"{n:,}") for part, n in counts.parameters_by_part.items()),
        ("active per token", f"{counts.active_parameters:,}"),
        ("bytes of weights", _size(counts.bytes)),
        *((f"  {kind}", _size(n)) for kind, n in counts.bytes_by_precision.items()),
        ("layers", f"{counts.kda_layers} KDA, {counts.mla_layers} MLA"),
        ("KDA state per sequence", _size(counts.kda_state_bytes)),
        ("  recurrent, float32", _size(counts.kda_recurrent_bytes)),
        ("  convolution tails", _size(counts.kda_conv_bytes)),
        ("MLA latents per token", _size(counts.latent_bytes_per_token)),
        (f"one sequence of {counts.window:,}", _size(counts.sequence_bytes_at_window)),
        ("FLOPs per token", f"{counts.matmul_flops_per_token:,} in products with weights"),
        ("", f"{counts.kda_flops_per_token:,} in KDA recurrences"),
        ("  per earlier token", f"{counts.prefill_attention_flops:,} in MLA, prefill"),
        ("", f"{counts.decode_attention_flops:,} in MLA, decode"),
    ]
    if (fit := counts.fit) is not None:
        rows.append(("in memory of", _size(fit.memory)))
        if fit.free < 0:
            rows.append(("", f"the weights do not fit: {_size(-fit.free)} too much"))
        else:
            rows.append(("  left beside weights", _size(fit.free)))
            rows.append(("  longest sequence", f"{fit.longest_sequence:,} tokens"))
            rows += [(f"  of {n:,} tokens", f"{k:,} sequences") for n, k in fit.sequences.items()]
    width = max(len(label) for label, _ in rows) + 2
    return "\n".join(f"{label:<{width}}{value}" for label, value in rows)


def _size(n: int) -> str:
    return f"{n:,} B" if n < 1024 else f"{n:,} B ({human(n)})"
