"""Reports: what is counted, and pages that stand alone and lose no reasoning."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from unabridged.cli import main
from unabridged.evals.adapters import harness_bench
from unabridged.evals.adapters.humaneval import material
from unabridged.evals.material import Step, finish, turn
from unabridged.evals.report import chain, compare, document, lines

from .conftest import small

Suite = Callable[..., Path]
Evals = Callable[..., int]


def result(slug: str = "x", reward: float | None = 1.0, **own: Any) -> dict[str, Any]:
    """A result with what reports look at."""
    plain: dict[str, Any] = {
        "suite": "nano", "slug": slug, "family": "rename", "tags": {"size": "small"}, "ambiguous": False,
        "injected": False, "valid": reward is not None, "reward": reward, "score": reward,
        "outcome": "solved" if reward else "wrong", "steps_total": 1, "seconds": 2.0, "isolation": "bubblewrap",
        "trace": {"policy": "full"}, "trial": {"task": slug, "attempt": 0, "isolated_steps": False},
        "steps": [{"name": "main", "reward": reward, "seconds": 1.0, "exit_code": 0, "resumed": False,
                   "checks": [{"kind": "tests", "group": "task", "passed": bool(reward), "why": "" if reward else "red", "outcome": "wrong"}]}],
        "record": {"asks": [], "pack_tokens": 900, "claimed_done": True, "self_verified": True, "cost_usd": 0.01,
                   "tokens": {"prompt": 1000, "cached": 800, "completion": 100, "reasoning": 60},
                   "model_seconds": 1.0, "steps": 4, "loops": {"repeat_rate": 0.25, "longest_run": 2}},
    }  # fmt: skip
    fault = {"kind": "agent", "exception_message": "it broke"} if reward is None else None
    return {"task_name": f"unabridged/nano-{slug}", "trial_name": slug, "exception_info": fault,
            "unabridged": {**plain, **own}}  # fmt: skip


def test_faults_stand_in_no_rate() -> None:
    found = document({"agent": "x"}, [result("a"), result("b", 0.0), result("c", None)])
    assert (found["success_rate"], found["valid"], found["trials"]) == (0.5, 2, 3)
    assert found["if_faults_were_failures"] == pytest.approx(0.3333)
    assert found["faults"] == [{"id": "c", "kind": "agent", "message": "it broke"}]
    assert found["usage"]["claimed_done_but_red"] == 1
    assert found["usage"]["cached_share"] == 0.8
    assert found["usage"]["cost_per_solved"] == 0.02
    assert found["usage"]["tokens_per_solved"] == 2200
    assert "faults of the infrastructure" in "\n".join(lines(found))
    nothing = document({}, [result("c", None)])
    assert nothing["success_rate"] is None
    assert lines(nothing)[0].endswith("nothing run")


def test_what_is_known_of_asking() -> None:
    ask = [{"question": "which?", "answer": "a", "changed": False}]
    asked: dict[str, Any] = {"record": {**result()["unabridged"]["record"], "asks": ask}}
    found = document({}, [
        result("a", ambiguous=True, **asked), result("b", 0.0, ambiguous=True, outcome="wrong-target"),
        result("c", 0.0, **asked), result("d"), result("e", ambiguous=None),
    ])["asking"]  # fmt: skip
    assert (found["recall"], found["precision"], found["f1"]) == (0.5, 0.5, 0.5)
    assert (found["clear"]["trials"], found["clear"]["rate"], found["harm"]["rate"]) == (
        2,
        0.5,
        0.5,
    )


def test_packs_by_size() -> None:
    def sized(tokens: int | None) -> dict[str, Any]:
        return {"record": {**result()["unabridged"]["record"], "pack_tokens": tokens}}

    found = document({}, [result("a", **sized(900)), result("b", **sized(3500)), result("c", **sized(9000)), result("d", **sized(None))])  # fmt: skip
    assert {k: v["trials"] for k, v in found["pack_tokens"].items()} == {
        "to 1000": 1,
        "to 4000": 1,
        "over 7000": 1,
    }


def test_a_chain_counts_to_its_first_red_step() -> None:
    steps = [{"name": str(n), "reward": r, "seconds": 1.0, "exit_code": 0, "resumed": n == 3, "checks": []}
             for n, r in enumerate([1.0, 1.0, 0.0, 1.0, 0.0])]  # fmt: skip
    found = chain(result(steps=steps, steps_total=6)["unabridged"])
    assert (found["solved"], found["step_rate"]) == (3, 0.5)
    assert (found["prefix_before_first_regression"], found["regressions"], found["resumed"]) == (
        2,
        2,
        1,
    )
    assert not found["green_at_the_end"]


def test_two_runs_are_compared_in_pairs() -> None:
    first = [result(str(n), float(n % 2)) for n in range(20)] + [result("only here")]
    second = [result(str(n), 1.0) for n in range(20)] + [result("fault", None)]
    found = compare(first, second)
    assert (found["pairs"], found["unpaired"]) == (20, 1)
    assert (found["only_first"], found["only_second"], found["both"]) == (0, 10, 10)
    assert found["p_value"] == pytest.approx(2 / 1024)
    assert found["difference_interval"][0] > 0.2
    assert len(found["gained"]) == 10


# --- pages ---------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Checks that tags close in order; collects what would be loaded, and the text."""

    VOID = frozenset({"meta", "rect", "path", "circle", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [
            f"{tag} {k}={v}"
            for k, v in attrs
            if k in ("src", "href", "srcset", "onload", "onclick")
        ]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


HOSTILE = (
    "<script>alert(1)</script> & <img src=http://evil.example/x> | a\n" + "A long thought. " * 400
)


@pytest.fixture
def reported(suite: Suite, evals: Evals, tmp_path: Path) -> Path:
    """A run with a hostile thought in it, reported."""
    plain = small()
    thought = turn(finish("It costs 3 now."), reasoning=HOSTILE)
    step = plain.steps[0]
    moves = {"solve": [*step.moves["solve"][:-1], thought]}
    changed = Step(step.name, step.instruction, step.checks, step.tests, moves, step.solution)
    hostile = type(plain)(
        "test", "hostile", "pri<b>ces", plain.files, [changed], settings=plain.settings
    )
    words = ["--suite", str(suite(plain, hostile))]
    assert evals(*words, "--agent", "oracle") == 0
    assert evals(*words, "--agent", "noop", out="noop") == 0
    out, other = tmp_path / "out", tmp_path / "noop"
    assert main(["evals", "report", str(out), "--compare", str(other)]) == 0
    return out


def test_the_pages_stand_alone_and_hold_every_thought(reported: Path, tmp_path: Path) -> None:
    raw = (reported / "report.html").read_text()
    page = Page()
    page.feed(raw)
    assert page.open == []
    assert page.loaded == []
    assert "<script" not in raw
    assert HOSTILE in page.text
    assert "McNemar" in page.text
    assert raw.count("<svg") >= 4
    text = (reported / "report.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) >= 3 for row in rows)
    found = json.loads((reported / "report.json").read_bytes())
    assert found["comparison"]["only_first"] == 2
    # Exports of the same run.
    assert (
        main(
            ["evals", "export", str(reported), "--format", "atif", "--into", str(tmp_path / "atif")]
        )
        == 0
    )
    thoughts = [step.get("reasoning_content") for path in (tmp_path / "atif").iterdir()
                for step in json.loads(path.read_bytes())["steps"]]  # fmt: skip
    assert HOSTILE in thoughts
    into = tmp_path / "predictions.jsonl"
    assert (
        main(["evals", "export", str(reported), "--format", "swebench", "--into", str(into)]) == 0
    )
    predictions = [json.loads(line) for line in into.read_text().splitlines()]
    assert {one["instance_id"] for one in predictions} == {"test-price", "test-hostile"}
    assert all("+    return count * 3" in one["model_patch"] for one in predictions)
    assert predictions[0].keys() == {"instance_id", "model_name_or_path", "model_patch"}


def test_a_folder_without_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evals", "report", str(tmp_path)]) == 2
    assert "there is no run in this folder" in capsys.readouterr().err


# --- other benchmarks ----------------------------------------------------------------------------


def test_a_problem_of_humaneval_with_its_gold_answer(
    suite: Suite, evals: Evals, tmp_path: Path
) -> None:
    problem = {
        "task_id": "HumanEval/999", "entry_point": "double",
        "prompt": 'def double(x):\n    """Twice x."""\n', "canonical_solution": "    return 2 * x\n",
        "test": "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(-1) == -2\n",
    }  # fmt: skip
    folder = suite(material(problem))
    for agent, rate in (("oracle", 1.0), ("solution", 1.0), ("noop", 0.0)):
        assert evals("--suite", str(folder), "--agent", agent, out=agent) == 0
        assert json.loads((tmp_path / agent / "report.json").read_bytes())["success_rate"] == rate


@pytest.mark.long
@pytest.mark.timeout(600)
def test_tasks_of_harness_bench_with_their_gold_answers(evals: Evals, tmp_path: Path) -> None:
    pytest.importorskip("harness_bench")
    assert main(["evals", "import", "harness-bench", "--into", str(tmp_path / "all")]) == 0
    assert len(list((tmp_path / "all").iterdir())) == 351
    for number in ("01", "200", "345"):
        (tmp_path / "all" / f"harness-bench-{number}").rename(tmp_path / f"hb-{number}")
    for number in ("01", "200", "345"):
        for agent, rate in (("solution", 1.0), ("noop", 0.0)):
            out = f"{agent}-{number}"
            assert evals("--suite", str(tmp_path / f"hb-{number}"), "--agent", agent, out=out) == 0
            document = json.loads((tmp_path / out / "report.json").read_bytes())
            assert document["success_rate"] == rate, out


def test_harness_bench_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(harness_bench, "version", missing)
    assert main(["evals", "import", "harness-bench", "--into", str(tmp_path / "x")]) == 2
    err = capsys.readouterr().err
    assert "pip install --no-deps --ignore-requires-python harness-bench-fast==0.1.0" in err
    assert err.count("\n") == 1
