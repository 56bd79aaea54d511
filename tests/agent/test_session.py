"""Asking before acting, and what a person can do to a session."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from unabridged.agent.events import (
    Approval,
    AssistantMessage,
    Decision,
    Effects,
    Question,
    RunStarted,
    ScopeGranted,
    ToolResult,
    ToolStarted,
)
from unabridged.agent.exits import Exit
from unabridged.agent.policy import PLAN_FIRST, Rule
from unabridged.agent.providers.scripted import Turn
from unabridged.agent.session import MOVED_ON, Session, SessionError
from unabridged.agent.store import SessionInUseError

if TYPE_CHECKING:
    from .conftest import Bench

EDIT = ("edit", {"path": "a.py", "old": "return 1", "new": "return 2"})
EDIT_B = ("edit", {"path": "b.py", "old": "print", "new": "assert"})
NEW = ("write", {"path": "c.py", "content": "x = 1\n"})
READ = ("read", {"path": "b.py"})
TOUCH = ("shell", {"command": 'python3 -c \'open("t", "w")\'', "writes": True})
ASK = ("ask_user", {"question": "Which one?", "choices": ["this", "that"]})
DONE = [("finish", {"status": "done", "summary": "Did it."})]
ORIGINAL = b"def f():\n    return 1\n"


def plan(*paths: str, **more: Any) -> tuple[str, Any]:
    return ("propose_plan", {"plan": "Change them.", "paths": list(paths), **more})


def last_results(bench: Bench, session: Session) -> list[str]:
    """The tool results that the model saw last."""
    found: list[str] = []
    for message in reversed(bench.messages(session)):
        if message["role"] == "user" and message["content"].startswith("<changes>"):
            continue
        if message["role"] != "tool":
            break
        found.insert(0, message["content"])
    return found


# --- nobody is there ------------------------------------------------------------------------------


async def test_a_call_that_asks_stops_the_run_with_3_and_nothing_of_its_step_ran(
    bench: Bench,
) -> None:
    session = await bench.play([[READ], [READ, EDIT, NEW]], allow=["write:c.py"])
    assert bench.code(session) == 3
    assert bench.read("a.py") == ORIGINAL
    assert not (bench.repo / "c.py").exists()
    assert [e.call_id for e in bench.of(session, ToolStarted)] == ["call_0_0"]
    (pending,) = session.result().pending
    assert (pending.call_id, pending.tool) == ("call_1_1", "edit")
    assert [(e.kind, e.path) for e in pending.effects] == [("write", "a.py")]
    assert "-    return 1\n+    return 2\n" in pending.preview
    assert "write a.py" in pending.reason
    assert "needs approval" in session.result().reason


async def test_approved_it_runs_and_the_session_goes_on(bench: Bench) -> None:
    await bench.play([[READ, EDIT]])
    session = bench.resume([DONE])
    assert session.approve() == ("call_0_1",)
    assert session.pending == ()
    await bench.run(session)
    assert bench.code(session) == 0
    assert b"return 2" in bench.read("a.py")
    assert [e.call_id for e in bench.of(session, ToolStarted)][:2] == ["call_0_0", "call_0_1"]
    assert not any("Interrupted" in r.text for r in bench.of(session, ToolResult))


async def test_an_approval_is_kept_where_it_was_only_recorded(bench: Bench) -> None:
    await bench.play([[EDIT]])
    session = bench.resume()
    session.approve(reason="fine")
    await session.close()
    session = await bench.play_on([DONE])
    assert bench.code(session) == 0
    assert b"return 2" in bench.read("a.py")


async def test_one_approved_and_one_not_yet_runs_neither(bench: Bench) -> None:
    await bench.play([[EDIT, TOUCH]])
    session = bench.resume()
    session.approve("call_0_0")
    await bench.run(session)
    assert bench.code(session) == 3
    assert [p.call_id for p in session.pending] == ["call_0_1"]
    assert bench.read("a.py") == ORIGINAL
    await session.close()
    session = bench.resume([DONE])
    session.deny("call_0_1", "no litter")
    await bench.run(session)
    assert bench.code(session) == 0
    assert b"return 2" in bench.read("a.py")
    assert not (bench.repo / "t").exists()
    edited, denied = last_results(bench, session)
    assert "Replaced" in edited
    assert "no litter" in denied
    assert "not run" in denied


async def test_a_denial_tells_the_model_why_and_the_file_stays(bench: Bench) -> None:
    await bench.play([[EDIT]])
    session = bench.resume([DONE])
    session.deny(reason="It must stay 1.")
    await bench.run(session)
    assert bench.read("a.py") == ORIGINAL
    assert "The user said no: It must stay 1." in last_results(bench, session)[0]
    # A person denied it, not the headless mode.
    assert bench.code(session) == 0


async def test_an_approved_edit_of_a_file_that_changed_since_is_not_applied(bench: Bench) -> None:
    await bench.play([[EDIT]])
    session = bench.resume([DONE])
    session.approve()
    (bench.repo / "a.py").write_bytes(b"def f():\n    return 1  # mine\n")
    await bench.run(session)
    assert bench.read("a.py") == b"def f():\n    return 1  # mine\n"
    assert "changed since it was shown to you" in last_results(bench, session)[0]


LATE = ("edit", {"path": "uv.lock", "old": "1", "new": "2"})


async def test_an_approval_holds_only_while_the_world_is_as_it_was(bench: Bench) -> None:
    session = bench.create([[LATE]])
    (bench.repo / "uv.lock").write_bytes(b"x = 1\n")
    await bench.run(session, "go")
    await session.close()
    session = bench.resume()
    session.approve()
    (bench.repo / "uv.lock").write_bytes(b"x = 1  # mine\n")
    await bench.run(session)
    assert bench.code(session) == 3
    assert bench.read("uv.lock") == b"x = 1  # mine\n"
    assert [p.call_id for p in session.pending] == ["call_0_0"]
    assert "# mine" in session.pending[0].preview
    assert len(bench.of(session, Effects)) == 2
    await session.close()
    session = bench.resume([DONE])
    session.approve()
    await bench.run(session)
    assert bench.code(session) == 0
    assert bench.read("uv.lock") == b"x = 2  # mine\n"


async def test_approving_what_is_not_pending_is_an_error(bench: Bench) -> None:
    await bench.play([[EDIT]])
    session = bench.resume()
    with pytest.raises(SessionError, match="no call 'call_9'"):
        session.approve("call_9")
    with pytest.raises(SessionError, match="no open question"):
        session.answer("x")
    session.deny()
    with pytest.raises(SessionError, match="nothing waits"):
        session.approve()


async def test_c68_on_ask_deny_goes_on_and_still_ends_with_3(bench: Bench) -> None:
    session = await bench.play([[READ, EDIT], DONE], on_ask="deny")
    assert bench.code(session) == 3
    assert bench.read("a.py") == ORIGINAL
    assert session.result().status == "done"
    read, denied = [r.text for r in bench.of(session, ToolResult)][:2]
    assert "import f" in read
    assert "nobody is there" in denied
    assert "1 denied" in session.result().reason
    assert session.pending == ()


async def test_c68_a_denial_counts_for_the_task_not_for_the_run(bench: Bench) -> None:
    """A run that was cut off after the denial does not end as if there had been none."""
    session = bench.create([[EDIT], Turn(content="x", wire={"first_delay": 30})], on_ask="deny")
    async for item in session.start("go"):
        if item.__class__.__name__ == "RequestSent" and len(bench.requests(session)) == 1:
            session.cancel()
    await session.close()
    assert bench.of(session, Approval)
    session = await bench.play_on([DONE], on_ask="deny")
    assert bench.code(session) == 3
    # New words are a new task.
    session = await bench.play_on([DONE], words="Just stop.", on_ask="deny")
    assert bench.code(session) == 0


async def test_read_only_denies_what_would_ask(bench: Bench) -> None:
    session = await bench.play([[EDIT], DONE], mode="read-only")
    assert bench.read("a.py") == ORIGINAL
    assert "read-only mode" in last_results(bench, session)[0]
    assert bench.code(session) == 0


async def test_a_deny_rule_beats_an_approval(bench: Bench) -> None:
    await bench.play([[EDIT]])
    rules = [Rule(decision="deny", path="a.py", origin="settings")]
    session = bench.resume([DONE], rules=rules)
    session.approve()
    await bench.run(session)
    assert bench.read("a.py") == ORIGINAL
    assert "Not allowed" in last_results(bench, session)[0]
    assert "deny path a.py" in last_results(bench, session)[0]


async def test_new_words_while_something_is_pending_close_it(bench: Bench) -> None:
    await bench.play([[READ, EDIT]])
    session = await bench.play_on([DONE], words="Leave a.py alone.")
    assert bench.code(session) == 0
    assert bench.read("a.py") == ORIGINAL
    tools = [m["content"] for m in bench.messages(session) if m["role"] == "tool"]
    assert tools == [MOVED_ON, MOVED_ON]
    assert bench.messages(session)[-1]["content"] == "Leave a.py alone."


# --- plan first -----------------------------------------------------------------------------------


async def test_the_second_file_needs_a_plan(bench: Bench) -> None:
    await bench.play([[EDIT]])
    session = bench.resume([[EDIT_B], DONE])
    session.approve()
    await bench.run(session)
    assert bench.code(session) == 0
    assert last_results(bench, session) == [PLAN_FIRST]
    assert b"print" in bench.read("b.py")


async def test_two_new_files_in_one_step_need_a_plan(bench: Bench) -> None:
    other = ("write", {"path": "d.py", "content": ""})
    session = await bench.play([[NEW, other]])
    assert [p.call_id for p in session.pending] == ["call_0_0"]
    verdicts = [d.decision for d in bench.of(session, Decision)]
    assert verdicts == ["ask", "plan_first"]
    session = bench.resume([DONE])
    session.approve()
    await bench.run(session)
    assert (bench.repo / "c.py").exists()
    assert not (bench.repo / "d.py").exists()
    assert last_results(bench, session)[1] == PLAN_FIRST


async def test_more_of_the_same_file_needs_no_plan(bench: Bench) -> None:
    await bench.play([[EDIT]])
    session = bench.resume([[("edit", {"path": "a.py", "old": "def f", "new": "def g"})]])
    session.approve()
    await bench.run(session)
    assert bench.code(session) == 3


async def test_an_approved_plan_covers_the_writes_and_nothing_else(bench: Bench) -> None:
    await bench.play([[plan("*.py", commands=[["true"]], not_touch=["secret.py"])]])
    script = [
        [EDIT, EDIT_B],
        [NEW],
        [("shell", {"command": "true"})],
        [("write", {"path": "docs/notes.txt", "content": "x"})],
    ]
    session = bench.resume(script)
    assert session.pending[0].tool == "propose_plan"
    session.approve()
    await bench.run(session)
    assert b"return 2" in bench.read("a.py")
    assert b"assert" in bench.read("b.py")
    assert (bench.repo / "c.py").exists()
    assert bench.code(session) == 3
    (pending,) = session.pending
    assert "docs/notes.txt is not among the files of the approved plan" in pending.reason
    assert [e.by for e in bench.of(session, ScopeGranted)] == ["user"]


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (("write", {"path": "keep.py", "content": ""}), "says not to touch keep.py"),
        (("shell", {"command": "make all"}), "does not name this command"),
        (("shell", {"command": "true", "network": True}), "has no `network`"),
    ],
)
async def test_what_leaves_the_plan_asks_and_says_why(bench: Bench, call: Any, why: str) -> None:
    await bench.play([[plan("*.py", commands=[["true"]], not_touch=["keep.py"])]])
    session = bench.resume([[call]])
    session.approve()
    await bench.run(session)
    assert bench.code(session) == 3
    assert why in session.pending[0].reason


async def test_a_plan_covers_what_stands_beside_it_in_its_step(bench: Bench) -> None:
    await bench.play([[plan("*.py"), EDIT, EDIT_B, NEW]])
    session = bench.resume([DONE])
    assert [p.tool for p in session.pending] == ["propose_plan", "edit"]
    session.approve()
    await bench.run(session)
    assert bench.code(session) == 0
    assert not any(r.error for r in bench.of(session, ToolResult))
    assert b"assert" in bench.read("b.py")
    assert (bench.repo / "c.py").exists()


async def test_a_plan_ends_with_the_task(bench: Bench) -> None:
    await bench.play([[plan("*.py")]])
    session = bench.resume([[EDIT], DONE])
    session.approve()
    await bench.run(session)
    assert bench.code(session) == 0
    await session.close()
    session = await bench.play_on([[EDIT_B]], words="And now something else.")
    assert bench.code(session) == 3


async def test_a_plan_of_what_the_rules_allow_is_approved_by_them(bench: Bench) -> None:
    allow = ["write:*.py", "execute:true"]
    steps = [[plan("a.py", commands=[["true"]])], [EDIT], DONE]
    session = await bench.play(steps, allow=allow)
    assert bench.code(session) == 0
    assert [e.by for e in bench.of(session, ScopeGranted)] == ["rules"]
    session = await bench.play([[plan("a.py", "docs/*")]], allow=allow)
    assert bench.code(session) == 3
    session = await bench.play([[plan("a.py", commands=[["make", "all"]])]], allow=allow)
    assert bench.code(session) == 3


async def test_a_denied_plan_grants_nothing(bench: Bench) -> None:
    await bench.play([[plan("*.py")]])
    session = bench.resume([[EDIT]])
    session.deny(reason="Too much.")
    await bench.run(session)
    assert bench.code(session) == 3
    assert bench.of(session, ScopeGranted) == []
    assert "Too much." in bench.of(session, ToolResult)[0].text


# --- questions ------------------------------------------------------------------------------------


async def test_a_question_stops_the_run_with_4_and_its_answer_goes_to_the_model(
    bench: Bench,
) -> None:
    session = await bench.play([[READ, ASK]])
    assert bench.code(session) == 4
    assert bench.of(session, ToolStarted) == []
    (question,) = session.result().questions
    assert (question.text, question.choices) == ("Which one?", ("this", "that"))
    session = bench.resume([DONE])
    session.answer("that one")
    assert session.questions == ()
    await bench.run(session)
    assert bench.code(session) == 0
    assert last_results(bench, session)[1] == "that one"


async def test_two_questions_are_answered_in_order(bench: Bench) -> None:
    await bench.play([[ASK, ("ask_user", {"question": "And why?"})]])
    session = bench.resume()
    session.answer("that")
    await bench.run(session)
    assert bench.code(session) == 4
    assert [q.text for q in session.questions] == ["And why?"]
    assert len(bench.of(session, Question)) == 2
    await session.close()
    session = bench.resume([DONE])
    session.answer("because")
    await bench.run(session)
    assert last_results(bench, session) == ["that", "because"]


async def test_a_question_is_asked_where_calls_are_denied_too(bench: Bench) -> None:
    session = await bench.play([[EDIT, ASK]], on_ask="deny")
    assert bench.code(session) == 4
    session = bench.resume([DONE], on_ask="deny")
    session.answer("this")
    await bench.run(session)
    assert bench.code(session) == 3


# --- somebody is there ----------------------------------------------------------------------------


class Person:
    """Somebody at the screen: runs a session and waits for it to ask."""

    def __init__(self, bench: Bench, session: Session) -> None:
        self.session = session
        self.task = asyncio.create_task(bench.run(session, "go"))

    async def asked(self) -> None:
        async with asyncio.timeout(10):
            while not (self.session.pending or self.session.questions):
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.02)

    async def ended(self) -> None:
        async with asyncio.timeout(10):
            await self.task


async def test_a_person_approves_denies_and_answers_while_it_runs(bench: Bench) -> None:
    script = [[READ, EDIT], [EDIT_B], [ASK], "It is done."]
    session = bench.create(script, on_ask="wait", allow=["write:b.py"])
    person = Person(bench, session)
    await person.asked()
    assert bench.of(session, ToolStarted) == []
    session.approve()
    await person.asked()
    assert session.questions
    session.answer("that")
    await person.ended()
    assert bench.code(session) == 0
    assert b"return 2" in bench.read("a.py")
    assert b"assert" in bench.read("b.py")
    assert last_results(bench, session) == ["that"]
    assert [a.by for a in bench.of(session, Approval)] == ["user"]


async def test_a_person_decides_call_by_call(bench: Bench) -> None:
    session = bench.create([[EDIT, TOUCH], "Well."], on_ask="wait")
    person = Person(bench, session)
    await person.asked()
    session.approve("call_0_0")
    await asyncio.sleep(0.05)
    assert bench.read("a.py") == ORIGINAL
    assert [p.call_id for p in session.pending] == ["call_0_1"]
    session.deny("call_0_1", "no")
    await person.ended()
    assert b"return 2" in bench.read("a.py")
    assert not (bench.repo / "t").exists()


async def test_a_file_that_changes_while_the_person_thinks_asks_again(bench: Bench) -> None:
    session = bench.create([[LATE], "Done."], on_ask="wait")
    (bench.repo / "uv.lock").write_bytes(b"x = 1\n")
    person = Person(bench, session)
    await person.asked()
    (bench.repo / "uv.lock").write_bytes(b"y = 1\n")
    session.approve()
    await person.asked()
    assert bench.read("uv.lock") == b"y = 1\n"
    session.approve()
    await person.ended()
    assert bench.read("uv.lock") == b"y = 2\n"


async def test_the_next_turn_is_the_same_session(bench: Bench) -> None:
    session = bench.create(["One.", [READ], "Two."], on_ask="wait")
    await bench.run(session, "first")
    items = await bench.run(session, "second")
    assert bench.code(session) == 0
    assert items[0] == bench.of(session, RunStarted)[1]
    roles = [m["role"] for m in bench.messages(session)][-5:]
    assert roles == ["user", "assistant", "user", "assistant", "tool"]


async def test_interrupted_while_asking_it_still_asks_and_new_words_close_it(
    bench: Bench,
) -> None:
    session = bench.create([[EDIT]], on_ask="wait")
    person = Person(bench, session)
    await person.asked()
    session.cancel(Exit.HANGUP)
    await person.ended()
    assert bench.code(session) == 129
    await session.close()
    # Gone on with: still pending, and what is approved is run, not called interrupted.
    session = bench.resume([DONE])
    assert len(session.approve()) == 1
    await bench.run(session)
    assert bench.code(session) == 0
    assert b"return 2" in bench.read("a.py")


async def test_only_one_run_at_a_time(bench: Bench) -> None:
    session = bench.create([[EDIT]], on_ask="wait")
    person = Person(bench, session)
    await person.asked()
    with pytest.raises(SessionError, match="already running"):
        async for _ in session.start("again"):
            pass
    session.cancel()
    await person.ended()


async def test_who_stops_listening_stops_the_run_and_can_start_another(bench: Bench) -> None:
    slow = Turn(content="x" * 1000, wire={"chunk": 1, "delay": 0.01})
    session = bench.create([slow, "Here."], on_ask="wait")
    listening = session.start("go")
    async for item in listening:
        if item.__class__.__name__ == "ContentDelta":
            break
    await listening.aclose()
    assert bench.code(session) == 130
    items = await bench.run(session, "again")
    assert bench.code(session) == 0
    assert items[0] == bench.of(session, RunStarted)[1]
    assert items[-1] == session.events[-1]


# --- jobs, one writer -----------------------------------------------------------------------------


async def test_c43_a_headless_end_stops_what_runs_and_says_so(bench: Bench) -> None:
    script = [[("shell", {"command": "sleep 300", "background": True})], DONE]
    session = bench.create(script, allow=["execute"])
    began = time.monotonic()
    await bench.run(session, "go")
    assert session.result().jobs_killed == ("sleep 300",)
    assert session.processes.live_jobs() == []
    assert time.monotonic() - began < 10
    # Where a person is, it goes on after the turn, until the session is closed.
    session = bench.create(
        [[("shell", {"command": "sleep 301", "background": True})], "It runs."],
        allow=["execute"],
        on_ask="wait",
    )
    await bench.run(session, "go")
    assert [job.command for job in session.processes.live_jobs()] == ["sleep 301"]
    await session.close()
    assert session.jobs_killed == ("sleep 301",)


async def test_c43_jobs_that_ended_were_not_killed(bench: Bench) -> None:
    script = [[("shell", {"command": "true", "background": True})], DONE]
    session = await bench.play(script, allow=["execute"])
    assert session.result().jobs_killed == ()


async def test_c45_a_session_has_one_writer(bench: Bench) -> None:
    session = bench.create([DONE])
    with pytest.raises(SessionInUseError, match="in use"):
        bench.resume(session=session.id)
    await bench.run(session, "go")
    await session.close()
    again = bench.resume([DONE], session=session.id)
    await bench.run(again, "once more")
    assert bench.code(again) == 0
    assert len(bench.of(again, AssistantMessage)) == 2


async def test_c48_sessions_over_one_repository_do_not_mix(bench: Bench) -> None:
    one = bench.create([[READ]] * 3 + [DONE])
    two = bench.create([[READ], DONE])
    await asyncio.gather(bench.run(one, "one"), bench.run(two, "two"))
    assert (bench.code(one), bench.code(two)) == (0, 0)
    assert len(bench.of(one, AssistantMessage)) == 4
    assert len(bench.of(two, AssistantMessage)) == 2


async def test_a_plan_that_rules_approve_gives_no_more_than_the_rules(bench: Bench) -> None:
    # The pattern of the rule matches the text of the wider one.
    wide = ("propose_plan", {"plan": "p", "paths": ["*.p*"]})
    key = ("write", {"path": "key.pub", "content": "x"})
    session = await bench.play([[wide], [key]], allow=["write:*.p?"])
    assert bench.of(session, ScopeGranted)[0].by == "rules"
    assert bench.code(session) == 3
    assert not (bench.repo / "key.pub").exists()
