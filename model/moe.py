"""Stable LatentMoE: many narrow experts in a shared latent, a few wide ones beside them.

A router picks k of the experts by sigmoid score plus a balancing bias; the bias decides who is
picked, never how much they count. Routed experts read and write a latent half as wide as the
model, which spares most of their weights; a norm after their weighted sum keeps it stable.

Source: Kimi K3 report, section 2.3, equations 11 to 14.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from . import mxfp4, mxfp4_kernel
from .config import TextConfig
from .norm import RMSNorm
from .situ import SituMLP, situ_glu

_FEW = 4
"""Tokens up to which experts take one row at a time."""
_UNPACK_FROM = 32
"""Tokens of one expert from which unpacking its weights costs less than reading them packed."""


class Routing(NamedTuple):
    """Where the router sends each of N tokens."""

    experts: Tensor  # [N, k] int64
    weights: Tensor  # [N, k] float32, sum 1 times the scaling factor
    scores: Tensor  # [N, experts] float32, before the bias: what Quantile Balancing looks at


def route(scores: Tensor, bias: Tensor, k: int, scaling: float = 1.0) -> Routing:
    """Pick experts (equation 13).

    Args:
        scores: [N, experts], sigmoids.
        bias: [experts], added for the choice only.
        scaling: factor on the renormalised weights.
    """
    experts = torch.topk(scores.detach() + bias, k, dim=-1).indices
    chosen = scores.gather(-1, experts)
    weights = chosen / (chosen.sum(-1, keepdim=True) + 1e-20) * scaling
    return Routing(experts, weights, scores)


class Router(nn.Module):
    """Scores in float32, from the full-width token."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.k = config.num_experts_per_token
        self.scaling = config.routed_scaling_factor
        self.weight = nn.Parameter(torch.empty(config.num_experts, config.hidden_size))
        self.register_buffer("e_score_correction_bias", torch.zeros(config.num_experts))
        self.e_score_correction_bias: Tensor
        nn.init.normal_(self.weight, std=config.initializer_range)

    def forward(self, x: Tensor) -> Routing:
        """[N, hidden] -> the routing of the N tokens."""
        with torch.autocast(x.device.type, enabled=False):
            scores = torch.sigmoid(F.linear(x.float(), self.weight.float()))
        return route(scores, self.e_score_correction_bias, self.k, self.scaling)


class Experts(nn.Module):
    """GLU experts with plain weights, stacked: [experts, out, in].

    With `qat` set, weights are seen as MXFP4 and inputs as MXFP8, and gradients pass straight
    through (report, section 4.1.4).
    """

    w1: Tensor  # gate
    w2: Tensor  # down
    w3: Tensor  # up

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.count = config.num_experts
        self.beta = config.activation_situ_beta
        self.linear_beta = config.activation_situ_linear_beta
        self.qat = False
        self.init_weights(config)

    def init_weights(self, config: TextConfig) -> None:
        for name, shape in expert_shapes(config).items():
            weight = torch.empty(self.count, *shape)
            self.register_parameter(name, nn.Parameter(weight))
            nn.init.normal_(weight, std=config.initializer_range)

    def forward(self, z: Tensor, routing: Routing) -> Tensor:
        """The weighted sum of each token's experts, [N, latent] -> [N, latent].

        The (token, choice) pairs are sorted by expert, so that each expert that was hit multiplies
        all its tokens at once.
        """
        if len(z) <= _FEW and not torch.is_grad_enabled():
            return self._few(z, routing)
        k = routing.experts.shape[1]
        expert = routing.experts.flatten()
        order = expert.argsort(stable=True)
        counts = torch.bincount(expert, minlength=self.count)
        token = order // k
        x = self._activation(z[token])  # [N k, latent]
        gate, up = self._linear(x, "w1", counts), self._linear(x, "w3", counts)
        hidden = self._activation(situ_glu(gate, up, self.beta, self.linear_beta))
        # As in the reference: an expert's output in the model's dtype, their sum in float32.
        out = self._linear(hidden, "w2", counts).float()
        total = torch.zeros(z.shape, device=z.device)
        total = total.index_add(0, token, out * routing.weights.flatten()[order, None])
        return total.to(z.dtype)

    def _few(self, z: Tensor, routing: Routing) -> Tensor:
        """`forward` for few tokens, which are not worth sorting."""
        k = routing.experts.shape[1]
        expert = routing.experts.flatten()
        x = self._activation(z).repeat_interleave(k, 0)
        gate, up = self._each(x, "w1", expert), self._each(x, "w3", expert)
        hidden = self._activation(situ_glu(gate, up, self.beta, self.linear_beta))
        out = self._each(hidden, "w2", expert).float().unflatten(0, (-1, k))
        return (out * routing.weights[:, :, None]).sum(1).to(z.dtype)

    def _each(self, x: Tensor, name: str, expert: Tensor) -> Tensor:
        """Each row of x times the weight of its expert."""
        matrices = self._matrices(name, expert.tolist())
        return torch.cat(
            [F.linear(a, w.to(a.dtype)) for a, w in zip(x.split(1), matrices, strict=True)]
        )

    def _linear(self, x: Tensor, name: str, counts: Tensor) -> Tensor:
        """x, sorted by expert, times the weight of each row's expert."""
        if x.is_cuda and x.dtype == torch.bfloat16:
            offsets = counts.cumsum(0).to(torch.int32)
            weight = self._all(name).to(x.dtype)
            return F.grouped_mm(x, weight.mT, offs=offsets)
        hit = counts.nonzero().flatten()
        matrices = self._matrices(name, hit.tolist())
        rows = x.split(counts[hit].tolist())
        return torch.cat([F.linear(a, w.to(a.dtype)) for a, w in zip(rows, matrices, strict=True)])

    def _all(self, name: str) -> Tensor:
        weight: Tensor = getattr(self, name)
        return mxfp4.fake_quantize(weight) if self.qat else weight

    def _matrices(self, name: str, hit: list[int]) -> Iterable[Tensor]:
        """The weights of some experts, each [out, in]."""
        if torch.is_grad_enabled():  # one gradient for the stack, not one stack per expert
            each = self._all(name).unbind()
            return [each[e] for e in hit]
        weight: Tensor = getattr(self, name)
        return (mxfp4.fake_quantize(weight[e]) if self.qat else weight[e] for e in hit)

    def _activation(self, x: Tensor) -> Tensor:
        return mxfp4.fake_quantize_activation(x) if self.qat else x


