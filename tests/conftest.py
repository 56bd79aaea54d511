"""What all tests share."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from unabridged.agent.policy import decide
from unabridged.tools.bash.classify import classify

# A busy machine is slow, not wrong; and what lands is not up to the dice of one run.
settings.register_profile("everyday", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "everyday")


@pytest.fixture
def serve_script() -> Iterator[Callable[..., Any]]:
    """Serve a script over HTTP from a thread, for tests that run commands as processes.

    `serve_script(script, key=..., record=...)` gives the `ScriptedServer`: its `url`, `requests`
    and `failures`.
    """
    from unabridged.agent.providers.scripted_server import serving_in_thread

    with ExitStack() as stack:
        yield lambda script, **options: stack.enter_context(serving_in_thread(script, **options))


# --- programs that a test needs -------------------------------------------------------------------


PACKAGES = {"bwrap": "bubblewrap", "rg": "ripgrep", "cc": "gcc", "tmux": "tmux"}


def _need(program: str) -> None:
    """A missing program is a failure where everything must be checked, else a reason to skip."""
    if shutil.which(program) is None:
        missing = f"needs {program}: install the package {PACKAGES[program]}"
        if os.environ.get("UNABRIDGED_CHECK"):
            pytest.fail(missing)
        pytest.skip(missing)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """`@pytest.mark.needs("rg")`."""
    for mark in item.iter_markers("needs"):
        _need(*mark.args)


@pytest.fixture(scope="session")
def bubblewrap() -> None:
    """The same for fixtures that are about the sandbox."""
    _need("bwrap")


# --- what a command in a repository is decided ---------------------------------------------------

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
