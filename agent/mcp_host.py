"""A process between the harness and one MCP server: whatever a server does, only this suffers.

`python -m unabridged.agent.mcp_host` reads one line of JSON, how to reach the server, and then
calls, one a line; it answers each with a line. It leads a process group that the server it starts
belongs to, so that the harness can end both at once. A server that sends a line, or in all between
two answers, more than it may, ends it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

MAX_LINE = 8 << 20
"""Bytes of one message of a server."""
MAX_IDLE = 32 << 20
"""Bytes that a server may send without answering anything."""
MAX_STRAY = 10_000
"""Lines that are no messages, as of a server that prints, without answering anything."""
MAX_TEXT = 4 << 20
"""Characters of a result that are passed on."""
MAX_TOOLS = 1000
MAX_MEMORY = 2 << 30
"""Bytes, where there is a web server at the other end, which has no lines."""
STDERR_KEPT = 2000
ENDED = "the server ended"
WORDS = "utf-8"


class FloodError(Exception):
    """The server sends more than it may."""


class Meter:
    """Counts what came since the last answer."""

    def __init__(self) -> None:
        self.bytes = self.stray = 0
        self.trouble = ""

    def answered(self) -> None:
        """Count anew."""
        self.bytes = self.stray = 0

    def came(self, size: int) -> None:
        """Raises FloodError."""
        self.bytes += size
        if self.bytes > MAX_IDLE:
            self.trouble = f"sent over {MAX_IDLE >> 20} MiB without an answer"
            raise FloodError(self.trouble)

    def strayed(self) -> None:
        """A line was no message. Raises FloodError."""
        self.stray += 1
        if self.stray > MAX_STRAY:
            self.trouble = f"sent over {MAX_STRAY:,} lines that are no messages"
            raise FloodError(self.trouble)


@asynccontextmanager
async def over_pipes(
    server: dict[str, Any], meter: Meter, errors: deque[bytes]
) -> AsyncGenerator[Any]:
    """The SDK's transport to a process, with limits, in this process's group."""
    import anyio
    from mcp.client.stdio import get_default_environment
    from mcp.shared.message import SessionMessage
    from mcp.types import jsonrpc_message_adapter

    process = await asyncio.create_subprocess_exec(
        *server["command"],
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=get_default_environment() | server["env"],
        cwd=server["cwd"],
        limit=MAX_LINE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
    to_us, ours = anyio.create_memory_object_stream[Any](0)
    theirs, to_them = anyio.create_memory_object_stream[Any](0)

    async def read() -> None:
        async with to_us:
            await read_lines()
            if not meter.trouble:
                with suppress(TimeoutError):  # so that its last words are all there
                    await asyncio.wait_for(process.wait(), 1)
                meter.trouble = ENDED

    async def read_lines() -> None:
        while True:
            try:
                line = await stdout.readline()
            except ValueError:
                meter.trouble = f"sent a line of over {MAX_LINE >> 20} MiB"
                return
            if not line:
                return
            try:
                meter.came(len(line))
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except FloodError:
                return
            except ValueError as error:
                try:
                    meter.strayed()
                except FloodError:
                    return
                await to_us.send(error)
            else:
                await to_us.send(SessionMessage(message))

    async def write() -> None:
        async with to_them:
            async for item in to_them:
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                stdin.write(text.encode(WORDS) + b"\n")
                await stdin.drain()

    async def listen() -> None:
        while data := await stderr.read(1 << 16):
            errors.append(data[-STDERR_KEPT:])

    async def guarded(work: Any) -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            await work

    tasks = [asyncio.create_task(guarded(work)) for work in (read(), write(), listen())]
    try:
        yield ours, theirs
    finally:
        for task in tasks:
            task.cancel()
        with suppress(ProcessLookupError):
            process.kill()


@asynccontextmanager
async def over_http(server: dict[str, Any]) -> AsyncGenerator[Any]:
    """The SDK's streamable HTTP, with the headers of the settings."""
    import resource

    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client

    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    async with (
        create_mcp_http_client(headers=server["headers"]) as client,
        streamable_http_client(server["url"], http_client=client, max_sse_event_size=MAX_LINE)
        as streams,
    ):  # fmt: skip
        yield streams


