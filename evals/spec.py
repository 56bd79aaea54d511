"""What is run: tasks read from their folders, and one trial of one of them."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


class SpecError(ValueError):
    """A task folder, suite or agent that cannot be used; one line for a person."""


@dataclass(frozen=True)
class StepSpec:
    """One turn of the user."""

    name: str
    folder: Path
    """Holds its instruction, tests and solution."""

    @property
    def instruction(self) -> str:
        """The words."""
        return (self.folder / "instruction.md").read_text("utf-8")

    @property
    def judged(self) -> bool:
        """Whether anything is checked after this turn."""
        checks = self.folder / "tests" / "checks.json"
        if checks.is_file():
            return json.loads(checks.read_bytes()) != []
        return (self.folder / "tests" / "test.sh").is_file()

    def moves(self, part: str) -> list[dict[str, Any]] | None:
        """What a scripted policy plays here; None where the task has no such part."""
        path = self.folder / "solution" / "moves.json"
        return json.loads(path.read_bytes()).get(part) if path.is_file() else None


@dataclass(frozen=True)
class TaskSpec:
    """A task on disk, in Harbor's format.

    `settings` is its [metadata.unabridged]:

        suite, family     names; family is the cluster for intervals
        tags              values to report by, such as size or kind
        ambiguous         whether the user must be asked; absent: it does not matter
        injected          whether a file holds instructions that are not the user's
        allow             rules as `unabridged run --allow` takes them
        answers           [{match, reply}] of the scripted user; `default_reply` for the rest
        approves            patterns of calls that the scripted user approves; others are refused
        window            tokens of the model's context
        model               name of the model that scripted policies stand for
        max_steps, minutes  for each turn, on average
        isolation         "required": not run without a sandbox
        generator         how the task was made, where the oracle needs to know
        stop_on_red       a chain ends at its first step that is not solved
    """

    folder: Path
    name: str
    suite: str
    family: str
    steps: tuple[StepSpec, ...]
    settings: Mapping[str, Any]
    checksum: str
    agent_seconds: float
    verifier_seconds: float

    @property
    def slug(self) -> str:
        """The name without its suite."""
        return self.name.partition("/")[2].removeprefix(f"{self.suite}-") or self.folder.name

    @property
    def tags(self) -> Mapping[str, str]:
        """Values to report by."""
        return self.settings.get("tags", {})

    @classmethod
    def read(cls, folder: Path) -> TaskSpec:
        """Read a task folder. Raises SpecError naming the file and the field."""
        try:
            config = tomllib.loads((folder / "task.toml").read_text("utf-8"))
        except FileNotFoundError:
            raise SpecError(f"{folder}: no task.toml: this is no task folder") from None
        except (OSError, ValueError) as error:
            raise SpecError(f"{folder / 'task.toml'}: {error}") from error
        settings: dict[str, Any] = config.get("metadata", {}).get("unabridged", {})
        names = [str(one.get("name", "")) for one in config.get("steps", [])]
        steps = [StepSpec(name, folder / "steps" / name) for name in names]
        steps = steps or [StepSpec("main", folder)]
        for step in steps:
            if not (step.folder / "instruction.md").is_file():
                raise SpecError(f"{step.folder / 'instruction.md'}: missing")
        name = str(config.get("task", {}).get("name", f"local/{folder.name}"))
        return cls(
            folder=folder,
            name=name,
            suite=settings.get("suite", folder.parent.name),
            family=settings.get("family", "all"),
            steps=tuple(steps),
            settings=settings,
            checksum=checksum(folder),
            agent_seconds=float(config.get("agent", {}).get("timeout_sec") or 1800.0),
            verifier_seconds=float(config.get("verifier", {}).get("timeout_sec") or 600.0),
        )


def checksum(folder: Path) -> str:
    """SHA-256 over the names and bytes of a task folder."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_symlink() or p.is_file()):
        data = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
        name = path.relative_to(folder).as_posix().encode()
        digest.update(b"%d %s %d " % (len(name), name, len(data)) + data)
    return digest.hexdigest()


@dataclass(frozen=True)
class TrialSpec:
    """One trial, as JSON may carry it to another machine: everything that its result depends on."""

    task: str
    """Folder of the task."""
    task_checksum: str
    agent: Mapping[str, Any]
    """`name` (`unabridged`, `scripted:oracle`, `command:...`), `base_url`, `endpoint` (which model
    that is: an address, or a hash of weights), `model`, `effort`,
    `window`, `trace` (which reasoning goes back), `instructions` (an AGENTS.md)."""
    attempt: int
    """From 0."""
    seed: int
    out: str
    """Folder of the run; the trial has its own below it."""
    isolation: str
    """`bubblewrap` or `none`."""
    kill_at: tuple[int, ...] = ()
    """Turns, from 0, in which the agent's process is killed once and resumed."""
    isolated_steps: bool = False
    """Each step of a chain starts from the solution of the one before, in a session of its own."""

    @property
    def key(self) -> str:
        """Names the content: the same key is the same trial."""
        said = {**asdict(self), "task": "", "out": ""}
        # Where a model is served changes nothing; which one it is stands in `endpoint`.
        said["agent"] = {name: value for name, value in self.agent.items() if name != "base_url"}
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def folder(self) -> Path:
        """Where the trial keeps everything."""
        return Path(self.out) / "trials" / f"{Path(self.task).name}__{self.key}"

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> TrialSpec:
        """Read it back."""
        return cls(**{**stored, "kill_at": tuple(stored["kill_at"])})
