"""MCP servers for the tests, run as processes: `python mcp_servers.py MODE`.

`good` and `http` are made with the SDK. The others speak the protocol by hand, as far as it takes
to misbehave: `hang_at_start`, `hang`, `crash`, `long_line`, `flood`, `garbage`, `deaf`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any


def sdk(mode: str) -> None:
    from mcp.server import MCPServer

    server = MCPServer("letters")

    @server.tool()
    def shout(text: str) -> str:
        """Make it loud.

        More about it.
        """
        return text.upper()

    @server.tool()
    def fail() -> str:
        """Always fails."""
        raise ValueError("no luck today")

    @server.tool()
    def much(lines: int) -> str:
        """Say much."""
        return "\n".join(f"line {number}" for number in range(lines))

    @server.tool()
    def environment() -> str:
        """What this server was given."""
        return json.dumps({"cwd": str(Path.cwd()), "names": sorted(os.environ), "token": os.environ.get("TOKEN")})  # fmt: skip

    @server.tool()
    def touch(path: str) -> str:
        """Write a file."""
        Path(path).write_text("by a server\n")
        return "written"

    if mode == "http":
        server.run("streamable-http", port=int(sys.argv[2]))
    else:
        server.run("stdio")


def send(**fields: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **fields}) + "\n")
    sys.stdout.flush()


def by_hand(mode: str) -> None:
    if mode == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(sys.argv[2]).write_text(str(os.getpid()))
    if mode == "hang_at_start":
        time.sleep(600)
    for line in sys.stdin:
        message = json.loads(line)
        method, number = message.get("method"), message.get("id")
        if method == "initialize":
            version = message["params"]["protocolVersion"]
            send(id=number, result={
                "protocolVersion": version, "capabilities": {"tools": {}},
                "serverInfo": {"name": mode, "version": "1"}})  # fmt: skip
        elif method == "tools/list":
            send(id=number, result={
                "tools": [{"name": "go", "description": "Go.", "inputSchema": {"type": "object"}}]})  # fmt: skip
        elif method == "tools/call":
            misbehave(mode)


def misbehave(mode: str) -> None:
    if mode in ("hang", "deaf"):
        time.sleep(600)
    if mode == "crash":
        sys.stderr.write("Segmentation fault, as it were\n")
        sys.stderr.flush()
        os._exit(139)
    block = "x" * (1 << 16)
    while mode == "long_line":
        sys.stdout.write(block)
    while mode == "flood":
        send(method="notifications/message", params={"level": "info", "data": block})
    while mode == "garbage":
        sys.stdout.write("this is no JSON\n" * 1000)


if __name__ == "__main__":
    (sdk if sys.argv[1] in ("good", "http") else by_hand)(sys.argv[1])
