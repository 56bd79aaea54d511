"""`approve --always`: the rule is shown as it is stored, and means no more than it shows."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unabridged.agent.effects import Effect, EffectKind
from unabridged.agent.policy import ALWAYS_ASK, Rule, decide
from unabridged.agent.providers.scripted import Script
from unabridged.agent.remember import as_toml, rules_for

if TYPE_CHECKING:
    from unabridged.agent.providers.scripted_server import ScriptedServer

WORD = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6) | st.sampled_from(
    ["*", "?", "a b", "\\", '"', "#", "!", "--x", "'", "\x7f", "é"]
)
NAME = WORD.filter(lambda name: "/" not in name and "\0" not in name and name not in (".", ".."))
COMMAND = st.lists(WORD.filter(lambda word: "\0" not in word), min_size=1, max_size=4).map(tuple)
PATH = st.lists(NAME, min_size=1, max_size=3).map("/".join)
WRITING = st.sampled_from([EffectKind.WRITE, EffectKind.DELETE, EffectKind.READ])


@given(COMMAND, COMMAND)
def test_a_rule_for_a_command_is_for_that_command(
    command: tuple[str, ...], other: tuple[str, ...]
) -> None:
    rules = rules_for([Effect(kind=EffectKind.EXECUTE, command=command)])
    if rules is None:
        assert command[-1] == "*"
        return
    applies = [
        decide([Effect(kind=EffectKind.EXECUTE, command=words)], rules).verdict == "allow"
        for words in (command, other, (*command, "more"))
    ]
    assert applies == [True, other == command, False]


@given(WRITING, PATH, PATH)
def test_a_rule_for_a_file_is_for_that_file(kind: EffectKind, path: str, other: str) -> None:
    rules = rules_for([Effect(kind=kind, path=path)])
    if rules is None:
        return
    (rule,) = rules
    assert rule.applies(Effect(kind=kind, path=path))
    if other != path and not other.startswith(f"{path}/"):
        assert not rule.applies(Effect(kind=kind, path=other))
    assert not rule.applies(Effect(kind=EffectKind.NETWORK))


@given(st.one_of(
    st.builds(Effect, kind=st.just(EffectKind.EXECUTE), command=COMMAND),
    st.builds(Effect, kind=WRITING, path=PATH),
    st.builds(Effect, kind=st.just(EffectKind.NETWORK)),
), st.booleans())  # fmt: skip
def test_what_is_shown_is_what_is_loaded(effect: Effect, broad: bool) -> None:
    for rule in rules_for([effect], broad=broad) or ():
        (stored,) = tomllib.loads(as_toml(rule))["rule"]
        assert Rule.model_validate({**stored, "origin": rule.origin}) == rule
        assert rule.applies(effect)
        if rule.command or rule.path:
            assert rule.match
            assert rule.not_match


@pytest.mark.parametrize(
    "kind", [*ALWAYS_ASK, EffectKind.SECRET, EffectKind.WRITE, EffectKind.EXECUTE]
)
def test_what_can_never_be_always_allowed(kind: EffectKind) -> None:
    path = "x" if kind in (*ALWAYS_ASK, EffectKind.SECRET) else None
    assert rules_for([Effect(kind=kind, path=path)]) is None


# --- on the command line ---------------------------------------------------------------------------


Program = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo/a.py").write_bytes(b"x = 1\n")
    return tmp_path


@pytest.fixture
def program(home: Path) -> Program:
    def run(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        env = {"PATH": os.environ["PATH"], "HOME": str(home), "XDG_CONFIG_HOME": str(home / "config"),
               **({"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {})}  # fmt: skip
        return subprocess.run(
            [sys.executable, "-m", "unabridged", *words, "--repo", str(home / "repo"),
             "--sessions-dir", str(home / "sessions")],
            env=env, cwd=home, capture_output=True, text=True, check=False,
            **{"stdin": subprocess.DEVNULL, **options},
        )  # fmt: skip

    return run


def script(*calls: dict[str, Any]) -> Script:
    finish = {"name": "finish", "arguments": {"status": "done", "summary": "ok"}}
    turns = [{"calls": calls}, {"calls": [finish]}]
    return Script.model_validate({"turns": turns, "order": "history"})


def shell(command: str) -> dict[str, Any]:
    return {"name": "shell", "arguments": {"command": command}}


def test_the_rule_is_shown_asked_about_stored_and_counts(
    home: Path, program: Program, serve_script: Callable[..., ScriptedServer]
) -> None:
    model = ("--base-url", serve_script(script(shell("make -n tests"))).url, "--model", "k",
             "--sandbox", "off")  # fmt: skip
    settings = home / "config/unabridged/config.toml"
    expected = (
        '[[rule]]\ndecision = "allow"\neffect = "execute"\ncommand = ["make", "-n", "tests"]\n'
        'match = ["make -n tests"]\nnot_match = ["make -n tests --other"]\n'
    )
    assert program("run", "Test", *model).returncode == 3

    refused = program("approve", "last", "--always", *model)
    assert refused.returncode == 2
    assert expected in refused.stderr
    assert "--yes" in refused.stderr

    terminal, inside = os.openpty()
    os.write(terminal, b"n\n")
    declined = program("approve", "last", "--always", *model, stdin=inside)
    assert "nothing was stored or approved" in declined.stderr
    assert not settings.exists()

    os.write(terminal, b"y\n")
    agreed = program("approve", "last", "--always", *model, stdin=inside)
    assert agreed.returncode == 0, agreed.stderr
    assert settings.read_text() == expected
    assert program("run", "Test again", *model).returncode == 0


def test_what_no_rule_can_allow_is_said_and_nothing_is_stored(
    home: Path, program: Program, serve_script: Callable[..., ScriptedServer]
) -> None:
    url = serve_script(script(shell("git reset --hard"))).url
    model = ("--base-url", url, "--model", "k", "--sandbox", "off")
    assert program("run", "Test", *model).returncode == 3
    refused = program("approve", "last", "--always", "--yes", *model)
    assert refused.returncode == 2
    assert "no rule can always allow" in refused.stderr
    assert not (home / "config").exists()
