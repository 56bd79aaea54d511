"""What K3-nano is told: short, the product's own tools, and nobody else's prefix."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from unabridged.agent.events import RequestSent
from unabridged.agent.profile import K3, NANO, profile_of
from unabridged.agent.prompt import SYSTEM
from unabridged.agent.providers.base import Request
from unabridged.agent.providers.kimi import KimiProvider
from unabridged.agent.providers.scripted import ScriptedProvider
from unabridged.agent.session import Session, Settings
from unabridged.model.nano import profile as nano
from unabridged.tools.registry import declarations, default_tools


def started(tmp_path: Path, model: str) -> tuple[Session, list[dict[str, Any]], list[Any]]:
    """A session's first messages and its tools."""
    repo = tmp_path / "repo"
    repo.mkdir()
    (repo / "a.py").write_bytes(b"x = 1\n")
    provider = ScriptedProvider(lambda _question: {"content": "Done."}, window=nano.WINDOW)
    session = Session.create(repo, provider, Settings(model), tmp_path / "sessions")
    messages = [json.loads(data) for data in session.core.view.request()]
    return session, messages, json.loads(session.core.view.tools)


def requests(session: Session) -> list[RequestSent]:
    return [event for event in session.events if isinstance(event, RequestSent)]


async def test_the_model_s_name_chooses_the_profile(tmp_path: Path) -> None:
    session, messages, tools = started(tmp_path, "k3-nano")
    async with session:
        assert messages[0] == {"role": "system", "content": nano.SYSTEM}
        assert [tool["function"]["name"] for tool in tools] == list(nano.TOOLS)
        # What is not declared cannot be called either.
        assert set(session.core.tools) == set(nano.TOOLS)
        async for _ in session.start("Say that you are done."):
            pass
        assert session.core.state.run is not None
        assert session.core.state.run.effort == ""
        # A reply that goes on and on is cut, long before the window is full.
        assert requests(session)[0].max_completion_tokens == nano.LONGEST_REPLY


async def test_every_other_model_is_told_everything(tmp_path: Path) -> None:
    session, messages, tools = started(tmp_path, "kimi-k3")
    async with session:
        async for _ in session.start("Say that you are done."):
            pass
        assert requests(session)[0].max_completion_tokens > nano.LONGEST_REPLY
        assert messages[0] == {"role": "system", "content": SYSTEM}
        assert tools == declarations(tuple(session.core.tools.values()))
        assert len(tools) > len(nano.TOOLS)
    assert profile_of("k3-nano-2") is K3
    assert profile_of("k3-nano") is NANO


def test_the_text_is_short() -> None:
    assert len(nano.SYSTEM.split()) <= 110
    for description, _arguments in nano.TOOLS.values():
        assert "\n" not in description
        assert len(description.split()) <= 10


def test_the_arguments_are_those_of_the_tools() -> None:
    full = {one["function"]["name"]: one["function"] for one in declarations(default_tools())}
    for one in nano.declare(declarations(default_tools())):
        name, short = one["function"]["name"], one["function"]["parameters"]
        schema = full[name]["parameters"]
        # Required arguments are all there, so a call that fits the declaration fits the tool.
        assert short.get("required", []) == schema.get("required", [])
        for argument, declared in short["properties"].items():
            whole = schema["properties"][argument]
            assert declared["type"] == whole["type"]
            assert declared.get("enum") == whole.get("enum")


@pytest.mark.parametrize(("effort", "fields"), [("", {}), ("low", {"reasoning_effort": "low"})])
def test_an_empty_effort_is_not_sent(effort: str, fields: dict[str, str]) -> None:
    provider = KimiProvider("http://127.0.0.1:1/v1", "k3-nano", None)
    body = provider.body(Request("k3-nano", [b'{"role":"user","content":"a"}'], b"[]", effort, 9))
    sent = json.loads(body)
    kept = {k: sent[k] for k in sent if "effort" in k or "thinking" in k or "template" in k}
    assert json.dumps(kept).count("effort") == len(fields)


def test_the_profile_needs_no_torch() -> None:
    code = "import sys, unabridged.agent.profile; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
