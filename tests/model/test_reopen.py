"""Reopening a repository costs the tail: counted in tokens that the engine really reads."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unabridged.agent.budget import Limits
from unabridged.agent.context.pack import unpack
from unabridged.agent.events import AssistantMessage, PackSegment
from unabridged.agent.providers.base import Delta, Reply, Request
from unabridged.agent.providers.embedded import EmbeddedProvider
from unabridged.agent.session import Session, Settings
from unabridged.model.chat.tokenizer import Tokenizer
from unabridged.model.converse import ChatRequest, prepare
from unabridged.model.engine import Engine
from unabridged.model.state_store import StateStore

WINDOW = 16_384


class Counting(EmbeddedProvider):
    """Keeps the requests, and asks for two tokens only: the weights are random."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        super().__init__(engine, tokenizer, "small")
        self.tokenizer = tokenizer
        self.requests: list[Request] = []

    async def stream(self, request: Request) -> AsyncGenerator[Delta | Reply]:
        self.requests.append(request)
        async for item in super().stream(replace(request, max_completion_tokens=2)):
            yield item

    def tokens(self, messages: int) -> int:
        """Of the last request, up to the end of a message."""
        request = self.requests[-1]
        chat = ChatRequest(
            messages=[json.loads(message) for message in request.messages[:messages]],
            tools=json.loads(request.tools),
            effort=request.effort,
            max_tokens=2,
        )
        prompt, *_ = prepare(chat, self.tokenizer, WINDOW)
        return max(n for n, token in enumerate(prompt) if token == self.tokenizer.end_of_msg_id) + 1


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    root.mkdir()
    for number in range(12):
        lines = (f"def f{number}_{line}(): return {line}\n" for line in range(30))
        (root / f"m{number:02}.py").write_text("".join(lines))
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "start"]):
        subprocess.run(
            ["git", "-c", "user.name=T", "-c", "user.email=t@example.com", *command],
            cwd=root,
            check=True,
        )
    return root


@pytest.fixture(params=["counted", pytest.param("read", marks=pytest.mark.long)])
def model(
    request: Any, playback: Any, make_config: Any, make_model: Any, tokenizer: Tokenizer
) -> Any:
    """One that only counts what the engine gives it to read, or the small random K3 that reads it."""
    if request.param == "counted":
        return playback(tokenizer.vocab_size, lambda _tokens: 0)
    return make_model(make_config(vocab_size=tokenizer.vocab_size))


async def test_only_what_is_new_is_read(
    repo: Path, tmp_path: Path, model: Any, tokenizer: Tokenizer
) -> None:

    async def ask(**options: Any) -> tuple[Counting, Session, int]:
        """A session of one request, on an engine of its own over the states of those before."""
        engine = Engine(
            model,
            end_token=tokenizer.end_of_msg_id,
            vocab_size=tokenizer.vocab_size,
            window=WINDOW,
            store=StateStore(tmp_path / "states", "small"),
            save_every=32,
        )
        provider = Counting(engine, tokenizer)
        settings = Settings(
            model="small", on_ask="stop", sandbox="off", tools=(), limits=Limits(steps=1),
            cache=tmp_path / "cache", **options,
        )  # fmt: skip
        session = Session.create(repo, provider, settings, tmp_path / "sessions")
        async with session:
            async for _ in session.start("Do it"):
                pass
        (reply,) = [event for event in session.events if isinstance(event, AssistantMessage)]
        assert reply.usage is not None
        assert reply.usage.prompt == len(prepare(_chat(provider.requests[0]), tokenizer, WINDOW)[0])
        return provider, session, reply.usage.cached

    _, first, cached = await ask()
    assert cached == 0
    segments = [event for event in first.events if isinstance(event, PackSegment)]
    assert len(segments) >= 4

    again, _, cached = await ask()
    assert cached == again.tokens(len(again.requests[0].messages)), "all but the opening of a reply"

    # One edit: the frozen base is found whole, and only the section about the edit is read.
    order = [part.name for segment in segments for part in unpack(segment.text)]
    changed = repo / order[6]
    changed.write_text(changed.read_text().replace("return 3", "return 333"))
    edited, session, cached = await ask()
    now = [event for event in session.events if isinstance(event, PackSegment)]
    assert len(now) == len(segments) + 1
    assert cached == edited.tokens(1 + len(segments))

    # A rebuild: what lies before the first changed file is found, the rest is read.
    rebuilt, session, cached = await ask(rebuild=True)
    now = [event for event in session.events if isinstance(event, PackSegment)]
    at = next(n for n, s in enumerate(segments) if f'"{changed.name}"' in s.text)
    assert 0 < at < len(segments) - 2
    assert [s.text for s in now[:at]] == [s.text for s in segments[:at]]
    assert now[at].text != segments[at].text
    assert cached == rebuilt.tokens(1 + at)


def _chat(request: Request) -> ChatRequest:
    return ChatRequest(
        messages=[json.loads(message) for message in request.messages],
        tools=json.loads(request.tools),
        effort=request.effort,
        max_tokens=2,
    )
