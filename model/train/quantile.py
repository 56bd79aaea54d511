"""Quantile Balancing: the router's bias, set so that every expert gets its share.

For each token the (k + 1)-th biased score is the cutoff an expert has to pass. An expert's bias
becomes the one with which it would have passed exactly its share of the tokens just seen:

    r_ij = cutoff_i - score_ij                       # the bias expert j would have needed
    b_j  = the (q + 1)-th smallest of r_:j, then less the mean over j;   q = m k / n

for m tokens, k of n experts. No loss is added and no step size chosen. The bias takes effect in
the next step, and is frozen at inference.

Source: Kimi K3 report, section 2.3.3, equation 14, appendices C and D.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..moe import Router, Routing


def required_bias(scores: Tensor, bias: Tensor, k: int) -> Tensor:
    """[m, n] scores and the bias [n] they were routed with: what each expert would have needed."""
    cutoff = torch.topk(scores + bias, k + 1, dim=-1).values[:, -1:]
    return cutoff - scores


def exact_bias(scores: Tensor, bias: Tensor, k: int) -> Tensor:
    """The next bias [n], from all scores [m, n] of a step."""
    m, n = scores.shape
    share = m * k // n
    needed = required_bias(scores, bias, k).sort(0).values
    new = needed[min(share, m - 1)]
    return new - new.mean()


class Histogram:
    """The same from counts, which add up over passes and processes.

    Args:
        bias: [n], the bias of this step.
        bins: the result is off by one bin's width at most, (max b - min b + 2) / bins.
    """

    def __init__(self, bias: Tensor, k: int, bins: int = 1000) -> None:
        self.bias, self.k, self.bins = bias.clone(), k, bins
        self.low = self.bias.min() - 1
        self.width = (self.bias.max() + 1 - self.low) / bins
        self.counts = torch.zeros(len(bias), bins, dtype=torch.int64, device=bias.device)
        self.load = torch.zeros(len(bias), dtype=torch.int64, device=bias.device)

    def add(self, routing: Routing) -> None:
        """Count the tokens of one pass."""
        scores = routing.scores.detach()
        needed = required_bias(scores, self.bias, self.k)
        bin_ = ((needed - self.low) / self.width).long().clamp_(0, self.bins - 1)
        self.counts.scatter_add_(1, bin_.mT, torch.ones_like(bin_.mT))
        self.load += torch.bincount(routing.experts.flatten(), minlength=len(self.load))

    def new_bias(self) -> Tensor:
        """The next bias [n]; that of this step if no token was counted."""
        tokens = int(self.counts[0].sum())
        if tokens == 0:
            return self.bias
        share = tokens * self.k / len(self.bias)
        reached = self.counts.cumsum(1)
        first = (reached < share).sum(1, keepdim=True).clamp_(max=self.bins - 1)
        inside = self.counts.gather(1, first)
        before = reached.gather(1, first) - inside
        part = ((share - before) / inside.clamp(min=1)).clamp(0, 1)
        new = (self.low + (first + part) * self.width)[:, 0]
        return new - new.mean()

    @property
    def excess(self) -> float:
        """How much more than its share the busiest expert got: 0.1 is 10 % more."""
        total = int(self.load.sum())
        return int(self.load.max()) * len(self.load) / total - 1 if total else 0.0


class QuantileBalancer:
    """Watches the routers of a model and sets their biases after each step.

    Args:
        model: a K3, or any module with `Router`s in it.
        memory: share of the old bias in the new one. A step of a few thousand tokens is a noisy
            sample; the report's appendix D averages too.
        bins: see `Histogram`.
        watch_inference: count passes without gradients, and no others.
    """

    def __init__(
        self,
        model: nn.Module,
        memory: float = 0.0,
        bins: int = 1000,
        watch_inference: bool = False,
    ) -> None:
        self.memory, self.watch_inference = memory, watch_inference
        self.routers = [module for module in model.modules() if isinstance(module, Router)]
        self.bins = bins
        self.histograms = [self._fresh(router) for router in self.routers]
        self._hooks = [
            router.register_forward_hook(self._watch(i)) for i, router in enumerate(self.routers)
        ]

    def _fresh(self, router: Router) -> Histogram:
        return Histogram(router.e_score_correction_bias, router.k, self.bins)

    def _watch(self, i: int) -> Any:
        def hook(module: nn.Module, inputs: Any, routing: Routing) -> None:
            # An evaluation in between is not part of the step.
            if torch.is_grad_enabled() != self.watch_inference:
                self.histograms[i].add(routing)

        return hook

    @torch.no_grad()
    def step(self) -> list[float]:
        """Set the biases for the next step; the excess load of each router in this one."""
        if dist.is_initialized():
            for histogram in self.histograms:
                dist.all_reduce(histogram.counts)
                dist.all_reduce(histogram.load)
        excess = self.excess()
        for i, router in enumerate(self.routers):
            new = self.histograms[i].new_bias()
            router.e_score_correction_bias.lerp_(new, 1 - self.memory)
            self.histograms[i] = self._fresh(router)
        return excess

    def excess(self) -> list[float]:
        """The excess load of each router in what was counted since the last step."""
        return [histogram.excess for histogram in self.histograms]

    def close(self) -> None:
        """Stop watching."""
        for hook in self._hooks:
            hook.remove()
