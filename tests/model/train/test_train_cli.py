"""`unabridged model train` as a user runs it, and what it leaves for the engine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from unabridged.cli import main
from unabridged.model.chat.tokenizer import Tokenizer, write_ranks
from unabridged.model.checkpoint import load_model
from unabridged.model.engine import open_engine
from unabridged.model.k3 import K3

PHASE = {"steps": 2, "pack_tokens": 400, "longest": 2000, "copies": 1.0}
RECIPE: dict[str, Any] = {"muon_lr": 1e-3, "adam_lr": 1e-3, "phases": [PHASE]}
MXFP4 = {
    "quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized",
    "config_groups": {"group_0": {"weights": {
        "num_bits": 4, "type": "float", "strategy": "group", "group_size": 32,
    }}},
}  # fmt: skip


@pytest.fixture
def folder(tiny_model: Callable[..., K3], tmp_path: Path) -> Path:
    """What `--config` takes."""
    folder = tmp_path / "config"
    folder.mkdir()
    config = tiny_model(quantization_config=MXFP4).config.to_dict()
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    write_ranks([bytes((byte,)) for byte in range(256)], folder / "tiktoken.model")
    (folder / "recipe.json").write_text(json.dumps(RECIPE))
    return folder


def train(folder: Path, out: Path, *more: str) -> int:
    return main(["model", "train", "--config", str(folder), "--out", str(out), *more])


def test_a_run_leaves_weights_that_the_engine_opens(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert train(folder, out, "--until", "1") == 0
    assert train(folder, out) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [str(out / "weights")] * 2
    assert "going on after step 1" in shown.err
    steps = [json.loads(line) for line in (out / "log.jsonl").read_bytes().splitlines()]
    assert [entry["step"] for entry in steps if "loss" in entry] == [1, 2]
    for line in (out / "weights/SHA256SUMS").read_text().splitlines():
        wanted, name = line.split("  ")
        assert hashlib.sha256((out / "weights" / name).read_bytes()).hexdigest() == wanted
    engine, tokenizer = open_engine(out / "weights")
    engine.close()
    assert tokenizer.fingerprint == Tokenizer.from_file(folder).fingerprint

    # Going on from the weights alone: what was packed is unpacked to train on.
    assert train(folder, tmp_path / "more", "--weights", str(out / "weights")) == 0
    first = load_model(out / "weights", torch.float32).state_dict()
    again = load_model(tmp_path / "more/weights", torch.float32).state_dict()
    name = "language_model.model.embed_tokens.weight"
    assert 0 < (first[name] - again[name]).abs().max() < 0.1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "nowhere"], "nowhere: No such file"),
        (["--recipe", "nowhere.json"], "nowhere.json: No such file"),
        (["--sessions", "nowhere"], "nowhere: no .jsonl files in it"),
        (["--weights", "nowhere"], "nowhere"),
    ],
)
def test_bad_input_is_one_line(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    assert train(folder, tmp_path / "run", *arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_another_recipe_for_the_same_run_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(folder, tmp_path / "run") == 0
    capsys.readouterr()
    other = tmp_path / "other.json"
    other.write_text(json.dumps(RECIPE | {"muon_lr": 0.5}))
    assert train(folder, tmp_path / "run", "--recipe", str(other)) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "follows another recipe" in line
