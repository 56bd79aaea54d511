"""A repository as users have them, and the default decision on a command in it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from unabridged.agent.policy import decide
from unabridged.tools.bash.classify import classify

FILES = {
    "README.md": "# A tool\nfoo\n",
    "package.json": '{"scripts": {"test": "node test.js"}}\n',
    "pyproject.toml": "[project]\nname = 'a'\n",
    "src/a.py": "def a():\n    return 1\n",
    "src/b.py": "import a\n",
    "src/lib/c.py": "x = 1\n",
    "tests/test_a.py": "def test_a(): pass\n",
    "docs/x.yml": "a: 1\n",
    "docs/guide.md": "guide\n",
    "bin/tool": "#!/bin/sh\n",
    ".github/workflows/ci.yml": "on: push\n",
}


@pytest.fixture(scope="session")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A git repository with two commits, shared: no test may change it."""
    root = tmp_path_factory.mktemp("repository").resolve() / "repo"
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    env = os.environ | {
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_AUTHOR_NAME": "n", "GIT_AUTHOR_EMAIL": "n@example.com",
        "GIT_COMMITTER_NAME": "n", "GIT_COMMITTER_EMAIL": "n@example.com",
    }  # fmt: skip
    for command in (
        ["git", "init", "-q", "-b", "main"],
        ["git", "add", "."],
        ["git", "commit", "-q", "-m", "one"],
        ["git", "commit", "-q", "--allow-empty", "-m", "two"],
    ):
        subprocess.run(command, cwd=root, env=env, check=True)
    return root


@pytest.fixture(scope="session")
def allowed(repo: Path) -> Callable[[str], bool]:
    """Whether the default rules let a command pass without asking."""
    return lambda command: decide(classify(command, root=repo)).verdict == "allow"


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository full of traps."""
    root = tmp_path_factory.mktemp("hostile").resolve() / "repo"
    files = FILES | {
        ".env": "KEY=1\n",
        "config/server.pem": "-----BEGIN\n",
        "config/app/secrets.json": "{}\n",
        "options/-oout": "",
        "options/--compress-program=.x": "",
        "options/a": "b\n",
        "options/b": "c\n",
        "options/-delete": "",
        "options/--pre=cat": "",
        "options/-s": "",
        "options/-iw": "",
        "options/--output=x": "",
        "bin/ls": "#!/bin/sh\n",
        "ls": "#!/bin/sh\n",
        "deep/a": "x\n",
        "bare/HEAD": "ref: refs/heads/main\n",
        "bare/config": "[core]\n\tbare = true\n\tfsmonitor = ./evil\n",
        "bare/objects/x": "",
        "bare/refs/x": "",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    for name, target in {
        "passwd": "/etc/passwd",
        "etc": "/etc",
        "dangling": "/tmp/unabridged-nowhere/x",
        "docs/README.md": "/etc/hostname",
        "docs/deep": "/var",
    }.items():
        (root / name).symlink_to(target)
    subprocess.run(["git", "init", "-q", root], check=True)
    settings = {
        "nested": '[diff "x"]\n\ttextconv = ./evil\n',
        "lazy": '[remote "o"]\n\tpromisor = true\n\turl = ext::./evil\n',
        "included": "[include]\n\tpath = ../evil\n",
        "worktree": "[core]\n\tworktree = /etc\n",
        "empty": '[filter "x"] clean = ./evil\n',
    }
    for name, text in settings.items():
        (root / name).mkdir()
        subprocess.run(["git", "init", "-q", root / name], check=True)
        with (root / name / ".git/config").open("ab") as file:
            file.write(text.encode())
    (root / "nested/deeper").mkdir()
    for name in ("linked", "module"):
        (root / name).mkdir()
        (root / name / ".git").write_bytes(b"gitdir: ../nested/.git\n")
    return root
