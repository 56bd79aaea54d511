"""The repository goes ahead to an endpoint that keeps states, as a request of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from unabridged.agent.atif import trajectory
from unabridged.agent.budget import Limits, total
from unabridged.agent.events import (
    AssistantMessage,
    BudgetReached,
    Interruption,
    PackSegment,
    PrefixChanged,
    Preload,
    RequestSent,
    UserMessage,
)
from unabridged.agent.export import markdown
from unabridged.agent.headless import Output, run_headless
from unabridged.agent.index import describe
from unabridged.agent.providers import kimi
from unabridged.agent.providers.base import Notice
from unabridged.agent.providers.kimi import KimiProvider, Patience
from unabridged.agent.providers.scripted import Question, Status, Turn
from unabridged.agent.providers.scripted_server import ScriptedServer, serving
from unabridged.agent.session import Session
from unabridged.agent.store import read
from unabridged.agent.view import ReplayError, View

if TYPE_CHECKING:
    from .conftest import Bench

BIG = b"".join(b"def f%d():\n    return %d\n" % (n, n) for n in range(800))
AHEAD = Turn(reasoning="The", finish="length")
ANSWER = Turn(content="Looked.")
PRICE = 0.001  # US dollars for a token of the prompt that is not cached


def is_ahead(question: Question) -> bool:
    return question.body["max_completion_tokens"] == 1


@dataclass
class Endpoint:
    """A server that says it keeps states; `ahead` is what it answers to the repository."""

    server: ScriptedServer
    bench: Bench
    ahead: Turn = AHEAD

    def say(self, question: Question) -> Turn:
        return self.ahead if is_ahead(question) else ANSWER

    def provider(self) -> KimiProvider:
        patience = Patience(first_wait=0.01, attempts=2, card=1.0)
        return KimiProvider(self.server.url, "kimi-k3", patience=patience)

    def create(self, **options: Any) -> Session:
        return self.bench.create(self.provider(), price=price, **options)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [request.json for request in self.server.requests]


def price(usage: Any) -> float:
    return PRICE * (usage.prompt - usage.cached)


@pytest.fixture
async def endpoint(bench: Bench) -> AsyncIterator[Endpoint]:
    (bench.repo / "big.py").write_bytes(BIG)
    holder: list[Callable[[Question], Turn]] = []
    async with serving(lambda question: holder[0](question)) as server:
        server.keeps_states = True
        found = Endpoint(server, bench)
        holder.append(found.say)
        yield found


async def run(session: Session, words: str | None = "Look") -> list[Any]:
    return [item async for item in session.start(words)]


async def test_the_repository_goes_ahead_and_is_found_cached(endpoint: Endpoint) -> None:
    session = endpoint.create()
    items = await run(session)
    ahead, request = endpoint.bodies
    packed = sum(isinstance(event, PackSegment) for event in session.events)
    assert len(ahead["messages"]) == 1 + packed
    assert request["messages"][: 1 + packed] == ahead["messages"]
    assert request["messages"][1 + packed]["content"] == "Look"
    for field in ("model", "tools", "chat_template_kwargs"):
        assert request[field] == ahead[field]
    (event,) = [e for e in session.events if isinstance(e, Preload)]
    assert event.usage is not None
    assert event.usage.prompt > 1024
    assert not event.problem
    (reply,) = [e for e in session.events if isinstance(e, AssistantMessage)]
    assert reply.usage is not None
    assert reply.usage.cached > 0.9 * event.usage.prompt
    assert event.seq < next(e.seq for e in session.events if isinstance(e, RequestSent))
    assert any(isinstance(item, Notice) and "goes ahead" in item.text for item in items)


async def test_it_is_counted_as_tokens_and_money_and_not_as_a_step(endpoint: Endpoint) -> None:
    session = endpoint.create()
    await run(session)
    (event,) = [e for e in session.events if isinstance(e, Preload)]
    (reply,) = [e for e in session.events if isinstance(e, AssistantMessage)]
    assert event.usage is not None
    assert reply.usage is not None
    both = (event.usage, reply.usage)
    spent = session.core.spent
    assert spent == total(session.events, price)
    assert spent.steps == 1
    assert spent.prompt == sum(one.prompt for one in both)
    assert spent.cached == sum(one.cached for one in both)
    assert spent.cost == pytest.approx(sum(map(price, both)))
    assert session.result().tokens.prompt == spent.prompt
    entry = describe(session.id, session.events)
    assert (entry.steps, entry.tokens) == (1, spent.prompt + spent.completion)
    metrics = trajectory(session.id, session.events)["final_metrics"]
    assert metrics["total_prompt_tokens"] == spent.prompt
    assert metrics["total_cached_tokens"] == spent.cached


async def test_what_it_used_up_ends_the_run_before_the_first_step(endpoint: Endpoint) -> None:
    session = endpoint.create(limits=Limits(tokens=2000))
    await run(session)
    assert endpoint.bench.code(session) == 5
    (body,) = endpoint.bodies
    assert body["max_completion_tokens"] == 1
    (limit,) = [e for e in session.events if isinstance(e, BudgetReached)]
    spent = session.core.spent
    assert (limit.kind, limit.used) == ("tokens", spent.prompt + spent.completion)
    assert spent.steps == 0


async def test_a_load_over_its_price_is_not_sent_ahead(endpoint: Endpoint) -> None:
    session = endpoint.create(load_limit=0.5)
    await run(session)
    assert endpoint.bench.code(session) == 5
    assert not endpoint.bodies


async def test_the_log_replays_and_a_changed_one_is_refused(endpoint: Endpoint) -> None:
    session = endpoint.create()
    await run(session)
    path = session.core.store.path
    await session.close()
    events = read(path)
    view = View(events)
    assert view.prefix_hash == session.core.view.prefix_hash
    assert "was sent ahead" in markdown(session.id, events)
    for change in ({"prefix_hash": "0" * 64}, {"messages": 1}):
        edited = [e.model_copy(update=change) if isinstance(e, Preload) else e for e in events]
        with pytest.raises(ReplayError):
            View(edited)


async def test_a_failure_is_one_line_and_stops_nothing(endpoint: Endpoint, capsys: Any) -> None:
    broken = Status(status=500, body={"error": {"message": "out of\nmemory"}})
    endpoint.ahead = Turn(faults=(broken,) * 5)
    session = endpoint.create()
    await run_headless(session, "Look", Output())
    told = [line for line in capsys.readouterr().err.splitlines() if "could not be sent" in line]
    assert len(told) == 1
    assert "out of memory" in told[0]
    assert sum(is_one(body) for body in endpoint.bodies) == 1
    assert session.core.spent.steps == 1
    (event,) = [e for e in session.events if isinstance(e, Preload)]
    assert "out of memory" in event.problem
    assert event.usage is None
    assert session.core.spent.cost is not None
    assert "could not be sent ahead" in markdown(session.id, session.events)


def is_one(body: dict[str, Any]) -> bool:
    return body["max_completion_tokens"] == 1


@pytest.mark.parametrize("why", ["not advertised", "short", "off"])
async def test_where_it_is_not_sent(endpoint: Endpoint, why: str) -> None:
    if why == "short":
        (endpoint.bench.repo / "big.py").unlink()
    endpoint.server.keeps_states = why != "not advertised"
    session = endpoint.create(preload="off" if why == "off" else "auto")
    await run(session)
    assert [is_one(body) for body in endpoint.bodies] == [False]
    assert not any(isinstance(event, Preload) for event in session.events)


async def test_a_session_that_goes_on_has_its_base_there(endpoint: Endpoint) -> None:
    session = endpoint.create()
    await run(session)
    await session.close()
    again = endpoint.bench.resume(endpoint.provider(), price=price)
    spent = again.core.spent
    assert spent == session.core.spent
    await run(again, "Go on.")
    assert [is_one(body) for body in endpoint.bodies] == [True, False, False]


async def test_a_stopped_one_is_sent_when_the_session_goes_on(endpoint: Endpoint) -> None:
    endpoint.ahead = Turn(wire={"first_delay": 30})
    session = endpoint.create()

    async def stop() -> None:
        while not endpoint.server.requests:
            await asyncio.sleep(0.01)
        session.cancel()

    await asyncio.gather(run(session), stop())
    assert endpoint.bench.code(session) == 130
    assert [e.during for e in session.events if isinstance(e, Interruption)] == ["request"]
    assert not any(isinstance(event, Preload) for event in session.events)
    await session.close()
    endpoint.ahead = Turn()
    again = endpoint.bench.resume(endpoint.provider())
    await run(again, None)
    assert [is_one(body) for body in endpoint.bodies] == [True, True, False]
    assert sum(isinstance(event, UserMessage) for event in again.events) == 1


async def test_the_limit_on_minutes_holds_for_it(endpoint: Endpoint) -> None:
    endpoint.ahead = Turn(wire={"first_delay": 30})
    session = endpoint.create(limits=Limits(minutes=0.03))
    await run(session)
    assert endpoint.bench.code(session) == 5
    assert [is_one(body) for body in endpoint.bodies] == [True]


async def test_what_it_breaks_of_the_prefix_is_named_once(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    for effort in ("max", "low"):
        session = endpoint.create(cache=tmp_path / "cache", effort=effort)
        await run(session)
        await session.close()
    names = [e.block for e in session.events if isinstance(e, PrefixChanged)]
    assert names == ["effort"]


@pytest.mark.parametrize("card", [None, [], "yes", {"state_store": "no"}, {}])
def test_only_a_plain_yes_counts(card: Any) -> None:
    entry = {"id": "kimi-k3"} if card is None else {"id": "kimi-k3", "unabridged": card}
    assert not kimi._model(entry).keeps_states  # pyright: ignore[reportPrivateUsage]


async def test_one_that_cannot_be_asked_keeps_none(endpoint: Endpoint) -> None:
    provider = endpoint.provider()
    assert await provider.keeps_states("kimi-k3")
    assert not await provider.keeps_states("another")
    await endpoint.server.stop()
    assert not await endpoint.provider().keeps_states("kimi-k3")
    await provider.close()


async def test_a_known_service_is_not_asked() -> None:
    provider = KimiProvider("https://api.moonshot.ai/v1", "kimi-k3", "key")
    assert not await provider.keeps_states("kimi-k3")
    assert provider._client is None  # pyright: ignore[reportPrivateUsage] # nothing was opened
