"""A rule about a folder holds for whoever goes through the folder that holds it."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from unabridged.agent.effects import EffectKind
from unabridged.agent.events import Decision, ToolResult
from unabridged.agent.policy import Rule, decide
from unabridged.tools.bash.classify import classify

if TYPE_CHECKING:
    from .conftest import Bench

FINISH = [("finish", {"status": "done", "summary": "ok"})]
TEXT = b"def needle():\n    return needle\n"


@pytest.fixture
def closed(bench: Bench) -> Bench:
    for name in ("private/x.py", "open/y.py", "private/deep/z.py"):
        path = bench.repo / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(TEXT)
    subprocess.run(["git", "add", "-A"], cwd=bench.repo, check=True)
    return bench


def rule(decision: Any, path: str = "private/**") -> Rule:
    return Rule(decision=decision, effect=EffectKind.READ, path=path)


async def results(bench: Bench, calls: list[Any], *rules: Rule, **options: Any) -> list[str]:
    session = await bench.play([calls, FINISH], session_rules=rules, **options)
    return texts(bench, session)[: len(calls)]


def texts(bench: Bench, session: Any) -> list[str]:
    """In the order of the calls, which may end in another."""
    found = sorted(bench.of(session, ToolResult), key=lambda result: result.call_id)
    return [result.text for result in found]


CALLS = [
    ("search", {"pattern": "needle"}),
    ("list", {"depth": 3}),
    ("symbols", {"name": "needle"}),
    ("symbols", {"name": "needle", "what": "references"}),
]


@pytest.mark.parametrize("decision", ["deny", "ask"])
async def test_tools_leave_out_what_a_rule_closes_and_say_so(closed: Bench, decision: str) -> None:
    search, listing, *symbols = await results(closed, CALLS, rule(decision))
    for text in (search, listing, *symbols):
        assert "open" in text
        assert "private" not in text
        assert "a rule does not allow reading" in text
    assert "reading them: 2 files" in search
    assert "reading them: 1 entry" in listing
    without = await results(closed, CALLS)
    assert all("private/x.py" in text and "a rule" not in text for text in without)


async def test_a_person_who_approves_the_folder_opens_what_asks(closed: Bench) -> None:
    calls = [("search", {"pattern": "needle", "path": "private"}), ("list", {"path": "private"})]
    await closed.play([calls], session_rules=[rule("ask")])
    session = closed.resume([FINISH], session_rules=[rule("ask")])
    assert len(session.approve()) == 2
    await closed.run(session)
    search, listing = [text for text in texts(closed, session) if text != "Finished."]
    assert "private/x.py" in search
    assert "x.py" in listing


async def test_the_closed_folder_itself_is_denied(closed: Bench) -> None:
    calls = [("search", {"pattern": "x", "path": "private"}), ("list", {"path": "private"})]
    session = await closed.play([calls, FINISH], session_rules=[rule("deny")])
    assert {d.decision for d in closed.of(session, Decision)[:2]} == {"deny"}


READING = [
    "grep -r needle .", "rg needle", "cat private/x.py", "grep -rn needle private", "git diff",
    "git show HEAD", "git log -p", "git show HEAD:private/x.py", "git grep needle", "cp -r . /tmp/x",
    "cd private && cat x.py", "ls private", "find . -type f -exec cat {} +", "diff -r . private",
    "git diff -- private", "cd open && git show HEAD:./../private/x.py", "git show :private/x.py",
]  # fmt: skip
ELSEWHERE = [
    "grep -r needle open", "git diff -- open", "cat open/y.py", "git show HEAD:open/y.py",
    "git log --oneline", "git log -p -- open", "ls open", "rg needle open",
]  # fmt: skip


@pytest.mark.parametrize("command", READING)
def test_no_command_reads_past_the_rule(closed: Bench, command: str) -> None:
    effects = classify(command, root=closed.repo)
    assert decide(effects, [rule("deny")]).verdict != "allow"


@pytest.mark.parametrize("command", ELSEWHERE)
def test_what_reads_elsewhere_still_passes(closed: Bench, command: str) -> None:
    effects = classify(command, root=closed.repo)
    assert decide(effects, [rule("deny")]).verdict == "allow"


@pytest.mark.parametrize("command", ["rm -rf .", "rm -rf private", "mv private x", "rm private/x.py",
                                     "cp open/y.py private", "chmod -R 600 ."])  # fmt: skip
def test_no_command_changes_what_a_rule_protects(closed: Bench, command: str) -> None:
    allow = [Rule(decision="allow", effect=kind) for kind in EffectKind]
    protect = Rule(decision="deny", path="private/**")
    assert decide(classify(command, root=closed.repo), [*allow, protect]).verdict != "allow"
