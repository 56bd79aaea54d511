"""Gated MLA against transformers' Kimi-Linear and a float64 formula; its two forms agree."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.kimi_linear.configuration_kimi_linear import KimiLinearConfig
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearAttention

from unabridged.model import mla
from unabridged.model.mla import GatedMLA, LatentCache


@pytest.fixture
def layer(make_config: Any) -> GatedMLA:
    torch.manual_seed(0)
    layer = GatedMLA(make_config().text_config)
    for name, weight in layer.named_parameters():
        if name.endswith("layernorm.weight"):
            weight.data.add_(torch.randn_like(weight) * 0.2)
        else:
            weight.data.normal_(std=2 * weight.shape[1] ** -0.5)
    return layer


def formula(layer: GatedMLA, x: Tensor) -> Tensor:
    """Equation 7, one head and one token at a time, in float64."""
    w = {name: weight.detach().double() for name, weight in layer.named_parameters()}
    x = x.double()

    def norm(y: Tensor, gain: Tensor) -> Tensor:
        return y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gain

    q_a = norm(x @ w["q_a_proj.weight"].T, w["q_a_layernorm.weight"])
    latent = x @ w["kv_a_proj_with_mqa.weight"].T
    c, shared = norm(latent[:, :32], w["kv_a_layernorm.weight"]), latent[:, 32:]
    outputs = torch.zeros(len(x), 4 * 32, dtype=torch.float64)
    for h in range(4):
        q = q_a @ w["q_b_proj.weight"][48 * h : 48 * h + 48].T
        kv = c @ w["kv_b_proj.weight"][64 * h : 64 * h + 64].T
        k, v = torch.cat([kv[:, :32], shared], 1), kv[:, 32:]
        for t in range(len(x)):
            weights = torch.softmax(k[: t + 1] @ q[t] * 48**-0.5, 0)
            outputs[t, 32 * h : 32 * h + 32] = weights @ v[: t + 1]
    gate = torch.sigmoid(x @ w["g_proj.weight"].T)
    return (gate * outputs) @ w["o_proj.weight"].T


def test_equals_the_formula(layer: GatedMLA) -> None:
    x = torch.randn(40, 256)
    torch.testing.assert_close(layer(x, [40]).double(), formula(layer, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("value", [32, 64], ids=["narrow values", "wide values"])
@torch.no_grad()
def test_spans_over_a_past_equal_the_formula(make_config: Any, value: int) -> None:
    """In float32 through PyTorch's kernel, in float64 and with wide values by hand."""
    layer = GatedMLA(make_config(v_head_dim=value).text_config)
    for weight in layer.parameters():
        weight.data.normal_(mean=float(weight.dim() == 1), std=2 * weight.shape[-1] ** -0.5)
    x = torch.randn(50, 256)
    results: list[Tensor] = []
    for dtype in (torch.float32, torch.float64):
        exact, state = layer.to(dtype), layer.to(dtype).new_state(dtype)
        spans = [exact(span.to(dtype), [len(span)], [state]) for span in x.split([20, 17, 13])]
        results.append(torch.cat(spans).double())
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=2e-5)
    if value == 32:
        torch.testing.assert_close(results[0], formula(layer, x), rtol=1e-4, atol=2e-5)


def test_the_form_for_training_equals_the_one_for_inference(layer: GatedMLA) -> None:
    x = torch.randn(70, 256)
    with torch.no_grad():
        expected = layer(x, [40, 30])
    torch.testing.assert_close(layer(x, [40, 30]), expected, rtol=1e-4, atol=1e-5)

    def gradients(attend: Any) -> list[Tensor]:
        q = torch.randn(40, 4, 48, generator=torch.Generator().manual_seed(1), requires_grad=True)
        latents = torch.randn(40, 48, generator=torch.Generator().manual_seed(2)).requires_grad_()
        attend(q, latents).square().sum().backward()
        assert q.grad is not None
        assert latents.grad is not None
        return [q.grad, latents.grad]

    plain = gradients(lambda q, latents: layer.materialised(q, latents[:0], latents))
    torch.testing.assert_close(gradients(layer.fused), plain, rtol=1e-4, atol=1e-4)


def test_equals_transformers_where_the_gate_is_half(layer: GatedMLA) -> None:
    """Kimi-Linear has no output gate; a gate projection of zero halves everything."""
    config = KimiLinearConfig(
        hidden_size=256,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=64,
        kv_lora_rank=32,
        qk_nope_head_dim=32,
        qk_rope_head_dim=16,
        v_head_dim=32,
    )
    config._attn_implementation = "eager"
    reference = KimiLinearAttention(config, 3)
    own = {name: w for name, w in layer.state_dict().items() if not name.startswith("g_proj")}
    reference.load_state_dict(own)
    torch.nn.init.zeros_(layer.g_proj.weight)
    x = torch.randn(50, 256)
    mask = torch.full((50, 50), -torch.inf).triu(1)[None, None]
    wanted = reference(x[None], mask)[0][0]
    torch.testing.assert_close(2 * layer(x, [50]), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("block", [7, 2048])
def test_absorbed_and_materialised_agree_over_the_cache(
    layer: GatedMLA, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mla, "_BLOCK", block)
    x = torch.randn(60, 256)
    wanted = layer(x, [60])
    cache = layer.new_state(torch.float32)
    pieces = [layer(part, [len(part)], [cache]) for part in x.split([20, 1, 1, 25, 1, 12])]
    torch.testing.assert_close(torch.cat(pieces), wanted, rtol=1e-4, atol=2e-5)
    assert cache.length == 60
    assert cache.latents.shape == (60, 32 + 16)


def test_sequences_do_not_see_each_other(layer: GatedMLA) -> None:
    x = torch.randn(30, 256)
    packed = layer(x, [10, 0, 20])
    alone = torch.cat([layer(x[:10], [10]), layer(x[10:], [20])])
    torch.testing.assert_close(packed, alone, rtol=1e-4, atol=1e-5)


def test_cache_grows_and_forks() -> None:
    cache = LatentCache(torch.empty(0, 3))
    rows = torch.randn(25, 3)
    for part in rows.split(4):
        cache.append(part)
    assert torch.equal(cache.latents, rows)
    copy = cache.fork()
    copy.append(torch.zeros(1, 3))
    copy.latents[:1] = 7
    assert torch.equal(cache.latents, rows)


def test_gradients_reach_every_weight(layer: GatedMLA) -> None:
    layer(torch.randn(12, 256), [5, 7]).square().sum().backward()
    for name, weight in layer.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.abs().sum() > 0, name
