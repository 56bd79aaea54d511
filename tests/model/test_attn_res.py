"""Attention Residuals: the specification's vector, a literal block form, and the online merge."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from unabridged.model.attn_res import BlockResiduals, full_attn_res, mix, mix_online

EPS = 1e-5


def test_vector() -> None:
    key = torch.tensor([0.5, -1, 0, 2]) * torch.tensor([1, 0.5, 2, 1])
    bank = [torch.tensor([1.0, 2, 3, 4]), torch.tensor([0.0, 1, 0, -1])]
    prefix = torch.tensor([2.0, 2, -2, 2])
    wanted = torch.tensor([1.321622, 1.998726, 1.381701, 3.347841])
    torch.testing.assert_close(mix([*bank, prefix], key, EPS), wanted, rtol=0, atol=2e-6)
    (partial,) = mix_online(bank, key[None], EPS)
    torch.testing.assert_close(partial.merge(prefix, key, EPS), wanted, rtol=0, atol=2e-6)


def apply(prefix: Tensor | None, bank: list[Tensor], key: Tensor) -> Tensor:
    """The specification's pseudo-code, in float64."""
    V = torch.stack([*bank, prefix] if prefix is not None else bank).double()
    k = V / (V.square().mean(-1, keepdim=True) + EPS).sqrt()
    p = (k * key.double()).sum(-1).softmax(0)
    return (p[..., None] * V).sum(0)


def sublayer(i: int) -> Callable[[Tensor], Tensor]:
    weight = torch.randn(16, 16, generator=torch.Generator().manual_seed(i)) / 4
    return lambda x: torch.tanh(x @ weight.to(x.dtype))


def test_block_form_equals_the_pseudo_code_with_and_without_frozen_banks() -> None:
    layers, size = 9, 4
    keys = torch.randn(2 * layers + 1, 16)
    embedding = torch.randn(5, 16)

    bank: list[Tensor] = []
    prefix: Tensor | None = embedding.double()
    for i in range(layers):
        h = apply(prefix, bank, keys[2 * i])
        if i % size == 0:
            assert prefix is not None
            bank.append(prefix)
            prefix = None
        a = sublayer(2 * i)(h)
        prefix = a if prefix is None else prefix + a
        h = apply(prefix, bank, keys[2 * i + 1])
        prefix = prefix + sublayer(2 * i + 1)(h)
    wanted = apply(prefix, bank, keys[-1])

    for frozen in (False, True):
        h = BlockResiduals(embedding, EPS)
        for i in range(layers):
            x = h.read(keys[2 * i])
            if i % size == 0:
                h.close_block(keys[2 * i + 1 : 2 * i + 1 + 2 * size] if frozen else None)
            h.write(sublayer(2 * i)(x))
            h.write(sublayer(2 * i + 1)(h.read(keys[2 * i + 1])))
        assert len(h.bank) == 3
        torch.testing.assert_close(h.read(keys[-1]).double(), wanted, rtol=1e-4, atol=1e-5)


def test_full_form_equals_equation_8() -> None:
    keys, embedding = torch.randn(5, 16), torch.randn(3, 16)
    sublayers = [sublayer(i) for i in range(4)]
    values = [embedding.double()]
    for f, key in zip(sublayers, keys, strict=False):
        values.append(f(apply(None, values, key)))
    got = full_attn_res(embedding, sublayers, keys, EPS)
    torch.testing.assert_close(got.double(), apply(None, values, keys[-1]), rtol=1e-4, atol=1e-5)


def test_full_form_is_the_block_form_with_a_block_per_sublayer() -> None:
    keys, embedding = torch.randn(5, 16), torch.randn(3, 16)
    h = BlockResiduals(embedding, EPS)
    for i in range(4):
        x = h.read(keys[i])
        h.close_block()
        h.write(sublayer(i)(x))
    got = full_attn_res(embedding, [sublayer(i) for i in range(4)], keys, EPS)
    torch.testing.assert_close(h.read(keys[-1]), got)


def test_zero_queries_average_and_rounding_comes_before_mixing() -> None:
    sources = [torch.randn(4, 8) for _ in range(3)]
    mean = torch.stack(sources).mean(0)
    torch.testing.assert_close(mix(sources, torch.zeros(8), EPS), mean)
    h = BlockResiduals(torch.ones(8).bfloat16(), EPS)
    h.write(torch.full((8,), 2.0**-10).bfloat16())
    assert h.prefix is not None
    assert h.prefix.dtype == torch.bfloat16
    assert torch.equal(h.prefix, torch.ones(8).bfloat16())
