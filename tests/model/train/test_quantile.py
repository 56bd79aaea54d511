"""Quantile Balancing by its definition on small cases, and what it does to load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unabridged.model.chat.tokenizer import Tokenizer
from unabridged.model.k3 import K3
from unabridged.model.moe import Router, route
from unabridged.model.train.corpus import held_out
from unabridged.model.train.quantile import Histogram, QuantileBalancer, exact_bias
from unabridged.model.train.trainer import load_excess


def by_definition(scores: np.ndarray, bias: np.ndarray, k: int) -> np.ndarray:
    """Equation 14: minus the (q + 1)-th largest margin of each expert, mean removed."""
    m, n = scores.shape
    cutoff = np.sort(scores + bias, axis=1)[:, n - k - 1]
    margins = scores - cutoff[:, None]
    q = m * k // n
    new = np.array([-sorted(margins[:, j], reverse=True)[q] for j in range(n)])
    return new - new.mean()


def draw(seed: int, m: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    skew = torch.randn(n, generator=generator, dtype=torch.float64)
    scores = torch.sigmoid(torch.randn(m, n, generator=generator, dtype=torch.float64) + skew)
    return scores, 0.1 * torch.randn(n, generator=generator, dtype=torch.float64)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(8, 80), st.integers(3, 12), st.integers(1, 3))
def test_exact_form_is_the_definition(seed: int, m: int, n: int, k: int) -> None:
    k = min(k, n - 1)
    scores, bias = draw(seed, m, n)
    np.testing.assert_allclose(
        exact_bias(scores, bias, k).numpy(), by_definition(scores.numpy(), bias.numpy(), k)
    )


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 4))
def test_histogram_is_within_a_bin_of_the_exact_form(seed: int, passes: int) -> None:
    scores, bias = draw(seed, 400 * passes, 8)
    histogram = Histogram(bias, 2, bins=500)
    for part in scores.chunk(passes):
        histogram.add(route(part, bias, 2))
    exact = exact_bias(scores, bias, 2)
    width = float(histogram.width)
    # Each quantile is off by a bin at most, and so is their mean.
    assert (histogram.new_bias() - exact).abs().max() <= 2 * width


def test_load_evens_out_in_a_few_steps() -> None:
    """The case of the report's appendix: skewed scores, fresh tokens each step."""
    generator = torch.Generator().manual_seed(0)
    skew = 1.5 * torch.randn(64, generator=generator)
    bias = torch.zeros(64)
    excess: list[float] = []
    for _ in range(6):
        scores = torch.sigmoid(torch.randn(4096, 64, generator=generator) + skew)
        histogram = Histogram(bias, 4)
        histogram.add(route(scores, bias, 4))
        excess.append(histogram.excess)
        bias = histogram.new_bias()
    assert excess[0] > 3
    assert max(excess[3:]) < 0.35


def test_a_bias_takes_effect_in_the_next_step_only(tiny_model: Callable[..., K3]) -> None:
    model = tiny_model()
    balancer = QuantileBalancer(model)
    router = next(module for module in model.modules() if isinstance(module, Router))
    tokens = torch.randint(0, 256, (200,), generator=torch.Generator().manual_seed(0))
    model.hidden(tokens, [200])
    assert not router.e_score_correction_bias.any()
    assert len(balancer.step()) == 3
    bias = router.e_score_correction_bias.clone()
    assert bias.any()
    assert abs(float(bias.mean())) < 1e-6
    with torch.no_grad():  # inference is not counted
        model.hidden(tokens, [200])
    assert balancer.step() == [0.0] * 3
    assert torch.equal(router.e_score_correction_bias, bias)
    balancer.close()


def test_memory_keeps_a_share_of_the_old_bias(tiny_model: Callable[..., K3]) -> None:
    tokens = torch.randint(0, 256, (200,), generator=torch.Generator().manual_seed(0))
    biases: list[torch.Tensor] = []
    for memory in (0.0, 0.75):
        model = tiny_model()
        balancer = QuantileBalancer(model, memory)
        model.hidden(tokens, [200])
        balancer.step()
        router = next(module for module in model.modules() if isinstance(module, Router))
        biases.append(router.e_score_correction_bias)
    torch.testing.assert_close(biases[1], biases[0] / 4)


def test_load_is_measured_at_inference(tokenizer: Tokenizer, tiny_model: Callable[..., K3]) -> None:
    """Against a plain count of where the routers send each token."""
    model = tiny_model()
    samples = held_out(tokenizer, [], 8)
    counts = torch.zeros(3, 8)
    routers = [module for module in model.modules() if isinstance(module, Router)]

    def count(module: Any, inputs: Any, routing: Any) -> None:
        chosen = torch.bincount(routing.experts.flatten(), minlength=8)
        counts[routers.index(module)] += chosen

    for router in routers:
        router.register_forward_hook(count)
    found = load_excess(model, samples)
    expected = counts.amax(1) / counts.mean(1) - 1
    torch.testing.assert_close(torch.tensor(found), expected)
