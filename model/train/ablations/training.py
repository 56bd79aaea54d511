"""One small run: train on made-up sequences, then measure on fresh ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from ...k3 import K3
from .. import muon
from ..quantile import QuantileBalancer
from .sequences import CHAIN_ENTROPY, Batch, Recall

BATCH = 24
_TEST = 256
"""Fresh sequences that a model is measured on."""

Rebalance = Callable[[QuantileBalancer], list[float]]
"""Sets the routers' biases after a step; the excess load of each router in that step."""


@dataclass(slots=True)
class Result:
    """What one run of one arm came to."""

    recall: float
    """Share of the asked keys whose latest value is the first choice."""
    chain: float | None
    """Nats a letter above what nobody can predict; None without letters."""
    excess: list[float] = field(default_factory=list)
    """For each step how much more than its share the busiest expert got, the worst layer's."""


def train(
    model: K3,
    task: Recall,
    steps: int,
    seed: int,
    muon_lr: float = 0.01,
    adam_lr: float = 0.003,
    rebalance: Rebalance = QuantileBalancer.step,
    fraction: tuple[float, float] = (0.0, 1.0),
) -> list[float]:
    """Train in place with the product's own optimisers; the excess load of each step.

    Args:
        fraction: the part of the schedule to run: rates rise in its first twentieth, then fall to
            0 at its end, linearly.
    """
    generator = torch.Generator().manual_seed(1_000_003 * (seed + 1) + round(100 * fraction[0]))
    optimizers = muon.build(model, muon_lr, adam_lr, weight_decay=0.0)
    balancer = QuantileBalancer(model, memory=0.5)
    excess: list[float] = []
    model.train()
    for step in range(round(fraction[0] * steps), round(fraction[1] * steps)):
        done = step / steps
        rate = min(20 * done + 1 / steps, 1.0, (1 - done) / 0.5)
        for optimizer, peak in zip(optimizers, (muon_lr, adam_lr), strict=True):
            optimizer.zero_grad(set_to_none=True)
            for group in optimizer.param_groups:
                group["lr"] = peak * rate
        loss, _, _ = losses(model, task.draw(BATCH, generator))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        excess.append(max(rebalance(balancer), default=0.0))
    balancer.close()
    return excess


@torch.no_grad()
def measure(model: K3, task: Recall) -> Result:
    """On sequences that no run trains on."""
    model.eval()
    generator = torch.Generator().manual_seed(7)
    right: list[Tensor] = []
    chain: list[Tensor] = []
    for _ in range(_TEST // 32):
        batch = task.draw(32, generator)
        _, good, letters = losses(model, batch)
        right.append(good)
        chain.append(letters)
    above = torch.cat(chain)
    return Result(
        recall=float(torch.cat(right).float().mean()),
        chain=float(above.mean()) - CHAIN_ENTROPY if len(above) else None,
    )


def losses(model: K3, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """The loss to train on; whether each answer is right; the loss of each letter."""
    logits = model(batch.tokens)[:, :-1]
    targets = batch.tokens[:, 1:]
    answers, letters = batch.answers[:, :-1], batch.letters[:, :-1]
    answered = F.cross_entropy(logits[answers], targets[answers], reduction="none")
    spelt = F.cross_entropy(logits[letters], targets[letters], reduction="none")
    loss = answered.mean() + (spelt.mean() if len(spelt) else 0.0)
    return loss, logits[answers].argmax(-1) == targets[answers], spelt
