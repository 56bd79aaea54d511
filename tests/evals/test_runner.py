"""`unabridged evals run`: real runs in bubblewrap, with agents whose rate is known."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from unabridged.evals import runner
from unabridged.evals.report import report
from unabridged.evals.sandbox import HIDDEN, confined
from unabridged.evals.spec import NANO, Outcome, suite
from unabridged.evals.tasks.task import FAMILIES

pytestmark = pytest.mark.needs("bwrap")


def evals(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "unabridged", "evals", "run", *words],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_suite_is_what_it_says() -> None:
    tasks = suite("nano")
    assert Counter(task.family for task in tasks) == NANO
    assert len({task.id for task in tasks}) == 300
    assert {task.split for task in tasks} == {"test"}
    # A limit takes the first, so a shorter run is a part of the whole one.
    assert suite("nano", limit=40) == tasks[:40]
    assert {task.family for task in tasks[:40]} == set(FAMILIES)
    assert suite("nano", seed=1, limit=5) != tasks[:5]
    with pytest.raises(ValueError, match="choose of nano, real"):
        suite("nana")


def test_the_oracle_solves_and_a_second_run_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = evals("--agent", "oracle", "--limit", "2", "--out", str(out), "--json")
    assert first.returncode == 0, first.stderr
    document = json.loads(first.stdout)
    assert (document["success_rate"], document["tasks"]) == (1.0, 2)
    assert document == json.loads((out / "report.json").read_bytes())
    # A run that was killed while it wrote leaves a part of a line, and one in the middle of a task
    # leaves its folder.
    with (out / "outcomes.jsonl").open("ab") as file:
        file.write(b'{"id": "ren')
    (out / "trials" / suite("nano")[2].id).mkdir()
    second = evals("--agent", "oracle", "--limit", "3", "--out", str(out))
    assert second.returncode == 0, second.stderr
    assert second.stderr.count("solved") == 1
    assert "100.0%" in second.stdout
    stored = [json.loads(line) for line in (out / "outcomes.jsonl").read_bytes().splitlines()]
    assert [one["id"] for one in stored] == [task.id for task in suite("nano", limit=3)]
    # The agent's own commands were confined as well, inside its sandbox.
    logs = b"".join(path.read_bytes() for path in out.glob("trials/*/sessions/*.jsonl"))
    assert b'"sandbox":true' in logs
    assert b'"sandbox":false' not in logs


def test_doing_nothing_solves_nothing(tmp_path: Path) -> None:
    done = evals("--agent", "noop", "--limit", "4", "--out", str(tmp_path), "--json")
    document = json.loads(done.stdout)
    assert document["success_rate"] == 0
    assert len(document["failures"]) == 4
    assert document["asking"]["clear"]["successes"] == 0


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("agent", "rate"), [("oracle", 1.0), ("noop", 0.0)])
def test_the_whole_suite(agent: str, rate: float, tmp_path: Path) -> None:
    done = evals("--agent", agent, "--out", str(tmp_path), "--json", "--workers", "2")
    document = json.loads(done.stdout)
    assert document["failures"] == [] if rate else True
    assert (document["success_rate"], document["tasks"]) == (rate, 300)
    if rate:
        assert document["asking"]["ambiguous"]["rate"] == 1.0
        assert document["asking"]["clear"]["rate"] == 0.0
        assert {"to 1000", "to 2000", "to 4000", "to 7000"} <= document["pack_tokens"].keys()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_oracle_solves_what_was_written_by_hand(tmp_path: Path) -> None:
    done = evals("--suite", "real", "--agent", "oracle", "--out", str(tmp_path), "--json")
    document = json.loads(done.stdout)
    assert document["failures"] == []
    assert document["tasks"] == 20


# --- what goes wrong -----------------------------------------------------------------------------


def test_another_run_in_the_folder_is_not_mixed_in(tmp_path: Path) -> None:
    runner.Run(tmp_path, {"agent": "oracle", "seed": 0}).open()
    with pytest.raises(runner.RunError, match="its seed differ"):
        runner.Run(tmp_path, {"agent": "oracle", "seed": 1}).open()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--suite", "nana"], "there is no suite 'nana'"),
        (["--limit", "0"], "--limit"),
        (["--agent", "oracle", "--model", "k3"], "brings its own model"),
        (["--model-folder", "/nowhere"], "no weights"),
        (["--base-url", "http://127.0.0.1:9/v1", "--model-folder", "/tmp"], "exclude each other"),
    ],
)
def test_bad_usage_is_one_line(words: list[str], said: str, tmp_path: Path) -> None:
    done = evals(*words, "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_checkpoint_that_cannot_be_served_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"not weights")
    done = evals("--model-folder", str(folder), "--limit", "1", "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.strip().count("\n") == 0


# --- pieces --------------------------------------------------------------------------------------


def test_the_agent_sees_no_tasks_and_no_other_trials(tmp_path: Path) -> None:
    mine, other = tmp_path / "trials" / "a", tmp_path / "trials" / "b"
    for folder in (mine, other):
        folder.mkdir(parents=True)
        (folder / "secret").write_bytes(b"hidden")
    command = ["bash", "-c", f"ls {HIDDEN} {other.parent}; cat {other}/secret; touch {mine}/made"]
    done = subprocess.run(
        confined(command, writable=[mine], network=True, hidden=[HIDDEN, tmp_path]),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "families" not in done.stdout
    assert "runner" not in done.stdout
    assert "hidden" not in done.stdout
    assert (mine / "made").exists()


def outcome(**values: Any) -> Outcome:
    plain: dict[str, Any] = {
        "id": "x", "family": "rename", "size": "small", "injected": False, "success": True,
        "asked": False, "exit_code": 0, "problems": (), "pack_tokens": 900, "steps": 5,
        "tokens": 10, "seconds": 1.0,
    }  # fmt: skip
    return Outcome(**{**plain, **values})


def test_the_report_counts() -> None:
    outcomes = [
        outcome(),
        outcome(success=False, asked=True, exit_code=4, problems=("the user was asked",)),
        outcome(family="ask", asked=True, exit_code=4, pack_tokens=3500),
        outcome(family="ask", success=False, pack_tokens=9000),
        outcome(family="blocked", exit_code=8, pack_tokens=None),
    ]
    document = report({"agent": "x"}, outcomes)
    assert document["success_rate"] == 0.6
    assert document["families"]["rename"]["rate"] == 0.5
    assert document["asking"]["ambiguous"]["rate"] == 0.5
    # Blocked tasks are neither: asking there is no mistake and no duty.
    assert document["asking"]["clear"]["trials"] == 2
    sizes = {name: rate["trials"] for name, rate in document["pack_tokens"].items()}
    assert sizes == {"to 1000": 2, "to 4000": 1, "over 7000": 1}
    assert document["exit_codes"] == {"0": 2, "4": 2, "8": 1}
    assert Outcome.of_json(json.loads(json.dumps(outcomes[1].to_json()))) == outcomes[1]
