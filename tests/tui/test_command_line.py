"""`unabridged` without a command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from unabridged.cli import opens_tui


@pytest.mark.parametrize(
    ("words", "opens"),
    [([], True), (["."], True), (["--resume", "last"], True), (["run", "x"], False),
     (["--help"], False), (["--version"], False), (["nonsense"], False), (["./nowhere"], True)],
)  # fmt: skip
def test_which_command_lines_open_it(words: list[str], opens: bool) -> None:
    assert opens_tui(words) is opens


def test_a_folder_named_like_a_command_is_no_folder_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path)
    assert not opens_tui(["run"])
    assert opens_tui(["./run"])


def test_without_a_terminal_it_says_what_to_use(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "unabridged", str(tmp_path)], capture_output=True,
                          text=True, check=False, stdin=subprocess.DEVNULL)  # fmt: skip
    assert done.returncode == 2
    assert 'unabridged run "TASK"' in done.stderr
    assert done.stdout == ""


def test_it_imports_no_torch() -> None:
    code = "import sys, unabridged.tui.app; print(sorted({'torch', 'vllm'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
