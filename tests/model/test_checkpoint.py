"""Checkpoints: names, identical write-back, and every way one can be broken."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from unabridged.model import checkpoint as module
from unabridged.model import mxfp4
from unabridged.model.checkpoint import (
    INDEX,
    Checkpoint,
    CheckpointError,
    MismatchError,
    expected_tensors,
    load_model,
    save_model,
)
from unabridged.model.config import RELEASED, K3Config
from unabridged.model.k3 import K3


@pytest.fixture(scope="module")
def quantized(make_config: Any, make_model: Any) -> K3:
    return make_model(make_config(quantized=True), dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def saved(quantized: K3, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several shards, with an index."""
    folder = tmp_path_factory.mktemp("checkpoint")
    save_model(quantized, folder, shard_bytes=2_000_000)
    return folder


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "copy")


def first_shard(folder: Path) -> Path:
    return min(folder.glob("model-*.safetensors"))


def test_names_shapes_and_dtypes_of_the_released_checkpoint() -> None:
    with torch.device("meta"):
        specs = expected_tensors(K3(K3Config.released(), torch.bfloat16))
    layer = "language_model.model.layers."
    expected = {
        "language_model.lm_head.weight": "BF16 [163840, 7168]",
        "language_model.model.output_attn_res_proj.weight": "BF16 [1, 7168]",
        f"{layer}0.self_attn.A_log": "F32 [128]",
        f"{layer}0.self_attn.dt_bias": "F32 [12288]",
        f"{layer}0.self_attn.q_conv1d.weight": "F32 [12288, 1, 4]",
        f"{layer}0.self_attn.f_b_proj.weight": "BF16 [12288, 128]",
        f"{layer}0.self_attn.o_norm.weight": "F32 [128]",
        f"{layer}0.mlp.down_proj.weight": "BF16 [7168, 33792]",
        f"{layer}3.self_attn.kv_a_proj_with_mqa.weight": "BF16 [576, 7168]",
        f"{layer}92.self_attn.q_b_proj.weight": "BF16 [18432, 1536]",
        f"{layer}1.block_sparse_moe.gate.e_score_correction_bias": "F32 [896]",
        f"{layer}92.block_sparse_moe.experts.895.w1.weight_packed": "U8 [3072, 1792]",
        f"{layer}92.block_sparse_moe.experts.0.w2.weight_packed": "U8 [3584, 1536]",
        f"{layer}92.block_sparse_moe.experts.0.w2.weight_scale": "U8 [3584, 96]",
        f"{layer}5.block_sparse_moe.shared_experts.up_proj.weight": "BF16 [6144, 7168]",
        f"{layer}5.block_sparse_moe.routed_expert_norm.weight": "BF16 [3584]",
        "vision_tower.patch_embed.pos_emb.weight": "BF16 [64, 64, 1024]",
        "vision_tower.encoder.blocks.26.mlp.fc0.weight": "BF16 [4096, 1024]",
        "mm_projector.proj.2.weight": "BF16 [7168, 4096]",
    }
    assert {name: str(specs[name]) for name in expected} == expected


def test_safetensors_reads_what_we_write(saved: Path, quantized: K3) -> None:
    weight_map = json.loads((saved / INDEX).read_bytes())["weight_map"]
    assert len(set(weight_map.values())) > 2
    specs = expected_tensors(quantized)
    assert weight_map.keys() == specs.keys()
    seen: dict[str, torch.Tensor] = {}
    for file in set(weight_map.values()):
        seen |= load_file(saved / file)
    assert seen.keys() == specs.keys()
    moe = "language_model.model.layers.2.block_sparse_moe.experts"
    own = quantized.state_dict()
    assert torch.equal(seen[f"{moe}.7.w2.weight_packed"], own[f"{moe}.w2_packed"][7])
    assert torch.equal(seen["language_model.lm_head.weight"], own["language_model.lm_head.weight"])


