"""What the TUI costs: bytes for a streamed token, the time of a frame and of a key, memory.

    python benchmarks/tui.py --messages 5000 --rate 400 --tokens 4000 --minutes 60

Three parts, all over a log of many messages and with a scripted model, which streams one half of
its tokens as reasoning:

- The program on a pseudo-terminal, at `--rate`. A key counts from its writing to its echo.
- The same in this process, without a terminal: how long it takes to render a frame.
- The program on a pseudo-terminal once more, for as many tokens as `--minutes` at `--rate` would
  give, in many turns. Time is compressed: they stream as fast as they are taken, so what this shows
  is memory and nothing of speed. 0 leaves it out.
"""

from __future__ import annotations

import argparse
import asyncio
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
from typing import Any

import psutil
from textual._compositor import Compositor

from unabridged.agent.config import Flags
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
from unabridged.tui.app import UnabridgedApp
from unabridged.tui.desk import Start
from unabridged.tui.memory import Memory

IDLE = b"Enter sends"
WORKS = b"Esc stops"
SIZE = (120, 40)
CHARACTERS = 4
"""Of a token, as they are counted here."""
WINDOW = 8_000_000
"""Tokens; an hour at full speed is more than the window of K3 holds."""
TURNS = 100
"""Of the long session."""
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


def turn(tokens: int, chunk: int, delay: float, end: str = "") -> dict[str, object]:
    """A turn of the scripted model, one half of it reasoning; `end` stands last."""
    text = ("word " * 12 + "\n\n") * (tokens * CHARACTERS // 124 + 1)
    half = text[: tokens * CHARACTERS // 2]
    return {"reasoning": half, "content": half + end, "wire": {"chunk": chunk, "delay": delay}}


def write_script(folder: Path, turns: list[dict[str, object]]) -> Path:
    """What the model plays."""
    script = folder / "script.json"
    script.write_text(json.dumps({"turns": turns, "window": WINDOW}))
    return script


class Terminal:
    """The program on a pseudo-terminal, in a folder with a repository and a log."""

    def __init__(self, folder: Path, script: Path) -> None:
        env = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder),
               "XDG_CONFIG_HOME": str(folder), "TERM": "xterm-256color", "COLORTERM": "truecolor"}  # fmt: skip
        words = [sys.executable, "-m", "unabridged", str(folder / "repo"), "--script", str(script),
                 "--sessions-dir", str(folder / "sessions"), "--resume", "last"]  # fmt: skip
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", SIZE[1], SIZE[0], 0, 0))
        self.process = subprocess.Popen(words, stdin=slave, stdout=slave, stderr=slave, env=env,
                                        start_new_session=True)  # fmt: skip
        os.close(slave)
        self.measured = psutil.Process(self.process.pid)
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

    def begin_turn(self) -> None:
        """Send a task."""
        os.write(self.master, b"go\r")
        self.until(WORKS, 10)

    @property
    def cpu(self) -> float:
        """Seconds of CPU time so far."""
        return sum(self.measured.cpu_times()[:2])

    @property
    def memory(self) -> float:
        """Megabytes in use."""
        return self.measured.memory_info().rss / 2**20

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(10)


def streamed(folder: Path, rate: int, tokens: int) -> None:
    """A turn at the given rate, while somebody types."""
    terminal = Terminal(folder, write_script(folder, [turn(tokens, CHARACTERS, 1 / rate)]))
    opened = terminal.until(IDLE, 60)
    time.sleep(2)
    terminal.read(0.1)
    before = terminal.memory
    terminal.begin_turn()
    written, cpu, began = terminal.written, terminal.cpu, time.perf_counter()
    latencies = list[float]()
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
        if IDLE in seen or time.perf_counter() - began > tokens / rate * 4 + 20:
            break
    seconds, cpu, written = (
        time.perf_counter() - began,
        terminal.cpu - cpu,
        terminal.written - written,
    )
    after = terminal.memory
    terminal.close()
    say("open to interactive", f"{opened:.2f} s")
    say("streamed", f"{tokens:,} tokens in {seconds:.1f} s")
    say("CPU time for a token", f"{cpu / tokens * 1e3:.2f} ms")
    say("bytes for a token", f"{written / tokens:.0f}")
    say("key to echo", shown(latencies))
    say("memory before and after", f"{before:.0f} MB, {after:.0f} MB")


async def frames(folder: Path, rate: int, tokens: int) -> None:
    """The same turn without a terminal: what rendering takes."""
    times = list[float]()
    render = Compositor.render_update

    def timed(*words: Any, **names: Any) -> Any:
        began = time.perf_counter()
        try:
            return render(*words, **names)
        finally:
            times.append(time.perf_counter() - began)

    start = Start(root=folder / "repo", sessions=folder / "sessions", cache=folder / "cache",
                  script=write_script(folder, [turn(tokens, CHARACTERS, 1 / rate)]),
                  flags=Flags(model="kimi-k3"), resume="last")  # fmt: skip
    app = UnabridgedApp(start, Memory(folder / "tui.json"))
    async with app.run_test(size=SIZE) as pilot:
        while app.session is None or not app.transcript.blocks:
            await pilot.pause(0.05)
        await pilot.pause(1)
        app.prompt.put("go")
        await pilot.press("enter")
        Compositor.render_update = timed
        while app.busy:
            await asyncio.sleep(0.1)
            app.prompt.insert("z")
        Compositor.render_update = render
        await app.desk.let_go()
    say("a frame", shown(times))


def long_session(folder: Path, minutes: int, rate: int) -> None:
    """Memory over as many tokens as that time would give."""
    tokens = minutes * 60 * rate // TURNS
    turns = [turn(tokens, CHARACTERS * 16, 0, f"\n\nend{n}.") for n in range(1, TURNS + 1)]
    script = write_script(folder, turns)
    terminal = Terminal(folder, script)
    terminal.until(IDLE, 60)
    time.sleep(2)
    memory = [terminal.memory]
    for number in range(1, TURNS + 1):
        os.write(terminal.master, b"go\r")  # a short turn is over before its start is drawn
        terminal.until(f"end{number}.".encode(), 300)
        if number % (TURNS // 4) == 0:
            memory.append(terminal.memory)
    terminal.close()
    quarters = ", ".join(f"{one:.0f}" for one in memory)
    say("a long session", f"{tokens * TURNS:,} tokens in {TURNS} turns, as of {minutes} minutes")
    say("memory by quarters", f"{quarters} MB")


def shown(seconds: list[float]) -> str:
    """The middle and the 95th percentile."""
    ordered = sorted(seconds)
    high = ordered[int(len(ordered) * 0.95)]
    return f"median {statistics.median(ordered) * 1e3:.0f} ms, 95 % {high * 1e3:.0f} ms ({len(ordered):,})"


def say(what: str, figure: str) -> None:
    print(f"{what:25}  {figure}", flush=True)


def main() -> None:
    """Measure and print one line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=5000)
    parser.add_argument("--rate", type=int, default=400, help="tokens a second")
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--minutes", type=int, default=60, help="of the long session")
    args = parser.parse_args()
    say("messages in the log", f"{args.messages:,}")
    for part in ("streamed", "frames", "long"):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name).resolve()
            (folder / "repo").mkdir()
            (folder / "repo/a.py").write_text("x = 1\n")
            write_log(folder / "sessions", folder / "repo", args.messages)
            if part == "streamed":
                streamed(folder, args.rate, args.tokens)
            elif part == "frames":
                asyncio.run(frames(folder, args.rate, args.tokens))
            elif args.minutes:
                long_session(folder, args.minutes, args.rate)


if __name__ == "__main__":
    main()
