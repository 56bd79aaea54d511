"""What an agent adds to each step, side by side with other agents and with a bare loop.

    python benchmarks/loop.py [--steps 50] [--prefix BYTES] [--rounds 3] [--bin FOLDER …]

A server that answers at once asks for one shell command (`echo hi N`) in each reply, and says that
it is done after the last step. "Gap": from the server handing over the last byte of a reply until
it has the whole next request, so it holds all that the client does in between: take the reply
apart, record it, run the command, build, serialise and send the next request. Measured by the
server, for every client alike.

The floor is the smallest loop over httpx that does the same work and keeps nothing on disk; a
second one writes each message to a log and flushes each reply before its call runs, as ours does. With
`--prefix` each client works in a repository of that many bytes of text; the floor then sends
the very bytes that ours sent, serialised once. Each run has a new home and a new one-file git
repository, with prompts for permission, telemetry and updates off. Peers are run if they are found
on PATH or in a `--bin` folder. Rounds are interleaved.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from timing import run, spread

TASK = "Say hi."
FILE = 20_000
"""Bytes of one file of a large repository."""
SYSTEM = "You are an agent. Use the shell."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "shell",
            "description": "Run a command.",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
        },
    }
]


# --- the server -----------------------------------------------------------------------------------


class Server(asyncio.Protocol):
    """One connection. Everything it learns goes to `log`, shared by all."""

    log: ClassVar[list[tuple[float, float, int]]] = []
    """Of each request: when it was complete, when its reply was handed over, bytes of its body."""
    steps = 50

    def __init__(self) -> None:
        self._data = bytearray()
        self._need = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        if not self._need:
            head, found, _ = self._data.partition(b"\r\n\r\n")
            if not found:
                return
            length = 0
            for line in head.split(b"\r\n"):
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
                if name.lower() == b"expect":
                    self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._need = len(head) + 4 + length
        if len(self._data) < self._need:
            return
        arrived = time.perf_counter()
        whole, self._need = bytes(self._data[: self._need]), 0
        del self._data[: len(whole)]
        head, _, body = whole.partition(b"\r\n\r\n")
        if b"/chat/completions" not in head.split(b"\r\n")[0]:
            self._answer(b'{"data": []}', "application/json")
            return
        reply = answer(body, len(self.log) + 1, self.steps)
        stream = b'"stream":true' in body.replace(b" ", b"")
        if stream:
            self._answer(as_stream(reply), "text/event-stream")
        else:
            self._answer(as_whole(reply), "application/json")
        self.log.append((arrived, time.perf_counter(), len(body)))

    def _answer(self, body: bytes, kind: str) -> None:
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + body)


def answer(body: bytes, number: int, steps: int) -> dict[str, Any]:
    """The message for the request with this number, with the tool that the client offers."""
    tools = json.loads(body).get("tools") or []
    named = {tool["function"]["name"]: tool["function"] for tool in tools}
    name = next((n for n in ("shell", "Shell", "Bash", "bash", "terminal") if n in named), "")
    if not name:
        return {"content": "Hi.", "calls": []}
    command = f"echo hi {number}"
    if number > steps:
        if "finish" in named:
            arguments: dict[str, Any] = {"status": "done", "summary": "Said hi."}
            return {"content": "", "calls": [("finish", arguments)]}
        if "mini-swe-agent" in body.decode(errors="replace") or "COMPLETE_TASK" in str(body):
            command = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
        else:
            return {"content": "Done.", "calls": []}
    return {"content": "", "calls": [(name, {"command": command})]}


def as_stream(reply: dict[str, Any]) -> bytes:
    """Server-sent events as K3's servers send them."""
    calls = [
        {"index": 0, "id": f"call_{time.monotonic_ns()}", "type": "function",
         "function": {"name": name, "arguments": json.dumps(arguments)}}
        for name, arguments in reply["calls"]
    ]  # fmt: skip
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": "", "reasoning_content": "I say hi. "},
        {"reasoning_content": "Once more."},
    ]
    if reply["content"]:
        deltas.append({"content": reply["content"]})
    deltas += [{"tool_calls": [call]} for call in calls]
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    ending = {"index": 0, "delta": {}, "finish_reason": "tool_calls" if calls else "stop"}
    chunks += [{"choices": [ending]}, {"choices": [], "usage": USAGE}]
    base = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "k"}
    events = [b"data: " + json.dumps({**base, **chunk}).encode() + b"\n\n" for chunk in chunks]
    return b"".join([*events, b"data: [DONE]\n\n"])


