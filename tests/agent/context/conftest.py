"""Real repositories, and a small real vocabulary."""

from __future__ import annotations

import base64
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ENVIRONMENT = {
    **{key: value for key, value in os.environ.items() if not key.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@b",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@b",
    "GIT_AUTHOR_DATE": "2024-01-01T00:00:00Z",
    "GIT_COMMITTER_DATE": "2024-01-01T00:00:00Z",
}


class Repo:
    """A git work tree."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str) -> str:
        command = ["git", *arguments]
        done = subprocess.run(
            command, cwd=self.root, env=ENVIRONMENT, check=True, capture_output=True
        )
        return done.stdout.decode()

    def write(self, name: str, content: str | bytes) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def commit(self, message: str = "x") -> None:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)


@pytest.fixture
def make_repo(tmp_path: Path) -> Callable[..., Repo]:
    def make(files: dict[str, str | bytes] | None = None, name: str = "repo") -> Repo:
        repo = Repo(tmp_path / name)
        for file, content in (files or {}).items():
            repo.write(file, content)
        if files:
            repo.commit()
        return repo

    return make


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A `tiktoken.model` of all bytes and some merges that matter at the edges of frames."""
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += [
        b">\n",
        b"</",
        b"\n\n",
        b"\n<",
        b">\n<",
        b"ma",
        b"in",
        b"  ",
        b"    ",
        b'">',
        b'">\n',
    ]
    path = tmp_path_factory.mktemp("vocabulary") / "tiktoken.model"
    lines = (b"%s %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(tokens))
    path.write_bytes(b"".join(lines))
    return path
