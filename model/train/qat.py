"""Quantisation-aware training: the last phase sees the weights it will be shipped with.

Routed experts then run as they will be stored: weights rounded to MXFP4, inputs to MXFP8, with
gradients passing straight through to the full-precision weights behind.

Source: Kimi K3 report, section 4.1.4.
"""

from __future__ import annotations

from torch import nn

from ..moe import Experts, PackedExperts


def set_qat(model: nn.Module, on: bool) -> None:
    """Round experts in every forward pass from here on, or no longer."""
    for module in model.modules():
        if isinstance(module, Experts) and not isinstance(module, PackedExperts):
            module.qat = on
