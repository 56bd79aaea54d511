"""`unabridged sessions`, `undo` and `policy` on real sessions of a scripted model."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unabridged.cli import main

MakeRepo = Callable[..., Path]

TURNS: list[dict[str, Any]] = [
    {"reasoning": "Look first.\u202e", "calls": [{"name": "read", "arguments": {"path": "a.py"}}]},
    {
        "reasoning": "Change it.",
        "calls": [{"name": "edit", "arguments": {"path": "a.py", "old": "1", "new": "2"}}],
    },
    {
        "reasoning": "And a new one, with a fence.",
        "calls": [{"name": "write", "arguments": {"path": "b.md", "content": "```\ncode\n```\n"}}],
    },
    {"calls": [{"name": "finish", "arguments": {"status": "done", "summary": "All done."}}]},
]


@pytest.fixture
def folder(make_repo: MakeRepo, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The sessions folder of one finished session over `repo`."""
    repo = make_repo({"a.py": b"x = 1\n"})
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"order": "history", "turns": TURNS}))
    sessions = tmp_path / "sessions"
    code = main(
        ["run", "Change 1 to 2", "--repo", str(repo), "--script", str(script), "--allow", "write",
         "--sessions-dir", str(sessions), "--sandbox", "off", "--quiet"]
    )  # fmt: skip
    capsys.readouterr()
    assert code == 0
    return sessions


def call(folder: Path, *words: str) -> int:
    return main([*words, "--sessions-dir", str(folder)])