def as_whole(reply: dict[str, Any]) -> bytes:
    """The same in one piece."""
    message: dict[str, Any] = {"role": "assistant", "content": reply["content"],
                               "reasoning_content": "I say hi. Once more."}  # fmt: skip
    if reply["calls"]:
        message["tool_calls"] = [
            {"id": f"call_{time.monotonic_ns()}", "type": "function",
             "function": {"name": name, "arguments": json.dumps(arguments)}}
            for name, arguments in reply["calls"]
        ]  # fmt: skip
    finish = "tool_calls" if reply["calls"] else "stop"
    choice = {"index": 0, "message": message, "finish_reason": finish}
    whole = {"id": "x", "object": "chat.completion", "created": 0, "model": "k",
             "choices": [choice], "usage": USAGE}  # fmt: skip
    return json.dumps(whole).encode()


USAGE = {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 1010}


def serve(steps: int, log: Path) -> None:
    """Serve until standard input ends; then write what was seen."""

    async def serving() -> None:
        Server.steps = steps
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Server, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await loop.run_in_executor(None, sys.stdin.buffer.read)

    asyncio.run(serving())
    log.write_text(json.dumps(Server.log))


# --- the floor ------------------------------------------------------------------------------------


def bare(url: str, prefix: Path | None, log: Path | None) -> None:
    """The smallest loop that does the work.

    `prefix`: messages to send, already serialised. `log`: where to write each message, and flush
    each reply to the disk before its calls run.
    """
    import httpx

    kept = log.open("ab", buffering=0) if log else None
    head = json.dumps({"model": "k", "stream": True, "tools": TOOLS})[:-1].encode()
    start = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}]
    first = prefix.read_bytes() if prefix else b",".join(json.dumps(m).encode() for m in start)
    messages: list[bytes] = [first]
    with httpx.Client(timeout=60) as client:
        while True:
            body = head + b',"messages":[' + b",".join(messages) + b"]}"
            reply: dict[str, Any] = {"role": "assistant", "content": "", "reasoning_content": ""}
            calls: list[dict[str, Any]] = []
            with client.stream(
                "POST", f"{url}/chat/completions", content=body,
                headers={"content-type": "application/json"},
            ) as response:  # fmt: skip
                for line in response.iter_lines():
                    if not line.startswith("data: ") or line == "data: [DONE]":
                        continue
                    for choice in json.loads(line[6:])["choices"]:
                        delta = choice["delta"]
                        reply["reasoning_content"] += delta.get("reasoning_content") or ""
                        reply["content"] += delta.get("content") or ""
                        calls += delta.get("tool_calls", [])
            if not calls or calls[0]["function"]["name"] == "finish":
                return
            reply["tool_calls"] = calls
            messages.append(json.dumps(reply).encode())
            if kept:
                kept.write(messages[-1] + b"\n")
                getattr(os, "fdatasync", os.fsync)(kept.fileno())
            for call in calls:
                command = json.loads(call["function"]["arguments"])["command"]
                done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
                result = {"role": "tool", "tool_call_id": call["id"], "content": done.stdout}
                messages.append(json.dumps(result).encode())
                if kept:
                    kept.write(messages[-1] + b"\n")


# --- clients --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where a client runs."""

    url: str
    home: Path
    repo: Path
    prefix: Path | None


