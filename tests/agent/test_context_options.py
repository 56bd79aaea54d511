"""What a task and the settings say about what is loaded."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from unabridged.agent.context_options import mentioned
from unabridged.cli import main

if TYPE_CHECKING:
    from .conftest import MakeRepo


def test_files_that_a_task_names_by_their_paths(make_repo: MakeRepo) -> None:
    root = make_repo(
        {"a.py": b"", "src/b-c.d.py": b"", "docs/e+f.md": b"", "Makefile": b"", "s p": b""}
    )
    (root / "link.py").symlink_to("a.py")
    text = "Fix a.py, `src/b-c.d.py` (see docs/e+f.md). Makefile? ../a.py ~/x /etc/passwd link.py src s p"
    assert mentioned(text, root) == ["/Makefile", "/a.py", "/docs/e+f.md", "/src/b-c.d.py"]
    assert mentioned("x" * 5000 + "/" + "y" * 5000 + " \0", root) == []


def test_they_stay_whole(
    make_repo: MakeRepo, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = "".join(f"{{'row': {n}}},\n" for n in range(3000)).encode()
    repo = make_repo({"data/a.json": lines, "data/b.json": lines, "a.py": b"x = 1\n"})
    turn = {"calls": [{"name": "finish", "arguments": {"status": "done", "summary": "Done."}}]}
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"order": "history", "turns": [turn]}))
    outlined: list[set[str]] = []
    for task in ("Do it", "Sort data/a.json"):
        code = main(["run", task, "--repo", str(repo), "--script", str(script), "--json",
                     "--window", "80000", "--sessions-dir", str(tmp_path / "s")])  # fmt: skip
        assert code == 0
        outlined.append(set(json.loads(capsys.readouterr().out)["context"]["outlined"]))
    assert "data/a.json" in outlined[0]
    assert "data/a.json" not in outlined[1]


def test_a_vocabulary_in_the_settings_counts_exactly(
    make_repo: MakeRepo,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    repo = make_repo({"a.py": b"x = 1\n" * 40})
    for variable in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.setenv(variable, str(tmp_path))
    (tmp_path / "unabridged").mkdir()
    ranks = b"".join(b"%s %d\n" % (base64.b64encode(bytes([n])), n) for n in range(256))
    (tmp_path / "unabridged" / "bytes.model").write_bytes(ranks)
    settings = tmp_path / "unabridged" / "config.toml"
    settings.write_text('[model]\nvocabulary = "bytes.model"\n')
    assert main(["context", "plan", str(repo), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["exact"]
    assert plan["folders"]["."] == len('<file path="a.py">\n</file>\n') + 240
    settings.write_text('[model]\nvocabulary = "missing.model"\n')
    assert main(["context", "plan", str(repo)]) == 2
    assert "cannot read the vocabulary" in capsys.readouterr().err
