"""`unabridged doctor` on machines that lack things: what it says, and what to do about it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from unabridged.agent.doctor import settings
from unabridged.agent.providers import embedded


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine where nothing is installed."""
    (tmp_path / "bin").mkdir()
    return {
        "PATH": str(tmp_path / "bin"),
        "HOME": str(tmp_path),
        "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring",
    }


def doctor(env: dict[str, str], *words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "unabridged", "doctor", *words],
        env=env, cwd=env["HOME"], capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_a_bare_machine_is_told_what_to_do(bare: dict[str, str]) -> None:
    code, out = doctor(bare)
    assert code == 1
    assert "FAULT git        not found" in out
    assert "-> install git" in out
    assert "note  endpoint   local: (k3-nano), in this process: a small model" in out
    assert "unabridged auth login" in out
    assert "note  ripgrep" in out
    assert out.endswith("1 to correct before the work can begin.\n")


def test_an_endpoint_that_is_named_needs_its_key(bare: dict[str, str]) -> None:
    code, out = doctor({**bare, "UNABRIDGED_BASE_URL": "https://api.moonshot.ai/v1"})
    assert code == 1
    assert "FAULT endpoint   no key for https://api.moonshot.ai/v1" in out
    assert "unabridged auth login" in out


def test_without_torch_k3_nano_is_no_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("UNABRIDGED_API_KEY", "MOONSHOT_API_KEY", "UNABRIDGED_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    monkeypatch.setattr(embedded, "find_spec", lambda name: None if name == "torch" else name)
    (check,) = (one for one in settings(tmp_path) if one.name == "endpoint")
    assert check.status == "fault"
    assert "pip install 'unabridged[model]'" in check.found


def test_advice_names_the_package_manager_that_is_there(bare: dict[str, str]) -> None:
    for name, does in (("apt-get", "exit 0"), ("git", "echo git version 2.30.1")):
        program = Path(bare["PATH"]) / name
        program.write_text(f"#!/bin/sh\n{does}\n")
        program.chmod(0o755)
    out = doctor(bare)[1]
    assert "`sudo apt-get install ripgrep`" in out
    assert "git version 2.30.1\n                 -> update it to 2.31 or later" in out


def test_a_machine_that_is_ready(bare: dict[str, str]) -> None:
    code, out = doctor({**bare, "PATH": os.environ["PATH"], "UNABRIDGED_API_KEY": "sk-x"}, "--json")
    found = {check["name"]: check for check in json.loads(out)}
    assert code == 0, out
    assert found["git"]["status"] == "ok"
    assert found["endpoint"]["found"] == "https://api.moonshot.ai/v1, model kimi-k3"
    assert "sk-x" not in out
    assert (found["ripgrep"]["status"] == "ok") is (shutil.which("rg") is not None)


def test_broken_settings_and_a_folder_that_cannot_be_written(bare: dict[str, str]) -> None:
    home = Path(bare["HOME"])
    for folder in ("config", "data"):
        (home / folder).mkdir()
    (home / "config/unabridged").mkdir()
    (home / "config/unabridged/config.toml").write_text("[model]\nefort = 1\n")
    if sys.platform == "darwin":
        pytest.skip("macOS has no XDG folders")
    env = {**bare, "XDG_CONFIG_HOME": str(home / "config"), "XDG_DATA_HOME": str(home / "data")}
    code, out = doctor(env)
    assert code == 1
    assert "FAULT settings" in out
    assert "did you mean `effort`" in out
    if os.geteuid() != 0:
        (home / "data").chmod(0o500)
        assert "cannot be written" in doctor(env)[1]
        (home / "data").chmod(0o700)
