"""Multi-head latent attention without positions, and with an output gate.

All keys and values of a token come from one latent of 512 values and 64 key values that all heads
share; only these are cached. Nothing is rotated: order comes from the KDA layers.

Two forms compute the same. Materialised, for many new tokens: expand the latents into keys and
values of each head. Absorbed, for decoding and for few tokens after a long past: move that expansion
into the query and the output, so that attention runs over the latents themselves.

Source: Kimi K3 report, section 2.1.2, equation 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import TextConfig
from .norm import RMSNorm

_BLOCK = 2048
"""Cached tokens that the materialised form expands at a time."""


@dataclass(slots=True)
class LatentCache:
    """What an MLA layer remembers of one sequence: a growing table of latents."""

    rows: Tensor
    """[capacity, latent + shared key]; the first `length` count."""
    length: int = 0

    @property
    def latents(self) -> Tensor:
        """[length, latent + shared key]."""
        return self.rows[: self.length]

    def reserve(self, tokens: int) -> None:
        """Make room for so many more tokens."""
        end = self.length + tokens
        if end > len(self.rows):
            grown = self.rows.new_empty(max(end, len(self.rows) * 3 // 2), self.rows.shape[1])
            grown[: self.length] = self.latents
            self.rows = grown

    def append(self, latents: Tensor) -> None:
        """Add the latents of new tokens, [T, latent + shared key]."""
        self.reserve(len(latents))
        end = self.length + len(latents)
        self.rows[self.length : end] = latents
        self.length = end

    def fork(self) -> Self:
        rows = torch.empty_like(self.rows)  # with the same room, so that the next token fits
        rows[: self.length] = self.latents
        return type(self)(rows, self.length)


class GatedMLA(nn.Module):
    """The layer. Parameters are named and shaped as in the checkpoint."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        hidden, H = config.hidden_size, config.num_attention_heads
        self.heads, self.latent = H, config.kv_lora_rank
        self.nope, self.shared, self.value = (
            config.qk_nope_head_dim,
            config.qk_rope_head_dim,
            config.v_head_dim,
        )
        self.scale = config.qk_head_dim**-0.5
        eps = config.mla_latent_norm_eps
        self.q_a_proj = nn.Linear(hidden, config.q_lora_rank, bias=False)
        self.q_a_layernorm = RMSNorm(config.q_lora_rank, eps)
        self.q_b_proj = nn.Linear(config.q_lora_rank, H * config.qk_head_dim, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(hidden, config.latent_size, bias=False)
        self.kv_a_layernorm = RMSNorm(self.latent, eps)
        self.kv_b_proj = nn.Linear(self.latent, H * (self.nope + self.value), bias=False)
        self.g_proj = nn.Linear(hidden, H * self.value, bias=False)
        self.o_proj = nn.Linear(H * self.value, hidden, bias=False)

    def new_state(self, dtype: torch.dtype) -> LatentCache:
        """The state before the first token; `dtype` is that of the projections."""
        weight = self.kv_a_proj_with_mqa.weight
        return LatentCache(torch.empty(0, len(weight), dtype=dtype, device=weight.device))

    def forward(
        self, x: Tensor, lengths: Sequence[int], states: Sequence[LatentCache] | None = None
    ) -> Tensor:
        """Attend, each token to itself and to all earlier ones of its sequence.

        Args:
            x: [N, hidden], the new tokens of several sequences, one sequence after the other.
            lengths: how many of them belong to each sequence.
            states: what came before in each sequence, extended in place; None is nothing.

        Returns:
            [N, hidden].
        """
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).view(len(x), self.heads, -1)
        c, shared = self.kv_a_proj_with_mqa(x).split([self.latent, self.shared], -1)
        latents = torch.cat([self.kv_a_layernorm(c), shared], -1)
        pieces = zip(q.split(list(lengths)), latents.split(list(lengths)), strict=True)
        outputs: list[Tensor] = []
        for i, (q_i, new) in enumerate(pieces):
            if len(new) == 0:
                continue
            if states is None:
                fused = torch.is_grad_enabled() and x.dtype == torch.float32
                outputs.append(
                    self.fused(q_i, new) if fused else self.materialised(q_i, new[:0], new)
                )
                continue
            past = states[i].latents
            states[i].append(new)
            if len(new) == 1:
                outputs.append(self.absorbed(q_i, states[i].latents))
            else:
                outputs.append(self.materialised(q_i, past, new))
        # The attention's output stays float32 up to the gate: rounding it first is biased.
        gated = torch.cat(outputs) * torch.sigmoid(self.g_proj(x).float()).view(
            len(x), self.heads, -1
        )
        return self.o_proj(gated.to(x.dtype).flatten(1))

    def materialised(self, q: Tensor, past: Tensor, new: Tensor) -> Tensor:
        """Attention over expanded keys and values: all of the past, then causally the new tokens.

        The past is not expanded for so few new tokens that it would cost more than it saves.

        Args:
            q: [T, H, nope + shared].
            past: [P, latent + shared], in blocks whose results are merged online.
            new: [T, latent + shared].

        Returns:
            [T, H, value], float32.
        """
        q = q.transpose(0, 1)  # [H, T, D]
        T = len(new)
        ahead = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)
        parts = [self._attend(q, new, ahead)]
        blocks = [block for block in past.split(_BLOCK) if len(block)]
        own = self.nope + self.value
        if T * (2 * self.latent - own) < self.latent * own:
            query = self._absorb(q)
            parts += [self._attend_absorbed(query, block) for block in blocks]
        else:
            parts += [self._attend(q, block, None) for block in blocks]
        out, weight = parts[0]
        for other, other_weight in parts[1:]:
            total = torch.logaddexp(weight, other_weight)
            out = out * (weight - total).exp() + other * (other_weight - total).exp()
            weight = total
        return out.transpose(0, 1)

    def fused(self, q: Tensor, new: Tensor) -> Tensor:
        """`materialised` without a past, for training: the scores are never stored."""
        c, shared = new.split([self.latent, self.shared], -1)
        expanded = self.kv_b_proj(c).view(len(c), self.heads, -1).transpose(0, 1)
        k_own, v = expanded.split([self.nope, self.value], -1)  # [H, T, ...]
        k = torch.cat([k_own, shared.expand(self.heads, -1, -1)], -1)
        v = self._as_wide_as_keys(v)
        out = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None], k[None], v[None], is_causal=True, scale=self.scale
        )
        return out[0, :, :, : self.value].transpose(0, 1)

    def _attend(self, q: Tensor, latents: Tensor, masked: Tensor | None) -> tuple[Tensor, Tensor]:
        """Attention over some tokens [T', latent + shared]: its output [H, T, value] and the
        logarithm of its softmax's denominator [H, T, 1], both float32. `masked` is causal, if any.
        """
        c, shared = latents.split([self.latent, self.shared], -1)
        expanded = self.kv_b_proj(c).view(len(c), self.heads, -1).transpose(0, 1)
        k_own, v = expanded.split([self.nope, self.value], -1)  # [H, T', ...]
        k = torch.cat([k_own, shared.expand(self.heads, -1, -1)], -1)
        plain = q.is_cpu and q.dtype == torch.float32 and v.shape[-1] <= k.shape[-1]
        if plain and not torch.is_grad_enabled():
            # The kernel behind scaled_dot_product_attention, which would keep the denominator.
            out, weight = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                q[None],
                k[None],
                self._as_wide_as_keys(v)[None],
                is_causal=masked is not None,
                scale=self.scale,
            )
            return out[0, :, :, : self.value], weight[0, :, :, None]
        scores = torch.bmm(q, k.mT).float() * self.scale
        if masked is not None:
            scores = scores.masked_fill(masked, -torch.inf)
        weight = scores.logsumexp(-1, keepdim=True)
        return torch.bmm((scores - weight).exp(), v.float()), weight

    def _as_wide_as_keys(self, v: Tensor) -> Tensor:
        """Values [..., value] with zeros behind, as PyTorch's attention kernels want them."""
        return F.pad(v, (0, max(self.nope + self.shared - self.value, 0)))

    def absorbed(self, q: Tensor, latents: Tensor) -> Tensor:
        """Attention over the latents themselves: the same result as `materialised`, for T = 1.

        Args:
            q: [1, H, nope + shared].
            latents: [P, latent + shared], the new token's included.

        Returns:
            [1, H, value], float32.
        """
        out, _ = self._attend_absorbed(self._absorb(q.transpose(0, 1)), latents)
        return out.transpose(0, 1)

    def _absorb(self, q: Tensor) -> Tensor:
        """[H, T, nope + shared] -> what meets latents in its place, [H, T, latent + shared]."""
        to_k, _ = self._expansion()
        q_own, q_shared = q.split([self.nope, self.shared], -1)
        return torch.cat([torch.bmm(q_own, to_k), q_shared], -1)

    def _attend_absorbed(self, query: Tensor, latents: Tensor) -> tuple[Tensor, Tensor]:
        """As `_attend`, over latents that stay latents."""
        _, to_v = self._expansion()
        flat = query.flatten(0, 1)  # [H T, latent + shared]
        scores = (flat @ latents.mT).float() * self.scale
        weight = scores.logsumexp(-1, keepdim=True)
        mixed = (scores - weight).exp().to(latents.dtype) @ latents[:, : self.latent]
        out = torch.bmm(mixed.view(*query.shape[:2], self.latent), to_v.mT)
        return out.float(), weight.view(*query.shape[:2], 1)

    def _expansion(self) -> tuple[Tensor, Tensor]:
        """Of a latent into each head's keys [H, nope, latent] and values [H, value, latent]."""
        expand = self.kv_b_proj.weight.view(self.heads, -1, self.latent)
        to_k, to_v = expand.split([self.nope, self.value], 1)
        return to_k, to_v