def _files(home: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def floor(place: Place) -> list[str]:
    return [sys.executable, __file__, "--bare", place.url, str(place.prefix or ""), ""]


def flushed(place: Place) -> list[str]:
    log = str(place.home / "log")
    return [sys.executable, __file__, "--bare", place.url, str(place.prefix or ""), log]


def ours(place: Place) -> list[str]:
    return ["unabridged", "run", TASK, "--repo", str(place.repo), "--base-url", place.url,
            "--model", "kimi-k3", "--window", "4000000", "--quiet", "--json",
            "--max-cost", "1000"]  # fmt: skip


def mini(place: Place) -> list[str]:
    return ["mini", "-m", "openai/fake", "-t", TASK, "--yolo", "--exit-immediately", "-l", "0",
            "-o", str(place.home / "trajectory.json"), "-c", "mini.yaml",
            "-c", f"model.model_kwargs.api_base={place.url}",
            "-c", "model.model_kwargs.api_key=x"]  # fmt: skip


def llm(place: Place) -> list[str]:
    _files(place.home, {
        "functions.py": "import subprocess\n\ndef shell(command: str) -> str:\n"
        '    """Run a command."""\n'
        "    return subprocess.run(command, shell=True, capture_output=True, text=True).stdout\n",
        "llm/extra-openai-models.yaml": "- model_id: fake\n  model_name: fake\n"
        f"  api_base: {place.url}\n  supports_tools: true\n",
    })  # fmt: skip
    return ["llm", "-m", "fake", "--key", "x", "--functions", str(place.home / "functions.py"),
            "--cl", "0", TASK]  # fmt: skip


def tau(place: Place) -> list[str]:
    _files(place.home, {".tau/providers.json": json.dumps({
        "default_provider": "p",
        "providers": [{"name": "p", "type": "openai-compatible", "base_url": place.url,
                       "api_key_env": "FAKE_KEY", "models": ["fake"], "default_model": "fake"}],
    })})  # fmt: skip
    return ["tau", "--provider", "p", "--model", "fake", "--approve", "-p", TASK]


def kimi_cli(place: Place) -> list[str]:
    _files(place.home, {".kimi/config.toml": (
        'default_model = "fake"\ntelemetry = false\n\n[models.fake]\nprovider = "p"\n'
        'model = "fake"\nmax_context_size = 1000000\n\n[providers.p]\ntype = "openai_legacy"\n'
        f'base_url = "{place.url}"\napi_key = "x"\n'
    )})  # fmt: skip
    return ["kimi-cli", "--print", "--yolo", "-w", str(place.repo), "-p", TASK]


def kimi_code(place: Place) -> list[str]:
    _files(place.home, {".kimi-code/config.toml": (
        'default_model = "fake"\ntelemetry = false\n\n[models.fake]\nprovider = "p"\n'
        'model = "fake"\nmax_context_size = 1000000\n\n[providers.p]\ntype = "openai"\n'
        f'base_url = "{place.url}"\napi_key = "x"\n'
    )})  # fmt: skip
    return ["kimi-code", "-p", TASK]


def vibe(place: Place) -> list[str]:
    _files(place.home, {".vibe/config.toml": (
        'active_model = "fake"\nenable_telemetry = false\nenable_update_checks = false\n\n'
        f'[[providers]]\nname = "p"\napi_base = "{place.url}"\napi_key_env_var = "FAKE_KEY"\n'
        'backend = "generic"\n\n[[models]]\nname = "fake"\nprovider = "p"\nalias = "fake"\n'
    )})  # fmt: skip
    return ["vibe", "-p", TASK, "--auto-approve", "--trust", "--output", "text"]


CLIENTS: dict[str, Callable[[Place], list[str]]] = {
    "bare httpx loop": floor,
    "the same, replies flushed": flushed,
    "Unabridged": ours,
    "tau": tau,
    "mini-swe-agent": mini,
    "kimi-code": kimi_code,
    "kimi-cli": kimi_cli,
    "mistral-vibe": vibe,
    "llm": llm,
}


# --- one run --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """What one run showed."""

    first: float
    """Seconds from the start of the program to its first request."""
    gaps: list[float]
    """Milliseconds; `gaps[n]` is after step n + 1."""
    cpu: float
    """Milliseconds a step, the whole run over its steps."""
    body: int
    """Bytes of the last request."""
    rss: float
    disk: int
    """Bytes left in the home."""
    log: int
    """Bytes of our session log."""


def once(client: Callable[[Place], list[str]], steps: int, size: int, prefix: Path | None) -> Seen:
    """Run one client against a server of its own, in a home and a repository of their own."""
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder).resolve()
        home, repo, log = top / "home", top / "repo", top / "server.json"
        home.mkdir()
        make_repository(repo, size)
        server = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(steps), str(log)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        command = client(Place(url, home, repo, prefix))
        began = time.perf_counter()
        cost = run(command, env=environment(home), cwd=repo, log=top / "output")
        server.communicate(b"")
        requests: list[tuple[float, float, int]] = json.loads(log.read_text())
        if cost.code or len(requests) <= min(steps, 2):
            said = (top / "output").read_bytes().decode(errors="replace")[-800:]
            raise RuntimeError(f"{command[0]}: exit {cost.code}, {len(requests)} requests\n{said}")
        logs = list(home.rglob("sessions/*.jsonl"))
        return Seen(
            first=requests[0][0] - began,
            gaps=[1000 * (b[0] - a[1]) for a, b in pairwise(requests)],
            cpu=1000 * cost.cpu / max(steps, 1),
            body=requests[-1][2],
            rss=cost.rss,
            disk=sum(path.stat().st_size for path in home.rglob("*") if path.is_file()),
            log=logs[0].stat().st_size if logs else 0,
        )


