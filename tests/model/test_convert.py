"""Packing a plain checkpoint: the same model, rounded; bad sources are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.compressors.mxfp4 import MXFP4PackedCompressor
from safetensors.torch import load_file, save_file

from unabridged.cli import main
from unabridged.model import mxfp4
from unabridged.model.checkpoint import Checkpoint, CheckpointError, load_model, save_model
from unabridged.model.convert import convert
from unabridged.model.k3 import K3


@pytest.fixture(scope="module")
def plain(make_config: Any, make_model: Any) -> K3:
    return make_model(make_config(), dtype=torch.bfloat16)


@pytest.fixture
def source(plain: K3, tmp_path: Path) -> Path:
    folder = tmp_path / "plain"
    save_model(plain, folder, shard_bytes=4_000_000)
    (folder / "tiktoken.model").write_bytes(b"IQ== 0\n")
    return folder


def test_the_packed_model_is_the_plain_one_with_rounded_experts(
    plain: K3, source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "packed"
    seen: list[str] = []
    convert(source, target, shard_bytes=1_000_000, progress=seen.append)
    assert seen == sorted(path.name for path in target.glob("model-*.safetensors"))
    assert len(seen) > 1
    assert (target / "tiktoken.model").read_bytes() == b"IQ== 0\n"
    rounded = load_model(source, torch.float32, packed_experts=False)
    for name, weight in rounded.state_dict().items():
        if ".experts.w" in name:
            weight.copy_(mxfp4.unpack(*_packed(weight), torch.float32))
    packed = load_model(target, torch.float32, packed_experts=False).state_dict()
    assert packed.keys() == rounded.state_dict().keys()
    for name, weight in rounded.state_dict().items():
        assert torch.equal(packed[name], weight), name


def _packed(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    codes, scale = mxfp4.quantize(weight)
    return mxfp4.pack(codes), scale


def test_others_read_what_was_packed(source: Path, tmp_path: Path) -> None:
    """compressed-tensors decodes our bytes to the nearest values it would choose itself."""
    convert(source, tmp_path / "packed")
    before, after = Checkpoint.open(source), Checkpoint.open(tmp_path / "packed")
    packed = [name for name in after.tensors if name.endswith(".weight_packed")]
    assert packed
    for name in packed[:6]:
        state = {
            "weight_packed": after.read(name),
            "weight_scale": after.read(name.replace("_packed", "_scale")),
        }
        theirs = MXFP4PackedCompressor.decompress(state, scheme())["weight"]
        error = (theirs.float() - before.read(name.removesuffix("_packed")).float()).abs()
        step = torch.exp2(state["weight_scale"].float() - 127).repeat_interleave(32, -1)
        assert bool((error <= step * 1.001).all())


def scheme() -> Any:
    from compressed_tensors.quantization import (
        QuantizationArgs,
        QuantizationScheme,
        QuantizationStrategy,
        QuantizationType,
    )

    weights = QuantizationArgs(
        num_bits=4,
        type=QuantizationType.FLOAT,
        strategy=QuantizationStrategy.GROUP,
        group_size=32,
        symmetric=True,
        scale_dtype=torch.uint8,
    )
    return QuantizationScheme(targets=["Linear"], weights=weights)


def test_what_is_packed_already_is_refused(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "packed")
    with pytest.raises(CheckpointError, match="packed already"):
        convert(tmp_path / "packed", tmp_path / "again")


def test_a_target_that_holds_something_is_left_alone(source: Path, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "precious").write_text("x")
    with pytest.raises(CheckpointError, match="not empty"):
        convert(source, tmp_path / "target")
    assert [p.name for p in (tmp_path / "target").iterdir()] == ["precious"]


def test_a_weight_that_is_not_finite_is_named(source: Path, tmp_path: Path) -> None:
    shard = max(source.glob("model-*.safetensors"))
    tensors = load_file(shard)
    name = next(n for n, t in tensors.items() if t.ndim == 2)
    tensors[name][0, 0] = torch.nan
    save_file(tensors, shard)
    with pytest.raises(CheckpointError, match=f"{name} holds values that are not finite"):
        convert(source, tmp_path / "packed")
    assert not (tmp_path / "packed" / "config.json").exists()


def test_a_tensor_too_few_is_named_before_anything_is_written(source: Path, tmp_path: Path) -> None:
    index = source / "model.safetensors.index.json"
    document = json.loads(index.read_bytes())
    shard = max(source.glob("model-*.safetensors"))
    tensors = load_file(shard)
    name = sorted(tensors)[0]
    del tensors[name], document["weight_map"][name]
    save_file(tensors, shard)
    index.write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match=name):
        convert(source, tmp_path / "packed")
    assert not (tmp_path / "packed").exists()


def test_the_command(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "packed"
    assert main(["model", "convert", str(source), str(target)]) == 0
    assert "MXFP4" in capsys.readouterr().out
    assert main(["model", "inspect", str(target)]) == 0
    assert "sound" in capsys.readouterr().out
    assert main(["model", "convert", str(source), str(target)]) == 2
    assert "not empty" in capsys.readouterr().err