async def serve() -> None:
    """Connect, say which tools there are, answer calls until standard input ends."""
    lines = asyncio.StreamReader(limit=1 << 26)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    server: dict[str, Any] = json.loads(await lines.readline())
    meter, errors = Meter(), deque[bytes](maxlen=1)
    from mcp import Client

    transport = over_pipes(server, meter, errors) if server["command"] else over_http(server)
    try:
        async with Client(transport, mode="auto" if server["url"] else "legacy") as client:
            answer(tools=await _tools(client))
            meter.answered()
            calls: set[asyncio.Task[None]] = set()
            while line := await lines.readline():
                task = asyncio.create_task(_call(client, json.loads(line), meter, errors))
                calls.add(task)
                task.add_done_callback(calls.discard)
    except BaseException as error:  # noqa: BLE001 - an SDK's, a server's: it is said, and that is all
        answer(failed=_why(error, meter, errors))
        os._exit(1)


async def _tools(client: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while len(found) < MAX_TOOLS:
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            schema = tool.model_dump(by_alias=True, mode="json").get("inputSchema", {})
            found.append(
                {"name": tool.name, "description": tool.description or "", "schema": schema}
            )
        cursor = page.next_cursor
        if not cursor:
            break
    return found[:MAX_TOOLS]


async def _call(client: Any, call: dict[str, Any], meter: Meter, errors: deque[bytes]) -> None:
    try:
        result = await client.call_tool(call["tool"], call["arguments"])
    except Exception as error:  # noqa: BLE001 - what a call raises is its answer
        if meter.trouble:
            answer(failed=_why(error, meter, errors))
            os._exit(1)
        answer(id=call["id"], text=_why(error, meter, errors), error=True, images=[])
        return
    finally:
        meter.answered()
    texts: list[str] = []
    images: list[dict[str, str]] = []
    for block in result.content:
        match block.type:
            case "text":
                texts.append(block.text)
            case "image":
                images.append({"mime": block.mime_type, "data": block.data})
            case "resource" if hasattr(block.resource, "text"):
                texts.append(f"{block.resource.uri}\n{block.resource.text}")
            case "resource_link":
                texts.append(f"{block.name}: {block.uri}")
            case _:
                texts.append(f"[{block.type} that cannot be shown]")
    if not texts and result.structured_content is not None:
        texts.append(json.dumps(result.structured_content, ensure_ascii=False))
    text = "\n".join(texts)
    if len(text) > MAX_TEXT:
        text = f"{text[:MAX_TEXT]}\n[{len(text) - MAX_TEXT:,} characters more were not passed on]"
    good = [image for image in images if _is_base64(image["data"])]
    answer(id=call["id"], text=text, error=bool(result.is_error), images=good)


def _is_base64(text: str) -> bool:
    with suppress(ValueError):
        return bool(base64.b64decode(text, validate=True))
    return False


def answer(**fields: Any) -> None:
    """One line to the harness."""
    data = json.dumps(fields).encode("ascii") + b"\n"
    written = 0
    while written < len(data):
        written += os.write(1, data[written:])


def _why(error: BaseException, meter: Meter, errors: deque[bytes]) -> str:
    """What went wrong: the innermost error, and the server's last words where it is gone."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    why = meter.trouble or f"{error}".strip() or type(error).__name__
    said = b"".join(errors).decode(WORDS, "replace").strip()[-STDERR_KEPT:]
    return f"{why}; its last words: {said}" if said and meter.trouble == ENDED else why


if __name__ == "__main__":
    asyncio.run(serve())
