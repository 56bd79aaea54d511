"""A repository full of traps."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def hostile(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository full of traps."""
    root = tmp_path_factory.mktemp("hostile").resolve() / "repo"
    shutil.copytree(repo, root, ignore=shutil.ignore_patterns(".git"))
    files = {
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
