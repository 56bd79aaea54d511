"""The SDK: what `from unabridged import Session` promises, and that the promise stays as it is."""

from __future__ import annotations

import inspect
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import unabridged
from unabridged import Pending, Result, Session, events

SURFACE = {
    "answer": "(text: 'str') -> 'None'",
    "allow": "(rules: 'Sequence[Rule]') -> 'None'",
    "approve": "(call_id: 'str | None' = None, reason: 'str' = '', *, scope: 'Scope | None' = None)"
    " -> 'tuple[str, ...]'",
    "cancel": "(code: 'Exit' = <Exit.INTERRUPTED: 130>) -> 'None'",
    "close": "() -> 'None'",
    "deny": "(call_id: 'str | None' = None, reason: 'str' = '') -> 'tuple[str, ...]'",
    "ended": "attribute",
    "events": "property",
    "id": "property",
    "open": "(repo: 'str | Path' = '.', *, resume: 'str | None' = None, model: 'str | None' = None,"
    " base_url: 'str | None' = None, effort: \"Literal['low', 'high', 'max'] | None\" = None,"
    " window: 'int | None' = None, script: 'str | Path | None' = None, allow: 'Sequence[str]' = (),"
    " mode: 'Mode' = 'ask', on_ask: 'OnAsk' = 'wait', sandbox: 'SandboxMode' = 'auto',"
    " trust: 'bool' = False, max_steps: 'int | None' = None, max_tokens: 'int | None' = None,"
    " max_cost: 'float | None' = None, max_minutes: 'float | None' = None,"
    " sessions_dir: 'str | Path | None' = None) -> 'Session'",
    "pending": "property",
    "questions": "property",
    "result": "(failure: 'str | None' = None) -> 'Result'",
    "run": "(words: 'str | Sequence[Part] | None' = None, *,"
    " decide: 'Callable[[Pending], bool] | None' = None,"
    " reply: 'Callable[[Question], str] | None' = None) -> 'Result'",
    "say": "(words: 'str | Sequence[Part]') -> 'None'",
    "set_mode": "(mode: 'Mode') -> 'None'",
    "start": "(words: 'str | Sequence[Part] | None' = None) -> 'AsyncGenerator[AnyEvent | Delta]'",
}
"""What docs/sdk.md describes. Names and defaults stay; what is added has a default."""

RESULT = {
    "context", "cost_usd", "exit_code", "exit_name", "files_changed", "jobs_killed", "model",
    "endpoint", "outside_scope", "pending", "questions", "reason", "sandbox", "schema_version",
    "seconds", "session", "status", "steps", "summary", "tokens", "verification", "verified",
}  # fmt: skip


def test_the_surface_is_frozen() -> None:
    assert unabridged.__all__ == ["Pending", "Result", "Session", "__version__", "events"]
    for name, signature in SURFACE.items():
        if signature == "attribute":
            assert f"self.{name}" in inspect.getsource(Session.__init__)
        elif signature == "property":
            assert isinstance(inspect.getattr_static(Session, name), property)
        else:
            found = inspect.signature(getattr(Session, name))
            kept = [p for p in found.parameters.values() if p.name != "self"]
            assert str(found.replace(parameters=kept)) == signature, name
    assert set(Result.model_fields) == RESULT
    assert [*Pending.__dataclass_fields__] == [
        "call_id", "tool", "arguments", "effects", "reason", "preview",
    ]  # fmt: skip
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = unabridged.Nothing  # pyright: ignore[reportAttributeAccessIssue]


def test_each_name_of_the_surface_is_documented() -> None:
    text = (Path(__file__).resolve().parents[1] / "docs/sdk.md").read_text()
    missing = [name for name in SURFACE if f"`{name}" not in text and f".{name}" not in text]
    assert missing == []


# --- used as the page shows it --------------------------------------------------------------------


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for kind in ("CONFIG", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind))
    monkeypatch.setenv("HOME", str(tmp_path))
    root = tmp_path / "repo"
    root.mkdir()
    (root / "a.py").write_text("def f():\n    return 1\n")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


