"""The vision tower against a formula written patch by patch in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from unabridged.model.config import VisionConfig
from unabridged.model.vision import PositionGrid, Projector, VisionTower, rotary

CONFIG = VisionConfig(
    patch_size=14,
    init_pos_emb_height=6,
    init_pos_emb_width=8,
    vt_num_hidden_layers=2,
    vt_num_attention_heads=3,
    vt_hidden_size=32,
    vt_intermediate_size=64,
    qkv_hidden_size=48,
    mm_hidden_size=32,
    text_hidden_size=40,
)


def make(kind: type[torch.nn.Module]) -> torch.nn.Module:
    torch.manual_seed(0)
    module = kind(CONFIG)
    for weight in module.parameters():
        if weight.dim() == 1:
            weight.data.add_(torch.randn_like(weight) * 0.2)
        else:
            weight.data.normal_(std=weight[0].numel() ** -0.5)
    return module


def reference(tower: torch.nn.Module, patches: Tensor, h: int, w: int) -> Tensor:
    """One image whose grid is the learned one, so that positions are added as they are."""
    p = {name: weight.detach().double() for name, weight in tower.named_parameters()}
    n, heads, dim = h * w, 3, 16

    def norm(x: Tensor, gain: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1.1920929e-07).sqrt() * gain

    x = patches.double().flatten(1) @ p["patch_embed.proj.weight"].flatten(1).T
    x = x + p["patch_embed.pos_emb.weight"].flatten(0, 1)
    for b in range(2):
        at = f"encoder.blocks.{b}."
        qkv = norm(x, p[at + "norm0.weight"]) @ p[at + "wqkv.weight"].T
        q, k, v = (part.reshape(n, heads, dim).clone() for part in qkv.split(48, 1))
        for part in (q, k):
            for i in range(n):
                for pair in range(dim // 2):
                    frequency = 10000 ** (-4 * (pair // 2) / dim)
                    position = i % w if pair % 2 == 0 else i // w  # columns first
                    a = position * frequency
                    even, odd = part[i, :, 2 * pair].clone(), part[i, :, 2 * pair + 1].clone()
                    part[i, :, 2 * pair] = even * math.cos(a) - odd * math.sin(a)
                    part[i, :, 2 * pair + 1] = even * math.sin(a) + odd * math.cos(a)
        o = torch.zeros(n, heads, dim, dtype=torch.float64)
        for head in range(heads):
            weights = torch.softmax(q[:, head] @ k[:, head].T / math.sqrt(dim), -1)
            o[:, head] = weights @ v[:, head]
        x = x + o.flatten(1) @ p[at + "wo.weight"].T
        y = norm(x, p[at + "norm1.weight"]) @ p[at + "mlp.fc0.weight"].T
        y = 0.5 * y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))
        x = x + y @ p[at + "mlp.fc1.weight"].T
    x = norm(x, p["encoder.final_layernorm.weight"]).view(h, w, -1)
    rows = [
        torch.cat([x[2 * i + kh, 2 * j + kw] for kh in (0, 1) for kw in (0, 1)])
        for i in range(h // 2)
        for j in range(w // 2)
    ]
    return torch.stack(rows)


def test_equals_the_formula_alone_and_beside_another_item() -> None:
    tower = make(VisionTower)
    patches, other = torch.randn(48, 3, 14, 14), torch.randn(8, 3, 14, 14)
    wanted = reference(tower, patches, 6, 8)
    with torch.no_grad():
        alone = tower(patches, [(1, 6, 8)])
        both = tower(torch.cat([patches, other]), [(1, 6, 8), (1, 2, 4)])
    torch.testing.assert_close(alone.double(), wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(both[:12], alone, rtol=1e-4, atol=1e-4)
    assert both.shape == (12 + 2, 4 * 32)


def test_positions_are_stretched_to_the_item_and_frames_are_coded() -> None:
    grid = make(PositionGrid)
    assert isinstance(grid, PositionGrid)
    plane = grid((1, 3, 4))  # half of both sides: each the mean of two by two
    pooled = F.avg_pool2d(grid.weight.permute(2, 0, 1)[None], 2)[0].permute(1, 2, 0)
    torch.testing.assert_close(plane.view(3, 4, 32), pooled)
    clip = grid((2, 6, 8)).view(2, 48, 32) - grid.weight.flatten(0, 1)
    angle = 10000.0 ** (-torch.arange(16) / 16)
    code = torch.cat([angle.sin(), angle.cos()])
    torch.testing.assert_close(clip[1], code.expand(48, 32), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(clip[0], (torch.arange(32) >= 16).float().expand(48, 32))
    with pytest.raises(ValueError, match="5 frames; at most 4"):
        grid((5, 6, 8))


def test_frames_share_their_rotary_positions() -> None:
    turns = rotary((2, 3, 5), 16, torch.device("cpu"))
    assert turns.shape == (30, 8)
    assert torch.equal(turns[:15], turns[15:])


def test_projector() -> None:
    projector = make(Projector)
    w0, w2, gain = (p.detach().double() for p in projector.parameters())
    x = torch.randn(5, 128)
    y = x.double() @ w0.T
    y = (0.5 * y * (1 + torch.erf(y / math.sqrt(2)))) @ w2.T
    wanted = y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt() * gain
    torch.testing.assert_close(projector(x).double(), wanted, rtol=1e-4, atol=1e-5)