def test_written_back_byte_for_byte(saved: Path, tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(saved)
    save_model(load_model(saved), tmp_path, like=checkpoint)
    assert sorted(os.listdir(tmp_path)) == sorted(os.listdir(saved))
    for file in os.listdir(saved):
        assert (tmp_path / file).read_bytes() == (saved / file).read_bytes(), file


def test_another_order_and_metadata_are_kept_too(saved: Path, tmp_path: Path) -> None:
    """As another program wrote them: one file, its own order, its own metadata, the other prefix."""
    folder, again = tmp_path / "foreign", tmp_path / "again"
    folder.mkdir()
    tensors: dict[str, torch.Tensor] = {}
    for file in saved.glob("*.safetensors"):
        tensors |= load_file(file)
    alias = {
        k.replace("language_model.model.layers.", "language_model.layers."): v
        for k, v in tensors.items()
    }
    save_file(alias, folder / "model.safetensors", metadata={"format": "pt", "by": "someone"})
    (folder / "config.json").write_bytes((saved / "config.json").read_bytes())
    model = load_model(folder)
    for name, tensor in load_model(saved).state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    save_model(model, again, like=Checkpoint.open(folder))
    for file in ("model.safetensors", "config.json"):
        assert (again / file).read_bytes() == (folder / file).read_bytes()


def test_loaded_model_says_the_same(saved: Path, quantized: K3) -> None:
    ids = torch.arange(40)
    with torch.no_grad():
        assert torch.equal(load_model(saved)(ids), quantized(ids))


def test_qat_model_round_trips_through_its_packed_form(
    make_config: Any, make_model: Any, tmp_path: Path
) -> None:
    """Train on plain experts, save MXFP4, train on: rounding twice changes nothing."""
    model = make_model(make_config(quantized=True), packed_experts=False)
    save_model(model, tmp_path)
    packed = load_model(tmp_path)
    plain = load_model(tmp_path, dtype=torch.float32, packed_experts=False)
    at = "language_model.model.layers.4.block_sparse_moe.experts."
    weight = plain.state_dict()[at + "w3"]
    assert torch.equal(weight, mxfp4.fake_quantize(model.state_dict()[at + "w3"]))
    save_model(plain, tmp_path / "again")
    again = load_model(tmp_path / "again")
    once, twice = packed.state_dict(), again.state_dict()
    for name, tensor in once.items():
        if name.endswith("_packed"):  # by value: a negative zero is a zero the second time
            scale = name.replace("_packed", "_scale")
            values = [mxfp4.unpack(w[name], w[scale]) for w in (once, twice)]
            assert torch.equal(*values), name
        else:
            assert torch.equal(tensor, twice[name]), name


# --- what is wrong is named, and nothing was touched ---------------------------------------------


def test_every_mismatch_is_listed_before_a_weight_is_touched(copy: Path) -> None:
    config = K3Config.from_pretrained(copy)
    model = K3(config, torch.bfloat16)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    shard = first_shard(copy)
    tensors = load_file(shard)
    names = [n for n in tensors if n.startswith("language_model.model.layers.0.self_attn.")]
    gone, wrong_shape, wrong_dtype = names[:3]
    del tensors[gone]
    tensors[wrong_shape] = tensors[wrong_shape][:5].clone()
    tensors[wrong_dtype] = tensors[wrong_dtype].double()
    tensors["language_model.model.extra.weight"] = torch.zeros(2)
    save_file(tensors, shard)
    index = json.loads((copy / INDEX).read_bytes())
    del index["weight_map"][gone]
    (copy / INDEX).write_text(json.dumps(index))
    with pytest.raises(MismatchError) as caught:
        module.load(model, Checkpoint.open(copy))
    error = caught.value
    assert list(error.missing) == [gone]
    assert list(error.extra) == ["language_model.model.extra.weight"]
    assert [text.split(":")[0] for text in error.shape] == [wrong_shape]
    assert [text.split(":")[0] for text in error.dtype] == [wrong_dtype]
    assert "F64" in error.dtype[0]
    for name in (gone, wrong_shape, wrong_dtype, "language_model.model.extra.weight"):
        assert name in str(error)
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())


def test_a_foreign_checkpoint(copy: Path) -> None:
    for file in copy.glob("model*"):
        file.unlink()
    save_file({"transformer.h.0.weight": torch.zeros(3)}, copy / "model.safetensors")
    with pytest.raises(MismatchError, match=r"(?s)missing \(\d+\).*and \d+ more.*unknown \(1\)"):
        load_model(copy)


def truncate(folder: Path) -> str:
    shard = first_shard(folder)
    with shard.open("r+b") as file:
        file.truncate(shard.stat().st_size - 100)
    return rf"{shard.name}: truncated: language_model\.\S+ and what follows are not all there"


def truncate_header(folder: Path) -> str:
    shard = first_shard(folder)
    with shard.open("r+b") as file:
        file.truncate(500)
    return rf"{shard.name}: truncated inside its header"


def remove_shard(folder: Path) -> str:
    shard = first_shard(folder)
    shard.unlink()
    return rf"{shard.name}: not there; it should hold language_model\.\S+ and [\d,]+ more"


