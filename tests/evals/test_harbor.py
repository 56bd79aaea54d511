"""Our tasks and trajectories under Harbor itself, in an environment of its own: `make harbor`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from unabridged.evals.adapters.inside import main as inside
from unabridged.evals.spec import TaskSpec, TrialSpec
from unabridged.evals.suites import materials, tenth
from unabridged.evals.trial import run_trial

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / ".venv-harbor" / "bin"

pytestmark = [pytest.mark.harbor, pytest.mark.timeout(1200), pytest.mark.needs("bwrap")]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One task of each suite that is small, a chain of turns among them."""
    folder = tmp_path_factory.mktemp("harbor") / "tasks"
    for suite in ("nano", "ask", "safety", "refactor", "trace"):
        one = tenth(list(materials(suite)))[0]
        one.write(folder / f"{suite}-{one.slug}")
    return folder


def harbor(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "HARBOR_TELEMETRY": "off", "PYTHONPATH": str(ROOT / ".venv" / "src")}
    return subprocess.run([str(BIN / "harbor"), *words], cwd=cwd, env=env, capture_output=True,
                          text=True, check=False)  # fmt: skip


@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("nop", 0.0)])
def test_rewards_under_harbor(agent: str, reward: float, tasks: Path, tmp_path: Path) -> None:
    done = harbor(
        "run", "-p", str(tasks), "-a", agent, "-n", "2", "-o", "jobs", "--job-name", agent, "-y", "-q",
        "-e", "unabridged.evals.adapters.harbor_env:Bubblewrap", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(p.read_bytes()) for p in (tmp_path / "jobs" / agent).glob("*/result.json")]
    assert len(found) == 5
    assert [one["exception_info"] for one in found] == [None] * 5
    assert {one["verifier_result"]["rewards"]["reward"] for one in found} == {reward}


def test_our_results_and_trajectories_are_harbors(tasks: Path, tmp_path: Path) -> None:
    (folder,) = tasks.glob("refactor-*")
    spec = TaskSpec.read(folder)
    made = TrialSpec(
        str(folder), spec.checksum, {"name": "scripted:oracle"}, 0, 0, str(tmp_path), "none"
    )
    assert run_trial(made.to_json())["unabridged"]["reward"] == 1
    logs = made.folder / "logs" / "agent"
    assert inside([str(logs)]) == 0
    checked = subprocess.run(
        [str(BIN / "python"), "-m", "harbor.utils.trajectory_validator", str(logs / "trajectory.json")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr
    program = (
        "import json, sys; from harbor.models.trial.result import TrialResult; "
        "r = json.load(open(sys.argv[1])); "
        "print(TrialResult.model_validate(r).verifier_result.rewards)"
    )
    read = subprocess.run(
        [str(BIN / "python"), "-c", program, str(made.folder / "result.json")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert read.stdout.strip() == "{'reward': 1.0}", read.stderr


def test_the_agent_can_be_loaded(tmp_path: Path) -> None:
    program = (
        "from unabridged.evals.adapters.harbor_agent import UnabridgedAgent as A; "
        "from pathlib import Path; a = A(logs_dir=Path('.'), model_name='moonshot/kimi-k3'); "
        "print(a.name(), a.to_agent_info().model_info.name)"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".venv" / "src")}
    done = subprocess.run([str(BIN / "python"), "-c", program], cwd=tmp_path, env=env,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.stdout.split() == ["unabridged", "kimi-k3"], done.stderr
