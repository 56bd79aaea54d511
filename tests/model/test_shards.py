"""Cutting a model for tensor-parallel ranks loses nothing and keeps every group whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from unabridged.model.k3 import K3
from unabridged.model.vllm_plugin import shards


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("quantized", [False, True])
def test_the_parts_of_every_tensor_make_the_whole(
    ranks: int, quantized: bool, make_config: Any
) -> None:
    config = make_config(quantized, moe_intermediate_size=128)
    text = config.text_config
    shards.check(text, ranks)
    with torch.device("meta"):
        names = {name: tensor.shape for name, tensor in K3(config).state_dict().items()}
    cut = 0
    for name, shape in names.items():
        whole = torch.arange(shape.numel()).view(shape)
        parts = [shards.shard(name, whole, r, ranks, 4) for r in range(ranks)]
        wanted = whole[:4] if name.endswith("A_log") and ranks > 1 else whole
        if parts[0].shape == whole.shape:
            assert all(torch.equal(part, whole) for part in parts)
            continue
        cut += 1
        (axis,) = [i for i in range(whole.dim()) if parts[0].shape[i] != wanted.shape[i]]
        assert torch.equal(torch.cat(parts, axis), wanted)
    assert (cut > 0) == (ranks > 1)


def test_the_parts_of_a_layer_add_up(make_config: Any, make_model: Any) -> None:
    """Two ranks' halves of an attention layer and of the experts give the whole layer's output."""
    model = make_model(make_config())
    x = torch.randn(5, model.config.text_config.hidden_size)
    layers = model.language_model.model.layers
    for part in (layers[0].self_attn, layers[3].self_attn):
        wanted = part(x, [5])
        kept = dict(part.named_parameters())
        whole = {name: tensor.data for name, tensor in kept.items()}
        heads, total = part.heads, torch.zeros_like(wanted)
        part.heads = heads // 2
        for rank in range(2):
            for name, tensor in kept.items():
                tensor.data = shards.shard(f"self_attn.{name}", whole[name], rank, 2, heads)
            total += part(x, [5])
        torch.testing.assert_close(total, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("ranks", "told"),
    [(3, "num_attention_heads is 4"), (4, "moe_intermediate_size is 64")],
)
def test_an_uneven_cut_is_refused_by_name(ranks: int, told: str, make_config: Any) -> None:
    with pytest.raises(shards.ShardError, match=told):
        shards.check(make_config(quantized=True).text_config, ranks)
