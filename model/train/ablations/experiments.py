"""The experiments: for each its question, its arms, and what one run of an arm gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from torch import Tensor

from ... import mxfp4
from ...k3 import K3
from ...moe import Experts
from ..quantile import QuantileBalancer
from . import variants
from .sequences import Recall
from .training import Result, measure, train
from .variants import build, small_config

Run = Callable[[int], Result]
"""From a seed to what came of it."""


@dataclass(frozen=True, slots=True)
class Experiment:
    title: str
    question: str
    setup: str
    arms: Mapping[str, Run]


def _plain(model: K3) -> K3:
    return model


def _arm(
    task: Recall,
    steps: int,
    change: Callable[[K3], K3] = _plain,
    layers: int = 4,
    mla: Sequence[int] | None = None,
    dense: bool = False,
) -> Run:
    def run(seed: int) -> Result:
        width = {"first_k_dense_replace": layers, "intermediate_size": 96} if dense else {}
        model = change(build(small_config(layers, mla, **width), seed))
        excess = train(model, task, steps, seed)
        return replace(measure(model, task), excess=excess)

    return run


SHORT = Recall(pairs=12, changed=6, asked=12)
LONG = Recall(pairs=40, changed=8, asked=24)
MIXED = Recall(pairs=10, changed=4, asked=10, chain=48)

DELTA_RULE = Experiment(
    "The delta rule and the decay of each channel",
    "Does a state that corrects what it holds recall better than one that only adds and forgets?",
    "Two KDA layers, no attention; 12 keys, 6 of them told a second value, all asked for.",
    {
        "KDA": _arm(SHORT, 500, layers=2, mla=[]),
        "one decay a head": _arm(SHORT, 500, variants.with_scalar_decay, layers=2, mla=[]),
        "no delta rule": _arm(SHORT, 500, variants.without_delta_rule, layers=2, mla=[]),
    },
)
HYBRID = Experiment(
    "Three to one",
    "Does one layer of full attention among three of KDA recall what KDA alone cannot hold?",
    "Four layers; 40 keys for states of 16 x 16 a head, 8 of them told a second value, 24 asked for.",
    {
        "KDA, KDA, KDA, MLA": _arm(LONG, 400),
        "KDA alone": _arm(LONG, 400, mla=[]),
        "MLA alone": _arm(LONG, 400, mla=[1, 2, 3, 4]),
    },
)
IDEAS = Experiment(
    "Each idea taken out",
    "What does each of the four ideas give a model of this size?",
    "Four layers, 3:1; 48 letters of the chain, then 10 keys, 4 told again, all asked for.",
    {
        "K3": _arm(MIXED, 400),
        "no delta rule": _arm(MIXED, 400, variants.without_delta_rule),
        "residual stream": _arm(MIXED, 400, variants.without_attn_res),
        "dense GLU for experts": _arm(MIXED, 400, dense=True),
        "no norm of the latent": _arm(MIXED, 400, variants.without_latent_norm),
        "SwiGLU": _arm(MIXED, 400, variants.with_swiglu),
    },
)
DEPTH = Experiment(
    "Depth",
    "Do Attention Residuals help more where there are more layers?",
    "The sequences of the experiment before; every fourth layer MLA.",
    {
        f"{layers} layers, {name}": _arm(MIXED, 300, change, layers=layers)
        for layers in (4, 8)
        for name, change in (("AttnRes", _plain), ("residual", variants.without_attn_res))
    },
)


def _sign_step(rate: float, balancer: QuantileBalancer) -> list[float]:
    """The rule of models before K3: a bias falls by a fixed step where an expert got too much."""
    loads = [histogram.load.float() for histogram in balancer.histograms]
    before = [router.e_score_correction_bias.clone() for router in balancer.routers]
    excess = balancer.step()
    for router, bias, load in zip(balancer.routers, before, loads, strict=True):
        router.e_score_correction_bias.copy_(bias + rate * torch.sign(load.mean() - load))
    return excess


def _balanced(rebalance: Callable[[QuantileBalancer], list[float]]) -> Run:
    def run(seed: int) -> Result:
        config = small_config(num_experts=16, first_k_dense_replace=0)
        model = build(config, seed)
        excess = train(model, MIXED, 300, seed, rebalance=rebalance)
        return replace(measure(model, MIXED), excess=excess)

    return run


BALANCE = Experiment(
    "Balance",
    "How soon, and how evenly, are experts used?",
    "Four layers with 16 experts, two a token; the excess is that of the worst layer, its mean over "
    "the last 50 of 300 steps.",
    {
        "quantile": _balanced(QuantileBalancer.step),
        "sign step, 0.001": _balanced(partial(_sign_step, 0.001)),
        "sign step, 0.01": _balanced(partial(_sign_step, 0.01)),
    },
)


def round_to(bits: int, weight: Tensor) -> Tensor:
    """Weights in `bits` bits under a scale for each 32 neighbours, gradients passing straight.

    Four bits are MXFP4. Three and two are whole numbers up to +-3 and +-1 times the scale, of 16
    tried, with the least squared error; one bit is the sign times the group's mean magnitude.
    """
    if bits == 4:
        return mxfp4.fake_quantize(weight)
    return mxfp4.straight_through(weight, partial(_rounded_to, bits))


def _rounded_to(bits: int, weight: Tensor) -> Tensor:
    groups = weight.unflatten(-1, (-1, mxfp4.GROUP))
    if bits == 1:
        sign = torch.where(groups < 0, -1.0, 1.0)
        return (sign * groups.abs().mean(-1, keepdim=True)).flatten(-2)
    top = 2 ** (bits - 1) - 1
    largest = groups.abs().amax(-1, keepdim=True).clamp(min=1e-12)
    tried = [
        (groups / scale).round().clamp(-top, top) * scale
        for scale in (largest * part / (16 * top) for part in range(1, 17))
    ]
    errors = torch.stack([(one - groups).square().sum(-1) for one in tried])
    best = errors.argmin(0)[None, ..., None].expand(1, *groups.shape)
    return torch.stack(tried).gather(0, best)[0].flatten(-2)


class RoundedExperts(Experts):
    """Experts seen through `round_to`."""

    bits = 4

    def _all(self, name: str) -> Tensor:
        return round_to(self.bits, getattr(self, name))

    def _matrices(self, name: str, hit: list[int]) -> list[Tensor]:
        each = self._all(name).unbind()
        return [each[e] for e in hit]


@cache
def _trained(seed: int, whole: bool) -> K3:
    """Trained on 32 bits to the last 30 % of the steps, or to the end: the arms' common beginning."""
    if whole:
        model = deepcopy(_trained(seed, whole=False))
        train(model, MIXED, 400, seed, fraction=(0.7, 1.0))
        return model
    model = build(small_config(first_k_dense_replace=0), seed)
    train(model, MIXED, 400, seed, fraction=(0.0, 0.7))
    return model


