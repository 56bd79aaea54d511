"""Attention Residuals: depth as a sequence to attend over, in place of a residual stream.

The input of a sublayer is a softmax mixture of what earlier sublayers produced, scored by one
learned query per sublayer against their RMS-normalised values:

    h_l = sum_i a_i v_i        a = softmax_i( w_l . (gain_l * v_i / rms(v_i)) )

In the full form each earlier output is a source. K3 runs the block form: the sources are the
embedding, the sum of each finished block of layers, and the running sum of the current one, nine
at most. A query and its gain only occur as their product, here called `key`.

Source: Kimi K3 report, section 2.2, equations 8 to 10.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


def mix(sources: Sequence[Tensor], key: Tensor, eps: float) -> Tensor:
    """The softmax mixture of the sources.

    Args:
        sources: tensors [..., hidden].
        key: [hidden], query times gain, float32.

    Returns:
        [..., hidden] in the dtype of the sources; computed in float32.
    """
    values = torch.stack([source.float() for source in sources])  # [S, ..., hidden]
    weights = _scores(values, key, eps).softmax(0)
    return (weights[..., None] * values).sum(0).to(sources[0].dtype)


def full_attn_res(
    embedding: Tensor, sublayers: Sequence[Callable[[Tensor], Tensor]], keys: Tensor, eps: float
) -> Tensor:
    """The full form, as the paper defines it: every sublayer's output is a source.

    Args:
        embedding: [..., hidden].
        sublayers: each with its own input norm.
        keys: [len(sublayers) + 1, hidden]; the last mixes the output.
    """
    values = [embedding]
    for sublayer, key in zip(sublayers, keys[:-1], strict=True):
        values.append(sublayer(mix(values, key, eps)))
    return mix(values, keys[-1], eps)


class BlockResiduals:
    """The block form, for the tokens of one forward pass.

    Args:
        embedding: [..., hidden], the first source.
    """

    def __init__(self, embedding: Tensor, eps: float) -> None:
        self.eps = eps
        self.bank: list[Tensor] = []
        """The embedding and the sums of finished blocks."""
        self.prefix: Tensor | None = embedding
        """The running sum, in the dtype of the sublayers: rounded before it is a source."""
        self._frozen: Iterator[Partial] = iter(())

    def read(self, key: Tensor) -> Tensor:
        """The input of the sublayer with this key, [..., hidden]."""
        partial = next(self._frozen, None)
        if partial is not None and self.prefix is not None:
            return partial.merge(self.prefix, key, self.eps)
        sources = self.bank if self.prefix is None else [*self.bank, self.prefix]
        return sources[0] if len(sources) == 1 else mix(sources, key, self.eps)

    def close_block(self, keys: Tensor | None = None) -> None:
        """File the running sum as a source and start a new one.

        Args:
            keys: [reads, hidden], the keys of all reads up to the next `close_block`, in order. If
                given, they meet the bank together, now, and each later read only adds the running
                sum: less to read where few tokens are in flight.
        """
        assert self.prefix is not None, "a block has at least one sublayer"
        self.bank.append(self.prefix)
        self.prefix = None
        if keys is not None:
            self._frozen = iter(mix_online(self.bank, keys, self.eps))

    def write(self, output: Tensor) -> None:
        """Add a sublayer's output to the running sum."""
        self.prefix = output if self.prefix is None else self.prefix + output


class Partial(NamedTuple):
    """A softmax mixture that one more source may join, float32."""

    mixture: Tensor  # [..., hidden] of the sources so far
    weight: Tensor  # [...] log of the sum of exp(score), as one score that stands for them all

    def merge(self, source: Tensor, key: Tensor, eps: float) -> Tensor:
        """The mixture with one more source, [..., hidden] in its dtype."""
        value = source.float()
        share = torch.sigmoid(_scores(value, key, eps) - self.weight)
        return torch.lerp(self.mixture, value, share[..., None]).to(source.dtype)


def mix_online(sources: Sequence[Tensor], keys: Tensor, eps: float) -> list[Partial]:
    """For each of the keys [Q, hidden], the mixture of the sources so far."""
    values = torch.stack([source.float() for source in sources])  # [S, ..., hidden]
    normal = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + eps)
    scores = torch.einsum("s...d,qd->qs...", normal, keys)
    mixtures = torch.einsum("qs...,s...d->q...d", scores.softmax(1), values)
    return [Partial(*parts) for parts in zip(mixtures, scores.logsumexp(1), strict=True)]


def _scores(values: Tensor, key: Tensor, eps: float) -> Tensor:
    """key . value / rms(value), [...]."""
    return (values @ key) * torch.rsqrt(values.square().mean(-1) + eps)
