"""`config.json`: read, checked field by field, written back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from unabridged.model.config import RELEASED, ConfigError, K3Config


def test_the_released_configuration() -> None:
    config = K3Config.released()
    text = config.text_config
    assert (text.num_hidden_layers, text.hidden_size, text.num_experts) == (93, 7168, 896)
    mla = [i for i in range(93) if text.is_mla(i)]
    assert mla == [i for i in range(93) if (i + 1) % 4 == 0 or i == 92]
    assert len(mla) == 24
    assert [i for i in range(93) if text.is_dense(i)] == [0]
    assert (text.qk_head_dim, text.latent_size) == (192, 576)
    assert text.linear_attn_config.gate_lower_bound == -5.0
    assert (text.activation_situ_beta, text.activation_situ_linear_beta) == (4.0, 25.0)
    assert config.vision_config is not None
    assert config.vision_config.vt_num_hidden_layers == 27
    assert text.quantization_config is not None


def test_written_back_as_read_fields_of_others_included(tmp_path: Path) -> None:
    document = json.loads(RELEASED.read_bytes())
    document["text_config"]["a_field_of_tomorrow"] = {"x": [1, 2]}
    (tmp_path / "config.json").write_text(json.dumps(document))
    config = K3Config.from_pretrained(tmp_path)
    config.save(tmp_path)
    assert json.loads((tmp_path / "config.json").read_bytes()) == document
    assert K3Config.from_pretrained(tmp_path / "config.json") == config


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("model_type", "llama", r"model_type is 'llama'; only 'kimi_k3'"),
        ("text_config.model_type", "mamba", r"text_config\.model_type: .*'mamba'"),
        ("text_config.hidden_size", None, r"text_config\.hidden_size: .*None"),
        ("text_config.hidden_size", 0, r"text_config\.hidden_size: .*greater than 0"),
        ("text_config.vocab_size", "many", r"text_config\.vocab_size: .*'many'"),
        ("text_config.hidden_act", "silu", r"text_config\.hidden_act: .*'situ'.*'silu'"),
        ("text_config.mla_use_nope", False, r"text_config\.mla_use_nope: .*False"),
        ("text_config.num_hidden_layers", 94, r"name each layer from 1 to num_hidden_layers"),
        ("text_config.num_experts", 8, r"num_experts_per_token \(16\) is larger than num_experts"),
        ("text_config.moe_intermediate_size", 100, r"moe_intermediate_size must be a multiple"),
        (
            "text_config.linear_attn_config.gate_lower_bound",
            -6.0,
            r"text_config\.linear_attn_config\.gate_lower_bound: .*-5.*-6",
        ),
        (
            "text_config.quantization_config.format",
            "pack-quantized",
            r"text_config\.quantization_config\.format",
        ),
        ("dtype", "float16", r"dtype: .*'float16'"),
    ],
)
def test_a_bad_field_is_named(path: str, value: Any, message: str, tmp_path: Path) -> None:
    document = json.loads(RELEASED.read_bytes())
    *parents, last = path.split(".")
    place = document
    for parent in parents:
        place = place[parent]
    place[last] = value
    (tmp_path / "config.json").write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=message) as caught:
        K3Config.from_pretrained(tmp_path)
    assert str(tmp_path / "config.json") in str(caught.value)


def test_every_missing_field_is_named() -> None:
    document = json.loads(RELEASED.read_bytes())
    del document["text_config"]["q_lora_rank"], document["text_config"]["num_experts"]
    with pytest.raises(ConfigError) as caught:
        K3Config.from_dict(document, "here")
    assert "text_config.q_lora_rank: is missing" in str(caught.value)
    assert "text_config.num_experts: is missing" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"{", "not JSON"), (b"[]", "expected a JSON object"), (b"\xff\xfe\x00", "not JSON")],
)
def test_not_a_configuration(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        K3Config.from_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="No such file"):
        K3Config.from_pretrained(tmp_path / "nowhere")
