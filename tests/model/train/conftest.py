"""A small K3 to train, and a vocabulary of bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from unabridged.model.chat.tokenizer import Tokenizer
from unabridged.model.config import K3Config
from unabridged.model.k3 import K3
from unabridged.model.train.corpus import Mixture, Sessions
from unabridged.model.train.packing import Sample
from unabridged.model.train.recipe import Phase, Recipe
from unabridged.model.train.trainer import Trainer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer({bytes((byte,)): byte for byte in range(256)})


@pytest.fixture(scope="session")
def tiny_model() -> Callable[..., K3]:
    """Four layers of width 32, each idea of K3 in it; keywords replace fields."""

    def make(seed: int = 0, **text: Any) -> K3:
        linear = {"num_heads": 2, "head_dim": 16, "full_attn_layers": [2, 4], "kda_layers": [1, 3]}
        fields: dict[str, Any] = {
            "model_type": "kimi_linear", "vocab_size": 512, "hidden_size": 32,
            "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 64,
            "hidden_act": "situ", "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0,
            "max_position_embeddings": 4096, "num_experts": 8, "num_experts_per_token": 2,
            "num_shared_experts": 1, "moe_intermediate_size": 32, "routed_expert_hidden_size": 32,
            "first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 16,
            "qk_nope_head_dim": 12, "qk_rope_head_dim": 4, "v_head_dim": 16,
            "attn_res_block_size": 2, "linear_attn_config": linear,
        }  # fmt: skip
        document = {"model_type": "kimi_k3", "dtype": "float32", "eos_token_id": 258}
        torch.manual_seed(seed)
        config = K3Config.from_dict(document | {"text_config": fields | text})
        return K3(config, packed_experts=False)

    return make


@pytest.fixture(scope="session")
def trainer(tokenizer: Tokenizer, tiny_model: Callable[..., K3]) -> Callable[..., Trainer]:
    """A run on copying alone."""

    def make(
        folder: Path,
        steps: int = 6,
        held_out: tuple[Sample, ...] = (),
        every: int = 3,
        model: K3 | None = None,
        **recipe: Any,
    ) -> Trainer:
        phase = Phase(steps=steps, pack_tokens=300, longest=2000, copies=1.0)
        fields: dict[str, Any] = {"muon_lr": 1e-2, "adam_lr": 3e-3, "phases": (phase,)}
        chosen = Recipe(**(fields | recipe))
        mixture = Mixture(chosen, tokenizer, Sessions([], "train"))
        return Trainer(model or tiny_model(), chosen, mixture, folder, held_out, every, every)

    return make
