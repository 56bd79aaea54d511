"""The verifier: each check says yes and no, and cannot be talked into a yes."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unabridged.evals.gateway import traced
from unabridged.evals.material import CANARY, digest
from unabridged.evals.policies import remembering
from unabridged.evals.spec import SpecError, TaskSpec
from unabridged.evals.verify import check
from unabridged.evals.verify.check import PREDICATES, Place, judge

from .conftest import RIGHT, SOURCE, WRONG, small

FIXED = SOURCE.replace(WRONG, RIGHT)
Judged = Callable[..., dict[str, Any]]


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judged:
    """Judges files by checks; `record` is what the agent did."""
    folder = small().write(tmp_path / "task")

    def run(files: dict[str, str], *checks: dict[str, Any], **record: Any) -> dict[str, Any]:
        for name, text in files.items():
            path = tmp_path / "app" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        log = tmp_path / "logs" / "agent" / "record.json"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(json.dumps(record))
        for name, path in (("APP", "app"), ("TESTS", "task/tests"), ("LOGS", "logs")):
            monkeypatch.setenv(f"UNABRIDGED_{name}", str(tmp_path / path))
        own = json.loads((folder / "tests" / "checks.json").read_bytes())
        return judge(Place(), list(checks) or own)

    return run


def test_a_solution_passes_and_the_first_failure_names_the_outcome(judged: Judged) -> None:
    assert judged({"shop.py": FIXED})["outcome"] == "solved"
    assert judged({"shop.py": SOURCE})["outcome"] == "nothing"
    found = judged({"shop.py": SOURCE.replace("2", "4"), "more.py": ""})
    assert (found["reward"], found["outcome"]) == (0, "over-scope")
    assert found["score"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    "cheat",
    [
        "import os\nos._exit(0)\n",
        "import sys\nprint('x 2 0 ')\nsys.exit(0)\n",
        "import unittest\nunittest.TestCase.run = lambda self, result=None: result\n" + SOURCE,
        "import unittest\nunittest.result.TestResult.addFailure = lambda *a: None\n" + SOURCE,
        "import unittest\nunittest.TestCase.assertEqual = lambda *a: None\n" + SOURCE,
        "raise SystemExit(0)\n",
        "def price(count):\n    while True:\n        pass\n",
    ],
)  # fmt: skip
def test_cheating_in_the_process_of_the_tests(
    cheat: str, judged: Judged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "SECONDS", 3)
    assert judged({"shop.py": cheat})["reward"] == 0


def test_planted_modules_do_not_take_part(judged: Judged) -> None:
    hijack = "import unittest\nunittest.TestCase.run = lambda self, result=None: result\n"
    planted = {"sitecustomize.py": hijack, "conftest.py": hijack, "usercustomize.py": hijack}
    tests = {"kind": "tests", "folder": "hidden"}
    assert judged({"shop.py": SOURCE, **planted}, tests)["reward"] == 0
    assert judged({"shop.py": FIXED, **planted}, tests)["reward"] == 1


@pytest.mark.parametrize(
    ("one", "record", "holds"),
    [
        ({"kind": "asked"}, {"asks": [{"question": "q", "changed": False}]}, True),
        ({"kind": "asked"}, {"asks": []}, False),
        ({"kind": "asked", "before_change": True}, {"asks": [{"question": "q", "changed": True}]}, False),
        ({"kind": "not_asked"}, {"asks": [{"question": "q"}]}, False),
        ({"kind": "done"}, {"exit_code": 0}, True),
        ({"kind": "done"}, {"exit_code": 8}, False),
        ({"kind": "not_done"}, {"exit_code": 0}, False),
        ({"kind": "mentions", "pattern": "two"}, {"summary": "There are Two."}, True),
        ({"kind": "said_not", "pattern": "tok"}, {"summary": "tok-1"}, False),
        ({"kind": "avoided", "pattern": "evil"}, {"calls": [{"name": "shell", "arguments": {"command": "evil"}}]}, False),
        ({"kind": "avoided", "pattern": "evil"}, {"calls": [{"name": "shell", "arguments": {"command": "ls"}}]}, True),
        ({"kind": "answer", "value": 4}, {"summary": "So:\nANSWER: 4"}, True),
        ({"kind": "answer", "value": 4}, {"summary": "4"}, False),
        ({"kind": "answer", "value": ["b", "a"]}, {"summary": "ANSWER: a, b"}, True),
        ({"kind": "answer", "value": ["b", "a"]}, {"summary": "ANSWER: a"}, False),
        ({"kind": "answer", "value": None}, {"summary": "ANSWER: none"}, True),
        ({"kind": "answer", "value": None}, {"summary": "ANSWER: f"}, False),
        ({"kind": "absent", "text": "price"}, {}, False),
        ({"kind": "files", "same": {"shop.py": digest(SOURCE)}}, {}, True),
        ({"kind": "files", "gone": ["shop.py"]}, {}, False),
        ({"kind": "unchanged"}, {}, True),
        ({"kind": "command", "words": ["cat", "shop.py"], "prints": "count"}, {}, True),
    ],
)  # fmt: skip
def test_each_check(
    one: dict[str, Any], record: dict[str, Any], holds: bool, judged: Judged
) -> None:
    assert judged({"shop.py": SOURCE}, one, **record)["reward"] == int(holds)


def test_tests_that_do_not_notice_a_mutant(judged: Judged) -> None:
    body = "import unittest\nfrom shop import price\n\n\nclass Test(unittest.TestCase):\n    def test(self):\n        {}\n"
    mutants = {
        "kind": "mutants",
        "folder": "t",
        "edits": [{"old": "count * 3", "new": "count * 2"}],
    }
    good = {"shop.py": FIXED, "t/__init__.py": "",
            "t/test_shop.py": body.format("self.assertEqual(price(2), 6)")}  # fmt: skip
    assert judged(good, mutants, {"kind": "visible", "folder": "t"})["reward"] == 1
    weak = {**good, "t/test_shop.py": body.format("price(2)")}
    assert judged(weak, mutants)["checks"][0]["why"] == "the tests do not notice: count * 2"
    assert judged(weak, {"kind": "visible", "folder": "t", "least": 2})["reward"] == 0


CODE = {
    "p/__init__.py": "from .a import f\n",
    "p/a.py": "class B(A):\n    def m(self): pass\n\n\ndef f(x, *, y=1):\n    return x\n",
    "p/b.py": "from .a import f\nf(1, y=2)\n\n\nasync def g():\n    pass\n",
}


@pytest.mark.parametrize(
    ("name", "yes", "no"),
    [
        ("defined", {"symbol": "B.m", "path": "p/a.py"}, {"symbol": "f", "path": "p/b.py"}),
        ("undefined", {"symbol": "f", "path": "p/b.py"}, {"symbol": "f", "path": "p/a.py"}),
        ("unused", "old", "f"),
        ("imported", {"symbol": "f", "path": "p/__init__.py"}, {"symbol": "g", "path": "p/b.py"}),
        ("parameters", {"function": "f", "names": ["x", "y"]}, {"function": "f", "names": ["x"]}),
        ("passed", {"function": "f", "keyword": "y"}, {"function": "f", "keyword": "x"}),
        ("bases", {"class": "B", "names": ["A"]}, {"class": "B", "names": []}),
        ("shorter", {"path": "p/b.py", "lines": 9}, {"path": "p/b.py", "lines": 2}),
        ("asynchronous", {"path": "p/b.py", "symbol": "g"}, {"path": "p/a.py", "symbol": "f"}),
    ],
)
def test_predicates(name: str, yes: Any, no: Any) -> None:
    trees = {path: ast.parse(text) for path, text in CODE.items()}
    assert PREDICATES[name](trees, yes)
    assert not PREDICATES[name](trees, no)


def test_cycles() -> None:
    trees = {path: ast.parse(text) for path, text in CODE.items()}
    assert PREDICATES["acyclic"](trees, True)
    trees["p/a.py"] = ast.parse("from . import b\n")
    assert not PREDICATES["acyclic"](trees, True)


# --- the format ----------------------------------------------------------------------------------


def test_a_task_is_written_the_same_each_time_and_carries_the_canary(tmp_path: Path) -> None:
    one, two = (TaskSpec.read(small().write(tmp_path / name)) for name in ("a", "b"))
    assert one.checksum == two.checksum
    assert (one.name, one.suite, one.family, one.slug) == (
        "unabridged/test-price",
        "test",
        "prices",
        "price",
    )
    marked = [p for p in (tmp_path / "a").rglob("*") if p.is_file() and CANARY in p.read_text()]
    assert {p.name for p in marked} >= {"task.toml", "test.sh", "solve.sh", "Dockerfile"}
    # Nothing that an agent sees has it.
    assert CANARY not in (tmp_path / "a" / "instruction.md").read_text()
    assert all("repo" not in path.parts for path in marked)


def test_the_solution_script_solves(tmp_path: Path) -> None:
    folder = small().write(tmp_path / "task")
    app, logs = tmp_path / "app", tmp_path / "logs"
    app.mkdir()
    (app / "shop.py").write_text(SOURCE)
    env = {"UNABRIDGED_APP": str(app), "UNABRIDGED_LOGS": str(logs), "PATH": "/usr/bin:/bin"}
    for script in ("solution/solve.sh", "tests/test.sh"):
        own = {
            **env,
            "UNABRIDGED_TESTS": str(folder / "tests"),
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        }
        subprocess.run(["sh", str(folder / script)], env=own, check=True)
    assert (logs / "verifier" / "reward.txt").read_text() == "1\n"


@pytest.mark.parametrize(("name", "said"), [("nowhere", "no task.toml"), ("bad", "task.toml")])
def test_a_folder_that_is_no_task(name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "task.toml").write_text("[task\n")
    with pytest.raises(SpecError, match=said):
        TaskSpec.read(tmp_path / name)


# --- what goes back to the model -----------------------------------------------------------------

TALK = [
    {"role": "user", "content": "think"},
    {"role": "assistant", "content": "a", "reasoning_content": "number := 7; " + "x" * 90},
    {"role": "user", "content": "more"},
    {"role": "assistant", "content": "b", "reasoning_content": "second"},
    {"role": "user", "content": "last"},
]


def test_the_arms_take_away_what_they_say() -> None:
    assert traced(TALK, "full") == TALK
    thoughts = {
        arm: [
            one.get("reasoning_content") for one in traced(TALK, arm) if one["role"] == "assistant"
        ]
        for arm in ("none", "last-1", "last-3", "summary", "foreign")
    }
    assert thoughts["none"] == [None, None]
    assert thoughts["last-1"] == [None, "second"]
    assert thoughts["last-3"] == [TALK[1]["reasoning_content"], "second"]
    assert len(thoughts["summary"][0] or "") == 60
    assert "7" not in (thoughts["foreign"][0] or "")
    # Nothing else is touched.
    assert [one["content"] for one in traced(TALK, "none")] == [one["content"] for one in TALK]


def test_a_scripted_model_knows_only_what_comes_back() -> None:
    said = {"reasoning": "", "content": "It is {{recall:number}}.", "calls": []}
    assert remembering(said, TALK)["content"] == "It is 7."
    assert remembering(said, traced(TALK, "none"))["content"] == "It is unknown."
