"""Generation: greedy against the plain forward pass, sampling, stops, batches, states."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch

from unabridged.model.generate import generate, sample, stream
from unabridged.model.k3 import K3
from unabridged.model.sampling import Sampling

GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def model(make_config: Any, make_model: Any) -> K3:
    return make_model(make_config())


def prompt(n: int) -> list[int]:
    return torch.randint(2, 512, (n,), generator=torch.Generator().manual_seed(n)).tolist()


def test_greedy_equals_the_plain_forward_pass(model: K3) -> None:
    ids = prompt(20)
    (completion,) = generate(model, [ids], 12, GREEDY, stop=[])
    for token in completion.tokens:
        with torch.no_grad():
            logits = model(torch.tensor(ids))[-1]
        assert logits[token] > logits.max() - 1e-3
        ids.append(token)
    assert len(completion.tokens) == 12
    assert completion.finish_reason == "length"


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0.8, top_p=0.9, seed=5)])
def test_batch_says_what_single_says(model: K3, sampling: Sampling) -> None:
    prompts = [prompt(n) for n in (3, 40, 70)]
    together = generate(model, prompts, 10, sampling, stop=[])
    for i, ids in enumerate(prompts):
        own = Sampling(sampling.temperature, sampling.top_p, sampling.seed + i)
        assert generate(model, [ids], 10, own, stop=[])[0].tokens == together[i].tokens


def test_a_seed_repeats_and_another_differs(model: K3) -> None:
    def said(seed: int) -> list[int]:
        return generate(model, [prompt(9)], 16, Sampling(seed=seed), stop=[])[0].tokens

    assert said(1) == said(1)
    assert len({tuple(said(seed)) for seed in range(4)}) == 4


def test_stop_ends_a_sequence_and_the_others_go_on(model: K3) -> None:
    prompts = [prompt(5), prompt(6)]
    free = generate(model, prompts, 10, GREEDY, stop=[])
    stop = free[0].tokens[3]
    assert stop not in free[1].tokens
    first, second = generate(model, prompts, 10, GREEDY, stop=[stop])
    assert first.tokens == free[0].tokens[: free[0].tokens.index(stop)]
    assert (first.finish_reason, first.stop_token) == ("stop", stop)
    assert (second.tokens, second.finish_reason) == (free[1].tokens, "length")


def test_streams_as_it_goes_and_leaves_states_to_go_on_from(model: K3) -> None:
    state = model.new_state()
    tokens = stream(model, [prompt(8)], 30, GREEDY, stop=[], states=[state])
    said = [next(tokens)[1] for _ in range(6)]
    assert state.position == 8 + 5  # all but the newest
    tokens.close()
    whole = generate(model, [prompt(8)], 12, GREEDY, stop=[])[0].tokens
    rest = generate(model, [said[-1:]], 6, GREEDY, stop=[], states=[state])[0].tokens
    assert said + rest == whole


def test_sampling_follows_the_probabilities() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    generator = torch.Generator().manual_seed(0)

    def shares(sampling: Sampling) -> list[float]:
        counts = Counter(sample(logits, sampling, generator) for _ in range(4000))
        return [counts[i] / 4000 for i in range(4)]

    assert shares(Sampling(1.0, 1.0)) == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=0.03)
    assert shares(Sampling(1.0, 0.8)) == pytest.approx([0.625, 0.375, 0, 0], abs=0.03)
    assert shares(Sampling(1.0, 0.81)) == pytest.approx([0.526, 0.316, 0.158, 0], abs=0.03)
    assert shares(Sampling(1.0, 0.01)) == [1, 0, 0, 0]
    squared = [p**2 / 0.365 for p in (0.5, 0.3, 0.15, 0.05)]
    assert shares(Sampling(0.5, 1.0)) == pytest.approx(squared, abs=0.03)
    assert shares(Sampling(0.0)) == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
    ],
)
def test_settings_out_of_range(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling(**arguments)


def test_requests_that_cannot_be_met(model: K3) -> None:
    with pytest.raises(ValueError, match="at least one token"):
        generate(model, [[]], 5)
    with pytest.raises(ValueError, match="max_tokens must be at least 1"):
        generate(model, [[3]], 0)
    with pytest.raises(ValueError, match="do not fit the window of 4096"):
        generate(model, [[3] * 4090], 7)
    with pytest.raises(ValueError, match="1 states for 2 prompts"):
        generate(model, [[3], [4]], 7, states=[model.new_state()])
