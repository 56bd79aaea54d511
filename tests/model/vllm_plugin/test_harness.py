"""The whole harness on `unabridged serve --engine vllm`: what it solves on the embedded engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

TASKS = 4
BLOCK = 64
"""Tokens: where vLLM can resume K3-nano with `--block-size 16`."""


def evaluate(out: Path, *more: str) -> dict[str, dict[str, Any]]:
    """Results of the first held-out tasks by name, each with its `timeline`."""
    words = ["evals", "run", "--suite", "nano", "--agent", "unabridged", "--limit", str(TASKS)]
    words += ["--seed", "5", "--jobs", "2", "--out", str(out), *more]
    done = subprocess.run(
        [sys.executable, "-m", "unabridged", *words],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        timeout=900,
    )
    assert done.returncode == 0, (done.stdout + done.stderr).decode()[-8000:]
    results: dict[str, dict[str, Any]] = {}
    for path in out.glob("trials/*/result.json"):
        result = json.loads(path.read_bytes())["unabridged"]
        timeline = json.loads((path.parent / "logs/agent/timeline.json").read_bytes())
        results[result["slug"]] = result | {"timeline": timeline}
    return results


def test_the_same_tasks_are_solved_as_on_the_embedded_engine(url: str, tmp_path: Path) -> None:
    ours = evaluate(tmp_path / "vllm", "--base-url", url, "--model", "k3-nano")
    theirs = evaluate(tmp_path / "embedded")

    assert len(ours) == TASKS
    assert {name: one["reward"] for name, one in ours.items()} == {
        name: one["reward"] for name, one in theirs.items()
    }
    assert any(one["reward"] == 1 for one in ours.values())
    later = [step for one in ours.values() for step in one["timeline"][1:]]
    assert len(later) > TASKS
    share = sum(step["cached"] for step in later) / sum(step["prompt"] for step in later)
    assert share > 0.8, f"cached from the second step on: {share:.0%}"
    # At most a block is read again, beside what is new: a reply, and a tool's result.
    for one in ours.values():
        for last, step in zip(one["timeline"], one["timeline"][1:], strict=False):
            assert step["cached"] >= last["prompt"] - BLOCK
