"""The shipped K3-nano: whole, small, and opened as any checkpoint is."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from unabridged.model import nano
from unabridged.model.audit import audit
from unabridged.model.chat.tokenizer import Tokenizer
from unabridged.model.checkpoint import load_model
from unabridged.model.config import K3Config
from unabridged.model.moe import PackedExperts
from unabridged.model.nano import profile
from unabridged.model.train.recipe import Recipe

FOLDER = Path(next(iter(nano.__path__)))


def test_files_are_what_their_sums_say() -> None:
    lines = (FOLDER / "SHA256SUMS").read_text().splitlines()
    sums = {name: wanted for wanted, _, name in (line.partition("  ") for line in lines)}
    assert {"config.json", "model.safetensors", "tiktoken.model"} <= sums.keys()
    for name, wanted in sums.items():
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == wanted, name


def test_it_is_a_small_k3_with_every_idea_of_the_large_one() -> None:
    config = K3Config.from_pretrained(FOLDER)
    text = config.text_config
    layers = range(text.num_hidden_layers)
    assert text.is_mla(layers[-1])
    assert not text.is_mla(0)
    assert text.is_dense(0)
    assert not any(text.is_dense(layer) for layer in layers[1:])
    assert text.attn_res_block_size < len(layers)
    # 2 in the release; the width was grown twice, the latent was not.
    assert 1.75 < text.hidden_size / text.routed_expert_hidden_size < 2.5
    assert text.quantization_config is not None
    assert text.max_position_embeddings >= profile.WINDOW >= 8192
    assert 1_500_000 < audit(config).active_parameters < 4_000_000
    assert (FOLDER / "model.safetensors").stat().st_size < 15_000_000


def test_weights_vocabulary_and_recipe_fit() -> None:
    model = load_model(FOLDER, torch.float32)
    tokenizer = Tokenizer.from_file(FOLDER)
    tokenizer.check(model.config.text_config.vocab_size, model.config.eos_token_id)
    assert any(isinstance(module, PackedExperts) for module in model.modules())
    assert all(torch.isfinite(weight).all() for weight in model.parameters())
    assert Recipe.read(FOLDER / "recipe.json").phases[-1].qat


@torch.no_grad()
def test_it_copies() -> None:
    """Names that no training saw, said again after they were read once."""
    model = load_model(FOLDER, torch.float32)
    tokenizer = Tokenizer.from_file(FOLDER)
    names = [
        "grozel_vapick",
        "trindaxo",
        "Mulvane_kesper",
        "shondry_bilt",
        "quaxel_morn",
        "fenturi_oblo",
    ]
    tokens = [t for name in names for t in [*tokenizer.encode(name), *tokenizer.encode("\n")]]
    once = len(tokens)
    choice = model(torch.tensor(tokens * 2)).argmax(-1).tolist()
    right = sum(a == b for a, b in zip(choice[once:-1], tokens[1:], strict=True))
    assert right / (once - 1) > 0.75
