"""Serves a script as an OpenAI-compatible endpoint, and keeps every request body.

    python -m unabridged.agent.providers.scripted_server script.json --port 0 --record DIR

prints its base URL and serves until it is interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .scripted import (
    Answer,
    Cut,
    Drop,
    Garbage,
    Page,
    Player,
    Policy,
    Question,
    Script,
    ScriptError,
    Stall,
    Status,
    StreamError,
    body_of,
    chunks_of,
    load_script,
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A request as it arrived."""

    method: str
    path: str
    """With its query."""
    headers: dict[str, str]
    """Lower-case names."""
    body: bytes

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)


_Break = Drop | Cut | Stall | Garbage | StreamError
"""Faults that happen at a place in the stream."""


class _Hangup(Exception):  # noqa: N818 - not an error: what the script wants
    """Close the connection now."""


class ScriptedServer:
    """A script behind HTTP.

    Args:
        script: turns, or a function from the request to a turn.
        key: when given, other bearer tokens get 401.
        record: folder for the bodies of requests, `0001.json` and so on.
    """

    def __init__(
        self, script: Script | Policy, *, key: str | None = None, record: Path | None = None
    ) -> None:
        self.player = Player(script)
        self.requests: list[Recorded] = []
        """Requests for completions, in order."""
        self.failures: list[str] = []
        """Requests that the script could not answer or did not expect."""
        self.url = ""
        """Base URL, once started."""
        self.connections = 0
        """Connections ever made."""
        self.open = 0
        """Connections now open."""
        self.dropped = 0
        """Replies whose client left before their end."""
        self.keeps_states = False
        """Whether the card of the model says so."""
        self._key = key
        self._record = record
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Begin to serve; port 0 takes a free one. Raises OSError."""
        if self._record is not None:
            self._record.mkdir(parents=True, exist_ok=True)
        self._server = await asyncio.start_server(self._serve, host, port, limit=1 << 20)
        self.url = f"http://{host}:{self._server.sockets[0].getsockname()[1]}/v1"

    async def stop(self) -> None:
        """Stop serving; drop what is open."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.open += 1
        try:
            early = b""
            while (request := await _read_request(reader, early)) is not None:
                early = await self._answer(request, reader, writer)
        except (_Hangup, ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.open -= 1
            self._tasks.discard(task)
            writer.transport.abort()

    async def _answer(
        self, request: Recorded, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bytes:
        """Answer a request. Returns what was read of the next one meanwhile."""
        path = request.path.partition("?")[0]
        early = b""
        if self._key is not None and request.headers.get("authorization") != f"Bearer {self._key}":
            _send_error(writer, 401, "Invalid Authentication", "invalid_authentication_error")
        elif (request.method, path) == ("GET", "/v1/models"):
            entry = {"id": self.player.script.model or "kimi-k3", "object": "model"}
            entry |= {"owned_by": "script", "context_length": self.player.script.window}
            entries = [{**entry, "unabridged": {"state_store": self.keeps_states}}]
            _send(writer, 200, json.dumps({"object": "list", "data": entries}).encode())
        elif (request.method, path) == ("POST", "/v1/chat/completions"):
            early = await self._complete(request, reader, writer)
        else:
            _send_error(writer, 404, f"no route for {request.method} {path}", "not_found")
        await writer.drain()
        return early

    async def _complete(
        self, request: Recorded, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bytes:
        self.requests.append(request)
        if self._record is not None:
            (self._record / f"{len(self.requests):04}.json").write_bytes(request.body)
        question = Question(request.body)
        try:
            model = str(question.body.get("model"))
            whole = not question.body.get("stream")
            if self.player.script.model not in {None, model}:
                said = f"Not found the model {model} or Permission denied"
                _send_error(writer, 404, said, "resource_not_found_error")
                return b""
            answer = self.player.answer(question, whole=whole)
        except (ScriptError, ValueError) as error:
            self.failures.append(str(error))
            _send_error(writer, 400, str(error), "script_error")
            return b""
        # Only reading shows that a client has left; what is read instead is its next request.
        early = asyncio.create_task(reader.read(1))
        play = asyncio.create_task(self._play(answer, model, whole, writer))
        try:
            await asyncio.wait({early, play}, return_when=asyncio.FIRST_COMPLETED)
            if not play.done():
                self.dropped += 1
                raise _Hangup
            play.result()
            return early.result() if early.done() else b""
        finally:
            play.cancel()
            early.cancel()
            await asyncio.gather(play, early, return_exceptions=True)

    async def _play(
        self, answer: Answer, model: str, whole: bool, writer: asyncio.StreamWriter
    ) -> None:
        fault = answer.fault
        match fault:
            case Status():
                body = fault.body if isinstance(fault.body, str) else json.dumps(fault.body)
                kind = "text/plain" if isinstance(fault.body, str) else "application/json"
                _send(writer, fault.status, body.encode(), kind, fault.headers)
                return
            case Page():
                _send(writer, 200, fault.body.encode(), fault.type)
                return
            case Drop(after=-1):
                raise _Hangup
            case Stall(after=-1):
                await asyncio.Event().wait()
            case _:
                pass
        await asyncio.sleep(answer.wire.first_delay)
        if whole:
            await self._play_whole(answer, model, writer)
            return
        events = [
            f"data: {json.dumps(chunk, ensure_ascii=False)}" for chunk in chunks_of(answer, model)
        ]
        if answer.wire.done:
            events.append("data: [DONE]")
        end = answer.wire.line_end
        _start(writer, "text/event-stream")
        for position in range(len(events) + 1):
            if isinstance(fault, _Break) and position == min(fault.after, len(events)):
                await self._break(fault, writer)
                if isinstance(fault, Cut | StreamError):
                    break
            if position < len(events):
                if answer.wire.delay:
                    await asyncio.sleep(answer.wire.delay)
                _chunk(writer, f"{events[position]}{end}{end}".encode())
                await writer.drain()
        _chunk(writer, b"")

    async def _play_whole(self, answer: Answer, model: str, writer: asyncio.StreamWriter) -> None:
        body = json.dumps(body_of(answer, model), ensure_ascii=False).encode()
        fault = answer.fault
        if isinstance(fault, StreamError):
            body = json.dumps({"error": fault.error}).encode()
        if isinstance(fault, Cut | Garbage):
            body = body[: len(body) // 2]
        if isinstance(fault, Drop | Stall):
            _start(writer, "application/json")
            _chunk(writer, body[: len(body) // 2])
            await self._break(fault, writer)
        _send(writer, 200, body)

    async def _break(self, fault: _Break, writer: asyncio.StreamWriter) -> None:
        await writer.drain()
        match fault:
            case Drop():
                raise _Hangup
            case Stall(keepalive=None):
                await asyncio.Event().wait()
            case Stall(keepalive=pause):
                while True:
                    await asyncio.sleep(pause or 0)
                    _chunk(writer, b": keep-alive\n\n")
                    await writer.drain()
            case Garbage():
                _chunk(writer, fault.text.encode("utf-8", "surrogateescape"))
            case StreamError():
                _chunk(writer, f"data: {json.dumps({'error': fault.error})}\n\n".encode())
            case Cut():
                pass


async def _read_request(reader: asyncio.StreamReader, early: bytes) -> Recorded | None:
    """The next request of a connection, whose first bytes are read; None when there is none."""
    line = early + await reader.readline()
    if not line:
        return None
    method, path, _ = line.decode("latin-1").split(" ", 2)
    headers: dict[str, str] = {}
    while (line := await reader.readline()).strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Recorded(method, path, headers, body)


def _send(
    writer: asyncio.StreamWriter,
    status: int,
    body: bytes,
    kind: str = "application/json",
    headers: dict[str, str] | None = None,
) -> None:
    lines = {"Content-Type": kind, **(headers or {}), "Content-Length": str(len(body))}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    writer.write(f"HTTP/1.1 {status} -\r\n{head}\r\n".encode() + body)


def _send_error(writer: asyncio.StreamWriter, status: int, message: str, kind: str) -> None:
    _send(writer, status, json.dumps({"error": {"message": message, "type": kind}}).encode())


def _start(writer: asyncio.StreamWriter, kind: str) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
    writer.write(head.encode())


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))


# --- ways to run it -------------------------------------------------------------------------------


@asynccontextmanager
async def serving(
    script: Script | Policy, *, key: str | None = None, record: Path | None = None
) -> AsyncGenerator[ScriptedServer]:
    """A server in this event loop."""
    server = ScriptedServer(script, key=key, record=record)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@contextmanager
def serving_in_thread(
    script: Script | Policy, *, key: str | None = None, record: Path | None = None
) -> Generator[ScriptedServer]:
    """A server with an event loop of its own, for callers without one."""
    server = ScriptedServer(script, key=key, record=record)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result()
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def main(arguments: list[str] | None = None) -> int:
    """Serve a script from the command line."""
    parser = argparse.ArgumentParser(
        prog="scripted_server", description="Serve a script as an OpenAI-compatible endpoint."
    )
    parser.add_argument("script", type=Path, help="a .json or .toml script")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one (default)")
    parser.add_argument("--key", help="the only bearer token to accept")
    parser.add_argument("--record", type=Path, help="folder for the bodies of requests")
    options = parser.parse_args(arguments)

    async def serve() -> None:
        server = ScriptedServer(load_script(options.script), key=options.key, record=options.record)
        await server.start(options.host, options.port)
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()

    try:
        asyncio.run(serve())
    except (OSError, ValueError) as error:
        sys.stderr.write(f"scripted_server: {error}\n")
        return 2
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
