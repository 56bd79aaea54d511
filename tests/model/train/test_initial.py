"""The weights that training starts from already copy, a little."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unabridged.model.k3 import K3, DecoderLayer
from unabridged.model.kda import KimiDeltaAttention
from unabridged.model.mla import GatedMLA
from unabridged.model.train.initial import FASTEST, SLOWEST, initialise

WIDE: dict[str, Any] = {
    "hidden_size": 192, "q_lora_rank": 128, "kv_lora_rank": 64, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 48, "v_head_dim": 48,
    "linear_attn_config": {
        "num_heads": 4, "head_dim": 32, "full_attn_layers": [2, 4], "kda_layers": [1, 3],
    },
}  # fmt: skip
"""Wide enough that random vectors are nearly at right angles."""


def with_bags(count: int) -> dict[str, Any]:
    """`WIDE` with room for so many bags of 16 elements, and a head for each."""
    linear = {**WIDE["linear_attn_config"], "num_heads": 4 + count}
    more = {"hidden_size": 200, "q_lora_rank": 128, "qk_rope_head_dim": 48}
    sizes = {name: size + 16 * count for name, size in more.items()}
    return {**WIDE, **sizes, "linear_attn_config": linear}


def attention(layer: GatedMLA, x: Tensor) -> Tensor:
    """The softmax of the layer, [heads, T, T], from its definition."""
    T = len(x)
    q = layer.q_b_proj(layer.q_a_layernorm(layer.q_a_proj(x))).view(T, layer.heads, -1)
    c, shared = layer.kv_a_proj_with_mqa(x).split([layer.latent, layer.shared], -1)
    own = layer.kv_b_proj(layer.kv_a_layernorm(c)).view(T, layer.heads, -1)[..., : layer.nope]
    k = torch.cat([own, shared[:, None].expand(-1, layer.heads, -1)], -1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * layer.scale
    ahead = torch.ones(T, T, dtype=torch.bool).triu(1)
    return scores.masked_fill(ahead, -torch.inf).softmax(-1)


def watched(model: K3) -> tuple[GatedMLA, list[Tensor]]:
    """The first MLA layer, and a list that gets what each pass gives it to read."""
    layer = model.language_model.model.layers[1]
    assert isinstance(layer, DecoderLayer)
    assert isinstance(layer.self_attn, GatedMLA)
    seen: list[Tensor] = []
    layer.self_attn.register_forward_hook(lambda m, inputs, out: seen.append(inputs[0]))
    return layer.self_attn, seen


@torch.no_grad()
def test_the_first_mla_layer_looks_at_what_followed_the_same_token(
    tiny_model: Callable[..., K3],
) -> None:
    model = tiny_model(**WIDE)
    initialise(model)
    once = torch.randperm(500, generator=torch.Generator().manual_seed(0))[:60]
    layer, seen = watched(model)
    model.hidden(torch.cat([once, once]), [120])
    weights = attention(layer, seen[0])
    at = torch.arange(60, 119)
    assert weights[:, at, at - 59].mean() > 0.5  # of about 90 places, by chance 0.01
    assert (weights[:, at].argmax(-1) == at - 59).float().mean() > 0.8


@torch.no_grad()
def test_what_came_before_tells_between_places_where_the_same_tokens_stand(
    tiny_model: Callable[..., K3],
) -> None:
    """Four tokens stand in two places; the bag knows in which of them this repetition is."""
    model = tiny_model(**with_bags(1))
    initialise(model)
    layer, seen = watched(model)
    helped: list[float] = []
    for seed in range(10):
        tokens = torch.randperm(500, generator=torch.Generator().manual_seed(seed))
        same, one, other, end = tokens[:4], tokens[4:24], tokens[24:44], tokens[44:48]
        preferred: list[Tensor] = []  # what followed at first, over what followed later
        for before in (one, other):
            model.hidden(torch.cat([one, same, other, same, end, before, same]), [76])
            weights = attention(layer, seen.pop()).mean(0)[-1]
            preferred.append((weights[24] / weights[48]).log())
        helped.append(float(preferred[0] - preferred[1]))
    assert min(helped) > 0
    assert sum(helped) / len(helped) > 1


@torch.no_grad()
def test_of_like_places_the_recent_one_is_preferred(tiny_model: Callable[..., K3]) -> None:
    """The slow bag: the same four tokens between others, long ago and lately."""
    model = tiny_model(**with_bags(2))
    initialise(model)
    layer, seen = watched(model)
    recent: list[float] = []
    for seed in range(10):
        tokens = torch.randperm(500, generator=torch.Generator().manual_seed(seed))
        same, one, other, far, near = tokens[:260].split([4, 20, 20, 196, 20])
        near[0] = far[0]  # so that the token itself says nothing
        preferred = 0.0  # what followed lately, over what followed long ago
        for first, second in ((one, other), (other, one)):  # so that the other bag says nothing
            model.hidden(torch.cat([first, same, far, second, same, near, same]), [268])
            weights = attention(layer, seen.pop()).mean(0)[-1]
            preferred += float((weights[244] / weights[24]).log())
        recent.append(preferred / 2)
    assert sum(recent) / len(recent) > 0.3
    assert sum(one > 0 for one in recent) >= 8


@torch.no_grad()
def test_it_says_what_it_found_more_often_than_chance(tiny_model: Callable[..., K3]) -> None:
    model = tiny_model(**WIDE)
    initialise(model)
    right = total = 0
    for seed in range(8):
        once = torch.randperm(500, generator=torch.Generator().manual_seed(seed))[:30]
        choice = model(torch.cat([once, once])).argmax(-1)
        right += int((choice[30:-1] == once[1:]).sum())
        total += 29
    assert right / total > 0.1  # by chance 0.002


def test_decays_are_spread_over_time_scales(tiny_model: Callable[..., K3]) -> None:
    model = tiny_model(**WIDE)
    initialise(model)
    layer = model.language_model.model.layers[2]
    assert isinstance(layer, DecoderLayer)
    assert isinstance(layer.self_attn, KimiDeltaAttention)
    decay = 5 * torch.sigmoid(layer.self_attn.dt_bias.detach())
    assert decay.min() < 4 * SLOWEST
    assert decay.max() > FASTEST / 4
    assert decay.max() < FASTEST