def _rounded(bits: int | None, aware: bool) -> Run:
    def run(seed: int) -> Result:
        model = deepcopy(_trained(seed, whole=not aware))
        _round(model, bits)
        if aware:
            train(model, MIXED, 400, seed, fraction=(0.7, 1.0))
        return measure(model, MIXED)

    return run


def _round(model: K3, bits: int | None) -> None:
    for module in model.modules():
        if bits is not None and isinstance(module, Experts):
            module.__class__ = RoundedExperts
            assert isinstance(module, RoundedExperts)
            module.bits = bits


BITS = Experiment(
    "Bits of an expert's weight",
    "How few bits can experts have, rounded at the end, or seen rounded in the last 30 % of steps?",
    "Four layers of experts; the rest of the model keeps 32 bits.",
    {"32 bits": _rounded(None, aware=False)}
    | {
        f"{bits} bits, {name}": _rounded(bits, aware)
        for bits in (4, 3, 2, 1)
        for name, aware in (("rounded at the end", False), ("aware", True))
    },
)

EXPERIMENTS: Mapping[str, Experiment] = {
    "delta-rule": DELTA_RULE,
    "hybrid": HYBRID,
    "ideas": IDEAS,
    "depth": DEPTH,
    "balance": BALANCE,
    "bits": BITS,
}
