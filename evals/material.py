"""A task in memory, and how it is written as a folder in Harbor's format.

    task.toml                Harbor's configuration; ours is in [metadata.unabridged]
    instruction.md           the words, exactly as the agent gets them
    environment/Dockerfile   for runners with containers; environment/repo is the repository
    environment/setup.sh     run in the repository after its first commit, where there is one
    tests/test.sh            writes the reward: check.py, checks.json, before.json, hidden tests
    solution/solve.sh        makes the solution; moves.json is what scripted policies play
    steps/NAME/...           instruction, tests and solution of each step, for chains

The same material gives the same bytes, so the checksum of a task is stable.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CANARY = "unabridged-evals-canary"
"""Stands in every file of a task that no agent is shown: whoever finds it in training data knows."""

Turn = dict[str, Any]
"""One reply of a scripted model: `reasoning`, `content`, `calls`."""
Moves = Mapping[str, Sequence[Turn]]
"""Policy's part (`solve`, `guess`, ...) -> its replies."""


@dataclass(frozen=True)
class Step:
    """One turn of the user, and how its end is judged."""

    name: str
    instruction: str
    checks: Sequence[Mapping[str, Any]] = ()
    """Empty: this turn is not judged by itself."""
    tests: Mapping[str, str] = field(default_factory=dict[str, str])
    """Hidden files beside the checks."""
    moves: Moves = field(default_factory=dict[str, Sequence[Turn]])
    solution: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    """Path -> text after this step; None: removed."""
    commands: str = ""
    """Shell lines that belong to the solution."""
    record: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the solution would have been seen to do: `exit_code`, `summary`, `asks`."""


@dataclass(frozen=True)
class Material:
    """One task."""

    suite: str
    slug: str
    family: str
    """The cluster of the task, for intervals."""
    files: Mapping[str, str]
    """Path -> text of the repository."""
    steps: Sequence[Step]
    setup: str = ""
    """Shell lines that are run in the repository after its first commit."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What stands in [metadata.unabridged] besides suite and family: see `spec.TaskSpec`."""
    links: Mapping[str, str] = field(default_factory=dict[str, str])
    """Path -> target of symbolic links."""

    @property
    def name(self) -> str:
        """The name under Harbor."""
        return f"unabridged/{self.suite}-{self.slug}"

    def write(self, folder: Path) -> Path:
        """Write the task into a new folder; returns it."""
        guid = uuid.uuid5(uuid.NAMESPACE_URL, self.name)
        mark = f"{CANARY} {guid}"
        _put(folder / "task.toml", self._toml(mark))
        for path, text in self.files.items():
            _put(folder / "environment" / "repo" / path, text)
        for path, target in self.links.items():
            link = folder / "environment" / "repo" / path
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(target)
        _put(folder / "environment" / "Dockerfile", _DOCKERFILE.format(mark=mark))
        _put(folder / "environment" / "setup.sh", f"# {mark}\nset -e\n{self.setup}")
        if len(self.steps) == 1:
            self._write_step(folder, self.steps[0], mark)
        else:
            for step in self.steps:
                self._write_step(folder / "steps" / step.name, step, mark)
        return folder

    def _toml(self, mark: str) -> str:
        several = len(self.steps) > 1
        own = {"suite": self.suite, "family": self.family, **self.settings}
        minutes = float(own.get("minutes", 3.0))
        parts = [
            'schema_version = "1.4"',
            _table("task", {"name": self.name}),
            _table("metadata", {"canary": mark}),
            _table("metadata.unabridged", own),
            _table("agent", {"timeout_sec": 60.0 * minutes * len(self.steps) + 60.0}),
            _table("verifier", {"timeout_sec": 300.0}),
            _table("environment", {"network_mode": "no-network", "workdir": "/app", "cpus": 1,
                                   "memory_mb": 2048, "storage_mb": 2048}),
        ]  # fmt: skip
        if several:
            strategy = "mean" if all(step.checks for step in self.steps) else "final"
            parts.insert(1, f'multi_step_reward_strategy = "{strategy}"')
            parts += [f"[[steps]]\nname = {json.dumps(step.name)}" for step in self.steps]
        return "\n\n".join(parts) + "\n"

    def _write_step(self, folder: Path, step: Step, mark: str) -> None:
        _put(folder / "instruction.md", step.instruction)
        check = Path(__file__).with_name("verify") / "check.py"
        tests = folder / "tests"
        _put(tests / "test.sh", f'#!/bin/sh\n# {mark}\nexec python3 -I "${{UNABRIDGED_TESTS:-/tests}}/check.py"\n')  # fmt: skip
        _put(tests / "check.py", check.read_text())
        _put(tests / "checks.json", _json([dict(one) for one in step.checks]))
        _put(tests / "before.json", _json(self._hashes()))
        for path, text in step.tests.items():
            _put(tests / path, text)
        solution = folder / "solution"
        _put(solution / "solve.sh", _solve(step, mark))
        (solution / "solve.sh").chmod(0o755)
        (tests / "test.sh").chmod(0o755)
        _put(
            solution / "moves.json", _json({name: list(part) for name, part in step.moves.items()})
        )
        for path, text in step.solution.items():
            if text is not None:
                _put(solution / "files" / path, text)
        _put(solution / "record.json", _json(dict(step.record)))

    def _hashes(self) -> dict[str, str]:
        made = {
            path: hashlib.sha256(text.encode()).hexdigest() for path, text in self.files.items()
        }
        for path, target in self.links.items():
            made[path] = hashlib.sha256(target.encode()).hexdigest()
        return made


