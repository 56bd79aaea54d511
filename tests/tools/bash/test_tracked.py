"""Secrets that git tracks are told from its index, whatever its form."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from unabridged.agent.policy import decide
from unabridged.tools.bash.classify import classify
from unabridged.tools.bash.gitrepo import tracked

NAMES = (".env", "README.md", "a b/ü.py", "src/a.py", "src/aa.py", "src/deep/server.pem", "x" * 200)


def git(root: Path, *words: str) -> bytes:
    env = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull}
    command = ["git", "-c", "user.name=n", "-c", "user.email=n@example.com", *words]
    return subprocess.run(command, cwd=root, env=env, check=True, capture_output=True).stdout


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make(tmp_path)


def make(folder: Path, *options: str) -> Path:
    root = folder.resolve() / "repo"
    for name in NAMES:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"1\n")
    git(folder, "init", "-q", "-b", "main", *options, str(root))
    git(root, "add", "-A")
    git(root, "commit", "-qm", "one")
    return root


def verdict(command: str, root: Path) -> str:
    return decide(classify(command, root=root)).verdict


@pytest.mark.parametrize("version", [2, 3, 4])
def test_names_are_those_git_lists(version: int, root: Path) -> None:
    if version == 3:  # git writes it when an entry needs its extra flags
        (root / "new").write_bytes(b"")
        git(root, "add", "--intent-to-add", "new")
    else:
        git(root, "update-index", "--index-version", str(version))
    assert (root / ".git/index").read_bytes()[7] == version
    found = tracked(root / "src")
    assert found is not None
    listed = git(root, "ls-files", "-z").decode().split("\0")[:-1]
    assert found == (root, tuple(listed))


@pytest.mark.parametrize("damage", ["split", "sha256", "cut", "noise"])
def test_an_index_that_cannot_be_read_asks(damage: str, tmp_path: Path) -> None:
    root = make(tmp_path, *(["--object-format=sha256"] if damage == "sha256" else []))
    index = root / ".git/index"
    match damage:
        case "split":
            git(root, "update-index", "--split-index")
        case "cut":
            index.write_bytes(index.read_bytes()[:150])
        case "noise":
            index.write_bytes(b"DIRC\0\0\0\2\0\0\0\7" + os.urandom(300))
        case _:
            pass
    assert tracked(root) is None
    assert verdict("git diff", root) == "ask"


SHOWS = [
    "git show", "git show HEAD", "git log -p", "git log -U1 -3", "git diff HEAD~1", "git diff --cached",
    "git log --stat --patch", "git stash show", "git diff-tree -p HEAD", "git reflog -p",
    "git diff src/deep", "git show HEAD -- .env", "git show HEAD -- .", "git -C src show",
    "git range-diff HEAD~1..HEAD HEAD~1..HEAD", "git log --cc", "git show README.md --",
]  # fmt: skip
DOES_NOT = [
    "git show --stat", "git log --oneline", "git log -p -- src/a.py", "git diff README.md",
    "git diff --name-only HEAD~1", "git show HEAD:README.md", "git show -s", "git log --stat -3",
    "git diff-tree -r HEAD",
]  # fmt: skip


@pytest.mark.parametrize("command", SHOWS)
def test_a_patch_with_a_secret_asks(command: str, root: Path) -> None:
    effects = classify(command, root=root)
    assert "secret" in {effect.kind for effect in effects}
    assert decide(effects).verdict == "ask"


@pytest.mark.parametrize("command", DOES_NOT)
def test_no_patch_or_none_of_a_secret_passes(command: str, root: Path) -> None:
    assert verdict(command, root) == "allow"


@pytest.mark.parametrize(
    "setting",
    [
        ("remote.origin.url", "https://me:hunter2@example.com/x"),
        ("remote.origin.url", "https://ghp_0123456789abcdefghij@example.com/x"),
        ("http.https://example.com/.extraheader", "AUTHORIZATION: basic QUJD"),
    ],
)
def test_credentials_in_gits_settings_ask(setting: tuple[str, str], root: Path) -> None:
    reading = (
        "cat .git/config", "git remote -v", "git remote get-url origin", "grep -r url .",
        "git config --get remote.origin.url", "grep -n url .git/config", "grep -r url .git",
    )  # fmt: skip
    git(root, "config", "remote.origin.url", "https://git@example.com/x")
    assert verdict("git remote -v", root) == verdict("cat .git/config", root) == "allow"
    git(root, "config", *setting)
    assert {verdict(command, root) for command in reading} == {"ask"}
