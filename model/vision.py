"""The vision tower and the projector into the language model's width.

Images of any size become a sequence of 14 x 14 patches: a learned position grid, stretched to the
image, is added once, and 2-D rotary positions turn queries and keys in every block. All patches
of an item attend to each other. Two by two patches then become one token.

Source: Kimi K3 report, section 2.4.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import VisionConfig
from .norm import RMSNorm

Grid = tuple[int, int, int]
"""Frames, rows and columns of patches of one item."""

_EPS = torch.finfo(torch.float32).eps  # nn.RMSNorm's own default, which the tower uses
_ROTARY_BASE = 10000.0


class PositionGrid(nn.Module):
    """Learned positions on a fixed grid, stretched to the item's; frames get a fixed code."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.frames = config.init_pos_emb_time
        shape = config.init_pos_emb_height, config.init_pos_emb_width, config.vt_hidden_size
        self.weight = nn.Parameter(torch.empty(shape))
        nn.init.normal_(self.weight)

    def forward(self, grid: Grid) -> Tensor:
        """[t h w, hidden]."""
        t, h, w = grid
        if t > self.frames:
            raise ValueError(f"an item of {t} frames; at most {self.frames} go together")
        plane = self.weight
        if (h, w) != plane.shape[:2]:
            plane = F.interpolate(
                plane.permute(2, 0, 1)[None].float(), (h, w), mode="bilinear", align_corners=False
            )
            plane = plane[0].permute(1, 2, 0).to(self.weight.dtype)
        plane = plane.reshape(1, h * w, -1)
        if t > 1:
            half = self.weight.shape[-1] // 2
            omega = _ROTARY_BASE ** (-torch.arange(half, device=plane.device) / half)
            angle = torch.arange(t, device=plane.device)[:, None] * omega
            plane = plane + torch.cat([angle.sin(), angle.cos()], -1)[:, None].to(plane.dtype)
        return plane.flatten(0, 1)


class PatchEmbed(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.proj = nn.Conv2d(
            3, config.vt_hidden_size, config.patch_size, config.patch_size, bias=False
        )
        self.pos_emb = PositionGrid(config)

    def forward(self, patches: Tensor, grids: Sequence[Grid]) -> Tensor:
        """[N, 3, 14, 14] -> [N, hidden]."""
        flat = F.linear(patches.flatten(1), self.proj.weight.flatten(1))
        return flat + torch.cat([self.pos_emb(grid) for grid in grids])


def rotary(grid: Grid, head_dim: int, device: torch.device) -> Tensor:
    """Unit complex numbers that turn neighbouring pairs of a head, [t h w, head_dim / 2].

    Even ones turn with the column, odd ones with the row.
    """
    t, h, w = grid
    frequency = _ROTARY_BASE ** (-torch.arange(0, head_dim, 4, device=device) / head_dim)
    row, column = torch.meshgrid(
        torch.arange(h, device=device), torch.arange(w, device=device), indexing="ij"
    )
    angles = torch.stack([column.flatten(), row.flatten()], -1)[:, None] * frequency[:, None]
    return torch.polar(torch.ones_like(angles), angles).flatten(1).repeat(t, 1)


class MLP2(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.fc0 = nn.Linear(config.vt_hidden_size, config.vt_intermediate_size, bias=False)
        self.fc1 = nn.Linear(config.vt_intermediate_size, config.vt_hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc1(F.gelu(self.fc0(x), approximate="tanh"))


class Block(nn.Module):
    """Pre-norm attention over all patches of an item, then a two-layer MLP."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.heads = config.vt_num_attention_heads
        inner = config.qkv_hidden_size
        self.norm0 = RMSNorm(config.vt_hidden_size, _EPS)
        self.norm1 = RMSNorm(config.vt_hidden_size, _EPS)
        self.wqkv = nn.Linear(config.vt_hidden_size, 3 * inner, bias=False)
        self.wo = nn.Linear(inner, config.vt_hidden_size, bias=False)
        self.mlp = MLP2(config)

    def forward(self, x: Tensor, lengths: list[int], turns: Tensor) -> Tensor:
        x = x + self._attend(self.norm0(x), lengths, turns)
        return x + self.mlp(self.norm1(x))

    def _attend(self, x: Tensor, lengths: list[int], turns: Tensor) -> Tensor:
        q, k, v = self.wqkv(x).view(len(x), 3, self.heads, -1).unbind(1)  # [N, heads, dim]
        q, k = _turn(q, turns), _turn(k, turns)
        outputs: list[Tensor] = []
        for item in zip(q.split(lengths), k.split(lengths), v.split(lengths), strict=True):
            q_i, k_i, v_i = (part.transpose(0, 1)[None] for part in item)
            outputs.append(F.scaled_dot_product_attention(q_i, k_i, v_i)[0])
        return self.wo(torch.cat([o.transpose(0, 1).flatten(1) for o in outputs]))


def _turn(x: Tensor, turns: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turns[:, None]).flatten(-2).to(x.dtype)


class Encoder(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.vt_num_hidden_layers))
        self.final_layernorm = RMSNorm(config.vt_hidden_size, _EPS)


class VisionTower(nn.Module):
    """Patches to merged features."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.merge = config.merge_kernel_size
        self.head_dim = config.qkv_hidden_size // config.vt_num_attention_heads
        self.patch_embed = PatchEmbed(config)
        self.encoder = Encoder(config)

    def forward(self, patches: Tensor, grids: Sequence[Grid]) -> Tensor:
        """Encode items.

        Args:
            patches: [N, 3, 14, 14], all items one after the other, frame by frame, row by row.
            grids: frames, rows and columns of each item; rows and columns are even.

        Returns:
            [M, 4 hidden], one row per two by two patches, averaged over the item's frames.
        """
        lengths = [t * h * w for t, h, w in grids]
        turns = torch.cat([rotary(grid, self.head_dim, patches.device) for grid in grids])
        x = self.patch_embed(patches, grids)
        for block in self.encoder.blocks:
            x = block(x, lengths, turns)
        x = self.encoder.final_layernorm(x)
        kh, kw = self.merge
        merged: list[Tensor] = []
        for item, (t, h, w) in zip(x.split(lengths), grids, strict=True):
            plane = item.view(t, h // kh, kh, w // kw, kw, -1).mean(0)
            merged.append(plane.transpose(1, 2).reshape(h // kh * (w // kw), -1))
        return torch.cat(merged)


class Projector(nn.Module):
    """Merged features to the language model's width."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        kh, kw = config.merge_kernel_size
        inner = config.mm_hidden_size * kh * kw
        self.proj = nn.Sequential(
            nn.Linear(inner, inner, bias=False),
            nn.GELU(),
            nn.Linear(inner, config.text_hidden_size, bias=False),
        )
        self.post_norm = RMSNorm(config.text_hidden_size, config.projector_ln_eps)

    def forward(self, features: Tensor) -> Tensor:
        """[M, 4 hidden] -> [M, text hidden]."""
        return self.post_norm(self.proj(features))
