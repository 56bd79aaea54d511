"""A person who is asked about a git command sees what it would lose."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from unabridged.tools.losses import MOST_LINES
from unabridged.tools.shell import Shell


@pytest.fixture
def work(bench: Any) -> Any:
    env = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull}

    def git(*words: str) -> None:
        command = ["git", "-c", "user.name=n", "-c", "user.email=n@example.com", *words]
        subprocess.run(command, cwd=bench.root, env=env, check=True, capture_output=True)

    for name in ("a.py", "b.py"):
        bench.put(name, b"x = 1\n")
    bench.put(".gitignore", b"*.log\n")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "one")
    bench.put("b.py", b"x = 2\n")
    git("stash")
    bench.put("a.py", b"x = 3\n")
    bench.put("new.py", b"")
    bench.put("out.log", b"")
    return bench


@pytest.mark.parametrize(
    ("command", "shown", "hidden"),
    [
        ("git reset --hard", [" M a.py"], ["new.py", "b.py"]),
        ("ls && git checkout -- .", [" M a.py"], ["new.py"]),
        ("git clean -fdx", ["?? new.py", "!! out.log"], ["a.py"]),
        ("git stash drop", ["stash@{0}: WIP on"], ["new.py"]),
        ("git push --force", ["would lose commits of the remote"], ["a.py"]),
    ],
)
def test_what_is_there_is_listed(
    work: Any, command: str, shown: list[str], hidden: list[str]
) -> None:
    first, *rest = work.preview(Shell(), command=command).split("\n")
    assert first == command
    assert all(line.startswith("# ") for line in rest)
    assert all(any(one in line for line in rest) for one in shown)
    assert not any(one in line for line in rest for one in hidden)


def test_other_commands_say_no_more_than_themselves(work: Any) -> None:
    assert work.preview(Shell(), command="git commit -m x") == "git commit -m x"


def test_a_long_list_is_cut_and_says_so(work: Any) -> None:
    for number in range(MOST_LINES + 5):
        work.put(f"more-{number}.py", b"")
    lines = work.preview(Shell(), command="git clean -fd").split("\n")
    assert lines[-1] == "#   and 7 more"


def test_no_repository_is_no_reason_to_fail(bench: Any, tmp_path: Path) -> None:
    assert "not in a git repository" in bench.preview(Shell(), command="git reset --hard")
