"""Router and experts against transformers' Kimi-Linear, vectors, and a float64 loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.models.kimi_linear.configuration_kimi_linear import KimiLinearConfig
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearTopkRouter

from unabridged.model import mxfp4, mxfp4_kernel
from unabridged.model.moe import Experts, PackedExperts, Router, StableLatentMoE, route


def test_router_vector() -> None:
    scores = torch.tensor([[0.9, 0.2, 0.6, 0.5]])
    bias = torch.tensor([-0.5, 0.5, 0, 0.05])
    routing = route(scores, bias, 2)
    assert sorted(routing.experts[0].tolist()) == [1, 2]
    weights = dict(zip(routing.experts[0].tolist(), routing.weights[0].tolist(), strict=True))
    assert weights == pytest.approx({1: 0.25, 2: 0.75})


def test_router_equals_transformers(make_config: Any) -> None:
    torch.manual_seed(0)
    config = make_config(routed_scaling_factor=2.446).text_config
    settings: dict[str, Any] = {"num_experts": 16, "num_experts_per_token": 4}
    theirs = KimiLinearTopkRouter(
        KimiLinearConfig(hidden_size=256, routed_scaling_factor=2.446, **settings)
    )
    mine = Router(config)
    mine.weight.data.normal_()
    mine.e_score_correction_bias.uniform_(-0.5, 0.5)
    theirs.load_state_dict(mine.state_dict())
    x = torch.randn(200, 256)
    routing = mine(x)
    logits, weights, experts = theirs(x)
    order, their_order = routing.experts.argsort(-1), experts.argsort(-1)
    assert torch.equal(routing.experts.gather(1, order), experts.gather(1, their_order))
    torch.testing.assert_close(routing.weights.gather(1, order), weights.gather(1, their_order))
    torch.testing.assert_close(routing.scores, logits.sigmoid())


def dense_experts(config: Any) -> Experts:
    experts = Experts(config)
    for weight in experts.parameters():
        weight.data.normal_(std=2 * weight.shape[-1] ** -0.5)
    return experts


def loop(experts: Experts, z: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Each token, each of its experts, in float64."""
    w1, w2, w3 = (getattr(experts, name).detach().double() for name in ("w1", "w2", "w3"))
    out = torch.zeros_like(z, dtype=torch.float64)
    for n, row in enumerate(z.double()):
        for e, p in zip(chosen[n].tolist(), weights[n].double(), strict=True):
            g, u = w1[e] @ row, w3[e] @ row
            hidden = 4 * torch.tanh(g / 4) * torch.sigmoid(g) * 25 * torch.tanh(u / 25)
            out[n] += p * (w2[e] @ hidden)
    return out


@pytest.mark.parametrize("grad", [False, True])
def test_grouped_experts_equal_a_loop(make_config: Any, grad: bool) -> None:
    torch.manual_seed(0)
    experts = dense_experts(make_config().text_config)
    for tokens in (1, 37):
        z, scores = torch.randn(tokens, 128), torch.rand(tokens, 16)
        routing = route(scores, torch.zeros(16), 4)
        with torch.set_grad_enabled(grad):
            got = experts(z, routing)
        wanted = loop(experts, z, routing.experts, routing.weights)
        torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tokens", [1, 20, 400])
@pytest.mark.parametrize("compiled", [True, False])
def test_packed_experts_equal_their_unpacked_weights(
    make_config: Any, monkeypatch: pytest.MonkeyPatch, tokens: int, compiled: bool
) -> None:
    if not compiled:
        monkeypatch.setattr(mxfp4_kernel, "kernel", lambda: None)
    torch.manual_seed(0)
    config = make_config().text_config
    dense, packed = dense_experts(config), PackedExperts(config)
    for name in ("w1", "w2", "w3"):
        codes, scale = mxfp4.quantize(getattr(dense, name))
        getattr(packed, f"{name}_packed").copy_(mxfp4.pack(codes))
        getattr(packed, f"{name}_scale").copy_(scale)
        getattr(dense, name).data = mxfp4.unpack(mxfp4.pack(codes), scale, torch.float32)
    z, routing = torch.randn(tokens, 128), route(torch.rand(tokens, 16), torch.zeros(16), 4)
    with torch.no_grad():
        got, want = packed(z, routing), dense(z, routing)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    assert compiled or torch.equal(got, want)


def test_qat_sees_what_the_checkpoint_will_hold(make_config: Any) -> None:
    """Rounded weights and inputs forward; gradients as if nothing had been rounded."""
    torch.manual_seed(0)
    experts = dense_experts(make_config().text_config)
    z, routing = torch.randn(20, 128), route(torch.rand(20, 16), torch.zeros(16), 4)
    experts.qat = True
    got = experts(z, routing)
    rounded = dense_experts(make_config().text_config)
    for name in ("w1", "w2", "w3"):
        getattr(rounded, name).data = mxfp4.fake_quantize(getattr(experts, name).detach())
    q = mxfp4.fake_quantize_activation
    wanted = torch.zeros_like(z)
    for n in range(20):
        for e, p in zip(routing.experts[n], routing.weights[n], strict=True):
            x = q(z[n])
            g, u = rounded.w1[e] @ x, rounded.w3[e] @ x
            hidden = 4 * torch.tanh(g / 4) * torch.sigmoid(g) * 25 * torch.tanh(u / 25)
            wanted[n] += p * (rounded.w2[e] @ q(hidden))
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3)
    got.sum().backward()
    for name in ("w1", "w2", "w3"):
        gradient = getattr(experts, name).grad
        assert gradient is not None
        assert (gradient.abs().sum((1, 2)) > 0).all()


def test_only_experts_that_were_hit_are_unpacked(
    make_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mxfp4_kernel, "kernel", lambda: None)
    experts = PackedExperts(make_config().text_config)
    calls: list[torch.Size] = []
    unpack = mxfp4.unpack
    monkeypatch.setattr(mxfp4, "unpack", lambda p, s: (calls.append(p.shape), unpack(p, s))[1])
    with torch.no_grad():
        experts(torch.randn(1, 128), route(torch.rand(1, 16), torch.zeros(16), 4))
    assert len(calls) == 3 * 4


def test_layer_follows_equation_11(make_config: Any) -> None:
    torch.manual_seed(0)
    config = make_config().text_config
    layer = StableLatentMoE(config, packed=False)
    layer.experts = dense_experts(config)
    layer.gate.weight.data.normal_()
    x = torch.randn(9, 256)
    routing = layer.gate(x)
    u = loop(layer.experts, F.linear(x, layer.routed_expert_down_proj.weight), *routing[:2])
    norm = u / (u.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    routed = norm @ layer.routed_expert_up_proj.weight.double().T
    wanted = routed + layer.shared_experts(x).double()
    torch.testing.assert_close(layer(x).double(), wanted, rtol=1e-4, atol=1e-5)


def test_bias_is_no_parameter_and_gets_no_gradient(make_config: Any) -> None:
    router = Router(make_config().text_config)
    assert [name for name, _ in router.named_parameters()] == ["weight"]
    router(torch.randn(3, 256)).weights.max().backward()
    assert router.weight.grad is not None
