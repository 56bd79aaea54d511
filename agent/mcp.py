"""The MCP servers of the settings: each behind a process of its own, started when it is needed.

No server can take a session down: what hangs is ended when its time is up, what crashed or flooded
is an error of the call it happened in, and the next call starts the server anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..tools.base import ToolError
from ..tools.mcp import Answer, Offer
from .config import McpSection
from .effects import EffectKind

START_SECONDS = 30.0
LONGEST_LINE = 64 << 20
"""Bytes of one answer of a host, which cuts what a server says."""
MISSING = "MCP servers need the SDK: `pip install 'unabridged[mcp]'`."


class Hub:
    """All servers of a session. Close it when the session ends."""

    def __init__(self, servers: Mapping[str, McpSection], root: Path) -> None:
        self.names = tuple(sorted(servers))
        self._sections = servers
        self._hosts = {name: Host(name, servers[name], root) for name in self.names}

    def reached(self, server: str) -> str:
        """The command or the host, for a person."""
        section = self._sections[server]
        return urlsplit(section.url).netloc if section.url else " ".join(section.command)

    def declared(self, server: str, tool: str) -> Sequence[EffectKind]:
        """Effects that the settings say a tool has."""
        effects = self._sections[server].effects
        return effects.get(tool, effects.get("*", ()))

    async def offers(self, server: str) -> Sequence[Offer]:
        """The tools of a server. Raises ToolError."""
        return await self._hosts[server].offers()

    async def call(self, server: str, tool: str, arguments: Mapping[str, Any]) -> Answer:
        """Call one. Raises ToolError."""
        return await self._hosts[server].call(tool, arguments)

    async def close(self) -> None:
        """End all of them."""
        await asyncio.gather(*(host.stop() for host in self._hosts.values()))


class Host:
    """One server, with the process before it."""

    def __init__(self, name: str, section: McpSection, root: Path) -> None:
        self._name, self._section, self._root = name, section, root
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._offers: tuple[Offer, ...] | None = None
        """None as long as it does not run."""
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._count = 0
        self._starting = asyncio.Lock()
        self._end = ""
        """What the host said before it ended."""

    async def offers(self) -> tuple[Offer, ...]:
        """The tools; the server is started where it does not run."""
        return await self._start()

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Answer:
        """One call, in the time it has."""
        await self._start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        self._count += 1
        number, future = self._count, asyncio.get_running_loop().create_future()
        self._answers[number] = future
        line = json.dumps({"id": number, "tool": tool, "arguments": arguments}).encode("ascii")
        seconds = self._section.timeout
        try:
            async with asyncio.timeout(seconds):
                with contextlib.suppress(OSError):  # it has ended, and the reader says how
                    process.stdin.write(line + b"\n")
                    await process.stdin.drain()
                found: dict[str, Any] = await future
        except TimeoutError:
            await self.stop()
            raise ToolError(
                f"{self._name} did not answer within {seconds:g} s and was ended; whether the call "
                "did anything is unknown. The next call starts it again."
            ) from None
        except asyncio.CancelledError:
            await self.stop()
            raise
        finally:
            self._answers.pop(number, None)
        images = tuple((one["mime"], one["data"]) for one in found["images"])
        return Answer(found["text"], found["error"], images)

    async def _start(self) -> tuple[Offer, ...]:
        """The tools of the running server. Raises ToolError where it cannot be had."""
        async with self._starting:
            running = self._reader is not None and not self._reader.done()
            if running and self._offers is not None:
                return self._offers
            await self.stop()
            if find_spec("mcp") is None:
                raise ToolError(MISSING)
            section = self._section
            self._end = ""
            try:
                environment, headers = section.env, section.headers
                if section.expands:
                    environment, headers = expanded(environment), expanded(headers)
            except KeyError as error:
                raise ToolError(f"{self._name} needs {error.args[0]} in the environment.") from None
            self._process = process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "unabridged.agent.mcp_host",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL, start_new_session=True, limit=LONGEST_LINE,
            )  # fmt: skip
            assert process.stdin is not None
            ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
            self._answers[0] = ready
            self._reader = asyncio.create_task(self._read(process))
            server = {"command": section.command, "url": section.url, "cwd": str(self._root),
                      "env": environment, "headers": headers}  # fmt: skip
            try:
                async with asyncio.timeout(START_SECONDS):
                    process.stdin.write(json.dumps(server).encode("ascii") + b"\n")
                    first = await ready
            except TimeoutError:
                await self.stop()
                raise ToolError(
                    f"{self._name} did not start within {START_SECONDS:g} s and was ended."
                ) from None
            except BaseException:
                await self.stop()
                raise
            finally:
                self._answers.pop(0, None)
            self._offers = tuple(
                Offer(str(one["name"]), str(one["description"]), one["schema"])
                for one in first["tools"]
            )
            return self._offers

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Hand the answers on; when the host ends, every open call is told."""
        assert process.stdout is not None
        with contextlib.suppress(ValueError, OSError):  # a line that is too long, or none at all
            while line := await process.stdout.readline():
                message: dict[str, Any] = json.loads(line)
                if "failed" in message:
                    self._end = str(message["failed"])
                    continue
                future = self._answers.get(message.get("id", 0))
                if future is not None and not future.done():
                    future.set_result(message)
        self._fail(f"has failed: {self._end or 'it ended without a word'}")
        self._kill(process)

    async def stop(self) -> None:
        """End the server and the process before it, at once."""
        process, self._process, self._offers = self._process, None, None
        if process is None:
            return
        self._kill(process)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await process.wait()
        if self._reader is not None:
            self._reader.cancel()
        self._fail("was ended")

    def _fail(self, why: str) -> None:
        """Tell every call that is still open."""
        for future in self._answers.values():
            if not future.done():
                future.set_exception(ToolError(f"{self._name} {why}."))

    def _kill(self, process: asyncio.subprocess.Process) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def expanded(values: Mapping[str, str]) -> dict[str, str]:
    """`$NAME` as a whole value, or after one word as in `Bearer $NAME`, from the environment.

    Raises KeyError with the name that is not there.
    """
    found: dict[str, str] = {}
    for key, value in values.items():
        head, dollar, name = value.rpartition("$")
        found[key] = f"{head}{os.environ[name]}" if dollar and name.isidentifier() else value
    return found
