"""`make run` and `make demo`, as a stranger sees them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from unabridged.evals.tasks.oracle import next_reply
from unabridged.evals.tasks.task import Rename

ROOT = Path(__file__).resolve().parents[1]


def demo(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "examples/demo.py"), *words],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def test_the_demo_shows_a_whole_run_and_says_that_the_model_is_a_stand_in(tmp_path: Path) -> None:
    done = demo("--into", str(tmp_path / "new"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    said = done.stdout
    stages = (
        "scripted stand-in",
        "FAILED (failures=3)",
        "search percent_of",
        "read shop/prices.py",
        "plan approved by rules",
        "edit shop/basket.py",
        "exit 0",
        "verified by `python3 -m unittest -q`: exit 0",
        "+        return total - percent_of(total, discount)",
        "+    return (cents * percent + 50) // 100",
        "\nOK\n",
        "It worked",
        "UNABRIDGED_API_KEY",
    )
    at = 0
    for stage in stages:
        assert stage in said[at:], f"{stage!r} is not said, or not in its place"
        at = said.index(stage, at) + len(stage)
    assert list((tmp_path / "new/sessions").glob("*.jsonl"))
    again = demo("--into", str(tmp_path / "new"))
    assert again.returncode == 1
    assert again.stderr.count("\n") == 1


def test_a_sample_that_cannot_be_repaired_fails_the_demo(tmp_path: Path) -> None:
    copy = tmp_path / "examples"
    subprocess.run(["cp", "-r", str(ROOT / "examples"), str(copy)], check=True)
    prices = copy / "sample/shop/prices.py"
    prices.write_text(prices.read_text().replace("int(", "round("))
    done = subprocess.run(
        [sys.executable, str(copy / "demo.py")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "THE DEMO FAILED" in done.stdout
    assert "exit code" in done.stdout


def nano_demo(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "examples/nano.py"), *words],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def test_k3_nano_renames_a_function_in_four_files(tmp_path: Path) -> None:
    """The weights that are shipped, in this process."""
    done = nano_demo("--into", str(tmp_path / "new"))
    assert done.returncode == 0, done.stdout + done.stderr
    at = 0
    for stage in ("search count_dry", "plan approved by rules", "edit water.py", "exit 0",
                  "verified by `python3 -m unittest -q`: exit 0",
                  "+    dry = beds.thirsty_beds(levels)", "\nOK\n", "It worked"):  # fmt: skip
        assert stage in done.stdout[at:], f"{stage!r} is not said, or not in its place"
        at = done.stdout.index(stage, at) + len(stage)


def test_the_nano_demo_with_a_model_that_can(tmp_path: Path, serve_script: Any) -> None:
    """The oracle in K3-nano's place shows that the demo can be passed."""

    def policy(asked: Any) -> Any:
        reply = next_reply(Rename("count_dry", "thirsty_beds"), asked.messages)
        calls = [{"name": name, "arguments": given} for name, given in reply.calls]
        return {"reasoning": reply.reasoning, "calls": calls}

    server = serve_script(policy)
    done = nano_demo("--base-url", server.url, "--into", str(tmp_path / "new"))
    assert done.returncode == 0, done.stdout + done.stderr
    at = 0
    for stage in ("search count_dry", "plan approved by rules", "edit water.py", "exit 0",
                  "+    dry = beds.thirsty_beds(levels)", "\nOK\n", "It worked"):  # fmt: skip
        assert stage in done.stdout[at:], f"{stage!r} is not said, or not in its place"
        at = done.stdout.index(stage, at) + len(stage)


def test_the_nano_demo_with_a_model_that_cannot(serve_script: Any) -> None:
    finish = {"name": "finish", "arguments": {"status": "done", "summary": "Done."}}
    server = serve_script(lambda _asked: {"calls": [finish]})
    done = nano_demo("--base-url", server.url)
    assert done.returncode == 1
    assert "THE DEMO FAILED" in done.stdout
    assert "the old name is still in" in done.stdout
