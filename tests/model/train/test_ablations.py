"""The small experiments: their sequences say what they claim, and each variant is what it is called."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from unabridged.model.k3 import DecoderLayer
from unabridged.model.kda import recurrent_kda
from unabridged.model.situ import SituMLP
from unabridged.model.train.ablations import report, variants
from unabridged.model.train.ablations.experiments import EXPERIMENTS, round_to
from unabridged.model.train.ablations.sequences import CHAIN_ENTROPY, KEYS, VALUES, Recall, chain
from unabridged.model.train.ablations.training import Result, measure, train
from unabridged.model.train.ablations.variants import build, small_config


@given(st.integers(1, 30), st.data(), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_every_answer_is_the_latest_value_of_its_key(pairs: int, data: st.DataObject, seed: int):
    task = Recall(
        pairs,
        changed=data.draw(st.integers(0, pairs)),
        asked=data.draw(st.integers(1, pairs)),
        chain=data.draw(st.sampled_from((0, 3, 10))),
    )
    batch = task.draw(3, torch.Generator().manual_seed(seed))
    told = task.chain + 2 * (task.pairs + task.changed)
    assert batch.tokens.shape == (3, told + 2 * task.asked)
    for tokens, answers in zip(batch.tokens.tolist(), batch.answers.tolist(), strict=True):
        known = dict(
            zip(tokens[task.chain : told : 2], tokens[task.chain + 1 : told : 2], strict=True)
        )
        assert len(known) == task.pairs
        asked = [place for place, answer in enumerate(answers) if answer]
        assert asked == list(range(told, len(tokens), 2))
        assert [tokens[place + 1] for place in asked] == [known[tokens[place]] for place in asked]
    assert batch.letters.sum() == 3 * max(task.chain - 2, 0)


def test_letters_follow_their_table_as_often_as_said():
    letters = chain(200, 200, torch.Generator().manual_seed(3)) - KEYS - VALUES
    seen: dict[tuple[int, int], list[int]] = {}
    for row in letters.tolist():
        for a, b, c in zip(row, row[1:], row[2:], strict=False):
            seen.setdefault((a, b), []).append(c)
    losses: list[float] = []
    for followers in seen.values():
        counts = sorted((followers.count(c) for c in set(followers)), reverse=True)
        assert len(counts) <= 4
        shares = torch.tensor(counts) / len(followers)
        losses += [float(-(shares * shares.log()).sum())] * len(followers)
    assert sum(losses) / len(losses) == pytest.approx(CHAIN_ENTROPY, abs=0.03)


def _layer_inputs(layer: variants.KimiDeltaAttention, B: int, T: int) -> list[torch.Tensor]:
    H, K = layer.heads, layer.head_dim
    torch.manual_seed(1)
    q, k, v = torch.randn(3, B * T, H, K)
    return [q, k, v, -torch.rand(B * T, H, K), torch.rand(B * T, H)]


def test_without_the_delta_rule_the_state_only_adds_and_forgets():
    model = variants.without_delta_rule(build(small_config(2, []), 0))
    layer = model.language_model.model.layers[0].self_attn
    assert isinstance(layer, variants.AdditiveKDA)
    q, k, v, g, beta = _layer_inputs(layer, B=2, T=20)
    o, _ = layer._chunks(q, k, v, g, beta, S=None, lengths=[20, 20])
    for b in range(2):
        S = torch.zeros(layer.heads, layer.head_dim, layer.head_dim)
        for t in range(20 * b, 20 * b + 20):
            S = S * g[t].exp()[..., None] + beta[t][:, None, None] * k[t][..., None] * v[t][:, None]
            torch.testing.assert_close(o[t], (S * q[t][..., None]).sum(1), rtol=1e-4, atol=1e-4)


def test_with_a_scalar_decay_all_channels_of_a_head_forget_alike():
    model = variants.with_scalar_decay(build(small_config(2, []), 0))
    layer = model.language_model.model.layers[0].self_attn
    assert isinstance(layer, variants.ScalarKDA)
    q, k, v, g, beta = _layer_inputs(layer, B=1, T=30)
    k = torch.nn.functional.normalize(k, dim=-1)
    o, _ = layer._chunks(q, k, v, g, beta, S=None, lengths=[30])
    same = g.mean(-1, keepdim=True).expand_as(g)
    expected, _ = recurrent_kda(*(x[None] for x in (q, k, v, same, beta)))
    torch.testing.assert_close(o, expected[0], rtol=1e-4, atol=1e-4)


def test_without_attention_residuals_each_sublayer_reads_the_sum_of_all_before():
    model = variants.without_attn_res(build(small_config(2, []), 0))
    backbone = model.language_model.model
    read: list[torch.Tensor] = []
    wrote: list[torch.Tensor] = []

    def keep(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        wrote.append(output)

    for layer in backbone.layers:
        assert isinstance(layer, DecoderLayer)
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            norm.register_forward_hook(lambda _m, inputs, _o: read.append(inputs[0]))
        for mixer in (layer.self_attn, layer.channel_mixer):
            assert isinstance(mixer, nn.Module)
            mixer.register_forward_hook(keep)
    tokens = torch.randint(100, (12,))
    model(tokens)
    total = backbone.embed_tokens(tokens)
    for seen, output in zip(read, wrote, strict=True):
        torch.testing.assert_close(seen, total)
        total = total + output


def test_with_swiglu_the_activation_is_silu_times_up():
    model = variants.with_swiglu(build(small_config(2, []), 0))
    mlp = next(module for module in model.modules() if isinstance(module, SituMLP))
    x = torch.randn(5, 64)
    expected = mlp.down_proj(torch.nn.functional.silu(mlp.gate_proj(x)) * mlp.up_proj(x))
    torch.testing.assert_close(mlp(x), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_rounded_weights_take_no_more_values_than_their_bits_allow(bits: int):
    weight = torch.randn(4, 64, requires_grad=True)
    rounded = round_to(bits, weight)
    for group in rounded.detach().view(-1, 32):
        assert len(group.unique()) <= 2**bits
    rounded.sum().backward()
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.ones_like(weight))
    errors = [float((round_to(b, weight) - weight).square().mean().detach()) for b in (4, 3, 2, 1)]
    assert errors == sorted(errors)


def test_a_run_learns_and_is_the_same_for_the_same_seed():
    task = Recall(pairs=4, changed=2, asked=4)
    before = measure(build(small_config(2, []), 0), task).recall
    scores: list[Result] = []
    for _ in range(2):
        model = build(small_config(2, []), 0)
        train(model, task, 40, seed=0)
        scores.append(measure(model, task))
    assert scores[0] == scores[1]
    assert scores[0].recall > before + 0.08


def test_intervals_are_those_of_student():
    mean, half = report.interval([0.1, 0.2, 0.3])
    assert mean == pytest.approx(0.2)
    assert half == pytest.approx(4.303 * 0.1 / 3**0.5)


def test_the_program_writes_figures_table_and_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    runs = {"a": [Result(0.5, 0.1, [0.3] * 60), Result(0.7, 0.2, [0.1] * 60)],
            "b": [Result(0.25, None), Result(0.35, None)]}  # fmt: skip
    for name in ("ideas", "balance"):
        chosen = runs if name == "ideas" else {"a": runs["a"]}
        report.save(tmp_path, name, chosen, 1.0)
        assert report.load(tmp_path / f"{name}.json") == chosen
        assert (tmp_path / f"{name}.svg").read_bytes().startswith(b"<?xml")
    assert "| a | 60.0 ± 127.1 % |" in report.table(runs)


def test_an_unknown_experiment_is_named_with_those_there_are(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "unabridged.model.train.ablations", "depht", "--out", tmp_path],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "no experiment 'depht'" in done.stderr
    assert "depth" in done.stderr


def test_every_experiment_has_arms_to_compare():
    assert all(len(experiment.arms) >= 2 for experiment in EXPERIMENTS.values())