@pytest.fixture
def script(tmp_path: Path) -> Any:
    def write(*turns: Any) -> Path:
        path = tmp_path / "script.json"
        path.write_text(json.dumps({"order": "history", "turns": turns}))
        return path

    return write


EDIT = {
    "reasoning": "One edit.",
    "calls": [call("edit", path="a.py", old="return 1", new="return 2")],
}
ASK = {"calls": [call("ask_user", question="Sure?")]}
FINISH = {"calls": [call("finish", status="done", summary="It is two now.")]}


async def test_a_task_with_its_events_and_approvals(repo: Path, script: Any) -> None:
    async with Session.open(repo, script=script(EDIT, ASK, FINISH)) as session:
        thoughts = []
        async for item in session.start("Make f return 2"):
            match item:
                case events.AssistantMessage():
                    thoughts.append(item.reasoning)
                case events.Decision(decision="ask"):
                    (asked,) = session.pending
                    assert "+    return 2" in asked.preview
                    session.approve(asked.call_id)
                case events.Question():
                    session.answer("Yes.")
                case _:
                    pass
        result = session.result()
    assert thoughts[0] == "One edit."
    assert (result.exit_code, result.status, result.summary) == (0, "done", "It is two now.")
    assert [file.path for file in result.files_changed] == ["a.py"]
    assert "return 2" in (repo / "a.py").read_text()


async def test_run_asks_the_functions_it_is_given(repo: Path, script: Any) -> None:
    seen: list[str] = []

    def decide(call: Pending) -> bool:
        seen.append(call.tool)
        return False

    async with Session.open(repo, script=script(EDIT, ASK, FINISH)) as session:
        result = await session.run("Make f return 2", decide=decide, reply=lambda q: q.text)
    assert result.exit_code == 0
    assert seen == ["edit"]
    assert "return 1" in (repo / "a.py").read_text()
    assert next(e.text for e in session.events if isinstance(e, events.Answer)) == "Sure?"


async def test_without_a_person_the_run_stops_and_can_be_gone_on_with(
    repo: Path, script: Any
) -> None:
    async with Session.open(repo, script=script(EDIT, ASK, FINISH)) as session:
        result = await session.run("Make f return 2")
        name = session.id
    assert (result.exit_code, result.exit_name) == (3, "needs_approval")
    assert [one.tool for one in result.pending] == ["edit"]
    async with Session.open(repo, resume=name, script=script(EDIT, ASK, FINISH)) as session:
        session.approve()
        result = await session.run()
        assert result.exit_code == 4
        session.answer("Yes.")
        assert (await session.run()).exit_code == 0
    assert "return 2" in (repo / "a.py").read_text()


async def test_rules_limits_and_modes(repo: Path, script: Any) -> None:
    turns = script(EDIT, FINISH)
    async with Session.open(repo, script=turns, allow=["write:a.py"], max_steps=1) as session:
        assert (await session.run("Make f return 2")).exit_name == "budget"
    (repo / "a.py").write_text("def f():\n    return 1\n")
    async with Session.open(repo, script=turns, mode="read-only") as session:
        assert (await session.run("Make f return 2")).exit_code == 0
        assert session.pending == ()
    async with Session.open(repo, script=turns, on_ask="deny") as session:
        assert (await session.run("Make f return 2")).exit_code == 3


def test_what_cannot_be_opened_is_one_line(repo: Path, script: Any, monkeypatch: Any) -> None:
    monkeypatch.delenv("UNABRIDGED_API_KEY", raising=False)
    monkeypatch.delenv("MOONSHOT_API_KEY", raising=False)
    for options in (
        {"model": "kimi-k3"},
        {"resume": "none"},
        {"allow": ["fly"]},
        {"model": "x", "base_url": "y"},
    ):
        with pytest.raises(Exception, match=r"\.|choose") as caught:
            Session.open(repo, **options)  # pyright: ignore[reportArgumentType]
        assert "\n" not in str(caught.value)
