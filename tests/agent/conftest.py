"""What the tests of the agent share."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest

from unabridged.agent.events import AnyEvent
from unabridged.agent.policy import Rule, parse_allow
from unabridged.agent.providers.base import Delta, Request
from unabridged.agent.providers.scripted import Script, ScriptedCall, ScriptedProvider, Turn
from unabridged.agent.session import Session, Settings

MakeRepo = Callable[..., Path]
E = TypeVar("E")

FILES = {
    "a.py": b"def f():\n    return 1\n",
    "b.py": b"from a import f\n\nprint(f())\n",
    "docs/notes.txt": b"one\ntwo\n",
}


@pytest.fixture
def make_repo(tmp_path: Path) -> MakeRepo:
    """Build a real git repository: `make_repo({"a.py": b"..."})`."""

    def make(files: dict[str, bytes], name: str = "repo") -> Path:
        root = tmp_path / name
        root.mkdir()
        for path, data in files.items():
            target = root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "start"]):
            subprocess.run(
                ["git", "-c", "user.name=T", "-c", "user.email=t@example.com", *command],
                cwd=root,
                check=True,
                capture_output=True,
            )
        return root.resolve()

    return make


@pytest.fixture
async def bench(make_repo: MakeRepo, tmp_path: Path) -> AsyncIterator[Bench]:
    """Sessions over a small repository, played by scripts; closed at the end of the test."""
    async with AsyncExitStack() as stack:
        yield Bench(make_repo(FILES), tmp_path / "sessions", stack)


class Bench:
    """Runs sessions over one repository.

    A turn of a script is a `Turn`, a text (the content), or a list of calls as (name, arguments).
    """

    def __init__(self, repo: Path, sessions: Path, stack: AsyncExitStack) -> None:
        self.repo = repo
        self.sessions = sessions
        self._stack = stack

    def create(self, script: Any, **options: Any) -> Session:
        """A new session; `allow` holds rules as `--allow` takes them."""
        provider, settings = _options(script, options)
        return self._kept(Session.create(self.repo, provider, settings, self.sessions))

    def resume(self, script: Any = (), session: str = "last", **options: Any) -> Session:
        """The same session again, from its log."""
        provider, settings = _options(script, options)
        return self._kept(
            Session.resume(session, provider, settings, self.sessions, repo=self.repo)
        )

    def _kept(self, session: Session) -> Session:
        self._stack.push_async_callback(session.close)
        return session

    async def play(self, script: Any, words: str | None = "Do it", **options: Any) -> Session:
        """A new session, run to its end and closed."""
        session = self.create(script, **options)
        await self.run(session, words)
        await session.close()
        return session

    async def play_on(self, script: Any = (), words: str | None = None, **options: Any) -> Session:
        """The last session, gone on with to its end and closed."""
        session = self.resume(script, **options)
        await self.run(session, words)
        await session.close()
        return session

    async def run(self, session: Session, words: str | None = None) -> list[AnyEvent | Delta]:
        """One run, and a look at every request of it."""
        items = [item async for item in session.start(words)]
        for request in requests(session):
            check_form(request)
        return items

    requests = staticmethod(lambda session: requests(session))
    messages = staticmethod(lambda session, number=-1: parsed(requests(session)[number]))
    check_form = staticmethod(lambda request: check_form(request))

    @staticmethod
    def of(session: Session, kind: type[E]) -> list[E]:
        """The events of one kind."""
        return [event for event in session.events if isinstance(event, kind)]

    @staticmethod
    def code(session: Session) -> int:
        """How the last run ended."""
        assert session.ended is not None
        return session.ended.exit_code

    def read(self, name: str) -> bytes:
        """A file of the repository."""
        return (self.repo / name).read_bytes()


def _options(script: Any, options: dict[str, Any]) -> tuple[Any, Settings]:
    window = options.pop("window", None)
    provider = script
    if not hasattr(script, "stream"):
        provider = ScriptedProvider(as_script(script), window=window)
    allow: list[Rule] = [parse_allow(text) for text in options.pop("allow", ())]
    base = {"model": "kimi-k3", "on_ask": "stop", "sandbox": "off", "session_rules": allow}
    return provider, Settings(**{**base, **options})


def as_script(script: Any) -> Any:
    """A script from turns in short form, or what is one already."""
    if isinstance(script, Script):
        return script
    return script if callable(script) else Script(turns=tuple(map(as_turn, script)))


def as_turn(said: Turn | str | Sequence[tuple[str, Any]]) -> Turn:
    """A turn in short form."""
    if isinstance(said, Turn):
        return said
    if isinstance(said, str):
        return Turn(content=said)
    calls = tuple(ScriptedCall(name=name, arguments=arguments) for name, arguments in said)
    return Turn(reasoning=f"I think of {', '.join(name for name, _ in said)}.", calls=calls)


def requests(session: Session) -> list[Request]:
    """Every request the session's model got."""
    assert isinstance(session.provider, ScriptedProvider)
    return session.provider.requests


def parsed(request: Request) -> list[dict[str, Any]]:
    """The messages of a request."""
    return [json.loads(message) for message in request.messages]


def check_form(request: Request) -> None:
    """What every endpoint asks of a request: each call has its one result, in order, and so on."""
    messages = parsed(request)
    assert messages[0]["role"] == "system"
    assert messages[-1]["role"] in ("user", "tool"), "no prefill"
    waiting: list[str] = []
    for message in messages[1:]:
        if message["role"] == "tool":
            assert message["tool_call_id"] == waiting.pop(0)
            continue
        assert not waiting, "a call has no result"
        assert message["role"] in ("user", "assistant")
        assert message["content"] is not None
        if message["role"] == "assistant":
            thought = message.get("reasoning_content", message.get("reasoning"))
            assert thought is not None, "the field is there even when it is empty"
            assert thought or message["content"] or "tool_calls" in message
            for call in message.get("tool_calls", []):
                assert isinstance(json.loads(call["function"]["arguments"]), dict)
                waiting.append(call["id"])
    assert not waiting, "a call has no result"
