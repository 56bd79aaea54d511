"""Under the hardened environment, reading git commands run nothing of the repository's choice."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from unabridged.agent.policy import decide
from unabridged.tools.bash.classify import classify
from unabridged.tools.bash.env import HARDENED_ENV, SHELL
from unabridged.tools.bash.git import READS
from unabridged.tools.bash.gitrepo import untrusted

HOOKS = [
    "post-index-change",
    "pre-commit",
    "post-checkout",
    "post-merge",
    "pre-push",
    "reference-transaction",
    "fsmonitor-watchman",
    "pre-auto-gc",
    "post-rewrite",
    "update",
]
EXAMPLES = [command for row in READS for command in row.yes]


def git(folder: Path, *words: str) -> None:
    env = os.environ | {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_ALLOW_PROTOCOL": "file"}
    subprocess.run(
        ["git", "-c", "user.name=n", "-c", "user.email=n@example.com", *words],
        cwd=folder, env=env, check=True, capture_output=True,
    )  # fmt: skip


@pytest.fixture
def copy(repo: Path, tmp_path: Path) -> Path:
    root = tmp_path.resolve() / "copy"
    shutil.copytree(repo, root)
    return root


def state(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_hooks_pagers_and_monitors_stay_silent(copy: Path, tmp_path: Path) -> None:
    """With every hook in place and the single settings that start programs, none starts."""
    mark = tmp_path / "started"
    program = tmp_path / "program"
    program.write_bytes(f"#!/bin/sh\necho x >> {mark}\ncat\n".encode())
    program.chmod(0o755)
    for hook in HOOKS:
        target = copy / ".git/hooks" / hook
        target.unlink(missing_ok=True)
        shutil.copy(program, target)
    for key in ("core.fsmonitor", "core.pager", "pager.log", "pager.diff", "core.editor",
                "alias.status", "alias.log", "core.sshCommand", "core.askPass"):  # fmt: skip
        git(copy, "config", key, str(program))
    git(copy, "config", "log.showSignature", "true")
    mark.unlink(missing_ok=True)
    for name in ("README.md", "src/a.py"):
        os.utime(copy / name, (1, 1))  # so that git wants to refresh its index
    before = state(copy / ".git")
    for command in EXAMPLES:
        assert decide(classify(command, root=copy)).verdict == "allow", command
        subprocess.run(
            [*SHELL, command], cwd=copy, env=os.environ | HARDENED_ENV, capture_output=True,
            stdin=subprocess.DEVNULL, timeout=30, check=False,
        )  # fmt: skip
        assert not mark.exists(), command
        assert state(copy / ".git") == before, command


@pytest.mark.parametrize(
    "settings",
    [
        "[diff \"x\"]\n\ttextconv = ./e\n", "[diff \"x\"] command = ./e\n", "[diff]\nEXTERNAL=./e\n",
        "[filter \"x\"]\n\tclean = ./e\n", "[filter \"x\"]\n\tsmudge = ./e\n",
        "[filter \"x\"]\n\tprocess=./e\n", "[gpg]\n\tprogram = ./e\n", "[include]\n\tpath = x\n",
        "[includeIf \"gitdir:/\"]\n\tpath = x\n", "[core]\n\tworktree = /etc\n",
        "[remote \"o\"]\n\tpromisor = true\n", "[extensions]\n\tpartialClone = o\n",
        "[a] b = c\n  [diff \"y\"]\ttextconv=./e", "[diff \"x\"]\r\n\ttextconv = ./e\r\n",
    ],
)  # fmt: skip
def test_settings_that_start_programs_are_found(settings: str, copy: Path) -> None:
    assert untrusted(copy) is None
    with (copy / ".git/config").open("ab") as file:
        file.write(settings.encode())
    assert untrusted(copy) is not None
    assert untrusted(copy / "src") is not None
    assert decide(classify("git diff", root=copy)).verdict == "ask"


def test_lfs_filters_are_known(copy: Path) -> None:
    git(copy, "config", "filter.lfs.clean", "git-lfs clean -- %f")
    git(copy, "config", "filter.lfs.process", "git-lfs filter-process")
    assert untrusted(copy) is None
    git(copy, "config", "filter.lfs.smudge", "git-lfs smudge -- %f; ./evil")
    assert untrusted(copy) is not None


def test_submodules_count_with_their_own_settings(copy: Path, tmp_path: Path) -> None:
    """git runs itself inside them, without the hardened environment."""
    other = tmp_path.resolve() / "other"
    other.mkdir()
    git(other, "init", "-q")
    git(other, "commit", "-q", "--allow-empty", "-m", "x")
    git(copy, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(other), "lib/mod")
    assert untrusted(copy) is None
    git(copy / "lib/mod", "config", "core.fsmonitor", "./evil")
    assert untrusted(copy) is not None
    assert decide(classify("git status", root=copy)).verdict == "ask"


def test_linked_work_trees_share_the_settings(copy: Path, tmp_path: Path) -> None:
    tree = tmp_path.resolve() / "tree"
    git(copy, "worktree", "add", "-q", str(tree))
    assert untrusted(tree) is None
    assert decide(classify("git status", root=tree)).verdict == "allow"
    git(copy, "config", "diff.x.textconv", "./evil")
    assert untrusted(tree) is not None


def test_an_index_that_cannot_be_told_is_not_trusted(copy: Path) -> None:
    git(copy, "update-index", "--split-index")
    assert untrusted(copy) is not None


def test_compressed_index_without_submodules(copy: Path) -> None:
    git(copy, "update-index", "--index-version", "4")
    assert untrusted(copy) is None


def test_not_a_repository(tmp_path: Path) -> None:
    assert untrusted(tmp_path.resolve()) is not None
