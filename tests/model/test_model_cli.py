"""`unabridged model`: what it prints, and one line and exit code 2 for what cannot be."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from unabridged.model import cli
from unabridged.model.chat.tokenizer import write_ranks
from unabridged.model.checkpoint import save_model


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    cli.add_parser(parser.add_subparsers())
    args = parser.parse_args(["model", *words])
    return args.run(args)


@pytest.fixture(scope="module")
def folder(
    make_config: Any, make_model: Any, ranks: dict[bytes, int], tmp_path_factory: Any
) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    vocabulary = sorted(ranks, key=lambda word: ranks[word])
    config = make_config(vocab_size=len(vocabulary) + 256)
    config = config.model_copy(update={"eos_token_id": len(vocabulary) + 2})
    save_model(make_model(config), folder)
    document = json.loads((folder / "config.json").read_bytes())
    document["eos_token_id"] = len(vocabulary) + 2
    (folder / "config.json").write_text(json.dumps(document))
    write_ranks(vocabulary, folder / "tiktoken.model")
    return folder


def test_audit_prints_the_released_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("audit", "--json", "--memory", "1.6T") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["tensors"] == 497_220
    assert document["parameters"] == 2_779_931_834_976
    assert document["active_parameters"] == 104_189_612_640
    assert document["bytes"] == 1_560_860_324_864
    assert document["fit"]["memory"] == int(1.6 * 2**40)


def test_audit_of_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("audit", "--config", str(folder)) == 0
    assert "6 KDA, 3 MLA" in capsys.readouterr().out


def test_generate_from_text_and_ids(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ("generate", "--weights", str(folder), "--max-tokens", "5", "--seed", "3")
    assert run(*common, "--prompt", "def return", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["tokens"]) == 5
    assert document["finish_reason"] == "length"
    assert run(*common, "--prompt", "def return") == 0
    assert capsys.readouterr().out.rstrip("\n") == document["text"].rstrip("\n")
    assert run(*common, "--ids", "5,6,7") == 0
    assert len(capsys.readouterr().out.split()) == 5


def test_k3_nano_goes_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", "nano", "--json") == 0
    assert run("audit", "--config", "nano", "--json") == 0
    assert run("generate", "--weights", "nano", "--prompt", "def ", "--max-tokens", "1") == 0
    capsys.readouterr()
    assert "No such file" in refused(capsys, "inspect", "./nano")


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(*words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("unabridged model: ")
    return printed.err


def test_bad_input_is_one_message(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "No such file" in refused(capsys, "audit", "--config", str(tmp_path))
    weights = shutil.copytree(folder, tmp_path / "weights")
    generate = ("generate", "--weights", str(weights), "--ids", "1")
    assert "--ids 1,x" in refused(capsys, *generate[:-1], "1,x")
    assert "token id 99999" in refused(capsys, *generate[:-1], "99999")
    assert "temperature" in refused(capsys, *generate, "--temperature", "-1")
    assert "--device nowhere" in refused(capsys, *generate, "--device", "nowhere")
    (weights / "tiktoken.model").write_bytes(b"not a vocabulary")
    assert "tiktoken.model" in refused(capsys, *generate[:-2], "--prompt", "hello")
    with (weights / "model.safetensors").open("r+b") as file:
        file.truncate(100_000)
    error = refused(capsys, *generate)
    assert "model.safetensors: truncated: language_model." in error
    assert error.count("\n") == 1
    document = json.loads((weights / "config.json").read_bytes()) | {"model_type": "llama"}
    (weights / "config.json").write_text(json.dumps(document))
    assert "model_type is 'llama'" in refused(capsys, *generate)


def test_a_vocabulary_of_another_model(
    folder: Path, tmp_path: Path, ranks: dict[bytes, int], capsys: pytest.CaptureFixture[str]
) -> None:
    weights = shutil.copytree(folder, tmp_path / "weights")
    write_ranks(sorted(ranks, key=lambda word: ranks[word])[:300], weights / "tiktoken.model")
    refused(capsys, "generate", "--weights", str(weights), "--prompt", "hello")


def test_without_torch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli, "find_spec", lambda name: None)
    assert "pip install 'unabridged[model]'" in refused(capsys, "audit")


@pytest.mark.parametrize(
    ("text", "value"),
    [("123", 123), ("80G", 80 * 2**30), ("1.5TiB", int(1.5 * 2**40)), ("2 kb", 2048)],
)
def test_sizes(text: str, value: int) -> None:
    assert cli.size(text) == value


def test_a_size_that_is_none() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not a size"):
        cli.size("much")
