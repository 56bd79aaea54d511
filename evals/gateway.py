"""What stands between an agent and its model, outside the sandbox.

It listens on a UNIX socket that is bound into the sandbox, so that an agent without a network still
reaches its model, and only that. The key of the endpoint stays here. And it is where the arms of
the reasoning ablation are made: the harness sends everything back, as it always does, and the
gateway takes away what an arm does not want the model to see.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import httpx

TRACES = ("full", "none", "last-1", "last-3", "summary", "foreign")
"""Arms: which reasoning of earlier steps the model gets back."""
FIELDS = ("reasoning_content", "reasoning", "reasoning_details")
"""Names that reasoning goes by on the wire."""
SUMMARY = 60
"""Characters of each thought that the arm `summary` leaves."""
FOREIGN = "I will look at what is asked and do it step by step. There is nothing else to keep."
"""What the arm `foreign` puts in place: thoughts of another model, as after a switch."""
_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "host", "content-length",
                  "authorization", "accept-encoding", "content-encoding"})  # fmt: skip


@dataclass
class Seen:
    """What went through, for the record."""

    requests: int = 0
    reasoning_available: int = 0
    """Characters of reasoning in the last request as the harness sent it."""
    reasoning_sent: int = 0
    """The same as the model got it."""
    errors: list[str] = field(default_factory=list[str])


def traced(messages: Sequence[dict[str, Any]], arm: str) -> list[dict[str, Any]]:
    """The messages as an arm lets the model see them; the last turn's own tool loop included."""
    if arm == "full":
        return list(messages)
    replies = [n for n, one in enumerate(messages) if one.get("role") == "assistant"]
    keep = set(replies[-int(arm.partition("-")[2]) :]) if arm.startswith("last-") else set[int]()
    made: list[dict[str, Any]] = []
    for number, message in enumerate(messages):
        if message.get("role") != "assistant" or number in keep:
            made.append(message)
            continue
        kept = {key: value for key, value in message.items() if key not in FIELDS}
        if arm in ("summary", "foreign"):
            thought = " ".join(_reasoning(message).split())
            # Cut as compaction cuts: the gist stays, what it was made of goes.
            kept["reasoning_content"] = FOREIGN if arm == "foreign" else thought[:SUMMARY]
        made.append(kept)
    return made


def _reasoning(message: dict[str, Any]) -> str:
    return next((str(message[name]) for name in FIELDS if message.get(name)), "")


def _amount(messages: Sequence[dict[str, Any]]) -> int:
    return sum(len(_reasoning(one)) for one in messages if one.get("role") == "assistant")


class Gateway:
    """Forwards requests to an endpoint.

    Args:
        upstream: base URL of the model, up to `/v1`.
        key: bearer token that is added.
        trace: the arm.
    """

    def __init__(self, upstream: str, *, key: str | None = None, trace: str = "full") -> None:
        self.seen = Seen()
        self.url = ""
        """Base URL, where it listens on the loopback."""
        self._upstream = upstream.rstrip("/")
        self._key = key
        self._trace = trace
        self._client: httpx.AsyncClient | None = None
        self._hook: tuple[int, Callable[[], None]] | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def on_request(self, number: int, call: Callable[[], None] | None) -> None:
        """Call something once, before the request so many from now is answered; None: no more."""
        self._hook = None if call is None else (self.seen.requests + number, call)

    async def start(self, socket: Path | None) -> None:
        """Listen on a UNIX socket, or without one on a free port of the loopback."""
        import httpx

        self._client = httpx.AsyncClient(timeout=httpx.Timeout(600.0, connect=30.0))
        if socket is not None:
            self._server = await asyncio.start_unix_server(self._serve, socket, limit=1 << 20)
        else:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20)
            self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    async def stop(self) -> None:
        """Drop what is open."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._tasks.add(task)
        try:
            while line := await reader.readline():
                await self._one(line, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _one(
        self, line: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """One request, and its response as it comes."""
        import httpx

        method, path, _ = line.decode("latin-1").split(" ", 2)
        headers: dict[str, str] = {}
        while (header := await reader.readline()).strip():
            name, _, value = header.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        headers = {name: value for name, value in headers.items() if name not in _HOP}
        if self._key is not None:
            headers["authorization"] = f"Bearer {self._key}"
        url = self._upstream + path.removeprefix("/v1")
        assert self._client is not None
        try:
            async with self._client.stream(
                method, url, content=self._as_seen(body), headers=headers
            ) as response:
                if response.status_code in (401, 403, 429) or response.status_code >= 500:
                    self.seen.errors.append(f"HTTP {response.status_code}")
                kept = {k: v for k, v in response.headers.items() if k.lower() not in _HOP}
                head = "".join(f"{name}: {value}\r\n" for name, value in kept.items())
                writer.write(
                    f"HTTP/1.1 {response.status_code} -\r\n{head}"
                    "Transfer-Encoding: chunked\r\n\r\n".encode("latin-1")
                )
                async for data in response.aiter_bytes():
                    writer.write(b"%x\r\n%s\r\n" % (len(data), data))
                    await writer.drain()
                writer.write(b"0\r\n\r\n")
                await writer.drain()
        except httpx.HTTPError as error:
            self.seen.errors.append(f"{type(error).__name__}: {error}")
            said = json.dumps({"error": {"message": str(error), "type": "gateway"}}).encode()
            head = f"HTTP/1.1 502 -\r\nContent-Length: {len(said)}\r\n\r\n"
            writer.write(head.encode() + said)
            await writer.drain()

    def _as_seen(self, body: bytes) -> bytes:
        """The body as the model gets it; untouched in the arm `full`."""
        if not body:
            return body
        self.seen.requests += 1
        if self._hook is not None and self.seen.requests >= self._hook[0]:
            call, self._hook = self._hook[1], None
            call()
        document: dict[str, Any] = json.loads(body)
        messages: list[dict[str, Any]] = document.get("messages", [])
        shown = traced(messages, self._trace)
        self.seen.reasoning_available = _amount(messages)
        self.seen.reasoning_sent = _amount(shown)
        if self._trace == "full":
            return body
        return json.dumps({**document, "messages": shown}, ensure_ascii=False).encode()


@contextmanager
def opened(gateway: Gateway, socket: Path | None) -> Generator[Gateway]:
    """Serve in a thread while the block runs."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def wait(step: Callable[[], Any]) -> None:
        asyncio.run_coroutine_threadsafe(step(), loop).result()

    try:
        wait(lambda: gateway.start(socket))
        yield gateway
    finally:
        wait(gateway.stop)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
