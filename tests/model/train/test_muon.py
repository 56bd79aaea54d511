"""Per-Head Muon against its formula in float64, written out block by block."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from unabridged.model.k3 import K3
from unabridged.model.train import muon

A = np.ndarray


def orthogonal(M: A) -> A:
    """Five quintic steps, the polynomial applied to the singular values themselves."""
    U, S, Vt = np.linalg.svd(M / (np.linalg.norm(M) + 1e-7), full_matrices=False)
    for _ in range(5):
        S = 3.4445 * S - 4.7750 * S**3 + 2.0315 * S**5
    return U * S @ Vt


@pytest.mark.parametrize("shape", [(16, 16), (8, 40), (40, 8), (1, 7)])
def test_newton_schulz_is_the_polynomial_of_the_singular_values(shape: tuple[int, int]) -> None:
    M = torch.randn(3, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = np.stack([orthogonal(one.numpy()) for one in M])
    np.testing.assert_allclose(muon.newton_schulz(M).numpy(), expected, atol=1e-9)


def test_newton_schulz_brings_singular_values_near_one_and_keeps_zero() -> None:
    M = torch.randn(64, 48, generator=torch.Generator().manual_seed(2))
    values = torch.linalg.svdvals(muon.newton_schulz(M))
    assert values.min() > 0.6
    assert values.max() < 1.3
    assert not muon.newton_schulz(torch.zeros(4, 6)).any()


def expected_blocks(name: str, weight: A) -> list[A]:
    """The matrices that are orthogonalised alone, as views: what the report says, by name."""
    if ".experts." in name:
        return list(weight)
    if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
        return [weight[16 * h : 16 * h + 16] for h in range(2)]
    if name.endswith("q_b_proj.weight"):
        return [weight[16 * h : 16 * h + 16] for h in range(2)]
    if name.endswith("kv_b_proj.weight"):
        starts = [28 * h for h in range(2)]
        return [b for s in starts for b in (weight[s : s + 12], weight[s + 12 : s + 28])]
    return [weight]


def is_adams(name: str, weight: A) -> bool:
    return ".experts." not in name and (
        weight.ndim != 2 or any(part in name for part in ("embed_tokens", "lm_head", "_res_proj"))
    )


def test_three_steps_equal_the_formula(tiny_model: Callable[..., K3]) -> None:
    model = tiny_model()
    lr, mu, decay = 0.02, 0.95, 0.1
    matrices, others = muon.split_parameters(model)
    optimizer = muon.Muon(matrices, lr, mu, decay)
    weights = {n: p.detach().double().numpy().copy() for n, p in model.named_parameters()}
    momenta = {n: np.zeros_like(w) for n, w in weights.items()}
    ours = {id(m.weight) for m in matrices}
    assert ours.isdisjoint(id(p) for p in others)
    assert len(ours) + len(others) == len(weights)

    generator = torch.Generator().manual_seed(3)
    for _ in range(3):
        for name, parameter in model.named_parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
            W, M = weights[name], momenta[name]
            assert (id(parameter) not in ours) == is_adams(name, W), name
            if is_adams(name, W):
                continue
            G = parameter.grad.double().numpy()
            M *= mu
            M += G
            W *= 1 - lr * decay
            for w, direction in zip(
                expected_blocks(name, W), expected_blocks(name, G + mu * M), strict=True
            ):
                w -= lr * 0.2 * max(w.shape) ** 0.5 * orthogonal(direction)
        optimizer.step()
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(
            parameter.detach().numpy(), weights[name], atol=2e-5, err_msg=name
        )


def test_an_update_has_rms_a_fifth_of_the_rate_whatever_the_block(
    tiny_model: Callable[..., K3],
) -> None:
    model = tiny_model()
    matrices, _ = muon.split_parameters(model)
    optimizer = muon.Muon(matrices, lr=1.0, weight_decay=0.0)
    before = [m.weight.detach().clone() for m in matrices]
    for m in matrices:
        m.weight.grad = torch.randn(m.weight.shape, generator=torch.Generator().manual_seed(4))
    optimizer.step()
    for m, old in zip(matrices, before, strict=True):
        if min(m.weight.shape[-2:]) > 2:
            rms = (m.weight - old).square().mean().sqrt().item()
            assert 0.1 < rms < 0.3, m.weight.shape