_DOCKERFILE = """\
# {mark}
FROM python:3.12-slim
RUN apt-get update && apt-get install -y --no-install-recommends git ripgrep bubblewrap \\
    && rm -rf /var/lib/apt/lists/*
COPY repo /app
COPY setup.sh /tmp/setup.sh
WORKDIR /app
RUN git init -q -b main && git add -A \\
    && git -c user.name=Suite -c user.email=suite@example.com commit -qm "As it was" \\
    && sh /tmp/setup.sh && rm /tmp/setup.sh
"""


def _solve(step: Step, mark: str) -> str:
    gone = " ".join(f"'{path}'" for path, text in step.solution.items() if text is None)
    return "\n".join([
        "#!/bin/sh", f"# {mark}", "set -e", 'here=$(cd "$(dirname "$0")" && pwd)',
        'cd "${UNABRIDGED_APP:-/app}"', 'logs="${UNABRIDGED_LOGS:-/logs}/agent"',
        '[ ! -d "$here/files" ] || cp -R "$here/files/." .',
        *([f"rm -f {gone}"] if gone else []), *([step.commands] if step.commands else []),
        'mkdir -p "$logs"', 'cp "$here/record.json" "$logs/record.json"', "",
    ])  # fmt: skip


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _table(name: str, values: Mapping[str, Any]) -> str:
    return "\n".join([f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in values.items())])


def _toml(value: Any) -> str:
    """A value as TOML; tables inline."""
    if isinstance(value, Mapping):
        return (
            "{ " + ", ".join(f"{json.dumps(str(k))} = {_toml(v)}" for k, v in value.items()) + " }"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(one) for one in value) + "]"
    return json.dumps(value, ensure_ascii=True)


# --- what scripted models say --------------------------------------------------------------------


def turn(*calls: tuple[str, dict[str, Any]], reasoning: str = "", content: str = "") -> Turn:
    """One reply."""
    made = [{"name": name, "arguments": given} for name, given in calls]
    return {"reasoning": reasoning or "On with it.", "content": content, "calls": made}


def edit(path: str, old: str, new: str) -> tuple[str, dict[str, Any]]:
    """A call of `edit`."""
    return "edit", {"path": path, "old": old, "new": new}


def write(path: str, content: str) -> tuple[str, dict[str, Any]]:
    """A call of `write`."""
    return "write", {"path": path, "content": content}


def shell(command: str, **options: Any) -> tuple[str, dict[str, Any]]:
    """A call of `shell`."""
    return "shell", {"command": command, **options}


def ask(question: str, choices: Sequence[str] = ()) -> tuple[str, dict[str, Any]]:
    """A call of `ask_user`."""
    return "ask_user", {"question": question, "choices": list(choices)}


def finish(
    summary: str, status: str = "done", verified: Sequence[str] = ()
) -> tuple[str, dict[str, Any]]:
    """A call of `finish`."""
    return "finish", {"status": status, "summary": summary, "verified": list(verified)}


def digest(text: str) -> str:
    """SHA-256 of a text, as checks hold it."""
    return hashlib.sha256(text.encode()).hexdigest()
