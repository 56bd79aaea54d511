"""MXFP4 and MXFP8 against compressed-tensors, bit for bit, and the specification's vectors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from compressed_tensors.compressors.mxfp4 import MXFP4PackedCompressor
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationScheme,
    QuantizationStrategy,
    QuantizationType,
)
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.utils import calculate_qparams
from torch import Tensor

from unabridged.model import mxfp4


def arguments(bits: int) -> QuantizationArgs:
    return QuantizationArgs(
        num_bits=bits,
        type=QuantizationType.FLOAT,
        strategy=QuantizationStrategy.GROUP,
        group_size=32,
        symmetric=True,
        scale_dtype=torch.uint8,
    )


def reference_scale(values: Tensor, bits: int) -> Tensor:
    groups = values.unflatten(-1, (-1, 32))
    return calculate_qparams(groups.amin(-1), groups.amax(-1), arguments(bits))[0]


def samples() -> dict[str, Tensor]:
    torch.manual_seed(0)
    normal = torch.randn(64, 256)
    steps = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6, 7, 0.1, 0, 1.74, 1.0])
    ties = torch.cat([steps, -steps, torch.zeros(6)])[None].repeat(20, 1)
    ties = ties * 2.0 ** torch.arange(-10, 10)[:, None]
    return {
        "normal": normal,
        "wide range": normal * torch.exp2(torch.randint(-60, 60, (64, 256)).float()),
        "ties": ties,
        "weights": (normal * 0.02).bfloat16().float(),
        "some groups zero": normal * (torch.arange(256) >= 64),
    }


@pytest.mark.parametrize("name", samples())
def test_equals_compressed_tensors_bit_for_bit(name: str) -> None:
    weight = samples()[name]
    scheme = QuantizationScheme(targets=["Linear"], weights=arguments(4))
    state = {"weight": weight, "weight_scale": reference_scale(weight, 4)}
    compressed = MXFP4PackedCompressor.compress(state, scheme)
    codes, scale = mxfp4.quantize(weight)
    assert torch.equal(scale, compressed["weight_scale"])
    assert torch.equal(mxfp4.pack(codes), compressed["weight_packed"])
    plain = MXFP4PackedCompressor.decompress(compressed, scheme)["weight"]
    values = mxfp4.unpack(mxfp4.pack(codes), scale, plain.dtype)
    assert torch.equal(values, plain)


def test_mxfp8_equals_compressed_tensors() -> None:
    values = torch.cat([x.flatten() for x in samples().values()]).view(-1, 32)
    values = values[values.abs().amax(-1) > 1e-30]
    scale = reference_scale(values, 8)
    wanted = fake_quantize(values, scale, torch.zeros_like(scale), arguments(8))
    assert torch.equal(mxfp4.fake_quantize_activation(values), wanted)


@pytest.mark.parametrize(
    ("byte", "scale", "values"), [(0x7A, 128, [-2.0, 12.0]), (0x1F, 125, [-1.5, 0.125])]
)
def test_unpack_vectors(byte: int, scale: int, values: list[float]) -> None:
    packed = torch.full((1, 16), byte, dtype=torch.uint8)
    got = mxfp4.unpack(packed, torch.full((1, 1), scale, dtype=torch.uint8))
    assert got.dtype == torch.bfloat16
    assert got.tolist() == [values * 16]


@pytest.mark.parametrize(
    ("largest", "byte"),
    [(1.0, 125), (1.74, 125), (1.75, 126), (6.0, 127), (7.0, 128), (0.1, 121), (0.0, 0)],
)
def test_scale_vectors(largest: float, byte: int) -> None:
    values = torch.zeros(1, 32)
    values[0, 7] = -largest
    assert mxfp4.quantize(values)[1].item() == byte


def test_rounding_table() -> None:
    values = torch.zeros(1, 32)
    table = {0.25: 0, 0.75: 1, 1.25: 1, 1.75: 2, 2.5: 2, 3.5: 4, 5: 4, 5.01: 6, 6.9: 6, 0.26: 0.5}
    values[0, : len(table)] = torch.tensor(list(table))
    codes, scale = mxfp4.quantize(values)
    assert scale.item() == 127
    got = mxfp4.unpack(mxfp4.pack(codes), scale, torch.float32)[0, : len(table)]
    assert got.tolist() == list(table.values())


def test_every_byte_under_every_scale() -> None:
    """Against the definition, computed in Python."""
    table = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    packed = torch.arange(256, dtype=torch.uint8).view(16, 16)
    for exponent in (0, 1, 127, 200, 252):
        scale = torch.full((16, 1), exponent, dtype=torch.uint8)
        got = mxfp4.unpack(packed, scale, torch.float64)
        for byte in range(256):
            for half, code in enumerate((byte & 15, byte >> 4)):
                sign = -1 if code & 8 else 1
                wanted = sign * table[code & 7] * 2.0 ** (exponent - 127)
                assert got[byte // 16, 2 * (byte % 16) + half].item() == wanted
    nan = mxfp4.unpack(packed[:1], torch.tensor([[255]], dtype=torch.uint8))
    assert nan.isnan().all()


def test_quantised_values_are_fixed_points() -> None:
    once = mxfp4.fake_quantize(samples()["normal"])
    assert torch.equal(mxfp4.fake_quantize(once), once)
    once = mxfp4.fake_quantize_activation(samples()["normal"])
    assert torch.equal(mxfp4.fake_quantize_activation(once), once)


@pytest.mark.parametrize("fake", [mxfp4.fake_quantize, mxfp4.fake_quantize_activation])
def test_gradients_pass_straight_through(fake: Callable[[Tensor], Tensor]) -> None:
    weight = torch.randn(4, 64).bfloat16().requires_grad_()
    rounded = fake(weight)
    assert rounded.dtype == torch.bfloat16
    assert not torch.equal(rounded, weight)
    upstream = torch.randn(4, 64).bfloat16()
    rounded.backward(upstream)
    assert weight.grad is not None
    assert torch.equal(weight.grad, upstream)


def test_an_axis_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 32, not 33"):
        mxfp4.quantize(torch.zeros(1, 33))
