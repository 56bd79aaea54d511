"""Inspecting a checkpoint, and reading a part of one: the rest need not be there."""

from __future__ import annotations

import json
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from unabridged.cli import main
from unabridged.model.checkpoint import (
    INDEX,
    Checkpoint,
    CheckpointError,
    Spec,
    expected_tensors,
    load_model,
    load_part,
    save_model,
)
from unabridged.model.config import RELEASED, K3Config
from unabridged.model.inspection import inspect, report
from unabridged.model.k3 import K3


@pytest.fixture(scope="module")
def saved(make_config: Any, make_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    model = make_model(make_config(quantized=True), dtype=torch.bfloat16)
    save_model(model, folder, shard_bytes=1_000_000)
    return folder


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "copy")


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("model-*.safetensors"))


class TestInspect:
    def test_a_whole_checkpoint_is_sound(self, saved: Path) -> None:
        seen = inspect(saved)
        assert seen.sound
        assert seen.present == seen.expected == len(Checkpoint.open(saved).tensors)
        assert sum(seen.nbytes.values()) == sum(
            spec.nbytes for spec in Checkpoint.open(saved).tensors.values()
        )
        assert seen.scales
        assert set(seen.nbytes) == {"BF16", "F32", "U8"}

    def test_every_fault_is_found_at_once(self, copy: Path) -> None:
        first, second, third, *_ = shards(copy)
        lost = load_file(first)
        first.unlink()
        second.write_bytes(second.read_bytes()[:-5])
        tensors = load_file(third)
        scale = next(name for name in tensors if name.endswith("weight_scale"))
        tensors[scale].view(-1)[7] = 255
        tensors["stranger"] = torch.zeros(3)
        wrong = next(name for name in tensors if name.endswith("weight_packed"))
        tensors[wrong] = tensors[wrong][:-1].contiguous()
        save_file(tensors, third)
        seen = inspect(copy)
        assert not seen.sound
        assert seen.missing_shards == [first.name]
        assert [line.split(":")[0] for line in seen.damaged_shards] == [second.name]
        assert set(lost) <= set(seen.missing)
        assert seen.unknown == ["stranger"]
        assert [line.split(":")[0] for line in seen.wrong] == [wrong]
        assert seen.damaged_scales == [scale]
        text = report(seen)
        for part in ("not sound", first.name, second.name, "stranger", wrong):
            assert part in text
        assert not inspect(copy, scales=False).damaged_scales

    def test_the_command(self, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
        shards(copy)[-1].unlink()
        assert main(["model", "inspect", str(copy), "--json"]) == 1
        document = json.loads(capsys.readouterr().out)
        assert document["sound"] is False
        assert len(document["missing_shards"]) == 1
        assert main(["model", "inspect", str(copy / "nowhere")]) == 2
        assert "nowhere" in capsys.readouterr().err


class TestParts:
    def test_a_layer_equals_that_of_the_whole(self, saved: Path) -> None:
        name = "language_model.model.layers.2"
        whole = load_model(saved).get_submodule(name).state_dict()
        part = load_part(saved, name).state_dict()
        assert part.keys() == whole.keys()
        assert all(torch.equal(part[key], whole[key]) for key in whole)

    def test_shards_of_other_parts_need_not_be_there(self, copy: Path) -> None:
        name = "language_model.model.layers.2"
        index = json.loads((copy / INDEX).read_bytes())["weight_map"]
        needed = {file for tensor, file in index.items() if tensor.startswith(f"{name}.")}
        for shard in shards(copy):
            if shard.name not in needed:
                shard.unlink()
        load_part(copy, name)
        with pytest.raises(CheckpointError, match="not there"):
            load_model(copy)

    def test_what_is_not_there_is_named(self, copy: Path) -> None:
        with pytest.raises(CheckpointError, match=r"no part language_model\.model\.layers\.77"):
            load_part(copy, "language_model.model.layers.77")
        with pytest.raises(CheckpointError, match="no tensor begins with nonsense"):
            Checkpoint.open(copy, "nonsense")


def sparse_release(folder: Path, specs: dict[str, Spec], keep: str) -> None:
    """The released checkpoint in names, shapes and index, 1.5 TB, with the data of zeros.

    Only the shards with tensors whose names begin with `keep` exist, as sparse files.
    """
    shutil.copy(RELEASED, folder / "config.json")
    numbers: dict[str, int] = {}
    contents: dict[int, dict[str, Spec]] = {}
    number = size = 0
    for name, spec in specs.items():
        if size + spec.nbytes > 17_000_000_000:
            number, size = number + 1, 0
        size += spec.nbytes
        numbers[name] = number
        contents.setdefault(number, {})[name] = spec
    files = {n: f"model-{n + 1:06d}-of-{number + 1:06d}.safetensors" for n in contents}
    index = {"weight_map": {name: files[n] for name, n in numbers.items()}}
    (folder / INDEX).write_bytes(json.dumps(index).encode())
    for n in {n for name, n in numbers.items() if name.startswith(keep)}:
        at, header = 0, {}
        for name, spec in contents[n].items():
            offsets = [at, at + spec.nbytes]
            header[name] = {"dtype": spec.dtype, "shape": spec.shape, "data_offsets": offsets}
            at += spec.nbytes
        text = json.dumps(header).encode()
        with (folder / files[n]).open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            out.truncate(8 + len(text) + at)


@pytest.mark.long
def test_one_expert_of_the_released_checkpoint_costs_one_expert(tmp_path: Path) -> None:
    """Out of 1.5 TB: a shard of 17 GB is opened, and some megabytes of it are read."""
    expert = "language_model.model.layers.40.block_sparse_moe.experts.300."
    with torch.device("meta"):
        specs = expected_tensors(K3(K3Config.released(), torch.bfloat16))
    wanted = [name for name in specs if name.startswith(expert)]
    assert len(wanted) == 6
    sparse_release(tmp_path, specs, keep=expert)
    assert sum(path.stat().st_size for path in shards(tmp_path)) > 10_000_000_000

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    checkpoint = Checkpoint.open(tmp_path, expert)
    tensors = {name: checkpoint.read(name) for name in wanted}
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert list(tensors[f"{expert}w1.weight_packed"].shape) == [3072, 1792]
    assert not any(bool(tensor.any()) for tensor in tensors.values())
    assert (after - before) * 1024 < 700_000_000  # mostly the index of 497,220 names

    seen = inspect(tmp_path, scales=False)
    assert len(seen.missing_shards) > 80
    assert seen.expected == 497_220
    assert 0 < seen.present < 10_000
    assert seen.present + len(seen.missing) == seen.expected
