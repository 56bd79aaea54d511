"""RMSNorm, as the reference code orders it."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps), times a learned gain.

    Normalises in float32, returns to the input's dtype, then multiplies by the gain. (Engines
    multiply first; the two differ by one bfloat16 rounding.)
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return normal.to(x.dtype) * self.weight.to(x.dtype)
