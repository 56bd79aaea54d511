"""Whether a task was solved: the hidden tests pass, and nothing else was changed.

The hidden tests come into being after the agent has ended, beside a copy of what it left.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from .sandbox import confined
from .tasks.task import Task

TEST_SECONDS = 60
_IGNORED = frozenset({".git", "__pycache__"})
_RUN = (
    "import sys, unittest; sys.dont_write_bytecode = True; sys.path[:0] = [{0!r}, '.']; "
    "unittest.main('hidden_checks', argv=['hidden', '-q'])"
)


def contents(root: Path) -> dict[str, bytes]:
    """Path -> bytes of every file, but for git's own and for compiled code."""
    found: dict[str, bytes] = {}
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _IGNORED]
        for name in names:
            path = Path(folder, name)
            found[path.relative_to(root).as_posix()] = path.read_bytes()
    return found


def changes(task: Task, after: Mapping[str, bytes]) -> list[str]:
    """Names of files that are not as the repository had them."""
    before = {path: text.encode() for path, text in task.files.items()}
    return sorted(path for path in before.keys() | after if before.get(path) != after.get(path))


def outside_scope(task: Task, after: Mapping[str, bytes]) -> list[str]:
    """What was changed that no solution changes, in words.

    Every solution of a generated task changes lines in place, so what it may touch is exactly the
    lines that differ between the repository and the solution.
    """
    problems: list[str] = []
    for path in changes(task, after):
        if path not in task.files or path not in after:
            problems.append(f"{path} was {'added' if path in after else 'removed'}")
            continue
        if path not in task.solution:
            problems.append(f"{path} was changed")
            continue
        before = task.files[path].encode().splitlines(keepends=True)
        solution = task.solution[path].encode().splitlines(keepends=True)
        now = after[path].splitlines(keepends=True)
        if len(now) != len(before):
            problems.append(f"{path} has {len(now)} lines instead of {len(before)}")
            continue
        wrong = [
            str(number)
            for number, (was, right, line) in enumerate(zip(before, solution, now, strict=True), 1)
            if was == right and line != was
        ]
        if wrong:
            problems.append(f"{path} was changed at line {', '.join(wrong)}")
    return problems


def hidden_tests(task: Task, after: Mapping[str, bytes], folder: Path, *, sandbox: bool) -> str:
    """Run the hidden tests over what the agent left; returns what failed, empty when all passed.

    Args:
        folder: a new folder to work in.
    """
    root = folder / "repo"
    for path, data in after.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    (folder / "hidden_checks.py").write_bytes(task.hidden.encode())
    command = [sys.executable, "-B", "-c", _RUN.format(str(folder))]
    if sandbox:
        command = confined(command, writable=[], network=False)
    try:
        done = subprocess.run(
            command, cwd=root, capture_output=True, timeout=TEST_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"still running after {TEST_SECONDS} s"
    if done.returncode == 0:
        return ""
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    named = [line for line in lines if line.startswith(("FAIL:", "ERROR:"))]
    return "; ".join(named) or "\n".join(lines[-3:])
