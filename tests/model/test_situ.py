"""SiTU-GLU at the specification's vectors and its limits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from unabridged.model.situ import SituMLP, situ_glu


@pytest.mark.parametrize(
    ("gate", "up", "out"),
    [
        (1, 1, 0.71581783),
        (-1, 2, -0.52582890),
        (10, -3, -11.78233312),
        (100, 1000, 100.0),
        (0, 5, 0),
    ],
)
def test_vectors(gate: float, up: float, out: float) -> None:
    got = situ_glu(torch.tensor(float(gate)).double(), torch.tensor(float(up)).double(), 4.0, 25.0)
    assert got.item() == pytest.approx(out, abs=5e-9)


def test_is_swiglu_without_caps() -> None:
    gate, up = torch.randn(100).double(), torch.randn(100).double()
    torch.testing.assert_close(
        situ_glu(gate, up, beta=1e6, linear_beta=None), F.silu(gate) * up, rtol=1e-9, atol=1e-9
    )


def test_computes_in_float32_and_returns_the_dtype_it_got() -> None:
    gate, up = torch.randn(1000).bfloat16(), torch.randn(1000).bfloat16()
    got = situ_glu(gate, up)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, situ_glu(gate.float(), up.float()).bfloat16())


def test_gradient() -> None:
    gate, up = (torch.randn(8).double().requires_grad_() for _ in range(2))
    assert torch.autograd.gradcheck(lambda g, u: situ_glu(g, u), (gate, up))


def test_two_shared_experts_side_by_side_are_their_sum(make_config: Any) -> None:
    config = make_config().text_config
    wide, x = SituMLP(config, 2 * 64).double(), torch.randn(3, 256).double()
    parts = [SituMLP(config, 64).double(), SituMLP(config, 64).double()]
    with torch.no_grad():
        for i, part in enumerate(parts):
            half = slice(64 * i, 64 * i + 64)
            part.gate_proj.weight.copy_(wide.gate_proj.weight[half])
            part.up_proj.weight.copy_(wide.up_proj.weight[half])
            part.down_proj.weight.copy_(wide.down_proj.weight[:, half])
        torch.testing.assert_close(wide(x), sum(part(x) for part in parts))
