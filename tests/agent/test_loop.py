"""The loop, from a task to its end: real repository, real tools, a scripted model."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from unabridged.agent.budget import Limits
from unabridged.agent.effects import Effect, EffectKind
from unabridged.agent.events import (
    ArgumentsQuoted,
    AssistantMessage,
    CallDropped,
    Checkpoint,
    Elided,
    EmptySkipped,
    Error,
    Finish,
    Interruption,
    Plan,
    RequestSent,
    TextPart,
    ToolCall,
    ToolResult,
    ToolStarted,
    UserMessage,
)
from unabridged.agent.providers.base import ContentDelta, Notice, ReasoningDelta
from unabridged.agent.providers.scripted import ScriptedCall, Status, Tokens, Turn
from unabridged.tools.base import Arguments, Context, Facts, Result, Tool
from unabridged.tools.finish import Finish as FinishTool

if TYPE_CHECKING:
    from .conftest import Bench

CHECK = "grep -q 'return 2' a.py"
EDIT = ("edit", {"path": "a.py", "old": "return 1", "new": "return 2"})
DONE = [("finish", {"status": "done", "summary": "Did it."})]


def notes(bench: Bench, session: Any) -> list[str]:
    """What the harness told the model."""
    said = [e for e in bench.of(session, UserMessage) if e.origin == "harness"]
    return [part.text for e in said for part in e.parts if isinstance(part, TextPart)]


# --- the way to a good end ------------------------------------------------------------------------


async def test_a_task_ends_verified_with_what_changed(bench: Bench) -> None:
    script = [
        [("read", {"path": "a.py"}), ("search", {"pattern": "return"})],
        [EDIT],
        [("write", {"path": "new/c.py", "content": "x = 1\ny = 2\n"})],
        [("shell", {"command": CHECK})],
        [("finish", {"status": "done", "summary": "f gives 2.", "verified": [CHECK]})],
    ]
    session = await bench.play(script, allow=["write", "execute"])
    result = session.result()
    assert (result.exit_code, result.exit_name, result.status) == (0, "done", "done")
    assert result.verified
    assert [(v.command, v.exit_code) for v in result.verification] == [(CHECK, 0)]
    assert result.summary == "f gives 2."
    changed = [(f.path, f.change, f.added, f.removed) for f in result.files_changed]
    assert changed == [("a.py", "modified", 1, 1), ("new/c.py", "added", 2, 0)]
    assert bench.read("a.py") == b"def f():\n    return 2\n"
    assert result.steps == 5
    usages = [r.usage for r in bench.of(session, AssistantMessage)]
    assert result.tokens.prompt == sum(u.prompt for u in usages if u)
    assert result.tokens.cached + result.tokens.uncached == result.tokens.prompt
    assert result.tokens.completion > 0
    assert result.cost_usd is None
    assert (result.model, result.endpoint, result.session) == ("kimi-k3", "scripted", session.id)
    assert result.pending == result.questions == result.jobs_killed == ()


async def test_c60_every_request_is_a_byte_extension_of_the_one_before(bench: Bench) -> None:
    script = [[("read", {"path": f"{name}.py"})] for name in "abab"] + [[EDIT], DONE]
    session = await bench.play(script, allow=["write"])
    requests = bench.requests(session)
    assert len(requests) == 6
    for before, after in pairwise(requests):
        assert after.messages[: len(before.messages)] == before.messages
        assert after.tools == before.tools
    logged = bench.of(session, RequestSent)
    assert [e.messages for e in logged] == [len(r.messages) for r in requests]
    assert [e.size for e in logged] == [sum(map(len, r.messages)) for r in requests]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_k1_replies_go_back_as_they_came(bench: Bench, field: str) -> None:
    odd = "Zeilen\r\nmit \u2028 \x00 \U0001f9d1\u200d\U0001f680 \ud7ff 'und' \"so\"\\n"
    said = [
        Turn(
            reasoning=odd,
            content=f" {odd} ",
            calls=(ScriptedCall(name="read", arguments='{ "path":\t"a.py" }', id="x/1"),),
            wire={"reasoning_field": field, "chunk": 3},
        ),
        Turn(calls=(ScriptedCall(name="list", arguments="{}"),), wire={"reasoning_field": field}),
    ]
    session = await bench.play([*said, DONE])
    back = [m for m in bench.messages(session) if m["role"] == "assistant"]
    for message, turn in zip(back, said, strict=True):
        assert message[field] == turn.reasoning
        assert message["content"] == turn.content
        sent = [c["function"] for c in message["tool_calls"]]
        assert sent == [{"name": c.name, "arguments": c.text} for c in turn.calls]
    assert back[0]["tool_calls"][0]["id"] == "x/1"


@pytest.mark.parametrize("finish", ["stop", "tool_calls", "content_filter", "unheard of"])
async def test_k7_calls_are_settled_whatever_the_finish_reason_says(
    bench: Bench, finish: str
) -> None:
    read = Turn(calls=(ScriptedCall(name="read", arguments={"path": "a.py"}),), finish=finish)
    session = await bench.play([read, DONE])
    assert bench.code(session) == 0
    assert "return 1" in bench.of(session, ToolResult)[0].text


async def test_what_streams_is_shown_and_every_event_once(bench: Bench) -> None:
    session = bench.create([Turn(reasoning="r" * 100, content="c" * 100, wire={"chunk": 7})])
    before = len(session.events)
    items = await bench.run(session, "go")
    events = [item for item in items if hasattr(item, "seq")]
    assert events == list(session.events[before:])
    assert "".join(i.text for i in items if isinstance(i, ReasoningDelta)) == "r" * 100
    assert "".join(i.text for i in items if isinstance(i, ContentDelta)) == "c" * 100


# --- several calls in one step --------------------------------------------------------------------


class NapArguments(Arguments):
    name: str
    seconds: float = 0.0
    write: bool = False
    fail: str = ""


class Nap(Tool[NapArguments]):
    """Takes its time and remembers who ran when."""

    name = "nap"
    description = "Sleep."
    arguments = NapArguments

    def __init__(self) -> None:
        self.running = 0
        self.most = 0
        self.ended: list[str] = []

    def effects(self, args: NapArguments, facts: Facts) -> tuple[Effect, ...]:
        kind = EffectKind.WRITE if args.write else EffectKind.READ
        return (Effect(kind=kind, path=args.name),)

    async def run(self, args: NapArguments, context: Context) -> Result:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(args.seconds)
        finally:
            self.running -= 1
            self.ended.append(args.name)
        if args.fail:
            raise RuntimeError(args.fail)
        return Result(f"slept: {args.name}")


def naps(*seconds: float, **more: Any) -> list[tuple[str, Any]]:
    return [("nap", {"name": str(i), "seconds": s, **more}) for i, s in enumerate(seconds)]


async def test_reads_of_a_step_run_side_by_side_and_keep_their_order(bench: Bench) -> None:
    nap = Nap()
    began = time.monotonic()
    session = await bench.play([naps(0.3, 0.2, 0.1, 0.0), DONE], tools=[nap, FinishTool()])
    assert time.monotonic() - began < 0.6 + 0.5
    assert nap.most == 4
    assert nap.ended == ["3", "2", "1", "0"]
    results = [m for m in bench.messages(session) if m["role"] == "tool"]
    assert [r["content"] for r in results] == [f"slept: {i}" for i in range(4)]
    assert [r["tool_call_id"] for r in results] == [f"call_0_{i}" for i in range(4)]


async def test_a_step_with_a_write_runs_call_by_call(bench: Bench) -> None:
    nap = Nap()
    step = [*naps(0.05, 0.0), ("nap", {"name": "w", "write": True}), *naps(0.02)]
    session = await bench.play([step, DONE], tools=[nap, FinishTool()], allow=["write"])
    assert bench.code(session) == 0
    assert nap.most == 1
    assert nap.ended == ["0", "1", "w", "0"]


async def test_one_of_several_that_breaks_lets_the_others_end(bench: Bench) -> None:
    nap = Nap()
    step = [("nap", {"name": "bad", "fail": "boom"}), *naps(0.1, 0.05)]
    session = await bench.play([step, DONE], tools=[nap, FinishTool()])
    assert bench.code(session) == 1
    assert sorted(nap.ended) == ["0", "1", "bad"]
    assert session.events[-1].type == "run_ended"
    assert {r.call_id for r in bench.of(session, ToolResult)} == {"call_0_1", "call_0_2"}


async def test_two_edits_of_one_file_in_one_step_the_second_needs_the_first(bench: Bench) -> None:
    second = ("edit", {"path": "a.py", "old": "return 2", "new": "return 3"})
    session = await bench.play([[EDIT, second], DONE], allow=["write"])
    assert bench.code(session) == 0
    assert not any(r.error for r in bench.of(session, ToolResult))
    assert bench.read("a.py") == b"def f():\n    return 3\n"


async def test_the_second_edit_is_approved_before_the_first_makes_it_possible(
    bench: Bench,
) -> None:
    """What a call does is decided on for what it turns out to do: here that is known only late."""
    second = ("edit", {"path": "a.py", "old": "return 2", "new": "return 3"})
    session = await bench.play([[EDIT, second]])
    assert [p.call_id for p in session.pending] == ["call_0_0"]
    session = bench.resume()
    session.approve()
    await bench.run(session)
    assert bench.code(session) == 3
    assert bench.read("a.py") == b"def f():\n    return 2\n"
    assert [p.call_id for p in session.pending] == ["call_0_1"]
    assert "+    return 3" in session.pending[0].preview


async def test_edits_of_one_step_that_fit_from_the_start_are_asked_once(bench: Bench) -> None:
    second = ("edit", {"path": "a.py", "old": "def f", "new": "def g"})
    await bench.play([[EDIT, second]])
    session = bench.resume([DONE])
    assert len(session.approve()) == 2
    await bench.run(session)
    assert bench.code(session) == 0
    assert bench.read("a.py") == b"def g():\n    return 2\n"


# --- finish ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["partial", "blocked"])
async def test_c68_an_end_that_is_not_done_is_8(bench: Bench, status: str) -> None:
    session = await bench.play([[("finish", {"status": status, "summary": "Half."})]])
    assert bench.code(session) == 8
    assert status in session.result().reason
    assert session.result().status == status


@pytest.mark.parametrize(
    ("ran", "named", "says"),
    [
        (["false"], ["false"], "last exited 1"),
        (["true", "false"], ["true", "false"], "`false` last exited 1"),
        ([], ["make test"], "never run"),
        (["true"], ["true "], "never run"),
    ],
)
async def test_verification_that_did_not_pass_is_8(
    bench: Bench, ran: Sequence[str], named: Sequence[str], says: str
) -> None:
    steps: list[Any] = [[("shell", {"command": command})] for command in ran]
    end = ("finish", {"status": "done", "summary": "s", "verified": list(named)})
    session = await bench.play([*steps, [end]], allow=["execute"])
    assert bench.code(session) == 8
    assert says in session.result().reason
    assert not session.result().verified


async def test_the_last_run_of_a_verification_counts(bench: Bench) -> None:
    end = ("finish", {"status": "done", "summary": "s", "verified": [CHECK]})
    check = [("shell", {"command": CHECK})]
    session = await bench.play([check, [EDIT], check, [end]], allow=["execute", "write"])
    assert [r.exit_code for r in bench.of(session, ToolResult)] == [1, None, 0, None]
    assert bench.code(session) == 0
    assert session.result().verified


async def test_a_verification_in_the_background_counts_once_it_was_seen_to_end(
    bench: Bench,
) -> None:
    command = "sleep 0.7; exit 0"
    end = ("finish", {"status": "done", "summary": "s", "verified": [command]})
    script = [
        [("shell", {"command": command, "background": True})],
        [("shell", {"action": "output", "job": "job-1", "timeout_seconds": 10})],
        [end],
    ]
    session = await bench.play(script, allow=["execute"])
    assert session.result().verification[0].exit_code == 0
    assert bench.code(session) == 0


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("failing", [("read", {"path": "nowhere.py"}), ("nothing", {})])
async def test_finish_beside_a_failing_call_is_refused(
    bench: Bench, failing: Any, first: bool
) -> None:
    step = [*DONE, failing] if first else [failing, *DONE]
    session = await bench.play([step, DONE])
    refused = bench.of(session, ToolResult)
    assert sum("Not finished" in r.text for r in refused) == 1
    assert len(bench.requests(session)) == 2
    assert len(bench.of(session, Finish)) == 1
    assert bench.code(session) == 0


async def test_finish_beside_a_call_that_is_cut_is_refused(bench: Bench) -> None:
    calls = (
        ScriptedCall(name="finish", arguments=DONE[0][1]),
        ScriptedCall(name="write", arguments='{"path": "c.py", "cont'),
    )
    session = await bench.play([Turn(calls=calls, finish="length"), DONE])
    assert len(bench.requests(session)) == 2
    assert bench.code(session) == 0


@pytest.mark.parametrize("first", [True, False])
async def test_finish_beside_calls_that_work_ends_the_run(bench: Bench, first: bool) -> None:
    read = ("read", {"path": "a.py"})
    session = await bench.play([[*DONE, read] if first else [read, *DONE]])
    assert bench.code(session) == 0
    assert len(bench.requests(session)) == 1


async def test_an_answer_without_finish_is_8(bench: Bench) -> None:
    session = await bench.play(["I shall now fix it."])
    assert bench.code(session) == 8
    assert len(bench.requests(session)) == 1
    assert session.result().status is None


async def test_an_answer_ends_the_turn_where_a_person_is(bench: Bench) -> None:
    session = await bench.play(["It is 1."], on_ask="wait")
    assert bench.code(session) == 0


# --- replies that are no step ---------------------------------------------------------------------


async def test_k9_thinking_without_an_act_is_continued_once_with_the_thoughts(
    bench: Bench,
) -> None:
    session = await bench.play([Turn(reasoning="Hm. It is clear."), DONE])
    assert bench.code(session) == 0
    thought, note = bench.messages(session)[-2:]
    assert thought["reasoning_content"] == "Hm. It is clear."
    assert note["role"] == "user"
    assert "finish" in note["content"]


async def test_k9_the_second_time_ends_with_7_and_says_so_in_the_log(bench: Bench) -> None:
    session = await bench.play([Turn(reasoning="Hm."), Turn(reasoning="Hm, hm.")])
    assert bench.code(session) == 7
    assert [e.kind for e in bench.of(session, Error)] == ["think_only"]
    assert len(bench.requests(session)) == 2


async def test_k9_work_in_between_starts_the_count_afresh(bench: Bench) -> None:
    think, read = Turn(reasoning="Hm."), [("read", {"path": "a.py"})]
    session = await bench.play([think, read, think, DONE])
    assert bench.code(session) == 0


async def test_k6_an_empty_reply_is_not_sent_back(bench: Bench) -> None:
    session = await bench.play([Turn(), DONE])
    assert bench.code(session) == 0
    assert len(bench.of(session, EmptySkipped)) == 1
    assert [m["role"] for m in bench.messages(session)][-2:] == ["user", "user"]


def cut(path: str) -> Turn:
    return Turn(
        reasoning="A long file.",
        content="Here it comes.",
        calls=(
            ScriptedCall(name="read", arguments={"path": path}),
            ScriptedCall(name="write", arguments='{"path": "c.py", "content": "x = 1\\n'),
        ),
        finish="length",
    )


async def test_c19_a_call_cut_by_the_length_limit_never_runs(bench: Bench) -> None:
    session = await bench.play([cut("a.py"), DONE], allow=["write"])
    assert bench.code(session) == 0
    assert not (bench.repo / "c.py").exists()
    assert [e.call_id for e in bench.of(session, CallDropped)] == ["call_0_1"]
    reply, result, advice = bench.messages(session)[-3:]
    assert (reply["reasoning_content"], reply["content"]) == ("A long file.", "Here it comes.")
    assert [c["id"] for c in reply["tool_calls"]] == ["call_0_0"]
    assert result["tool_call_id"] == "call_0_0"
    assert "smaller" in advice["content"]


async def test_c19_a_cut_call_is_not_run_even_where_it_happens_to_parse(bench: Bench) -> None:
    call = ScriptedCall(name="write", arguments={"path": "c.py", "content": ""})
    session = await bench.play([Turn(calls=(call,), finish="length"), DONE], allow=["write"])
    assert not (bench.repo / "c.py").exists()
    assert bench.code(session) == 0


async def test_c21_the_third_cut_in_a_row_stops_the_run(bench: Bench) -> None:
    session = await bench.play([cut("a.py"), cut("b.py"), cut("docs/notes.txt"), DONE])
    assert bench.code(session) == 6
    assert len(bench.requests(session)) == 3
    assert len(notes(bench, session)) == 2


async def test_c21_a_whole_call_in_between_starts_the_count_afresh(bench: Bench) -> None:
    whole = [("read", {"path": "a.py"})]
    session = await bench.play([cut("a.py"), cut("b.py"), whole, cut("a.py"), cut("b.py"), DONE])
    assert bench.code(session) == 0


@pytest.mark.parametrize(
    ("turns", "code"),
    [(["I stop here."], 8), ([Turn(reasoning="Hm.")] * 2, 7), ([cut("a.py")] * 3, 6)],
)
async def test_k28_a_run_that_ended_on_a_reply_goes_on_with_a_note_not_a_prefill(
    bench: Bench, turns: list[Any], code: int
) -> None:
    assert bench.code(await bench.play(turns)) == code
    session = await bench.play_on([DONE])
    assert bench.code(session) == 0
    assert bench.messages(session)[-1]["role"] == "user"


# --- calls that cannot be run ---------------------------------------------------------------------

BAD_JSON = '{"path": "a.py", "old": "return 1", "new": oops}'


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (BAD_JSON, "at character 43"),
        ('{"path": "a.py"', "at character 15"),
        ("", "at character 0"),
        ('["a.py"]', "not a JSON object"),
        ('{"path": NaN}', "NaN is not JSON"),
        ('{"path": 1e999, "x": -Infinity}', "-Infinity is not JSON"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
async def test_k19_c22_malformed_arguments_never_run_and_go_back_quoted(
    bench: Bench, arguments: str, says: str
) -> None:
    turn = Turn(calls=(ScriptedCall(name="edit", arguments=arguments),))
    session = await bench.play([turn, DONE], allow=["write"])
    assert bench.code(session) == 0
    assert bench.read("a.py") == b"def f():\n    return 1\n"
    assert not bench.of(session, ToolStarted)[:-1]
    assert len(bench.of(session, ArgumentsQuoted)) == 1
    assert bench.of(session, AssistantMessage)[0].calls[0].arguments == arguments
    reply, result = bench.messages(session)[-2:]
    quoted = json.loads(reply["tool_calls"][0]["function"]["arguments"])
    assert quoted == {"malformed_arguments": arguments}
    assert says in result["content"]
    assert "not run" in result["content"]


async def test_k19_the_model_is_told_where_and_shown_what(bench: Bench) -> None:
    turn = Turn(calls=(ScriptedCall(name="edit", arguments=BAD_JSON),))
    session = await bench.play([turn, DONE])
    text = bench.of(session, ToolResult)[0].text
    assert '"new": oops}' in text


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("write", {"path": "c.py"}, "content: Field required"),
        ("write", {}, "path: Field required"),
        ("write", {"path": "c.py", "content": "", "mode": "w"}, "mode: Extra inputs"),
        ("write", {"path": 7, "content": ""}, "path: Input should be a valid string"),
        ("write", {"path": None, "content": ""}, "path: Input should be a valid string"),
        ("write", {"path": "c.py", "content": ["x"]}, "content: Input should be a valid string"),
        ("write", '{"path": "c.py", "content": "\\ud800"}', "U+D800, half of a surrogate pair"),
        ("read", {"path": "a.py", "start": "1"}, "start: "),
        ("finish", {"status": "great", "summary": "s"}, "status: Input should be 'done'"),
        ("Write", {"path": "c.py", "content": ""}, "There is no tool 'Write'. Tools: read, list"),
        ('a"b\n<|sep|> c', {}, "There is no tool"),
    ],
)
async def test_c20_arguments_that_do_not_fit_never_run_and_nothing_is_made_up(
    bench: Bench, name: str, arguments: Any, says: str
) -> None:
    session = await bench.play([[(name, arguments)], DONE], allow=["write"])
    assert bench.code(session) == 0
    assert not (bench.repo / "c.py").exists()
    assert says in bench.of(session, ToolResult)[0].text
    assert bench.of(session, ToolResult)[0].error
    assert bench.of(session, ToolCall)[0].problem
    sent = bench.messages(session)[-2]["tool_calls"][0]["function"]
    assert sent["name"] == name


async def test_calls_without_ids_or_with_the_same_get_their_own(bench: Bench) -> None:
    calls = tuple(
        ScriptedCall(name="read", arguments={"path": path}, id=given)
        for path, given in (("a.py", "same"), ("b.py", "same"), ("docs/notes.txt", ""))
    )
    session = await bench.play([Turn(calls=calls), DONE])
    assert bench.code(session) == 0
    texts = [m["content"] for m in bench.messages(session) if m["role"] == "tool"]
    assert ["return 1" in texts[0], "import f" in texts[1], "two" in texts[2]] == [True] * 3


async def test_the_same_id_in_a_later_reply_is_another_call(bench: Bench) -> None:
    def turn(path: str) -> Turn:
        return Turn(calls=(ScriptedCall(name="read", arguments={"path": path}, id="call_0"),))

    session = await bench.play([turn("a.py"), turn("b.py"), DONE])
    assert bench.code(session) == 0
    assert "import f" in bench.of(session, ToolResult)[1].text


async def test_an_error_of_ours_in_a_tool_is_logged_with_its_trace(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    step = [("nap", {"name": "x", "fail": "boom"})]
    session = await bench.play([step], tools=[Nap(), FinishTool()])
    assert bench.code(session) == 1
    (error,) = bench.of(session, Error)
    assert (error.kind, error.message) == ("internal", "RuntimeError: boom")
    assert "in run" in error.trace
    assert "\n" not in session.result().reason
    said = capfd.readouterr()
    assert "Traceback" not in said.out + said.err
    # The session is not lost.
    session = await bench.play_on([DONE], tools=[Nap(), FinishTool()])
    assert bench.code(session) == 0
    assert "Interrupted" in bench.messages(session)[-1]["content"]


# --- budgets --------------------------------------------------------------------------------------

READS = [[("read", {"path": f"{name}.py"})] for name in "ababab"]


def used(prompt: int, completion: int) -> dict[str, Any]:
    return {"usage": Tokens(prompt=prompt, completion=completion)}


async def test_c69_a_limit_of_steps_is_its_own_code(bench: Bench) -> None:
    session = await bench.play(READS, limits=Limits(steps=3))
    assert bench.code(session) == 5
    assert len(bench.requests(session)) == 3
    assert session.result().steps == 3
    assert session.result().reason == "steps: 3 of 3 used"
    # More of it, and the session goes on where it stood.
    session = await bench.play_on([DONE], limits=Limits(steps=4))
    assert bench.code(session) == 0


async def test_a_limit_of_tokens_counts_both_ways_before_the_request(bench: Bench) -> None:
    read = ScriptedCall(name="read", arguments={"path": "a.py"})
    turns = [Turn(calls=(read,), **used(300, 50)), Turn(calls=(read,), **used(400, 250))]
    session = await bench.play([*turns, DONE], limits=Limits(tokens=1000))
    assert bench.code(session) == 5
    assert len(bench.requests(session)) == 2


async def test_a_limit_of_cost_and_a_cost_that_is_not_known(bench: Bench) -> None:
    limits = Limits(cost=0.25)
    session = await bench.play(READS, limits=limits, price=lambda _usage: 0.1)
    assert bench.code(session) == 5
    assert len(bench.requests(session)) == 3
    assert session.result().cost_usd == pytest.approx(0.3)
    session = await bench.play(READS, limits=limits)
    assert bench.code(session) == 5
    assert len(bench.requests(session)) == 1
    assert session.result().cost_usd is None


async def test_k26_thinking_that_eats_the_answer_is_said(bench: Bench) -> None:
    def notices(items: Sequence[object]) -> list[str]:
        return [item.text for item in items if isinstance(item, Notice)]

    for reasoning, said in ((5_000, False), (600_000, True)):
        usage = Tokens(prompt=10, completion=reasoning, reasoning=reasoning)
        turn = Turn(calls=(ScriptedCall(name=DONE[0][0], arguments=DONE[0][1]),), usage=usage)
        session = bench.create([turn], window=620_000)
        found = notices(await bench.run(session, "go"))
        assert bool(found) is said
        assert not said or "600,000 of the" in found[0]


async def test_k14_a_plan_is_an_argument_and_writes_nothing(bench: Bench) -> None:
    plan = ("propose_plan", {"plan": "First a, then b.", "paths": ["a.py", "b.py"]})
    session = await bench.play([[plan], DONE])
    assert bench.code(session) == 3
    assert [event.text for event in bench.of(session, Plan)] == ["First a, then b."]
    assert bench.of(session, Checkpoint) == []
    assert bench.read("a.py") == b"def f():\n    return 1\n"
    without = await bench.play([[("propose_plan", {"paths": ["a.py"]})], DONE])
    assert "plan: Field required" in bench.of(without, ToolResult)[0].text


async def test_a_limit_of_minutes_ends_a_request(bench: Bench) -> None:
    slow = Turn(reasoning="Hm.", content="Slow.", wire={"delay": 60, "chunk": 3})
    began = time.monotonic()
    session = await bench.play([slow, DONE], limits=Limits(minutes=0.005))
    assert time.monotonic() - began < 5
    assert bench.code(session) == 5
    assert "minutes" in session.result().reason
    assert bench.of(session, Interruption)[0].during == "request"
    assert bench.code(await bench.play_on([DONE], "Go on.")) == 0


async def test_a_limit_of_minutes(bench: Bench) -> None:
    tools = [Nap(), FinishTool()]
    session = await bench.play([naps(0.2), DONE], tools=tools, limits=Limits(minutes=0.002))
    assert bench.code(session) == 5
    assert "minutes" in session.result().reason


async def test_a_full_window_ends_before_the_request(bench: Bench) -> None:
    session = await bench.play([DONE], words="x" * 60_000, window=20_000)
    assert bench.code(session) == 5
    assert "context window is full" in session.result().reason
    assert bench.requests(session) == []


async def test_k22_a_request_may_use_what_is_left_of_the_window(bench: Bench) -> None:
    session = await bench.play([*READS[:2], DONE], window=100_000)
    for request, sent in zip(bench.requests(session), bench.of(session, RequestSent), strict=True):
        assert request.max_completion_tokens == 100_000 - sent.estimated_tokens
        assert request.max_completion_tokens == sent.max_completion_tokens


def overflow(text: str) -> Status:
    return Status(status=400, body={"error": {"message": text, "type": "invalid_request_error"}})


async def test_k29_an_overflow_that_names_the_window_is_tried_smaller(bench: Bench) -> None:
    text = (
        "This model's maximum context length is 50000 tokens. However, you requested 99999 tokens."
    )
    session = await bench.play([Turn(calls=_done(), faults=(overflow(text),))], window=100_000)
    first, second = bench.requests(session)
    assert first.messages == second.messages
    assert second.max_completion_tokens < 50_000 < first.max_completion_tokens
    assert session.provider.window == 50_000
    assert bench.code(session) == 0


async def test_k29_an_overflow_that_teaches_nothing_is_not_sent_again(bench: Bench) -> None:
    text = "Your request exceeded model token limit"
    session = await bench.play([Turn(calls=_done(), faults=(overflow(text),))], window=100_000)
    assert len(bench.requests(session)) == 1
    assert bench.code(session) == 7
    assert [e.kind for e in bench.of(session, Error)] == ["context_overflow"]


def _done() -> tuple[ScriptedCall, ...]:
    return (ScriptedCall(name="finish", arguments=DONE[0][1]),)


async def test_a_model_that_cannot_answer_is_7_with_one_line(bench: Bench) -> None:
    refused = Status(status=401, body={"error": {"message": "Invalid Authentication"}})
    session = await bench.play([Turn(content="never", faults=(refused,))])
    assert bench.code(session) == 7
    assert "\n" not in session.result().reason
    # Nothing is lost: with the key set right, it goes on.
    session = await bench.play_on([DONE])
    assert bench.code(session) == 0


# --- circles --------------------------------------------------------------------------------------

SAME = [("read", {"path": "a.py"})]


async def test_k10_k12_the_fifth_identical_call_never_runs_and_the_run_ends_with_6(
    bench: Bench,
) -> None:
    session = await bench.play(lambda _question: {"calls": [{"name": "read", "arguments": {"path": "a.py"}}]})  # fmt: skip
    assert bench.code(session) == 6
    assert len(bench.requests(session)) == 5
    assert len(bench.of(session, ToolStarted)) == 4
    last = bench.of(session, ToolResult)[-1]
    assert last.text.startswith("Not run: ")


async def test_k13_a_repeated_read_gives_the_content_each_time(bench: Bench) -> None:
    session = await bench.play([SAME] * 4 + [DONE])
    assert bench.code(session) == 0
    texts = [r.text for r in bench.of(session, ToolResult)][:4]
    assert len(set(texts)) == 1
    assert "return 1" in texts[0]


async def test_k11_the_tail_is_left_out_of_the_next_request_never_of_the_log(
    bench: Bench,
) -> None:
    first = await bench.play([[("list", {})]] + [SAME] * 5)
    assert bench.code(first) == 6
    log = [e for e in first.events if isinstance(e, AssistantMessage)]
    assert len(log) == 6
    resumed = await bench.play_on([DONE], words="Stop that. Finish.")
    request = bench.requests(resumed)[0]
    # The prefix before the tail (the first of the five stays), and the new words.
    kept = bench.requests(first)[2].messages
    assert request.messages[:-1] == kept
    assert bench.messages(resumed, 0)[-1]["content"] == "Stop that. Finish."
    assert bench.code(resumed) == 0
    (elided,) = bench.of(resumed, Elided)
    assert elided.hash == log[2].hash
    assert [e for e in resumed.events if isinstance(e, AssistantMessage)][:6] == log


async def test_k12_two_alternating_steps_end_within_ten(bench: Bench) -> None:
    one, two = SAME, [("read", {"path": "b.py"})]
    session = await bench.play([one, two] * 8)
    assert bench.code(session) == 6
    assert len(bench.requests(session)) <= 10


async def test_k13_a_circle_goes_on_only_where_the_model_leaves_it(bench: Bench) -> None:
    await bench.play([SAME] * 5)
    again = await bench.play_on([SAME] * 6)
    assert bench.code(again) == 6
    assert len(bench.requests(again)) <= 5
    left = await bench.play_on([[("read", {"path": "b.py"})], DONE])
    assert bench.code(left) == 0


# --- the git tool ---------------------------------------------------------------------------------

COMMIT = ("git", {"action": "commit", "paths": ["a.py"], "message": "Return two"})


async def test_a_commit_asks_and_is_no_second_file(bench: Bench) -> None:
    session = await bench.play([[EDIT], [COMMIT], DONE], allow=["write:a.py"])
    assert bench.code(session) == 3
    (waiting,) = session.pending
    assert waiting.preview == "Return two\n\n M a.py"


async def test_a_commit_that_is_allowed_can_be_undone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "A")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "a@example.com")
    branch = bench.repo / ".git" / bench.read(".git/HEAD").decode().split()[1]
    before = branch.read_bytes()
    allow = ["write:a.py", "write:.git"]
    session = await bench.play([[EDIT], [COMMIT], DONE], allow=allow)
    assert bench.code(session) == 0
    assert bench.of(session, ToolResult)[1].text.startswith("Committed ")
    assert branch.read_bytes() != before
    undo = session.core.undo
    assert not [item for item in undo.restore(undo.plan(session.events)) if item.refusal]
    assert branch.read_bytes() == before
    assert b"return 1" in bench.read("a.py")