def test_list_and_show(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(folder, "sessions", "list") == 0
    assert "done" in (line := capsys.readouterr().out)
    assert "Change 1 to 2" in line
    assert call(folder, "sessions", "list", "--json") == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert (entry["steps"], entry["exit_code"]) == (4, 0)
    assert call(folder, "sessions", "show", "last") == 0
    assert "step 4: finish" in capsys.readouterr().out
    assert call(folder, "sessions", "show", "nothing") == 2
    assert "no session 'nothing'" in capsys.readouterr().err


def test_search_finds_reasoning(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(folder, "sessions", "search", "LOOK FIRST", "--json") == 0
    (hit,) = json.loads(capsys.readouterr().out)
    assert hit["in"] == "reasoning"
    assert call(folder, "sessions", "search", "never said") == 1


@pytest.mark.parametrize("form", ["markdown", "jsonl", "stream-json"])
def test_every_export_has_the_whole_reasoning(folder: Path, tmp_path: Path, form: str) -> None:
    out = tmp_path / "out"
    assert call(folder, "sessions", "export", "last", "--format", form, "--out", str(out)) == 0
    text = out.read_bytes().decode()
    for turn in TURNS:
        reasoning = turn.get("reasoning", "")
        assert reasoning in text or json.dumps(reasoning)[1:-1] in text
    if form == "markdown":
        assert "````json" in text  # content with a fence does not end its block
    else:
        lines = [json.loads(line) for line in text.splitlines()]
        assert lines[-1]["type"] == "run_ended"
        assert (lines[0]["type"] == "stream") is (form == "stream-json")


def test_fork_goes_on_from_the_step(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(folder, "sessions", "fork", "last", "--at", "2") == 0
    fork = capsys.readouterr().out.strip()
    script = tmp_path / "other.json"
    turns = [
        *TURNS[:2],
        {"calls": [{"name": "finish", "arguments": {"status": "partial", "summary": "Half."}}]},
    ]
    script.write_text(json.dumps({"order": "history", "turns": turns}))
    code = main(["run", "Stop here", "--resume", fork, "--script", str(script), "--sessions-dir",
                 str(folder), "--sandbox", "off", "--json", "--quiet"])  # fmt: skip
    assert code == 8
    result = json.loads(capsys.readouterr().out)
    assert (result["session"], result["steps"], result["status"]) == (fork, 3, "partial")
    assert call(folder, "sessions", "fork", "last", "--at", "99") == 2
    assert "no step 99" in capsys.readouterr().err


def test_rm_removes_everything_of_a_session(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(folder, "sessions", "rm", "last") == 0
    capsys.readouterr()
    assert call(folder, "sessions", "list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []
    assert [path.name for path in folder.iterdir()] == ["index.sqlite"]


def test_undo_shows_then_restores(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repo = tmp_path / "repo"
    assert (repo / "a.py").read_bytes() == b"x = 2\n"
    assert call(folder, "undo", "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "-x = 2" in shown
    assert "+x = 1" in shown
    assert (repo / "b.md").exists()
    assert call(folder, "undo", "--yes") == 0
    assert (repo / "a.py").read_bytes() == b"x = 1\n"
    assert not (repo / "b.md").exists()
    assert call(folder, "undo", "--yes") == 0
    assert "Nothing to undo" in capsys.readouterr().out


def test_c66_undo_leaves_alone_what_the_user_changed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "repo" / "a.py").write_bytes(b"x = 3\n")
    assert call(folder, "undo", "--yes") == 1
    assert "left alone: a.py: it was changed since" in capsys.readouterr().out
    assert (tmp_path / "repo" / "a.py").read_bytes() == b"x = 3\n"
    assert not (tmp_path / "repo" / "b.md").exists()


def test_undo_from_a_step_on(folder: Path, tmp_path: Path) -> None:
    assert call(folder, "undo", "--step", "3", "--yes") == 0
    assert (tmp_path / "repo" / "a.py").read_bytes() == b"x = 2\n"
    assert not (tmp_path / "repo" / "b.md").exists()


# --- policy --------------------------------------------------------------------------------------


def explain(capsys: pytest.CaptureFixture[str], repo: Path, *words: str) -> dict[str, Any]:
    assert main(["policy", "explain", "--repo", str(repo), "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_explain(make_repo: MakeRepo, capsys: pytest.CaptureFixture[str]) -> None:
    repo = make_repo({"a.py": b"x = 1\n"})
    assert explain(capsys, repo, "--", "cat a.py | wc -l")["decision"] == "allow"
    asked = explain(capsys, repo, "--", "cat a.py > b.py")
    assert asked["decision"] == "ask"
    assert {"kind": "write", "path": "b.py", "decision": "ask",
            "rule": "built-in: asked by default"} in asked["effects"]  # fmt: skip
    assert (
        explain(capsys, repo, "--allow", "write:b.py", "--", "cat a.py > b.py")["decision"]
        == "allow"
    )
    assert explain(capsys, repo, "--", "echo", "a; rm b")["decision"] == "allow"  # one quoted word


def test_explain_reads_batches_and_refuses_other_lines(
    make_repo: MakeRepo, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = make_repo({"a.py": b""})

    class Stdin:
        buffer = io.BytesIO(b'"ls"\n"rm a.py"\n')

    monkeypatch.setattr(sys, "stdin", Stdin)
    assert main(["policy", "explain", "--repo", str(repo), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["decision"] for line in lines] == ["allow", "ask"]
    Stdin.buffer = io.BytesIO(b"ls\n")
    assert main(["policy", "explain", "--repo", str(repo)]) == 2
    assert "line 1: one JSON string a line" in capsys.readouterr().err


def test_policy_test_runs_the_examples(make_repo: MakeRepo, tmp_path: Path) -> None:
    repo = make_repo({"a.py": b""})
    config = tmp_path / "config" / "unabridged" / "config.toml"
    config.parent.mkdir(parents=True)
    env = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }

    def test() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "unabridged", "policy", "test", "--repo", str(repo)]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    rule = '[[rule]]\ndecision = "allow"\ncommand = ["pytest", "*"]\nmatch = ["%s"]\n'
    config.write_text(rule % "pytest -q")
    if sys.platform == "darwin":
        return  # platformdirs looks elsewhere there
    assert "1 rules, 1 examples, all hold" in test().stdout
    config.write_text(rule % "make test")
    failed = test()
    assert failed.returncode == 2
    assert "does not match its own example 'make test'" in failed.stderr
