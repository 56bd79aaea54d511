"""RMSNorm, as the reference code orders it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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
        if x.dtype == self.weight.dtype == torch.float32:  # nothing is rounded in between
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        wide = x.float()
        normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return normal.to(x.dtype) * self.weight.to(x.dtype)
