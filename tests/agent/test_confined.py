"""What a session keeps from its commands, and what it keeps from its purse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from unabridged.agent.effects import Effect, EffectKind
from unabridged.agent.events import BudgetReached, Checkpoint, RequestSent, ToolResult
from unabridged.agent.headless import Output, run_headless, summary
from unabridged.agent.policy import outside_scope
from unabridged.agent.providers.scripted import ScriptedProvider
from unabridged.agent.undo import Undo
from unabridged.tools import shell as shell_module
from unabridged.tools.base import ToolError

FINISH = [("finish", {"status": "done", "summary": "ok"})]


@pytest.mark.needs("bwrap")
async def test_a_command_in_the_sandbox_cannot_read_the_key_file(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Outside /tmp, which every sandbox hides anyway.
    folder = Path.home() / f".unabridged-test-{tmp_path.name}"
    folder.mkdir()
    try:
        (folder / "credentials.json").write_bytes(b'{"x": "sk-never-seen"}')
        (folder / "config.toml").write_bytes(b"# mine\n")
        monkeypatch.setattr("unabridged.agent.session.config_folder", lambda: folder)
        monkeypatch.setattr("unabridged.agent.credentials.config_folder", lambda: folder)
        command = (
            f"cat {folder}/config.toml {folder}/credentials.json; echo x > {folder}/config.toml"
        )
        allow = ["execute", "read", "write", "secret", "outside_root"]
        session = await bench.play(
            [[("shell", {"command": command})], FINISH], allow=allow, sandbox="required"
        )
        (result, _) = bench.of(session, ToolResult)
        assert "# mine" in result.text
        assert "sk-never-seen" not in result.text
        assert (folder / "config.toml").read_bytes() == b"# mine\n"
    finally:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


@pytest.mark.parametrize(
    ("sandbox", "scans"),
    [pytest.param("required", 0, marks=pytest.mark.needs("bwrap")), ("off", 1)],
)
async def test_the_tree_is_looked_through_only_where_a_command_could_change_it(
    bench: Any, monkeypatch: pytest.MonkeyPatch, sandbox: str, scans: int
) -> None:
    session = bench.create(
        [[("shell", {"command": 'python3 -c \'open("new", "w")\''})], FINISH],
        allow=["execute"],
        sandbox=sandbox,
    )
    looks: list[int] = []
    real = session.core.undo.scan
    monkeypatch.setattr(session.core.undo, "scan", lambda: looks.append(1) or real())
    await bench.run(session, "Do it")
    assert len(looks) == scans
    assert (bench.repo / "new").exists() is bool(scans)
    assert bool(bench.of(session, Checkpoint)) is bool(scans)


@pytest.mark.needs("bwrap")
async def test_a_granted_write_in_the_sandbox_is_seen(bench: Any) -> None:
    command = 'python3 -c \'open("new", "w")\''
    session = await bench.play(
        [[("shell", {"command": command, "writes": True})], FINISH],
        allow=["execute", "write"],
        sandbox="required",
    )
    assert (bench.repo / "new").exists()
    assert [change.path for change in session.result().files_changed] == ["new"]


def test_without_bash_no_other_shell_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        shell_module.shutil, "which", lambda name: None if name == "bash" else "/bin/sh"
    )
    shell_module._shell.cache_clear()
    try:
        with pytest.raises(ToolError, match="no bash"):
            shell_module._shell()
    finally:
        shell_module._shell.cache_clear()


@pytest.mark.parametrize(("limit", "code"), [(0.001, 5), (1.0, 0), (None, 0)])
async def test_a_load_that_costs_too_much_is_never_sent(
    bench: Any, limit: float | None, code: int
) -> None:
    def price(usage: Any) -> float:
        return 1e-5 * (usage.prompt + usage.completion)

    session = await bench.play([FINISH], price=price, load_limit=limit)
    provider = session.provider
    assert isinstance(provider, ScriptedProvider)
    assert bench.code(session) == code
    assert len(provider.requests) == (0 if code else 1)
    assert bool(bench.of(session, RequestSent)) is not bool(code)
    assert bool(bench.of(session, BudgetReached)) is bool(code)
    if code:
        assert "--max-cost" in session.result().reason


# --- what nobody agreed to -----------------------------------------------------------------------

SNEAKY = (
    'python3 -c \'import os; open("new", "w"); open("b.py", "a").write("x"); os.unlink("a.py")\''
)
PLAN = ("propose_plan", {"plan": "p", "paths": ["new"], "commands": [["python3", "*"]]})


async def outside(bench: Any, turns: Any, **options: Any) -> tuple[Any, list[str]]:
    session = await bench.play([*turns, FINISH], **options)
    found = session.result().outside_scope
    assert all(change.step == len(turns) for change in found)
    return session, sorted(change.path for change in found)


async def test_what_a_command_changed_without_a_word_is_listed_and_comes_back(bench: Any) -> None:
    before = {name: bench.read(name) for name in ("a.py", "b.py")}
    session, paths = await outside(bench, [[("shell", {"command": SNEAKY})]], allow=["execute"])
    assert paths == ["a.py", "b.py", "new"]
    text = bench.of(session, ToolResult)[0].text
    assert text.endswith("agreed to: a.py, b.py, new. The user is told and can undo it.]")
    assert f"unabridged undo {session.id} --step 1" in summary(session.result())
    undone = Undo(bench.repo, session.core.store.files)
    assert not any(item.refusal for item in undone.restore(undone.plan(session.events, 1)))
    assert {name: bench.read(name) for name in before} == before
    assert not (bench.repo / "new").exists()


async def test_what_was_agreed_to_is_not_listed(bench: Any) -> None:
    call = ("shell", {"command": SNEAKY, "writes": True})
    assert (await outside(bench, [[call]], allow=["execute", "write"]))[1] == []


@pytest.mark.parametrize(
    ("allow", "expected"),
    [
        (["write:new"], ["a.py", "b.py"]),
        (["write:*.py", "delete:a.py"], ["new"]),
        (["write", "delete"], []),
    ],
)
async def test_a_rule_agrees_to_what_it_names(
    bench: Any, allow: list[str], expected: list[str]
) -> None:
    call = ("shell", {"command": SNEAKY})
    assert (await outside(bench, [[call]], allow=["execute", *allow]))[1] == expected


async def test_a_plan_is_held_to_also_by_a_call_that_may_write(bench: Any) -> None:
    writing = ("shell", {"command": SNEAKY, "writes": True})
    await bench.play([[PLAN], [writing]])
    for turns in ([[writing]], [FINISH]):
        session = bench.resume(turns)
        session.approve()
        await bench.run(session)
        await session.close()
    assert {c.path for c in session.result().outside_scope} == {"a.py", "b.py"}


def test_gits_own_files_belong_to_git_but_not_what_it_runs() -> None:
    changed: dict[str, EffectKind] = dict.fromkeys(
        (".git/index", ".git/refs/heads/main", ".git/hooks/pre-commit", ".git/config"),
        EffectKind.WRITE,
    )
    git = Effect(kind=EffectKind.EXECUTE, command=("git", "commit"))
    python = Effect(kind=EffectKind.EXECUTE, command=("python3", "x"))
    assert outside_scope(changed, [git]) == (".git/config", ".git/hooks/pre-commit")
    assert outside_scope(changed, [python]) == tuple(sorted(changed))


@pytest.mark.parametrize(
    "mode", ["off", pytest.param("required", marks=pytest.mark.needs("bwrap"))]
)
async def test_the_state_of_the_sandbox_is_in_the_result(bench: Any, mode: str) -> None:
    session = await bench.play([FINISH], sandbox=mode)
    said = session.result().sandbox
    assert said.startswith("sandbox off: switched off" if mode == "off" else "sandbox on")


@pytest.mark.parametrize("form", ["text", "json"])
async def test_what_nobody_agreed_to_is_said_on_standard_error(
    bench: Any, capfd: pytest.CaptureFixture[str], form: Any
) -> None:
    session = bench.create([[("shell", {"command": SNEAKY})], FINISH], allow=["execute"])
    assert await run_headless(session, "Do it", Output(format=form)) == 0
    said = capfd.readouterr()
    assert "changed what nobody agreed to: a.py, b.py, new\n" in said.err
    if form == "json":
        found = json.loads(said.out)["outside_scope"]
        assert found == [{"path": name, "step": 1} for name in ("a.py", "b.py", "new")]
    else:
        assert "sandbox off: switched off" in said.err
        assert f"unabridged undo {session.id} --step 1" in said.out
