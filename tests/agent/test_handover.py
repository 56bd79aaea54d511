"""The window fills: a warning, a stop at which the user chooses, a fresh session with what matters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from unabridged.agent.budget import MIN_COMPLETION, filling
from unabridged.agent.events import (
    AssistantMessage,
    ImagePart,
    ScopeGranted,
    SessionStarted,
    SystemMessage,
    TextPart,
    UserMessage,
    WindowFilling,
)
from unabridged.agent.handover import instructions, left_behind
from unabridged.agent.providers.scripted import ScriptedCall, Turn
from unabridged.agent.session import Session
from unabridged.cli import main

if TYPE_CHECKING:
    from .conftest import Bench, MakeRepo

DONE = [("finish", {"status": "done", "summary": "Did it."})]
WINDOW = 65_536
AGENTS = "# Rules\n\nNever touch `legacy/`.\n  Keep\ttabs.\r\n"


@pytest.mark.parametrize(
    ("tokens", "said", "event", "ends"),
    [
        (79_999, "", None, None),
        (80_000, "", "warns", None),
        (80_000, "warned", None, None),
        (92_000, "", "asks", "92% full"),
        (92_000, "warned", "asks", "92% full"),
        (92_000, "asked", None, None),
        (100_000 - MIN_COMPLETION + 1, "asked", None, "window is full"),
        (100_000 - MIN_COMPLETION + 1, "", None, "window is full"),
        (200_000, "asked", None, "window is full"),
    ],
)
def test_when_it_warns_and_when_it_asks(
    tokens: int, said: Any, event: str | None, ends: str | None
) -> None:
    logged, why = filling(tokens, 100_000, said)
    assert event == (None if logged is None else "asks" if logged.asks else "warns")
    assert (why is None) if ends is None else (ends in str(why))


def reads(share: float) -> Turn:
    """A turn that takes about a part of the window."""
    call = ScriptedCall(name="read", arguments={"path": "b.py"})
    return Turn(reasoning="word " * int(share * WINDOW * 4 / 5), calls=(call,))


async def test_a_run_warns_stops_once_and_goes_on_to_the_end(bench: Bench) -> None:
    session = await bench.play([reads(0.42), reads(0.35), reads(0.12), DONE], window=WINDOW)
    filled = bench.of(session, WindowFilling)
    assert [event.asks for event in filled] == [False, True]
    assert bench.code(session) == 5
    assert session.ended is not None
    assert "run --handover" in session.ended.reason
    context = session.result().context
    assert context is not None
    assert context.filled is not None
    assert context.filled >= 0.92
    # Nothing was compacted: what went out is still all there, and going on uses up the rest.
    on = await bench.play_on([reads(0.005), DONE], window=WINDOW)
    assert bench.code(on) == 0
    assert len(bench.of(on, WindowFilling)) == 2
    assert len(bench.of(on, AssistantMessage)) == 5


async def test_what_goes_over_is_word_for_word(bench: Bench) -> None:
    scope = {"plan": "1. Look.\n2. Change `a`.\n", "paths": ["a.py"], "not_touch": ["b.py"]}
    words = "Do it — é\u202e, exactly:\n\tso\r\n"
    image = ImagePart(url="data:image/png;base64,iVBORw0KGgo=")
    old = bench.create(
        [
            [("propose_plan", scope)],
            [("edit", {"path": "a.py", "old": "1", "new": "2"})],
            [("shell", {"command": "false"})],
            [("ask_user", {"question": "Which one?", "choices": ["x", "y"]})],
        ],
        instructions=AGENTS,
        allow=["execute"],
    )
    async for _ in old.start([TextPart(text=words), image]):
        pass
    old.approve()
    await bench.run(old)
    await old.close()
    assert old.questions

    answered = bench.resume([[("ask_user", {"question": "And why?"})]], allow=["execute"])
    answered.answer("x, because")
    await bench.run(answered)
    await answered.close()
    events = list(answered.events)

    settings = answered.settings
    fresh = Session.create(
        bench.repo, bench.create([DONE]).provider, settings, bench.sessions, continues=events
    )
    async with fresh:
        said = bench.of(fresh, UserMessage)
        assert said[0].parts == (TextPart(text=words), image)
        (note,) = [message for message in said if message.origin == "harness"]
        (part,) = note.parts
        assert isinstance(part, TextPart)
        assert scope["plan"] in part.text
        assert '"paths":["a.py"]' in part.text
        assert "You asked: Which one?\n- x\n- y\nThe user answered: x, because" in part.text
        assert "You asked: And why?\nIt is still open." in part.text
        assert "- a.py" in part.text
        assert "- false: exit 1" in part.text
        for line in left_behind(events):
            assert f"- {line}" in part.text
        assert left_behind(events)[0].startswith("5 steps: ")
        assert [event.scope for event in bench.of(fresh, ScopeGranted)] == [
            event.scope for event in bench.of(answered, ScopeGranted)
        ]
        (started,) = bench.of(fresh, SessionStarted)
        assert started.continues == answered.id
        # The repository as it is now, before the words.
        await bench.run(fresh)
        messages = bench.messages(fresh)
        assert "return 2" in messages[1]["content"]
        assert bench.code(fresh) == 0


def test_agents_md_goes_over_as_it_was(bench: Bench) -> None:
    old = bench.create([DONE], instructions=AGENTS)
    assert instructions(old.events) == AGENTS
    assert instructions(bench.create([DONE]).events) is None
    (system,) = bench.of(old, SystemMessage)
    assert system.text.endswith(AGENTS)


def test_on_the_command_line(
    make_repo: MakeRepo, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repo = make_repo({"a.py": b"x = 1\n", "data/b.json": b"{}", "AGENTS.md": AGENTS.encode()})
    script = tmp_path / "script.json"
    turn = {"calls": [{"name": "finish", "arguments": {"status": "done", "summary": "Done."}}]}
    script.write_text(json.dumps({"order": "history", "turns": [turn]}))
    common = ["--repo", str(repo), "--script", str(script), "--sessions-dir", str(tmp_path / "s")]

    def call(*words: str) -> tuple[int, str, str]:
        code = main(["run", *words, *common])
        told = capsys.readouterr()
        return code, told.out, told.err

    code, out, _ = call(
        "First words", "--trust", "--outline", "data/", "--allow", "write", "--json"
    )
    assert code == 0
    first = json.loads(out)
    assert first["context"]["outlined"] == {"data/b.json": "as asked"}
    code, out, err = call("--handover", "last", "--json")
    assert code == 0
    second = json.loads(out)
    assert second["session"] != first["session"]
    assert f"goes on from {first['session']}, and leaves behind:" in err
    assert second["context"]["outlined"] == {"data/b.json": "as asked"}
    log = (tmp_path / "s" / f"{second['session']}.jsonl").read_text()
    assert "Never touch `legacy/`." in log
    assert "First words" in log
    assert '"effect":"write"' in log, "the rules of the session go over"

    assert call("--handover", "last", "--resume", "last")[0] == 2
    code, _, err = call("--resume", "last", "--include", "x", "again")
    assert code == 2
    assert "has its repository already" in err
    assert call("--handover", "nothing")[0] == 2


def test_run_takes_what_context_plan_takes(
    make_repo: MakeRepo, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repo = make_repo({"a.py": b"x = 1\n", "b.md": b"text\n", "uv.lock": b"lock\n", "c.py": b"y\n"})
    script = tmp_path / "script.json"
    turn = {"calls": [{"name": "finish", "arguments": {"status": "done", "summary": "Done."}}]}
    script.write_text(json.dumps({"order": "history", "turns": [turn] * 5}))
    chosen = ["--include", "uv.lock", "--exclude", "c.py", "--outline", "b.md", "--full", "a.py"]
    assert main(["context", "plan", str(repo), "--json", *chosen]) == 0
    plan = json.loads(capsys.readouterr().out)
    code = main(["run", "go", "--repo", str(repo), "--script", str(script), "--json", *chosen,
                 "--sessions-dir", str(tmp_path / "s")])  # fmt: skip
    assert code == 0
    context = json.loads(capsys.readouterr().out)["context"]
    assert context["files"] == plan["files"] == 2
    assert context["tokens"] == plan["tokens"]
    for kind in ("outlined", "skipped"):
        assert context[kind] == {one["name"]: one["reason"] for one in plan[kind]}
    (repo / "data.json").write_bytes(b"[" + b"1, " * 200_000 + b"1]")
    code = main(["run", "go", "--repo", str(repo), "--script", str(script), "--require-full",
                 "--window", "65536", "--sessions-dir", str(tmp_path / "s")])  # fmt: skip
    told = capsys.readouterr().err
    assert code == 2, told
    assert "do not fit whole, data.json among them" in told
