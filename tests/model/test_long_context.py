"""Needles in long prompts, found by a model whose weights were set by hand to find them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from unabridged.model.k3 import K3
from unabridged.model.kda import KimiDeltaAttention
from unabridged.model.mla import GatedMLA
from unabridged.model.moe import StableLatentMoE
from unabridged.model.situ import SituMLP

VALUES = 8
KINDS = 2
ASK, FILL = 100, 200
"""Token ids: `ASK` + kind asks for a needle, from `FILL` on there is only hay."""
KIND, VALUE, ANSWER = 0, 8, 16
"""Where in the hidden vector the kind of a needle, its value, and what was found stand."""


def needle(kind: int, value: int) -> int:
    return 10 + kind * VALUES + value


@pytest.fixture(scope="module")
def finder(make_config: Any, make_model: Any) -> K3:
    """Three KDA layers and an MLA layer whose heads look for the kind that a token asks for.

    Only the MLA layer says anything; the others run on random weights and are not listened to.
    """
    linear = {"num_heads": 2, "head_dim": 32, "full_attn_layers": [4], "kda_layers": [1, 2, 3]}
    config = make_config(
        num_hidden_layers=4,
        hidden_size=64,
        intermediate_size=64,
        num_attention_heads=2,
        num_key_value_heads=2,
        moe_intermediate_size=32,
        routed_expert_hidden_size=32,
        max_position_embeddings=2**17,
        linear_attn_config=make_config().text_config.linear_attn_config.model_dump() | linear,
    )
    model = make_model(config)
    for module in model.modules():
        silenced: list[nn.Linear] = []
        if isinstance(module, KimiDeltaAttention):
            silenced = [module.o_proj]
        elif isinstance(module, StableLatentMoE):
            silenced = [module.routed_expert_up_proj]
        elif isinstance(module, SituMLP):
            silenced = [module.down_proj]
        elif isinstance(module, GatedMLA):
            set_by_hand(module)
        for linear_map in silenced:
            linear_map.weight.data.zero_()
    words = model.language_model.model.embed_tokens.weight.data
    words.mul_(0.1)
    words[:, : ANSWER + VALUES] = 0
    words[:, -1] = 1  # so that hay, too, has a size and its latents are not noise blown up
    head = model.language_model.lm_head.weight.data.zero_()
    for kind in range(KINDS):
        words[ASK + kind, KIND + KINDS + kind] = 1
        for value in range(VALUES):
            words[needle(kind, value), [KIND + kind, VALUE + value]] = 1
    for value in range(VALUES):
        head[value, ANSWER + value] = 1
    return model


def set_by_hand(mla: GatedMLA) -> None:
    for weight in mla.parameters():
        weight.data.fill_(1 if weight.dim() == 1 else 0)  # gains, maps
    for kind in range(KINDS):  # head 0 looks; a query is what was asked, a key what there is
        mla.q_a_proj.weight.data[kind, KIND + KINDS + kind] = 1
        mla.q_b_proj.weight.data[kind, kind] = 20
        mla.kv_a_proj_with_mqa.weight.data[kind, KIND + kind] = 1
        mla.kv_b_proj.weight.data[kind, kind] = 1
    for value in range(VALUES):
        mla.kv_a_proj_with_mqa.weight.data[KINDS + value, VALUE + value] = 1
        mla.kv_b_proj.weight.data[mla.nope + value, KINDS + value] = 1
        mla.o_proj.weight.data[ANSWER + value, value] = 1
    mla.kv_a_proj_with_mqa.weight.data[mla.latent - 1, -1] = 1  # hay's latent


@pytest.mark.parametrize(
    "length", [3_000, pytest.param(65_536, marks=[pytest.mark.long, pytest.mark.timeout(1800)])]
)
def test_needles_are_found_and_only_what_is_there(finder: K3, length: int) -> None:
    hay = torch.randint(FILL, 512, (length,), generator=torch.Generator().manual_seed(0)).tolist()
    early, late = length // 50, length * 2 // 3
    hay[early], hay[late] = needle(0, 3), needle(1, 6)
    state = finder.new_state()
    finder.extend(state, hay)
    kept = finder.state_from_tensors(state.to_tensors())
    for one in (state, kept):
        answers = finder.step([one.fork(), one.fork()], [ASK, ASK + 1])
        assert answers[:, :VALUES].argmax(-1).tolist() == [3, 6]
        assert answers[0, 3] > 100 * answers[0, [v for v in range(VALUES) if v != 3]].abs().max()
    assert torch.equal(
        finder.step([state.fork()], [ASK]), finder.step([kept.fork()], [ASK])
    )  # a state that was stored goes on bit for bit
    nothing = finder.new_state()
    finder.extend(nothing, [FILL] * 40)
    (answer,) = finder.step([nothing], [ASK])
    assert float(answer[:VALUES].abs().max()) < 1e-3
