"""What an interactive front end does through `Session`: each of its doors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unabridged.agent.config import ConfigError, Flags, load_config
from unabridged.agent.effects import Effect, EffectKind
from unabridged.agent.events import (
    Approval,
    Decision,
    Plan,
    RequestSent,
    RunStarted,
    ScopeGranted,
    SessionStarted,
    TextPart,
    ToolResult,
    UserMessage,
)
from unabridged.agent.fork import fork
from unabridged.agent.policy import Rule, decide_effect, parse_allow
from unabridged.agent.providers.base import CallOutput
from unabridged.agent.remember import anchored, as_toml, asked, remember, rules_for, scope_for
from unabridged.agent.scope import Scope, joined
from unabridged.agent.session import Session, SessionError
from unabridged.agent.store import read


def edit(path: str, old: str, new: str) -> tuple[str, dict[str, Any]]:
    return "edit", {"path": path, "old": old, "new": new}


EDIT = [edit("a.py", "return 1", "return 2")]
FINISH = [("finish", {"status": "done", "summary": "ok"})]


async def play(session: Session, act: Callable[[Session], object], words: str = "Do it") -> None:
    """Run, and act each time that something waits for a person."""
    async for item in session.start(words):
        if isinstance(item, Decision | Plan) and session.pending:
            act(session)


async def test_widening_the_scope_lets_later_calls_pass(bench: Any) -> None:
    session = bench.create([EDIT, [edit("a.py", "return 2", "return 3")], FINISH], on_ask="wait")
    seen: list[str] = []

    def act(session: Session) -> None:
        (pending,) = session.pending
        seen.append(pending.call_id)
        session.widen(scope_for(pending.effects))

    await play(session, act)
    assert len(seen) == 1
    assert (bench.repo / "a.py").read_text() == "def f():\n    return 3\n"
    assert bench.code(session) == 0


async def test_a_rule_for_the_session_is_recorded_with_the_next_run(bench: Any) -> None:
    session = bench.create([EDIT, "Done.", "Again."], on_ask="wait")
    rule = parse_allow("write:a.py")
    await play(session, lambda s: s.allow([rule]))
    assert (bench.repo / "a.py").read_text() == "def f():\n    return 2\n"
    await bench.run(session, "More")
    assert bench.of(session, RunStarted)[-1].rules[0]["path"] == "a.py"


async def test_an_edited_plan_counts_and_the_model_is_told(bench: Any) -> None:
    plan = [("propose_plan", {"plan": "Change both.", "paths": ["a.py", "b.py"]})]
    session = bench.create([plan, EDIT, "Done."], on_ask="wait")
    scope = Scope(paths=("a.py",), kinds=(EffectKind.WRITE,), not_touch=("docs/",))
    await play(session, lambda s: s.approve(s.pending[0].call_id, scope=scope))
    assert bench.of(session, ScopeGranted)[0].scope == scope
    told = bench.of(session, ToolResult)[0].text
    assert "another scope" in told
    assert "docs/" in told
    assert (bench.repo / "a.py").read_text() == "def f():\n    return 2\n"
    assert bench.of(session, Approval)[0].scope == scope


async def test_what_is_said_meanwhile_reaches_the_next_request_and_keeps_the_scope(
    bench: Any,
) -> None:
    plan = [("propose_plan", {"plan": "Change it.", "paths": ["a.py"]})]
    look = [("read", {"path": "b.py"})]
    session = bench.create([plan, look, EDIT, "Done."], on_ask="wait")

    def act(session: Session) -> None:
        session.approve()
        session.say("and keep the docstring")

    await play(session, act)
    said = [e for e in bench.of(session, UserMessage) if e.parts[0].text.startswith("and keep")]
    assert len(said) == 1
    assert said[0].origin == "user"
    assert said[0].seq < bench.of(session, RequestSent)[1].seq
    assert (
        bench.repo / "a.py"
    ).read_text() == "def f():\n    return 2\n"  # the plan still covers it
    assert [d.decision for d in bench.of(session, Decision)].count("ask") == 1


async def test_what_was_said_can_be_taken_back(bench: Any) -> None:
    session = bench.create(["Done."], on_ask="wait")
    session.say("one")
    session.say("two")
    assert session.unsaid() == (TextPart(text="one"), TextPart(text="two"))
    await bench.run(session, "Go")
    assert len(bench.of(session, UserMessage)) == 1


async def test_output_streams_while_a_command_runs(bench: Any) -> None:
    session = bench.create(
        [[("shell", {"command": "echo one; sleep 0.2; echo two"})], "Done."], on_ask="wait",
        allow=["execute"],
    )  # fmt: skip
    items = await bench.run(session, "Go")
    live = [item.text for item in items if isinstance(item, CallOutput)]
    assert "".join(live) == "one\ntwo\n"
    assert len(live) > 1


async def test_the_users_own_command_is_not_asked_but_a_rule_denies(bench: Any) -> None:
    session = bench.create([], on_ask="wait", allow=[])
    before = len(session.events)
    result = await session.shell("echo hello > own.txt && cat own.txt")
    assert "hello" in result.text
    assert (bench.repo / "own.txt").read_text() == "hello\n"
    assert len(session.events) == before
    session.allow([Rule(decision="deny", effect=EffectKind.NETWORK)])
    with pytest.raises(SessionError, match="not run"):
        await session.shell("curl http://example.com")


async def test_a_change_waits_for_the_end_of_the_run(bench: Any) -> None:
    session = bench.create([EDIT, "Done."], on_ask="wait")

    def act(session: Session) -> None:
        with pytest.raises(SessionError, match="at work"):
            session.change()
        session.deny()

    await play(session, act)
    from dataclasses import replace

    session.change(settings=replace(session.settings, effort="low"))
    assert session.settings.effort == "low"


async def test_a_fork_before_the_users_words_goes_on_with_others(bench: Any) -> None:
    session = await bench.play(["First.", "Second."], "One")
    session = await bench.play_on(["Second."], "Two")
    kept = session.events[: [e.seq for e in bench.of(session, UserMessage)][1]]
    name = fork(bench.sessions, session.id, kept)
    other = bench.resume(["Third."], session=name)
    await bench.run(other, "Another two")
    texts = [e.parts[0].text for e in bench.of(other, UserMessage) if e.origin == "user"]
    assert texts == ["One", "Another two"]
    assert bench.of(other, SessionStarted)[0].forked_from == session.id
    assert len(read(bench.sessions / f"{session.id}.jsonl")) == len(session.events)


# --- rules made in a dialogue --------------------------------------------------------------------


def test_rules_for_what_is_asked() -> None:
    effects = (
        Effect(kind=EffectKind.EXECUTE, command=("git", "log", "-p")),
        Effect(kind=EffectKind.WRITE, path="src/lib/a.py"),
        Effect(kind=EffectKind.READ, path="src/b.py"),
    )
    wanted = asked(effects, (), None)
    assert [e.kind.value for e in wanted] == ["execute", "write"]
    narrow = rules_for(wanted)
    broad = rules_for(wanted, broad=True)
    assert narrow is not None
    assert broad is not None
    assert [r.command or r.path for r in narrow] == [("git", "log", "-p"), "./src/lib/a.py"]
    assert [r.command or r.path for r in broad] == [("git", "log", "*"), "./src/lib/"]
    assert asked(effects, narrow, None) == asked(effects, broad, None) == []
    elsewhere = Effect(kind=EffectKind.WRITE, path="other/src/lib/a.py")
    assert decide_effect(elsewhere, broad, None).verdict == "ask"


@pytest.mark.parametrize(
    "effect",
    [
        Effect(kind=EffectKind.GIT_DESTRUCTIVE, path="a"),
        Effect(kind=EffectKind.SECRET, path=".env"),
        Effect(kind=EffectKind.EXECUTE),
        Effect(kind=EffectKind.WRITE),
        Effect(kind=EffectKind.EXECUTE, command=("ls", "*")),
    ],
)
def test_no_rule_is_offered_where_none_can_be_exact(effect: Effect) -> None:
    assert rules_for([effect]) is None


@given(st.text(min_size=1).filter(lambda t: "\0" not in t and not t.startswith("/")))
def test_a_rule_for_a_path_means_that_path(name: str) -> None:
    made = rules_for([Effect(kind=EffectKind.WRITE, path=name)])
    if made is None:
        return
    assert made[0].applies(Effect(kind=EffectKind.WRITE, path=name))
    # A rule for a folder reaches into it, so the other folder must not be the path itself.
    other = "x" + name.partition("/")[0]
    assert not made[0].applies(Effect(kind=EffectKind.WRITE, path=f"{other}/{name}"))
    assert not made[0].applies(Effect(kind=EffectKind.WRITE, path=f"{name}x"))
    assert not name.endswith("/")


def test_rules_are_kept_in_the_settings_whose_lines_stay(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"# mine\n[model]\neffort = 'low'")
    rules = rules_for(
        [
            Effect(kind=EffectKind.EXECUTE, command=("say", 'a "b" \\ \x7f é\n')),
            Effect(kind=EffectKind.WRITE, path="we[i]rd*.py"),
        ]
    )
    assert rules is not None
    assert remember(rules, path) == path
    assert path.read_bytes().startswith(b"# mine\n[model]\neffort = 'low'\n\n[[rule]]\n")
    config = load_config(Flags(), user=path, env={})
    assert config.effort == "low"
    assert [r.model_copy(update={"origin": ""}) for r in config.rules] == [
        r.model_copy(update={"origin": ""}) for r in rules
    ]
    remember(rules, tmp_path / "new" / "config.toml")
    assert (tmp_path / "new/config.toml").read_text() == "\n".join(map(as_toml, rules))


def test_settings_that_cannot_be_read_are_left_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"nonsense = [")
    rules = rules_for([Effect(kind=EffectKind.WRITE, path="a")])
    assert rules is not None
    with pytest.raises(ConfigError):
        remember(rules, path)
    assert path.read_bytes() == b"nonsense = ["
    assert [p.name for p in tmp_path.iterdir()] == ["config.toml"]


def test_scopes_join() -> None:
    one = Scope(paths=("a",), kinds=(EffectKind.WRITE,), not_touch=("c",))
    two = Scope(paths=("a", "b"), kinds=(EffectKind.DELETE,), commands=(("ls",),))
    both = joined(one, two)
    assert both.paths == ("a", "b")
    assert both.kinds == (EffectKind.WRITE, EffectKind.DELETE)
    assert both.not_touch == ("c",)
    assert joined(None, one) == one
    assert anchored("a*b") == "./a\\*b"
