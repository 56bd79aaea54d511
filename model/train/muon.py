"""Per-Head Muon: momentum made orthogonal, block by block.

A matrix's momentum M = U S V^T is replaced by (nearly) U V^T: every direction moves as far as
every other. In attention, the projections to queries, keys and values are as many matrices as
there are heads, stacked; they are cut, and each head's block is made orthogonal alone. All other
matrices stay whole, each expert being one. What is no matrix goes to AdamW, and so do the two
tables of token vectors.

    M <- mu M + G        O_b = NewtonSchulz(M_b) 0.2 sqrt(max(rows, columns))   for each block b
    W <- W - lr (O + decay W)

The factor gives updates of RMS 0.2 whatever a block's shape, about that of AdamW.

Source: Kimi K3 report, section 2.5; Kimi K2 report, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor, nn

from ..config import TextConfig
from ..k3 import K3

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic a x + b x^3 + c x^5, which drives singular values towards 1."""
NEWTON_SCHULZ_STEPS = 5


def newton_schulz(M: Tensor, steps: int = NEWTON_SCHULZ_STEPS) -> Tensor:
    """Roughly U V^T of each matrix M = U S V^T: singular values between about 0.7 and 1.2.

    Args:
        M: [..., rows, columns]; a zero matrix stays zero. bfloat16 where hardware likes it.
    """
    a, b, c = COEFFICIENTS
    tall = M.shape[-2] > M.shape[-1]
    X = M.mT if tall else M
    X = X / (X.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        A = X @ X.mT
        X = a * X + (b * A + c * (A @ A)) @ X
    return X.mT if tall else X


@dataclass(frozen=True, slots=True)
class Matrix:
    """A parameter and the blocks it is made of."""

    weight: nn.Parameter
    rows: tuple[int, ...]
    """Rows of the blocks, in order, repeated until all rows of a matrix are covered."""

    def blocks(self, values: Tensor) -> list[Tensor]:
        """Views of `values` [..., out, in]: for each kind of block [n, rows, in]."""
        flat = values.reshape(-1, sum(self.rows), values.shape[-1])
        return list(flat.split(list(self.rows), 1))


def split_parameters(model: K3) -> tuple[list[Matrix], list[nn.Parameter]]:
    """What Muon trains, and what is left to AdamW."""
    config = model.config.text_config
    matrices: list[Matrix] = []
    others: list[nn.Parameter] = []
    for name, weight in model.named_parameters():
        rows = _block_rows(name, weight, config)
        if rows is None:
            others.append(weight)
        else:
            matrices.append(Matrix(weight, rows))
    return matrices, others


def _block_rows(name: str, weight: Tensor, config: TextConfig) -> tuple[int, ...] | None:
    """The rows of a parameter's blocks; None for what is not a matrix between activations."""
    part = name.rsplit(".", 2)[-2]
    if ".experts." in name:
        return (weight.shape[-2],)
    if weight.dim() != 2 or part in ("embed_tokens", "lm_head") or part.endswith("_res_proj"):
        return None
    if part in ("q_proj", "k_proj", "v_proj"):
        return (config.linear_attn_config.head_dim,)
    if part == "q_b_proj":
        return (config.qk_head_dim,)
    if part == "kv_b_proj":
        return (config.qk_nope_head_dim, config.v_head_dim)
    return (len(weight),)


class Muon(torch.optim.Optimizer):
    """Per-Head Muon.

    Args:
        matrices: see `split_parameters`.
        lr: learning rate, as of AdamW in scale.
        momentum: mu.
        weight_decay: of the weights themselves, times lr.
        nesterov: orthogonalise G + mu M in place of M.
    """

    def __init__(
        self,
        matrices: Sequence[Matrix],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
        nesterov: bool = True,
    ) -> None:
        self.matrices = list(matrices)
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__([matrix.weight for matrix in matrices], defaults)
        self.nesterov = nesterov

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One update of every matrix that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        (group,) = self.param_groups
        mu, lr, decay = group["momentum"], group["lr"], group["weight_decay"]

        # Blocks of one shape go through Newton-Schulz together.
        same: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
        for matrix in self.matrices:
            gradient = matrix.weight.grad
            if gradient is None:
                continue
            state: dict[str, Any] = self.state[matrix.weight]
            if not state:
                state["momentum"] = torch.zeros_like(matrix.weight)
            M: Tensor = state["momentum"]
            M.mul_(mu).add_(gradient)
            direction = gradient.add(M, alpha=mu) if self.nesterov else M
            matrix.weight.mul_(1 - lr * decay)
            pairs = zip(matrix.blocks(matrix.weight), matrix.blocks(direction), strict=True)
            for weight, block in pairs:
                same.setdefault(weight.shape[1:], []).append((weight, block))
        for shape, pairs in same.items():
            rows, columns = shape
            update = newton_schulz(torch.cat([block for _, block in pairs]))
            scale = lr * 0.2 * max(rows, columns) ** 0.5
            for (weight, _), own in zip(
                pairs, update.split([len(block) for _, block in pairs]), strict=True
            ):
                weight.add_(own, alpha=-scale)
        return loss


def build(
    model: K3, muon_lr: float, adam_lr: float, weight_decay: float
) -> list[torch.optim.Optimizer]:
    """Muon for the matrices, AdamW (without decay) for the rest."""
    matrices, others = split_parameters(model)
    return [
        Muon(matrices, muon_lr, weight_decay=weight_decay),
        torch.optim.AdamW(others, adam_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]
