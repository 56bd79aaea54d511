"""`unabridged context`: the plan before anything is sent."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from unabridged.agent.context.pack import unpack
from unabridged.cli import main


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.setenv(variable, str(tmp_path / "home"))
    root = tmp_path / "repo"
    (root / "src/deep").mkdir(parents=True)
    (root / "src/a.py").write_text("x = 1\n" * 50)
    (root / "src/deep/b.py").write_text("y = 1\n" * 10)
    (root / "uv.lock").write_text("lock")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["context", *words]) == 0
    return capsys.readouterr().out


def test_plan(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "plan", str(repo))
    assert "2 files whole, 360 bytes" in text
    assert "an estimate" in text
    assert "to send once" in text
    assert "src/" in text
    assert '"uv.lock"' in text
    plan = json.loads(run(capsys, "plan", "--repo", str(repo), "--json", "--window", "262144"))
    assert plan["files"] == 2
    assert plan["bytes"] == 360
    assert plan["window"] == 262144
    assert plan["skipped"] == [{"name": "uv.lock", "reason": "lock file"}]
    assert plan["price"]["cold"] == pytest.approx(plan["tokens"] * 3 / 1e6)
    assert plan["price"]["limit"] == 1.0
    assert "load_limit" not in text
    (repo / "big.py").write_text("some_name = other_name\n" * 60_000)
    assert "over money.load_limit of $1.00" in run(capsys, "plan", str(repo))
    assert plan["folders"]["."] == plan["folders"]["src"] > plan["folders"]["src/deep"] > 0
    assert [segment["stored"] for segment in plan["segments"]] == [False, False]


def test_pack_comes_back(repo: Path) -> None:
    command = [sys.executable, "-m", "unabridged", "context", "pack", str(repo)]
    packed = subprocess.run(command, check=True, capture_output=True).stdout.decode()
    assert {part.name: part.data for part in unpack(packed)} == {
        "src/a.py": b"x = 1\n" * 50,
        "src/deep/b.py": b"y = 1\n" * 10,
    }


def test_tree(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "tree", str(repo)).splitlines()
    names = [line.split()[1] for line in lines]
    assert names == [".", "src/", "a.py", "deep/", "b.py"]
    assert set(json.loads(run(capsys, "tree", str(repo), "--json"))) == {
        "src/a.py",
        "src/deep/b.py",
    }


def test_looking_keeps_no_base(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "plan", str(repo))
    assert not list((repo.parent / "home").rglob("base.json"))


def test_overrides_reach_the_plan(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--include", "uv.lock", "--exclude", "src/deep/", "--outline", "a.py", "--json"]
    plan = json.loads(run(capsys, "plan", str(repo), *words))
    assert plan["files"] == 1
    assert plan["outlined"] == [{"name": "src/a.py", "reason": "as asked"}]
    assert plan["skipped"] == [{"name": "src/deep/b.py", "reason": "excluded as asked"}]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan", "missing"], "No such file"),
        (["plan", ".", "--include", "!"], "pattern"),
        (["pack", ".", "--window", "100"], "too small"),
        (["tree", ".", "--vocabulary", "missing"], "cannot read the vocabulary"),
    ],
)
def test_errors_are_one_line_and_exit_2(
    repo: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(repo)
    assert main(["context", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
