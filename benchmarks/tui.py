"""What the TUI costs in a terminal: bytes for a streamed token, latency of a key, memory.

The program runs on a pseudo-terminal, over a log of many messages, while a scripted model streams.
A key counts from its writing to the echo on the terminal.

    python benchmarks/tui.py --messages 5000 --rate 400 --tokens 4000
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import psutil

from unabridged.agent.events import (
    AssistantMessage,
    RepositoryLoaded,
    RunEnded,
    RunStarted,
    SessionStarted,
    SystemMessage,
    TextPart,
    UserMessage,
)
from unabridged.agent.store import Store

IDLE = b"Enter sends"
WORDS = "refactor the price module and follow every use of it "


def write_log(folder: Path, repo: Path, messages: int) -> None:
    """A session of that many messages, half of them the user's."""
    with Store.create(folder, "20260101-000000-bench0") as store:
        store.append(SessionStarted(session=store.session, repo=str(repo), version="0", model="kimi-k3",
                                    endpoint="script"))  # fmt: skip
        store.append(SystemMessage(text="system", tools=()))
        store.append(RepositoryLoaded(files=1, tokens=10, exact=False))
        for step in range(1, messages // 2 + 1):
            store.append(RunStarted(model="kimi-k3", endpoint="script", effort="max", mode="ask",
                                    on_ask="wait", window=1 << 20))  # fmt: skip
            store.append(UserMessage(parts=(TextPart(text=f"{step}: {WORDS}"),)))
            store.append(AssistantMessage(step=step, reasoning=WORDS * 8,
                                          content=f"**{step}**\n\n- {WORDS}\n- {WORDS}"))  # fmt: skip
            store.append(RunEnded(exit_code=0, name="done", reason="the model answered"))


class Terminal:
    """The program on a pseudo-terminal."""

    def __init__(self, words: list[str], env: dict[str, str]) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.process = subprocess.Popen(words, stdin=slave, stdout=slave, stderr=slave, env=env,
                                        start_new_session=True)  # fmt: skip
        os.close(slave)
        self.written = 0

    def read(self, seconds: float) -> bytes:
        """What comes within that time, as soon as something comes."""
        if not select.select([self.master], [], [], seconds)[0]:
            return b""
        data = os.read(self.master, 1 << 16)
        self.written += len(data)
        return data

    def until(self, mark: bytes, seconds: float) -> float:
        """Seconds until the mark came."""
        began, seen = time.perf_counter(), b""
        while time.perf_counter() - began < seconds:
            seen = (seen + self.read(0.05))[-200_000:]
            if mark in seen:
                return time.perf_counter() - began
        raise SystemExit(f"{mark!r} did not come within {seconds} s")


def main() -> None:
    """Measure and print one line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=5000)
    parser.add_argument("--rate", type=int, default=400, help="tokens a second")
    parser.add_argument("--tokens", type=int, default=4000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "repo").mkdir()
        (folder / "repo/a.py").write_text("x = 1\n")
        write_log(folder / "sessions", (folder / "repo").resolve(), args.messages)
        script = folder / "script.json"
        text = ("word " * 12 + "\n\n") * (args.tokens * 4 // 62 + 1)
        script.write_text(json.dumps({
            "turns": [{"content": text[: args.tokens * 4],
                       "wire": {"chunk": 4, "delay": 1 / args.rate}}],
        }))  # fmt: skip
        env = {**os.environ, "HOME": name, "XDG_DATA_HOME": name, "XDG_CONFIG_HOME": name,
               "TERM": "xterm-256color", "COLORTERM": "truecolor"}  # fmt: skip
        terminal = Terminal([sys.executable, "-m", "unabridged", str(folder / "repo"), "--script",
                             str(script), "--sessions-dir", str(folder / "sessions"),
                             "--resume", "last"], env)  # fmt: skip
        opened = terminal.until(IDLE, 60)
        time.sleep(2)
        terminal.read(0.1)
        process = psutil.Process(terminal.process.pid)
        before = process.memory_info().rss
        os.write(terminal.master, b"go")
        terminal.until(b"go", 5)
        os.write(terminal.master, b"\r")
        terminal.until(b"Esc stops", 10)
        started, began, latencies = terminal.written, time.perf_counter(), list[float]()
        used = sum(process.cpu_times()[:2])
        while True:
            pressed = time.perf_counter()
            os.write(terminal.master, b"z")
            seen = b""
            while b"z" not in seen and time.perf_counter() - pressed < 5:
                seen += terminal.read(0.01)
            latencies.append(time.perf_counter() - pressed)
            until = time.perf_counter() + 0.1
            while time.perf_counter() < until:
                seen += terminal.read(0.02)
            if IDLE in seen or time.perf_counter() - began > args.tokens / args.rate * 4 + 20:
                break
        seconds = time.perf_counter() - began
        used = sum(process.cpu_times()[:2]) - used
        after = process.memory_info().rss
        terminal.process.terminate()
        terminal.process.wait(10)
    latencies.sort()
    print(f"messages in the log        {args.messages:,}")
    print(f"open to interactive        {opened:.2f} s")
    print(f"streamed                   {args.tokens:,} tokens in {seconds:.1f} s")
    print(f"CPU time for a token       {used / args.tokens * 1e3:.2f} ms")
    print(f"bytes for a token          {(terminal.written - started) / args.tokens:.0f}")
    print(f"key to echo, median        {statistics.median(latencies) * 1e3:.0f} ms")
    print(
        f"key to echo, 95 %          {latencies[int(len(latencies) * 0.95)] * 1e3:.0f} ms ({len(latencies)} keys)"
    )
    print(f"memory before and after    {before / 2**20:.0f} MB, {after / 2**20:.0f} MB")


if __name__ == "__main__":
    main()
