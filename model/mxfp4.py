"""MXFP4 weights and MXFP8 activations: values of four and eight bits under shared scales.

32 neighbours share a scale 2^(byte - 127). An MXFP4 value is one of +-{0, .5, 1, 1.5, 2, 3, 4, 6}
(E2M1) times its scale; two lie in a byte, the lower nibble first. An MXFP8 value is an E4M3 number
times its scale.

Source: OCP Microscaling Formats 1.0; the released checkpoint ("mxfp4-pack-quantized").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

GROUP = 32
"""Neighbours on the last axis that share a scale."""
NAN_SCALE = 255
"""The scale byte that means "not a number": in a checkpoint, damage."""
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def quantize(values: Tensor) -> tuple[Tensor, Tensor]:
    """Round to MXFP4.

    Args:
        values: [..., n] with n a multiple of 32; finite.

    Returns:
        codes [..., n], uint8 in 0..15 (bit 3 is the sign), and scales [..., n / 32], uint8.
    """
    scale = _scales(values, largest_exponent=2)
    scaled = _groups(values.float()) / _power(scale)[..., None]
    magnitude = scaled.abs()
    # Ties go to the code whose lowest bit is 0: "past" a bound or "at or past" it, in turn.
    code = (
        (magnitude > 0.25).to(torch.uint8)
        + (magnitude >= 0.75)
        + (magnitude > 1.25)
        + (magnitude >= 1.75)
        + (magnitude > 2.5)
        + (magnitude >= 3.5)
        + (magnitude > 5.0)
    )
    code |= (scaled < 0).to(torch.uint8) << 3
    return code.view(values.shape), scale


def pack(codes: Tensor) -> Tensor:
    """Two codes a byte: [..., n] -> [..., n / 2], the even column in the low nibble."""
    return codes[..., 0::2] | codes[..., 1::2] << 4


def unpack(packed: Tensor, scale: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """The values of packed codes [..., n / 2] under scales [..., n / 32]: [..., n]."""
    exact = torch.bfloat16 if dtype == torch.bfloat16 else torch.float32  # both hold any of them
    values = F.embedding(packed.int(), _pairs().to(packed.device, exact)).flatten(-2)
    return (_groups(values) * _power(scale).to(exact)[..., None]).flatten(-2).to(dtype)


def fake_quantize(weight: Tensor) -> Tensor:
    """The weight as MXFP4 would hold it, in its own dtype; gradients pass straight through."""
    return straight_through(weight, _through_mxfp4)


def fake_quantize_activation(x: Tensor) -> Tensor:
    """The activation as MXFP8 would hold it, in its own dtype; gradients pass straight through."""
    return straight_through(x, _through_mxfp8)


def straight_through(x: Tensor, rounding: Callable[[Tensor], Tensor]) -> Tensor:
    """`rounding` of x; gradients pass as if nothing were rounded."""
    return _StraightThrough.apply(x, rounding)


def _through_mxfp4(weight: Tensor) -> Tensor:
    codes, scale = quantize(weight)
    return unpack(pack(codes), scale, weight.dtype)


def _through_mxfp8(x: Tensor) -> Tensor:
    power = _power(_scales(x, largest_exponent=8))[..., None]
    rounded = (_groups(x.float()) / power).clamp(-448, 448).to(torch.float8_e4m3fn)
    return (rounded.float() * power).view(x.shape).to(x.dtype)


class _StraightThrough(torch.autograd.Function):
    """A rounding in the forward pass that the backward pass does not see."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rounding: Callable[[Tensor], Tensor]) -> Tensor:
        return rounding(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def _pairs() -> Tensor:
    """The two values of each byte, [256, 2]: one look-up a byte is faster than two codes."""
    values = torch.tensor([*_MAGNITUDES, *(-m for m in _MAGNITUDES)])
    return torch.stack([values.repeat(16), values.repeat_interleave(16)], -1)


def _groups(values: Tensor) -> Tensor:
    """[..., n] -> [..., n / 32, 32]."""
    if values.shape[-1] % GROUP:
        raise ValueError(f"the last axis must be a multiple of {GROUP}, not {values.shape[-1]}")
    return values.unflatten(-1, (-1, GROUP))


def _scales(values: Tensor, largest_exponent: int) -> Tensor:
    """Scale bytes that put each group's largest magnitude where the format is largest.

    The exponent of the largest magnitude, plus 1 where its significand is 1.75 or more (it would
    round past the format's top), less the exponent of the format's largest value.
    """
    bits = _groups(values.float()).abs().amax(-1).view(torch.int32)
    exponent = (bits + (1 << 21)) >> 23
    return (exponent - largest_exponent).clamp(0, 254).to(torch.uint8)


def _power(scale: Tensor) -> Tensor:
    """2^(byte - 127), float32; not a number for byte 255."""
    bits = (scale.int() << 23).masked_fill(scale == 0, 1 << 22)  # 2^-127 has no exponent bits
    return bits.masked_fill(scale == NAN_SCALE, 0x7FC00000).view(torch.float32)