def environment(home: Path) -> dict[str, str]:
    """A new home, and everything off that talks to somebody else."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return {
        **kept,
        "HOME": str(home),
        "TERM": "dumb",
        "FAKE_KEY": "x",
        "OPENAI_API_KEY": "x",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_SILENT_STARTUP": "1",
        "LLM_USER_PATH": str(home / "llm"),
        "KIMI_CLI_NO_AUTO_UPDATE": "1",
        "DO_NOT_TRACK": "1",
    }


def make_repository(repo: Path, size: int) -> None:
    """One small file, and others of so many bytes in all; one commit."""
    repo.mkdir()
    line = "The quick brown fox jumps over the lazy dog, line %d.\n"
    text = "".join(line % number for number in range(FILE // (len(line) + 1)))
    for number in range(size // FILE):
        (repo / f"{number}.txt").write_text(text)
    (repo / "a.txt").write_text("one\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "First"]):
        named = ["git", "-c", "user.name=n", "-c", "user.email=n@example.com", *words]
        subprocess.run(named, cwd=repo, check=True, capture_output=True)


def sent_prefix(folder: Path, size: int) -> Path:
    """The messages of our own first request over a repository of this size."""
    kept: list[bytes] = []

    class Keep(Server):
        def data_received(self, data: bytes) -> None:
            kept.append(data)
            super().data_received(data)

    async def ask() -> None:
        Server.steps, Server.log = 0, []
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Keep, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        home, repo = folder / "home", folder / "repo"
        home.mkdir()
        make_repository(repo, size)
        command = ours(Place(url, home, repo, None))
        process = await asyncio.create_subprocess_exec(
            *command, env=environment(home), cwd=repo, stdout=subprocess.DEVNULL
        )
        await process.wait()

    asyncio.run(ask())
    body = b"".join(kept).partition(b"\r\n\r\n")[2]
    messages = body.partition(b'"messages":[')[2].rpartition(b"],")[0]
    path = folder / "prefix.json"
    path.write_bytes(messages)
    return path


# --- the table ------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prefix", type=int, default=0, help="bytes of the repository's files")
    parser.add_argument("--only", action="append", default=[], choices=list(CLIENTS))
    parser.add_argument("--bin", action="append", default=[], help="folder with peers' programs")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--bare", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serve(int(options.serve[0]), Path(options.serve[1]))
        return 0
    if options.bare:
        url, *paths = options.bare
        bare(url, *(Path(path) if path else None for path in paths))
        return 0
    own = str(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join([own, *options.bin, os.environ["PATH"]])
    wanted = {name: CLIENTS[name] for name in options.only or CLIENTS}
    with tempfile.TemporaryDirectory() as folder:
        prefix = sent_prefix(Path(folder).resolve(), options.prefix) if options.prefix else None
        report(measure(wanted, options, prefix), options.steps)
    return 0


def measure(
    clients: dict[str, Callable[[Place], list[str]]], options: Any, prefix: Path | None
) -> dict[str, list[Seen]]:
    """Rounds over all clients; one that is missing or fails is left out, and that is said."""
    found: dict[str, list[Seen]] = {}
    for _ in range(options.rounds):
        for name, client in list(clients.items()):
            try:
                seen = once(client, options.steps, options.prefix, prefix)
            except (FileNotFoundError, RuntimeError) as error:
                print(f"{name}: left out: {error}", file=sys.stderr)
                del clients[name]
                continue
            found.setdefault(name, []).append(seen)
    return found


def report(found: dict[str, list[Seen]], steps: int) -> None:
    """One line for each client; gaps as medians over ten steps around the place named."""
    places = sorted({min(at, steps) for at in (10, 50, 100, 300, 1000) if at <= steps} | {steps})
    head = ["client", "first request s", "ratio"]
    for at in places:
        head += [f"gap at {at}, ms", "ratio"]
    head += ["ms more in 100 steps", "CPU ms a step", "last body kB", "peak MB", "disk kB"]
    print(f"| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    base = next(iter(found.values()))
    for name, seen in found.items():
        first, base_first = ([s.first for s in some] for some in (seen, base))
        cells = [name, spread(first, 2), f"{median(first) / median(base_first):.1f}"]
        for at in places:
            here, floor = (
                [median(s.gaps[max(at - 6, 0) : at + 4]) for s in some] for some in (seen, base)
            )
            cells += [spread(here, 1), f"{median(here) / median(floor):.1f}"]
        slopes = [100 * slope(s.gaps[4:]) for s in seen]
        cells += [
            spread(slopes, 2),
            f"{median(s.cpu for s in seen):.0f}",
            f"{seen[0].body / 1000:.0f}",
            f"{max(s.rss for s in seen):.0f}",
            f"{median(s.disk for s in seen) / 1000:.0f}",
        ]
        print(f"| {' | '.join(cells)} |")
    mine = found.get("Unabridged")
    if mine:
        print(f"\nOf Unabridged's bytes on disk, the log: {mine[0].log / 1000:.0f} kB.")


def slope(values: Sequence[float]) -> float:
    """Of the straight line through medians of tens: what each step adds."""
    tens = [median(values[i : i + 10]) for i in range(0, len(values) - 9, 10)]
    if len(tens) < 2:
        return 0.0
    middle, mean = (len(tens) - 1) / 2, sum(tens) / len(tens)
    over = sum((x - middle) * (y - mean) for x, y in enumerate(tens))
    return over / sum((x - middle) ** 2 for x in range(len(tens))) / 10


if __name__ == "__main__":
    sys.exit(main())