def lfs_pointer(folder: Path) -> str:
    first_shard(folder).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    return "a Git LFS pointer"


def garbage(folder: Path) -> str:
    first_shard(folder).write_bytes(os.urandom(5000))
    return "not a safetensors file"


def empty(folder: Path) -> str:
    first_shard(folder).write_bytes(b"")
    return "not a safetensors file"


def damaged_header(folder: Path) -> str:
    shard = first_shard(folder)
    data = bytearray(shard.read_bytes())
    data[9] ^= 0xFF
    shard.write_bytes(data)
    return "its header is damaged"


def bad_offsets(folder: Path) -> str:
    shard = first_shard(folder)
    data = shard.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    name = list(header)[3]
    header[name]["data_offsets"][0] += 2
    text = json.dumps(header).encode()
    shard.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
    return "bytes do not hold|overlaps or leaves a gap"


def trailing(folder: Path) -> str:
    with first_shard(folder).open("ab") as file:
        file.write(b"xx")
    return "2 bytes follow the last tensor"


def broken_index(folder: Path) -> str:
    (folder / INDEX).write_bytes((folder / INDEX).read_bytes()[:100])
    return "not an index"


def escaping_index(folder: Path) -> str:
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": "../b.safetensors"}}))
    return "lies outside the folder"


def index_at_odds(folder: Path) -> str:
    index = json.loads((folder / INDEX).read_bytes())
    name = next(iter(index["weight_map"]))
    index["weight_map"][name] = max(index["weight_map"].values())
    (folder / INDEX).write_text(json.dumps(index))
    return rf"{name} is not in it, as {INDEX} says"


def nothing(folder: Path) -> str:
    for file in folder.glob("model*"):
        file.unlink()
    return "neither .* is there"


def nan_scale(folder: Path) -> str:
    for shard in sorted(folder.glob("*.safetensors")):
        tensors = load_file(shard)
        for name, tensor in tensors.items():
            if name.endswith("experts.3.w2.weight_scale"):
                tensor[5, 1] = 255
                save_file(tensors, shard)
                return rf"{shard.name}: {name}: a scale byte is 255"
    raise AssertionError


@pytest.mark.parametrize(
    "harm",
    [
        truncate,
        truncate_header,
        remove_shard,
        lfs_pointer,
        garbage,
        empty,
        damaged_header,
        bad_offsets,
        trailing,
        broken_index,
        escaping_index,
        index_at_odds,
        nothing,
        nan_scale,
    ],
)
def test_file_and_tensor_are_named(copy: Path, harm: Callable[[Path], str]) -> None:
    message = harm(copy)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_model(copy)
    assert str(copy) in str(caught.value)


def test_little_is_read_of_a_large_half_downloaded_checkpoint(tmp_path: Path) -> None:
    """8 GB of sparse shards, the last cut short: found from the headers alone."""
    folder = tmp_path
    shutil.copy(RELEASED, folder / "config.json")
    names = [f"language_model.model.layers.{i}.mlp.up_proj.weight" for i in range(4)]
    weight_map = {}
    for i, name in enumerate(names):
        file = f"model-{i}.safetensors"
        entry = {"dtype": "U8", "shape": [2 << 30], "data_offsets": [0, 2 << 30]}
        header = json.dumps({name: entry}).encode()
        with (folder / file).open("wb") as out:
            out.write(len(header).to_bytes(8, "little") + header)
            out.truncate(8 + len(header) + (2 << 30) - (1 if i == 3 else 0))
        weight_map[name] = file
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))

    def bytes_read() -> int:
        lines = Path("/proc/self/io").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("rchar")).split()[1])

    before = bytes_read() if Path("/proc/self/io").exists() else 0
    with pytest.raises(CheckpointError, match=r"model-3.safetensors: truncated: .*layers\.3\.mlp"):
        load_model(folder)
    if before:
        assert bytes_read() - before < 1_000_000


def test_a_model_larger_than_memory_is_refused_at_once(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sysconf", lambda name: 4096 if name == "SC_PAGE_SIZE" else 100)
    with pytest.raises(CheckpointError, match=r"its weights take .* this machine has"):
        load_model(saved)


def test_a_failed_write_leaves_the_old_file(
    quantized: K3, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = first_shard(copy)
    before = shard.read_bytes()

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device", str(shard))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        save_model(quantized, copy, like=Checkpoint.open(copy))
    assert shard.read_bytes() == before
    assert not list(copy.glob(".*tmp"))