class PackedExperts(Experts):
    """GLU experts as the checkpoint holds them, MXFP4: unpacked when hit. Not trainable."""

    def init_weights(self, config: TextConfig) -> None:
        for name, (rows, columns) in expert_shapes(config).items():
            packed = torch.zeros(self.count, rows, columns // 2, dtype=torch.uint8)
            scale = torch.zeros(self.count, rows, columns // mxfp4.GROUP, dtype=torch.uint8)
            self.register_buffer(f"{name}_packed", packed)
            self.register_buffer(f"{name}_scale", scale)

    def _each(self, x: Tensor, name: str, expert: Tensor) -> Tensor:
        fast = mxfp4_kernel.kernel() if x.device.type == "cpu" else None
        return (
            super()._each(x, name, expert)
            if fast is None
            else fast.matmul(x, expert, *self._packed(name))
        )

    def _linear(self, x: Tensor, name: str, counts: Tensor) -> Tensor:
        fast = mxfp4_kernel.kernel() if x.device.type == "cpu" and not x.requires_grad else None
        if fast is None or int(counts.max()) >= _UNPACK_FROM:
            return super()._linear(x, name, counts)
        expert = torch.repeat_interleave(torch.arange(self.count), counts)
        return fast.matmul(x, expert, *self._packed(name))

    def _all(self, name: str) -> Tensor:
        return torch.stack(list(self._matrices(name, list(range(self.count)))))

    def _matrices(self, name: str, hit: list[int]) -> Iterable[Tensor]:
        packed, scale = self._packed(name)
        fast = mxfp4_kernel.kernel() if packed.device.type == "cpu" else None
        unpack = mxfp4.unpack if fast is None else fast.unpack
        return (unpack(packed[e], scale[e]) for e in hit)

    def _packed(self, name: str) -> tuple[Tensor, Tensor]:
        return getattr(self, f"{name}_packed"), getattr(self, f"{name}_scale")


def expert_shapes(config: TextConfig) -> dict[str, tuple[int, int]]:
    """[out, in] of an expert's three matrices: w1 is the gate, w3 the up, w2 the down branch."""
    latent, width = config.routed_expert_hidden_size, config.moe_intermediate_size
    return {"w1": (width, latent), "w2": (latent, width), "w3": (width, latent)}


class StableLatentMoE(nn.Module):
    """The layer. Parameters are named as in the checkpoint, routed experts stacked."""

    def __init__(self, config: TextConfig, packed: bool) -> None:
        super().__init__()
        hidden, latent = config.hidden_size, config.routed_expert_hidden_size
        self.gate = Router(config)
        self.routed_expert_down_proj = nn.Linear(hidden, latent, bias=False)
        self.experts = PackedExperts(config) if packed else Experts(config)
        self.routed_expert_norm = RMSNorm(latent, config.rms_norm_eps)
        self.routed_expert_up_proj = nn.Linear(latent, hidden, bias=False)
        # Several GLUs side by side are one wide GLU.
        self.shared_experts = SituMLP(
            config, config.num_shared_experts * config.moe_intermediate_size
        )

    def forward(self, x: Tensor) -> Tensor:
        """[N, hidden] -> [N, hidden]."""
        latent = self.routed_expert_down_proj(x)
        routed = self.routed_expert_norm(self.experts(latent, self.gate(x)))
        return self.routed_expert_up_proj(routed) + self.shared_experts(x)
