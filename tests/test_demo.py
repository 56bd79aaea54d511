"""`make run`, as a stranger sees it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
