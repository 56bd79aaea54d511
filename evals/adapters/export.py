"""Trajectories and predictions of a run, for others."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ...agent.atif import trajectory
from ...agent.store import SUFFIX, read

Result = Mapping[str, Any]


def folder_of(result: Result) -> Path:
    """Where a trial keeps everything."""
    return Path(unquote(urlsplit(result["trial_uri"]).path))


def logs_of(result: Result) -> list[Path]:
    """The logs of a trial's sessions, in their order."""
    return sorted((folder_of(result) / "logs" / "agent" / "sessions").glob(f"*{SUFFIX}"))


def atif_folder(results: Sequence[Result], into: Path) -> int:
    """One ATIF trajectory for each session of each trial; returns how many."""
    into.mkdir(parents=True, exist_ok=True)
    count = 0
    for result in results:
        for log in logs_of(result):
            session = log.name.removesuffix(SUFFIX)
            document = trajectory(session, read(log))
            own = result["unabridged"]
            document["extra"] |= {
                "task": result["task_name"], "trial": result["trial_name"],
                "reward": own["reward"], "trace_policy": own["trace"].get("policy"),
            }  # fmt: skip
            path = into / f"{result['trial_name']}.{session}.json"
            path.write_text(json.dumps(document, indent=1))
            count += 1
    return count


def swebench_file(results: Sequence[Result], into: Path) -> int:
    """Predictions as SWE-bench's harness takes them: one JSON object a line, with the patch that
    the agent left against the commit it was given; returns how many."""
    lines: list[str] = []
    for result in results:
        app = folder_of(result) / "app"
        own = result["unabridged"]
        line = {
            "instance_id": result["task_name"].partition("/")[2],
            "model_name_or_path": f"unabridged/{own['trial']['agent'].get('model') or own['trial']['agent']['name']}",
            "model_patch": patch(app),
        }
        lines.append(json.dumps(line))
    into.parent.mkdir(parents=True, exist_ok=True)
    into.write_text("".join(f"{line}\n" for line in lines))
    return len(lines)


def patch(app: Path) -> str:
    """Everything that was changed since the first commit, new files included."""
    first = _git(app, "rev-list", "--max-parents=0", "HEAD").split()[-1]
    _git(app, "add", "-A", "--intent-to-add")
    return _git(app, "diff", "--binary", first)


def _git(app: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", *words],
        cwd=app, capture_output=True, check=True,
    )  # fmt: skip
    return done.stdout.decode("utf-8", "surrogateescape")
