"""`unabridged evals run`: going on, faults, isolation, where trials run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unabridged.cli import main
from unabridged.evals import sandbox
from unabridged.evals.executors import InlineExecutor, ProcessExecutor
from unabridged.evals.runner import run_trials, trials_of
from unabridged.evals.spec import TaskSpec, TrialSpec
from unabridged.evals.suites import load, materials, tenth
from unabridged.evals.suites.generated import NANO
from unabridged.evals.tasks.task import FAMILIES
from unabridged.evals.trial import run_trial

from .conftest import small

Suite = Callable[..., Path]
Evals = Callable[..., int]


def report(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "report.json").read_bytes())


def results(out: Path) -> dict[str, dict[str, Any]]:
    return {p.parent.name: json.loads(p.read_bytes()) for p in out.glob("trials/*/result.json")}


def trial(task: Path, out: Path, agent: str, isolation: str = "none") -> dict[str, Any]:
    spec = TaskSpec.read(task)
    made = TrialSpec(str(task), spec.checksum, {"name": agent}, 0, 0, str(out), isolation)
    return run_trial(made.to_json())


# --- suites --------------------------------------------------------------------------------------


def test_the_nano_suite_is_what_it_says(tmp_path: Path) -> None:
    made = list(materials("nano"))
    assert Counter(one.family for one in made) == NANO
    assert len({one.slug for one in made}) == 300
    part = tenth(made)
    assert 30 <= len(part) <= 34
    assert {one.family for one in part} == set(FAMILIES)
    # A limit takes the first, so a shorter run is a part of the whole one.
    read = load("nano", tmp_path, limit=3)
    assert [one.slug for one in read] == [one.slug for one in made[:3]]
    again = load("nano", tmp_path / "again", limit=3)
    assert [one.checksum for one in again] == [one.checksum for one in read]
    assert load("nano", tmp_path, seed=1, limit=1)[0].slug != read[0].slug


# --- going on ------------------------------------------------------------------------------------


def test_a_run_goes_on_where_it_was_stopped(
    suite: Suite, evals: Evals, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--suite", str(suite()), "--agent", "scripted:oracle"]
    assert evals(*words) == 0
    first = results(tmp_path / "out")
    assert len(first) == 3
    assert report(tmp_path / "out")["success_rate"] == 1.0
    # As if it had been killed: one trial has no result, one only a part of it.
    torn, lost = sorted(first)[:2]
    (tmp_path / "out" / "trials" / torn / "result.json").write_bytes(b'{"schema_')
    (tmp_path / "out" / "trials" / lost / "result.json").unlink()
    assert evals(*words) == 2
    assert "go on with --resume" in capsys.readouterr().err
    assert evals(*words, "--resume", "--output", "json") == 0
    shown = capsys.readouterr()
    assert shown.err.count(": solved") == 2
    assert json.loads(shown.out)["trials"] == 3
    second = results(tmp_path / "out")
    kept = sorted(first)[2]
    assert second[kept] == first[kept]
    assert second[lost]["started_at"] != first[lost]["started_at"]
    # Other settings are another run.
    assert evals(*words, "--resume", "--seed", "1") == 2
    assert "its seed differ" in capsys.readouterr().err


@pytest.mark.timeout(600)
def test_killed_at_random_nothing_is_lost_and_nothing_runs_twice(
    suite: Suite, tmp_path: Path
) -> None:
    folder, out = suite(*(small(f"t{n}") for n in range(6))), tmp_path / "out"
    ran = tmp_path / "ran"
    ran.mkdir()
    # Each trial leaves a file of its own, named by the time, when it has done its work.
    agent = f"command:sed -i s/2/3/ shop.py; touch {ran}/$(basename $(dirname $PWD)).$(date +%s%N)"
    words = [sys.executable, "-m", "unabridged", "evals", "run", "--suite", str(folder), "--agent",
             agent, "--out", str(out), "--no-sandbox", "--executor", "inline"]  # fmt: skip
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while len(list(out.glob("trials/*/result.json"))) < 2:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = results(out)
    assert 2 <= len(before) < 6
    counted = Counter(path.name.partition(".")[0] for path in ran.iterdir())
    assert main([*words[3:], "--resume"]) == 0
    after = results(out)
    assert len(after) == 6
    assert {name: after[name] for name in before} == before
    assert all(one["unabridged"]["reward"] == 1 for one in after.values())
    again = Counter(path.name.partition(".")[0] for path in ran.iterdir())
    assert all(again[name] == counted[name] == 1 for name in before)


# --- where trials run ----------------------------------------------------------------------------


def test_a_pool_gives_the_rewards_of_one_process(suite: Suite, tmp_path: Path) -> None:
    folder = suite(small("one"), small("two"))
    tasks = [TaskSpec.read(folder / name) for name in ("one", "two")]
    rewards: list[list[float]] = []
    for name, workers in (("inline", InlineExecutor()), ("pool", ProcessExecutor(1))):
        agents = ("scripted:oracle", "scripted:noop")
        trials = [
            spec
            for agent in agents
            for spec in trials_of(tasks, {"name": agent}, tmp_path / name, isolation="none")
        ]
        rewards.append([one["unabridged"]["reward"] for one in run_trials(trials, workers)])
        workers.close()
    assert rewards[0] == rewards[1] == [1.0, 1.0, 0.0, 0.0]


# --- faults are no failures ----------------------------------------------------------------------


def test_a_crash_of_the_agent_is_a_fault(
    suite: Suite, evals: Evals, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--suite", str(suite(small())), "--agent", "command:kill -SEGV $$"]
    assert evals(*words) == 1
    found = report(tmp_path / "out")
    assert found["success_rate"] is None
    assert found["faults"][0]["kind"] == "agent"
    (one,) = results(tmp_path / "out").values()
    assert one["verifier_result"] is None
    assert one["unabridged"]["reward"] is None
    capsys.readouterr()
    # It is run again, not taken for done.
    assert evals(*words, "--resume") == 1
    assert "fault (agent)" in capsys.readouterr().err


def test_a_crash_of_the_verifier_is_a_fault(suite: Suite, evals: Evals, tmp_path: Path) -> None:
    folder = suite(small())
    (folder / "price" / "tests" / "checks.json").write_text('[{"kind": "no such check"}]')
    assert evals("--suite", str(folder), "--agent", "scripted:oracle") == 1
    found = report(tmp_path / "out")
    assert (found["valid"], found["faults"][0]["kind"]) == (0, "verifier")
    assert "KeyError" in found["faults"][0]["message"]


def test_a_model_that_cannot_be_reached_is_a_fault(
    suite: Suite, evals: Evals, tmp_path: Path
) -> None:
    from unabridged.agent.providers.scripted import Script, Status, Turn
    from unabridged.agent.providers.scripted_server import serving_in_thread

    broken = Script(turns=(Turn(faults=(Status(status=401),) * 20),))
    with serving_in_thread(broken) as server:
        code = evals("--suite", str(suite(small())), "--base-url", server.url, "--model", "kimi-k3")
    assert code == 1
    assert report(tmp_path / "out")["faults"][0]["kind"] == "provider"


@pytest.mark.needs("bwrap")
def test_a_full_disk_is_a_fault(suite: Suite, tmp_path: Path) -> None:
    folder = suite(small())
    inside = [sys.executable, "-m", "unabridged", "evals", "run", "--suite", str(folder), "--agent",
              "command:head -c 9000000 /dev/zero > big", "--out", "/mnt/out", "--no-sandbox",
              "--executor", "inline", "--json"]  # fmt: skip
    done = subprocess.run(
        ["bwrap", "--dev-bind", "/", "/", "--size", "3000000", "--tmpfs", "/mnt", "--", *inside],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "reward" not in done.stderr
    if done.stdout.strip():  # where the report still fitted
        assert json.loads(done.stdout)["success_rate"] is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--suite", "nana"], "there is no suite 'nana'"),
        (["--agent", "scripted:nobody"], "there is no policy 'nobody'"),
        (["--agent", "claude"], "there is no agent 'claude'"),
        (["--agent", "scripted:oracle", "--model", "k3"], "brings its own model"),
        (["--model-folder", "/nowhere"], "no weights"),
        (["--base-url", "http://127.0.0.1:9/v1", "--model-folder", "/tmp"], "exclude each other"),
        (["--trace", "half"], "there is no arm 'half'"),
        (["--agent", "oracle", "--resume"], "no run to go on with"),
        (["--agent", "oracle", "--kill-at", "1"], "needs the sandbox"),
        (["--agent", "oracle", "--executor", "cloud"], "there is no executor 'cloud'"),
        (["--agent", "oracle", "--quarantine", "/nowhere"], "no quarantine can be read"),
    ],
)
def test_bad_usage_is_one_line(
    words: list[str], said: str, evals: Evals, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evals("--limit", "1", *words) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_a_checkpoint_that_cannot_be_served_is_told(
    tmp_path: Path, evals: Evals, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"not weights")
    assert evals("--model-folder", str(folder), "--limit", "1") == 2
    assert capsys.readouterr().err.count("\n") == 1


# --- isolation -----------------------------------------------------------------------------------

SPY = (
    "cat /tests/checks.json /solution/moves.json; ls /tests /solution /root /home; "
    f"ls {sandbox.PACKAGE}/evals; cat {sandbox.PACKAGE}/evals/suites/*.py; "
    "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; "
    "python3 -c 'import socket; socket.create_connection((\"1.1.1.1\", 53), 2)'; "
    "python3 -c 'import os, urllib.request as r; "
    'print(r.urlopen(os.environ["OPENAI_BASE_URL"] + "/models").read())\''
)


@pytest.mark.needs("bwrap")
def test_an_agent_reaches_its_model_and_no_verifier(
    suite: Suite, tmp_path: Path, serve_script: Callable[..., Any]
) -> None:
    folder = suite(small())
    from unabridged.agent.providers.scripted import Script

    server = serve_script(Script(model="kimi-k3"))
    spec = TaskSpec.read(folder / "price")
    agent = {"name": f"command:{SPY}", "base_url": server.url}
    made = TrialSpec(str(folder / "price"), spec.checksum, agent, 0, 0, str(tmp_path), "bubblewrap")
    found = run_trial(made.to_json())
    assert found["exception_info"] is None
    assert found["unabridged"]["reward"] == 0
    assert found["unabridged"]["outcome"] == "nothing"
    said = (made.folder / "logs" / "agent" / "output").read_text()
    assert "hidden_price" not in said
    assert "Network is unreachable" in said
    assert '"id": "kimi-k3"' in said
    listed = said.split(f"ls {sandbox.PACKAGE}/evals")[0]
    assert "suites" not in listed or "No such file" in said
    assert "trial.py" not in said


@pytest.mark.needs("bwrap")
def test_the_harness_in_its_sandbox_and_a_cheater_in_it(suite: Suite, tmp_path: Path) -> None:
    folder = suite(small(allow=["write:**", "execute", "outside_root"]))
    solved = trial(folder / "price", tmp_path / "a", "scripted:oracle", "bubblewrap")
    assert solved["unabridged"]["reward"] == 1, solved
    cheated = trial(folder / "price", tmp_path / "b", "scripted:verifier-cheater", "bubblewrap")
    assert cheated["exception_info"] is None
    assert cheated["unabridged"]["reward"] == 0
    # The commands of the agent were confined as well, inside the sandbox.
    logs = b"".join(
        path.read_bytes() for path in tmp_path.glob("*/trials/*/logs/agent/sessions/*.jsonl")
    )
    assert b'"sandbox":false' not in logs


def test_without_bubblewrap_runs_are_marked_and_safety_refuses(
    suite: Suite,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("git", "sh", "python3"):
        (tools / name).symlink_to(shutil.which(name) or name)
    monkeypatch.setenv("PATH", str(tools))
    sandbox.available.cache_clear()
    try:
        words = ["evals", "run", "--executor", "inline", "--agent", "scripted:oracle"]
        out = tmp_path / "out"
        assert main([*words, "--suite", str(suite(small())), "--out", str(out)]) == 0
        assert "is not isolated" in capsys.readouterr().err
        assert report(out)["isolated"] is False
        refused = suite(small("harm", isolation="required"))
        assert main([*words, "--suite", str(refused), "--out", str(tmp_path / "other")]) == 2
        assert "is not run without isolation" in capsys.readouterr().err
    finally:
        sandbox.available.cache_clear()


# --- unstable tasks ------------------------------------------------------------------------------


def test_the_gate_puts_unstable_tasks_in_quarantine(
    suite: Suite, evals: Evals, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = suite(small("good"), small("flaky"))
    # A verifier that says yes every other time.
    (folder / "flaky" / "tests" / "test.sh").write_text(
        f"n=$(cat {tmp_path}/n 2>/dev/null || echo 0); echo $((1 - n)) > {tmp_path}/n; "
        'echo $n > "$UNABRIDGED_LOGS/verifier/reward.txt"'
    )
    words = ["--suite", str(folder), "--executor", "inline", "--no-sandbox"]
    assert main(["evals", "gate", *words, "--k", "2", "--out", str(tmp_path / "gate")]) == 1
    found = json.loads((tmp_path / "gate" / "quarantine.json").read_bytes())
    assert [one["task"] for one in found["tasks"]] == ["unabridged/test-flaky"]
    path = str(tmp_path / "gate" / "quarantine.json")
    assert evals("--suite", str(folder), "--agent", "oracle", "--quarantine", path) == 0
    document = report(tmp_path / "out")
    assert (document["tasks"], document["quarantined"]) == (1, ["unabridged/test-flaky"])


def test_a_model_that_is_served_elsewhere_is_the_same(suite: Suite) -> None:
    spec = TaskSpec.read(suite(small()) / "price")

    def key(**agent: Any) -> str:
        own = {
            "name": "unabridged",
            "base_url": "http://127.0.0.1:1/v1",
            "endpoint": "weights",
            **agent,
        }
        return TrialSpec("x", spec.checksum, own, 0, 0, "y", "none").key

    assert key() == key(base_url="http://127.0.0.1:2/v1")
    assert len({key(), key(endpoint="other"), key(effort="low"), key(trace="none")}) == 4


def test_a_slow_agent_has_failed(suite: Suite, evals: Evals, tmp_path: Path) -> None:
    folder = suite(small())
    config = folder / "price" / "task.toml"
    text = config.read_text()
    config.write_text(text.replace("timeout_sec = 240.0", "timeout_sec = 0.5"))
    assert text != config.read_text()
    assert evals("--suite", str(folder), "--agent", "command:sleep 30") == 0
    assert report(tmp_path / "out")["failures"][0]["outcome"] == "timeout"


def test_k_trials_are_k_results(suite: Suite, evals: Evals, tmp_path: Path) -> None:
    assert evals("--suite", str(suite(small())), "--agent", "oracle", "--k", "3") == 0
    document = report(tmp_path / "out")
    assert (document["tasks"], document["trials"]) == (1, 3)
    assert document["pass_hat_k"] == {"1": 1.0, "2": 1.0, "3": 1.0}


def test_environment_of_the_user_stays_outside(suite: Suite, evals: Evals, tmp_path: Path) -> None:
    os.environ["UNABRIDGED_TEST_SECRET"] = "s3cret"
    try:
        agent = "command:env > env.txt; sed -i s/2/3/ shop.py"
        assert evals("--suite", str(suite(small())), "--agent", agent) == 0
    finally:
        del os.environ["UNABRIDGED_TEST_SECRET"]
    (left,) = (tmp_path / "out").glob("trials/*/app/env.txt")
    assert "s3cret" not in left.read_text()
    assert report(tmp_path / "out")["failures"][0]["outcome"] == "over-scope"
