from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from unabridged.cli import main
from unabridged.model.state_store import entries


def command(checkpoint: Path, name: str, *options: str) -> list[str]:
    weights = ["--weights", str(checkpoint)]
    return [sys.executable, "-m", "unabridged", "model", name, *weights, *options]


def test_one_question_as_json_and_in_plain(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name: tmp_path / name)
    options = ["--weights", str(checkpoint), "--temperature", "0", "--max-tokens", "6"]
    asked = ["model", "chat", *options, "--prompt", "hello", "--system", "be brief"]
    assert main([*asked, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["finish_reason"] == "length"
    assert first["usage"]["completion"] == first["usage"]["reasoning"] == 6
    assert first["message"]["role"] == "assistant"
    assert main([*asked, "--json"]) == 0  # another engine, the same states on disk
    again = json.loads(capsys.readouterr().out)
    assert again["message"] == first["message"]
    assert again["usage"]["cached"] > 0
    assert entries(tmp_path / "unabridged" / "states")
    assert main(asked) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(first["message"]["reasoning_content"])
    assert shown.endswith("(cut by --max-tokens)\n")


def test_a_conversation_on_standard_input(checkpoint: Path) -> None:
    options = ["--no-states", "--temperature", "0", "--max-tokens", "4"]
    result = subprocess.run(
        command(checkpoint, "chat", *options), input="hello\nand?\n", capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("(cut by --max-tokens)") == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--prompt", "hi " * 5000], "the context window is 4,096 tokens"),
        (["--json"], "--json needs --prompt"),
        (["--prompt", "hi", "--image", "/no/such.png"], "--image /no/such.png: No such file"),
        (["--prompt", "hi", "--image", __file__], "content[0] is an image; this model reads text"),
    ],
)
def test_a_question_that_cannot_be_asked(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    words = ["model", "chat", "--weights", str(checkpoint), "--no-states", *options]
    assert main(words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["chat", "serve"])
def test_weights_that_are_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["model", name, "--weights", str(tmp_path)]) == 2
    assert f"{tmp_path}/config.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--host", "0.0.0.0"], "others can reach 0.0.0.0: ask for an API key"),
        (["--api-key-env", "NO_SUCH_KEY"], "the variable NO_SUCH_KEY is not set"),
    ],
)
def test_serving_others_needs_a_key(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["model", "serve", "--weights", str(checkpoint), *options]) == 2
    assert message in capsys.readouterr().err


def test_serving_until_interrupted(checkpoint: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    words = command(checkpoint, "serve", "--no-states", "--name", "small", "--port", str(port))
    environment = {**os.environ, "KEY": "secret"}
    process = subprocess.Popen([*words, "--api-key-env", "KEY"], env=environment)
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 60
        while True:
            try:
                assert httpx.get(f"{url}/health").status_code == 200
                break
            except httpx.ConnectError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        assert httpx.get(f"{url}/v1/models").status_code == 401
        response = httpx.post(
            f"{url}/v1/chat/completions",
            json={
                "model": "small",
                "messages": [{"role": "user", "content": "hi"}],
                "max_tokens": 2,
            },
            headers={"authorization": "Bearer secret"},
            timeout=60,
        )
        assert response.json()["usage"]["completion_tokens"] == 2
        process.send_signal(signal.SIGINT)
        assert process.wait(30) in (0, 130)
    finally:
        process.kill()
        process.wait()
