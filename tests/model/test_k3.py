"""The assembled model against the specification, written out in float64, token by token."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from unabridged.model.k3 import K3
from unabridged.model.kda import kda_step


def reference_logits(model: K3, tokens: list[int]) -> Tensor:
    """K3 from its checkpoint names alone: loops over tokens, heads and experts, no batching."""
    w = {name: tensor.detach().double() for name, tensor in model.state_dict().items()}
    text = model.config.text_config
    root = "language_model.model."
    T = len(tokens)

    def lin(x: Tensor, name: str) -> Tensor:
        return x @ w[name + ".weight"].T

    def norm(x: Tensor, gain: Tensor, eps: float = 1e-5) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * gain

    def glu(g: Tensor, u: Tensor) -> Tensor:
        return 4 * torch.tanh(g / 4) * torch.sigmoid(g) * 25 * torch.tanh(u / 25)

    def mix(prefix: Tensor | None, bank: list[Tensor], name: str) -> Tensor:
        V = torch.stack([*bank, prefix] if prefix is not None else bank)
        key = w[f"{root}{name}_norm.weight"] * w[f"{root}{name}_proj.weight"][0]
        p = (norm(V, torch.ones(1)) * key).sum(-1).softmax(0)
        return (p[..., None] * V).sum(0)

    def kda(x: Tensor, at: str) -> Tensor:
        H, K = 4, 64
        streams = []
        for part in "qkv":
            y, taps = lin(x, f"{at}{part}_proj"), w[f"{at}{part}_conv1d.weight"][:, 0]
            padded = torch.cat([torch.zeros(3, H * K), y])
            conv = torch.stack([(taps.T * padded[t : t + 4]).sum(0) for t in range(T)])
            streams.append((conv * torch.sigmoid(conv)).view(T, H, K))
        q, k, v = streams
        q = q / (q.square().sum(-1, keepdim=True) + 1e-6).sqrt() * K**-0.5
        k = k / (k.square().sum(-1, keepdim=True) + 1e-6).sqrt()
        z = (lin(lin(x, at + "f_a_proj"), at + "f_b_proj") + w[at + "dt_bias"]).view(T, H, K)
        slope = w[at + "A_log"][:H].exp()[:, None]
        alpha = torch.exp(-5 / (1 + torch.exp(-slope * z)))
        beta = torch.sigmoid(lin(x, at + "b_proj"))
        o = torch.zeros(T, H, K, dtype=torch.float64)
        for h in range(H):
            S = torch.zeros(K, K, dtype=torch.float64)
            for t in range(T):
                S = alpha[t, h][:, None] * S
                error = v[t, h] - S.T @ k[t, h]
                S = S + torch.outer(k[t, h], beta[t, h] * error)
                o[t, h] = S.T @ q[t, h]
        gate = torch.sigmoid(lin(x, at + "g_proj")).view(T, H, K)
        return lin((gate * norm(o, w[at + "o_norm.weight"])).flatten(1), at + "o_proj")

    def mla(x: Tensor, at: str) -> Tensor:
        q_a = norm(lin(x, at + "q_a_proj"), w[at + "q_a_layernorm.weight"], 1e-6)
        q = lin(q_a, at + "q_b_proj").view(T, 4, 48)
        latent = lin(x, at + "kv_a_proj_with_mqa")
        c, shared = norm(latent[:, :32], w[at + "kv_a_layernorm.weight"], 1e-6), latent[:, 32:]
        kv = lin(c, at + "kv_b_proj").view(T, 4, 64)
        o = torch.zeros(T, 4, 32, dtype=torch.float64)
        for h in range(4):
            k = torch.cat([kv[:, h, :32], shared], 1)
            for t in range(T):
                o[t, h] = torch.softmax(k[: t + 1] @ q[t, h] / 48**0.5, 0) @ kv[: t + 1, h, 32:]
        gate = torch.sigmoid(lin(x, at + "g_proj"))
        return lin(gate * o.flatten(1), at + "o_proj")

    def moe(x: Tensor, at: str) -> Tensor:
        scores = torch.sigmoid(lin(x, at + "gate"))
        z = lin(x, at + "routed_expert_down_proj")
        u = torch.zeros_like(z)
        for t in range(T):
            chosen = (scores[t] + w[at + "gate.e_score_correction_bias"]).topk(4).indices
            for e in chosen.tolist():
                w1, w2, w3 = (w[f"{at}experts.w{i}"][e] for i in (1, 2, 3))
                weight = scores[t, e] / scores[t, chosen].sum()
                u[t] += weight * (w2 @ glu(w1 @ z[t], w3 @ z[t]))
        routed = lin(norm(u, w[at + "routed_expert_norm.weight"]), at + "routed_expert_up_proj")
        return routed + dense(x, at + "shared_experts.")

    def dense(x: Tensor, at: str) -> Tensor:
        return lin(glu(lin(x, at + "gate_proj"), lin(x, at + "up_proj")), at + "down_proj")

    bank: list[Tensor] = []
    prefix: Tensor | None = w[root + "embed_tokens.weight"][tokens]
    for i in range(9):
        at = f"layers.{i}."
        h = mix(prefix, bank, at + "self_attention_res")
        if i % 4 == 0:
            assert prefix is not None
            bank.append(prefix)
            prefix = None
        x = norm(h, w[f"{root}{at}input_layernorm.weight"])
        a = (mla if i in (3, 7, 8) else kda)(x, f"{root}{at}self_attn.")
        prefix = a if prefix is None else prefix + a
        h = mix(prefix, bank, at + "mlp_res")
        x = norm(h, w[f"{root}{at}post_attention_layernorm.weight"])
        own = root + at + ("mlp." if i == 0 else "block_sparse_moe.")
        prefix = prefix + (dense if i == 0 else moe)(x, own)
    h = norm(mix(prefix, bank, "output_attn_res"), w[root + "norm.weight"])
    assert text.num_hidden_layers == 9
    return lin(h, "language_model.lm_head")


@pytest.fixture(scope="module")
def model(make_config: Any, make_model: Any) -> K3:
    return make_model(make_config())


def tokens(n: int, seed: int = 0) -> list[int]:
    return torch.randint(0, 512, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


def close(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got.double(), wanted.double(), rtol=1e-3, atol=1e-3)


def test_equals_the_specification(model: K3) -> None:
    ids = tokens(70)
    with torch.no_grad():
        got = model(torch.tensor(ids))
    wanted = reference_logits(model, ids)
    assert wanted.std() > 0.5  # every part speaks up
    close(got, wanted)


def test_every_tensor_shows_in_the_logits(make_config: Any, make_model: Any) -> None:
    """So the comparison above can fail."""
    kinds = {"num_heads": 4, "head_dim": 64, "full_attn_layers": [3], "kda_layers": [1, 2]}
    changes = {"num_hidden_layers": 3, "attn_res_block_size": 2, "linear_attn_config": kinds}
    model = make_model(make_config(**changes))
    ids = torch.tensor(tokens(24))
    with torch.no_grad():
        before = model(ids)
        for name, tensor in model.state_dict().items():
            kept = tensor.clone()
            tensor.copy_(tensor.flip(0) if len(tensor) > 1 else tensor * -1)
            changed = (model(ids) - before).abs().max()
            tensor.copy_(kept)
            if "self_attention_res" in name and ".layers.0." in name:
                assert changed == 0, name  # a mixture of one source
            else:
                assert changed > 1e-3, name


def test_prefill_equals_decode_in_any_mixture(model: K3) -> None:
    ids = tokens(150)
    with torch.no_grad():
        wanted = model(torch.tensor(ids))
    state = model.new_state()
    close(model.extend(state, ids[:80]), wanted[79])
    for i in range(80, 95):
        close(model.step([state], [ids[i]])[0], wanted[i])
    close(model.extend(state, ids[95:]), wanted[-1])
    assert state.position == 150
    assert list(state.tokens) == ids


def test_long_prompts_go_in_spans(model: K3, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = tokens(130)
    whole, spans = model.new_state(), model.new_state()
    wanted = model.extend(whole, ids)
    monkeypatch.setattr("unabridged.model.k3.PREFILL_SPAN", 50)
    close(model.extend(spans, ids), wanted)


def test_batch_equals_single(model: K3) -> None:
    prompts = [tokens(n, seed=n) for n in (5, 64, 97)]
    with torch.no_grad():
        packed = model(torch.cat([torch.tensor(p) for p in prompts]), [len(p) for p in prompts])
    states = [model.new_state() for _ in prompts]
    for prompt, state, row in zip(prompts, states, packed.split([5, 64, 97]), strict=True):
        close(model.extend(state, prompt), row[-1])
    alone = [state.fork() for state in states]
    for i in range(5):
        together = model.step(states, [7 + i, 8, 9])
        for row, state, token in zip(together, alone, [7 + i, 8, 9], strict=True):
            close(model.step([state], [token])[0], row)
    rows = torch.tensor([tokens(40, seed=1), tokens(40, seed=2)])
    with torch.no_grad():
        close(model(rows)[1], model(rows[1]))


def test_mixed_lengths_continue_from_states(model: K3) -> None:
    """One packed call may decode one sequence and prefill another."""
    ids = [tokens(30, seed=1), tokens(50, seed=2)]
    with torch.no_grad():
        wanted = [model(torch.tensor(i))[-1] for i in ids]
    states = [model.new_state(), model.new_state()]
    model.extend(states[0], ids[0][:-1])
    model.extend(states[1], ids[1][:20])
    with torch.inference_mode():
        packed = model(torch.tensor([ids[0][-1], *ids[1][20:]]), [1, 30], states)
    close(packed[0], wanted[0])
    close(packed[-1], wanted[1])


def test_gradients_reach_every_parameter(make_config: Any, make_model: Any) -> None:
    model = make_model(make_config()).train()
    ids = torch.tensor([tokens(64, seed=1) + tokens(64, seed=2)])
    logits = model(ids[0], [50, 78])
    torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:]).backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name
        unused = "layers.0.self_attention_res" in name
        assert unused or weight.grad.abs().sum() > 0, name


def test_training_packed_equals_training_apart(make_config: Any, make_model: Any) -> None:
    kinds = {"num_heads": 4, "head_dim": 64, "full_attn_layers": [2], "kda_layers": [1]}

    def gradient(pieces: list[list[list[int]]]) -> Tensor:
        model = make_model(make_config(num_hidden_layers=2, linear_attn_config=kinds))
        for sequences in pieces:
            packed = torch.cat([torch.tensor(ids) for ids in sequences])
            model(packed, [len(ids) for ids in sequences]).square().sum().backward()
        return model.language_model.model.embed_tokens.weight.grad

    a, b = tokens(20, seed=1), tokens(70, seed=2)
    together, apart = gradient([[a, b]]), gradient([[a], [b]])
    assert (together - apart).abs().max() < 1e-4 * apart.abs().max()


def test_bfloat16_keeps_float32_where_it_must(make_config: Any, make_model: Any) -> None:
    # Every expert is chosen: a near-tie of the router would fall differently in bfloat16.
    config = make_config(num_experts_per_token=16)
    exact, half = make_model(config), make_model(config, dtype=torch.bfloat16)
    half.load_state_dict(exact.state_dict())
    wide = {
        n.rsplit("self_attn.", 1)[-1]
        for n, p in half.named_parameters()
        if p.dtype == torch.float32
    }
    assert wide == {f"{c}_conv1d.weight" for c in "qkv"} | {"dt_bias", "A_log", "o_norm.weight"}
    ids = torch.tensor(tokens(40))
    with torch.no_grad():
        got, wanted = half(ids), exact(ids)
    assert got.dtype == torch.bfloat16
    state = half.new_state()
    half.extend(state, ids.tolist())
    assert state.layers[0].S.dtype == torch.float32
    error = (got.float() - wanted).abs().mean(-1) / wanted.abs().mean(-1)
    assert error.median() < 0.15


def test_start_values(make_config: Any) -> None:
    torch.manual_seed(0)
    model = K3(make_config())
    for name, weight in model.named_parameters():
        if name.endswith(("_res_proj.weight", "A_log")):
            assert (weight == 0).all(), name
        elif "norm" in name:
            assert (weight == 1).all(), name
        elif "conv1d" not in name and "dt_bias" not in name:
            assert weight.std().item() == pytest.approx(0.02, rel=0.1), name
    with torch.no_grad():
        logits = model(torch.tensor(tokens(20)))
    assert logits.isfinite().all()


@pytest.mark.parametrize("bad", [[512], [-1], [3, 999]])
def test_ids_outside_the_vocabulary_are_named(model: K3, bad: list[int]) -> None:
    with pytest.raises(ValueError, match=f"token id {bad[-1]} is outside the vocabulary of 512"):
        model.extend(model.new_state(), bad)
    with pytest.raises(ValueError, match="no token"):
        model.extend(model.new_state(), [])


def test_compile_decode_replaces_the_step_of_every_kda_layer(
    make_config: Any, make_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def step(*args: Tensor) -> Tensor:
        calls.append(1)
        return kda_step(*args)

    monkeypatch.setattr("unabridged.model.k3.compiled_kda_step", lambda: step)
    model = make_model(make_config())
    model.compile_decode()
    model.step([model.new_state()], [3])
    assert len(calls) == 6


def test_image_features_replace_their_placeholders(make_config: Any, make_model: Any) -> None:
    config = make_config()
    model = make_model(config.model_copy(update={"media_placeholder_token_id": 500}))
    ids = torch.tensor([3, 500, 500, 4])
    features = model.language_model.model.embed_tokens.weight[[10, 11]].detach()
    with torch.no_grad():
        got = model(ids, image_features=features)
        wanted = model(torch.tensor([3, 10, 11, 4]))
    close(got, wanted)
