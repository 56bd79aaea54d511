"""SiTU-GLU: a gated linear unit whose two branches are softly capped (report, equation 12)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .config import TextConfig


def situ_glu(
    gate: Tensor, up: Tensor, beta: float = 4.0, linear_beta: float | None = 25.0
) -> Tensor:
    """beta tanh(gate/beta) sigmoid(gate) * linear_beta tanh(up/linear_beta).

    The sigmoid reads the raw gate. Near zero this is SwiGLU; far out |result| < beta linear_beta.

    Args:
        gate, up: [..., width], any float dtype; computed in float32 (float64 stays).
        linear_beta: None leaves the up branch as it is.

    Returns:
        [..., width] in the dtype of `gate`.
    """
    wide = torch.promote_types(gate.dtype, torch.float32)
    g, u = gate.to(wide), up.to(wide)
    if linear_beta is not None:
        u = linear_beta * torch.tanh(u / linear_beta)
    return (beta * torch.tanh(g / beta) * torch.sigmoid(g) * u).to(gate.dtype)


class SituMLP(nn.Module):
    """A dense GLU: down(SiTU_GLU(gate(x), up(x))), no biases."""

    def __init__(self, config: TextConfig, width: int) -> None:
        super().__init__()
        self.beta = config.activation_situ_beta
        self.linear_beta = config.activation_situ_linear_beta
        self.gate_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.down_proj = nn.Linear(width, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] -> [..., hidden]."""
        hidden = situ_glu(self.gate_proj(x), self.up_proj(x), self.beta, self.linear_beta)
        return self.down_proj(hidden)
