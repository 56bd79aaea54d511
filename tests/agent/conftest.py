"""What the tests of the agent share."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

MakeRepo = Callable[..., Path]


@pytest.fixture
def make_repo(tmp_path: Path) -> MakeRepo:
    """Build a real git repository: `make_repo({"a.py": b"..."})`."""

    def make(files: dict[str, bytes], name: str = "repo") -> Path:
        root = tmp_path / name
        root.mkdir()
        for path, data in files.items():
            target = root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "start"]):
            subprocess.run(
                ["git", "-c", "user.name=T", "-c", "user.email=t@example.com", *command],
                cwd=root,
                check=True,
                capture_output=True,
            )
        return root.resolve()

    return make
