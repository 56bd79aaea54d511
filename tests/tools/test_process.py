"""No process outlives its call or the harness; output is whole and bounded (C39-C44)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unabridged.tools import output as capture
from unabridged.tools import process
from unabridged.tools.output import HEAD, TAIL, Live, Output, readable
from unabridged.tools.process import Outcome, Processes, Running, StartError
from unabridged.tools.sandbox import Grant, Sandbox

BOTH = pytest.mark.parametrize(
    "mode", ["off", pytest.param("required", marks=pytest.mark.needs("bwrap"))]
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    return folder


@pytest.fixture
async def processes(mode: str) -> AsyncIterator[Processes]:
    running = Processes(Sandbox.detect(mode))  # type: ignore[arg-type]  # a literal, parametrized
    yield running
    await running.close()


class Runner:
    """Starts shell commands and keeps their outputs."""

    def __init__(self, processes: Processes, root: Path) -> None:
        self.processes = processes
        self.root = root
        self.count = 0

    def start(self, command: str, **options: object) -> Running:
        self.count += 1
        return self.processes.start(
            ["/bin/bash", "-c", command],
            root=self.root,
            env={"PATH": os.environ["PATH"]},
            output=Output(self.root.parent / f"output-{self.count}"),
            **options,  # type: ignore[arg-type]  # passed through
        )

    async def run(
        self, command: str, timeout: float = 20, **options: object
    ) -> tuple[Outcome, str]:
        running = self.start(command, **options)
        outcome = await running.wait(timeout)
        return outcome, running.output.excerpt()


@pytest.fixture
def shell(processes: Processes, root: Path) -> Runner:
    return Runner(processes, root)


class Marked:
    """Sleeps that can be told from all other processes of the machine."""

    def __init__(self) -> None:
        self.seconds = f"{random.randrange(10**6, 10**7)}.{os.getpid()}"

    @property
    def sleep(self) -> str:
        return f"sleep {self.seconds}"

    def alive(self) -> list[psutil.Process]:
        found: list[psutil.Process] = []
        for each in psutil.process_iter(["cmdline"]):
            words = each.info["cmdline"] or []  # a zombie has none
            if self.seconds in " ".join(words):
                found.append(each)
        return found


@pytest.fixture
def marked() -> Iterator[Marked]:
    mark = Marked()
    yield mark
    for left in mark.alive():
        with contextlib.suppress(psutil.NoSuchProcess):
            left.kill()


async def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        await asyncio.sleep(0.01)


DAEMON = """python3 -c '
import os, signal
signal.signal(signal.SIGHUP, signal.SIG_IGN)
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.closerange(0, 3)
os.execvp("sleep", ["sleep", "{seconds}"])'"""

ESCAPES = {
    "child": "sleep {seconds} &",
    "grandchild": "(bash -c 'sleep {seconds}; true' &) ",
    "nohup": "nohup sleep {seconds} >/dev/null 2>&1 &",
    "session": "setsid sleep {seconds} >/dev/null 2>&1 &",
    "daemon": DAEMON,
    "ignores TERM": "(trap '' TERM HUP INT; exec sleep {seconds}) &",
    "stopped": "sleep {seconds} & kill -STOP $!",
    "many": "for i in $(seq 12); do sleep {seconds} & done",
}


# --- how a command ends --------------------------------------------------------------------------


@BOTH
async def test_exit_code_and_both_outputs_in_order(shell: Runner) -> None:
    outcome, text = await shell.run("echo one; echo two >&2; echo three; exit 7")
    assert (outcome.exit_code, outcome.signal, outcome.stopped, outcome.left) == (7, None, None, ())
    assert text == "one\ntwo\nthree\n"


@BOTH
async def test_end_by_signal_is_reported(shell: Runner) -> None:
    outcome, _ = await shell.run("kill -SEGV $$")
    assert (outcome.exit_code, outcome.signal) == (None, signal.SIGSEGV)


@BOTH
async def test_there_is_no_input_and_no_terminal(shell: Runner) -> None:
    outcome, text = await shell.run(
        "cat; (: </dev/tty) 2>/dev/null && echo terminal; trap -p INT PIPE"
    )
    assert text == ""
    assert outcome.seconds < 5


@BOTH
async def test_commands_run_side_by_side(shell: Runner) -> None:
    began = time.monotonic()
    results = await asyncio.gather(*(shell.run(f"sleep 0.5; echo {n}") for n in range(12)))
    assert [text for _, text in results] == [f"{n}\n" for n in range(12)]
    assert time.monotonic() - began < 4


@BOTH
async def test_what_cannot_be_started_says_so(processes: Processes, root: Path) -> None:
    output = Output(root.parent / "out")
    running = processes.start(["/no/such/program"], root=root, env={}, output=output)
    outcome = await running.wait()
    assert outcome.exit_code is None
    assert "No such file" in outcome.error
    with pytest.raises(StartError, match="No such file"):
        processes.start(["/bin/true"], root=root / "gone", env={}, output=output)


@BOTH
async def test_a_start_made_ready_ahead(processes: Processes, shell: Runner, root: Path) -> None:
    processes.prepare(root)
    outcome, text = await shell.run("echo ready")
    assert (outcome.exit_code, text) == (0, "ready\n")


# --- nothing is left -----------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("escape", ESCAPES)
async def test_c42_leftovers_are_reported_and_ended(
    shell: Runner, marked: Marked, escape: str
) -> None:
    outcome, text = await shell.run(ESCAPES[escape].format(seconds=marked.seconds) + "\necho done")
    assert outcome.exit_code == 0
    assert "done\n" in text
    assert outcome.left
    assert all(marked.seconds in line for line in outcome.left)
    assert not outcome.unstoppable
    assert not marked.alive()


@BOTH
async def test_c42_what_ends_by_itself_is_no_leftover(shell: Runner) -> None:
    outcome, text = await shell.run("echo late > >(sleep 0.05; cat)")
    assert (outcome.left, text) == ((), "late\n")


@BOTH
@pytest.mark.parametrize("escape", ESCAPES)
async def test_c40_timeout_ends_the_whole_tree(
    shell: Runner, marked: Marked, escape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "STOP_GRACE", 0.3)
    command = ESCAPES[escape].format(seconds=marked.seconds)
    outcome, _ = await shell.run(f"trap '' TERM; {command}\nwhile :; do sleep 1; done", timeout=0.5)
    assert outcome.stopped == "timeout"
    assert not outcome.unstoppable
    assert outcome.seconds < 5
    assert not marked.alive()


@BOTH
async def test_timeout_lets_a_command_clean_up(shell: Runner) -> None:
    outcome, text = await shell.run(
        "trap 'echo cleaning; exit 3' TERM; sleep 60 & wait", timeout=0.3
    )
    assert (outcome.stopped, outcome.exit_code, text) == ("timeout", 3, "cleaning\n")


@BOTH
@pytest.mark.parametrize("escape", ["child", "daemon", "ignores TERM"])
async def test_c44_cancel_is_over_within_a_second(
    shell: Runner, marked: Marked, escape: str
) -> None:
    command = ESCAPES[escape].format(seconds=marked.seconds)
    task = asyncio.create_task(shell.run(f"trap '' TERM INT\n{command}\n{marked.sleep}; sleep 60"))
    await until(lambda: len(marked.alive()) >= 2)
    began = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - began < 1
    await until(lambda: not marked.alive(), 2)


HOPPER = """python3 -c '
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(1500):
    if os.fork(): os._exit(0)
    if not os.fork(): os.execvp("sleep", ["sleep", "{seconds}"])
    time.sleep(0.002)' &"""
"""Never the same process for long, and each leaves another one behind."""


@pytest.mark.long  # it starts processes as fast as it can, up to some thousand
@BOTH
async def test_a_tree_that_grows_and_hops_is_caught(shell: Runner, marked: Marked) -> None:
    outcome, _ = await shell.run(HOPPER.format(seconds=marked.seconds) + "\nsleep 0.3")
    assert outcome.exit_code == 0
    assert outcome.left
    assert not outcome.unstoppable
    assert not marked.alive()


@BOTH
@pytest.mark.parametrize("escape", ["child", "daemon", "session"])
async def test_a_lost_warden_leaves_nothing(shell: Runner, marked: Marked, escape: str) -> None:
    command = ESCAPES[escape].format(seconds=marked.seconds)
    running = shell.start(f"{command}\n{marked.sleep}; true")
    await until(lambda: len(marked.alive()) >= 2)
    wardens: list[psutil.Process] = []
    for one in reversed(marked.alive()):  # what escapes may be between two parents just now
        with contextlib.suppress(psutil.NoSuchProcess):
            wardens += [p for p in one.parents() if "supervisor.py" in " ".join(p.cmdline())]
    wardens[0].kill()
    outcome = await running.wait(10)
    assert "ended" in outcome.error
    await until(lambda: not marked.alive())
    assert (await shell.run("echo next"))[1] == "next\n"


HARNESS = """
import asyncio, os, signal, sys
from pathlib import Path
from unabridged.tools.output import Output
from unabridged.tools.process import Processes
from unabridged.tools.sandbox import Sandbox

async def main():
    mode, root, command = sys.argv[1:]
    processes = Processes(Sandbox.detect(mode))
    def start(command, name, **options):
        return processes.start(["/bin/bash", "-c", command], root=Path(root),
            env=dict(os.environ), output=Output(Path(root).parent / name), **options)
    job = start(command, "job", whole_tree=True)
    call = start("trap '' TERM HUP INT; " + command + " sleep 600", "call")
    await asyncio.wait([call.done])

asyncio.run(main())
"""


@BOTH
@pytest.mark.parametrize("way", ["SIGHUP", "SIGTERM", "SIGKILL", "SIGSEGV"])
async def test_c39_nothing_survives_the_harness(
    root: Path, marked: Marked, mode: str, way: str
) -> None:
    escapes = "\n".join(each.format(seconds=marked.seconds) for each in ESCAPES.values())
    harness = subprocess.Popen(
        [sys.executable, "-c", HARNESS, mode, str(root), escapes + "\n"],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        await until(lambda: len(marked.alive()) >= 2 * (len(ESCAPES) - 1 + 12), 30)
        supervisors = psutil.Process(harness.pid).children(recursive=True)
        harness.send_signal(signal.Signals[way])
        assert harness.wait(10) == -signal.Signals[way]
        await until(lambda: not marked.alive(), 5)
        await until(lambda: not any(p.is_running() for p in supervisors), 5)
    finally:
        harness.kill()


# --- jobs ----------------------------------------------------------------------------------------


@BOTH
async def test_c43_closing_ends_jobs_and_says_which(
    processes: Processes, shell: Runner, marked: Marked
) -> None:
    quick = processes.background("main", "true", shell.start("true", whole_tree=True))
    daemon = ESCAPES["daemon"].format(seconds=marked.seconds)
    slow = processes.background("main", daemon, shell.start(daemon, whole_tree=True))
    await asyncio.wait([quick.running.done])
    await until(lambda: bool(marked.alive()))
    assert slow.outcome is None, "a job lasts as long as its tree"
    assert processes.live_jobs() == [slow]
    assert await processes.close() == [slow]
    assert not marked.alive()


# --- output --------------------------------------------------------------------------------------


@BOTH
async def test_output_shows_while_the_command_runs(shell: Runner) -> None:
    seen: list[str] = []
    running = shell.start("echo first; sleep 600", progress=seen.append)
    await until(lambda: seen == ["first\n"])
    running.stop(grace=0.1)
    await running.done


@BOTH
async def test_a_flood_is_bounded_in_memory_and_stopped(
    shell: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "LIMIT", 40_000_000)
    seen: list[str] = []
    before = psutil.Process().memory_info().rss
    running = shell.start("exec yes 'a line of the flood'", progress=seen.append)
    outcome = await running.wait(60)
    assert psutil.Process().memory_info().rss - before < 20_000_000
    assert outcome.stopped == "output limit"
    assert running.output.path.stat().st_size == running.output.total == 40_000_000
    assert sum(map(len, seen)) < 5_000_000
    text = running.output.excerpt()
    assert len(text) <= HEAD + TAIL + 300
    assert f"whole output is in {running.output.path}" in text


@BOTH
async def test_the_cut_is_stated_and_the_whole_is_kept(shell: Runner) -> None:
    running = shell.start("seq 100000")
    await running.wait(20)
    text = running.output.excerpt()
    whole = "".join(f"{n}\n" for n in range(1, 100001)).encode()
    assert running.output.path.read_bytes() == whole
    lines = text.splitlines()
    gap = next(i for i, line in enumerate(lines) if line.startswith("["))
    assert lines[:gap] == [str(n) for n in range(1, gap + 1)]
    rest = lines[gap + 1 :]
    assert rest == [str(n) for n in range(100001 - len(rest), 100001)]
    shown = sum(len(line) + 1 for line in lines[:gap] + rest)
    assert lines[gap].startswith(f"[{len(whole) - shown} of {len(whole)} bytes cut here")


@BOTH
async def test_any_bytes_come_through(shell: Runner) -> None:
    running = shell.start(
        r"printf 'a\0b\n\xff\xfe caf\xc3\xa9\n\033[31mred\033[0m\n10%%\r20%%\r\nbell\a\n"
        r"\033]0;title\007end\n'"
    )
    await running.wait(10)
    assert running.output.excerpt() == "a\\x00b\n\\xff\\xfe café\nred\n20%\nbell\\x07\nend\n"
    assert running.output.path.read_bytes().startswith(b"a\0b\n\xff\xfe"), "the bytes are kept"


def test_short_plain_output_makes_no_file(tmp_path: Path) -> None:
    output = Output(tmp_path / "out")
    output.feed("naïve\n".encode())
    assert output.excerpt() == "naïve\n"
    output.close()
    assert not output.path.exists()


def test_a_full_disk_is_said_and_loses_nothing_shown(tmp_path: Path) -> None:
    output = Output(tmp_path / "missing folder" / "out")
    output.feed(b"x" * 1000 + b"\n")
    output.feed(b"y" * (HEAD + TAIL))
    text = output.excerpt()
    assert text.startswith("x" * 1000)
    assert f"[{HEAD + TAIL} more bytes were not kept: {output.path}: No such file" in text


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=9000), max_size=12))
def test_output_keeps_every_byte(chunks: list[bytes]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        output = Output(Path(folder, "out"))
        whole = b"".join(chunks)
        for chunk in chunks:
            output.feed(chunk)
        assert output.between(0, output.total) == whole
        text = output.excerpt()
        if len(whole) <= HEAD + TAIL:
            assert text == readable(whole).text
            assert output.on_disk == (not readable(whole).lossless)
        else:
            assert output.path.read_bytes() == whole
        output.close()


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_shown_text_has_no_control_and_lossless_means_equal(data: bytes) -> None:
    shown = readable(data)
    assert not any(ord(c) < 32 and c not in "\t\n" for c in shown.text)
    assert shown.lossless == (shown.text.encode() == data)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200), st.integers(1, 7))
def test_live_text_survives_any_split(text: str, size: int) -> None:
    live, data = Live(), text.encode()
    shown = ""
    for start in range(0, len(data), size):
        live.feed(data[start : start + size])
        shown += live.take()
    assert shown == text


# --- where there is no subreaper -----------------------------------------------------------------


def test_elsewhere_the_group_is_ended_when_the_harness_is_gone(
    marked: Marked, tmp_path: Path
) -> None:
    """The path taken on macOS, driven by its protocol, here on this system."""
    import json
    import socket

    supervisor = Path(process.__file__).with_name("supervisor.py")
    code = f"""
    import runpy, sys
    sys.platform = "darwin"
    sys.argv[0] = "supervisor.py"
    runpy.run_path({str(supervisor)!r}, run_name="__main__")
    """
    ours, theirs = socket.socketpair()
    warden, end = socket.socketpair()
    warden.settimeout(10)
    descriptor = str(theirs.fileno())
    running = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", textwrap.dedent(code), descriptor],
        pass_fds=[theirs.fileno()],
    )
    theirs.close()

    def send(command: str) -> None:
        request = {"argv": ["/bin/bash", "-c", command], "cwd": str(tmp_path)}
        request |= {"env": {"PATH": os.environ["PATH"]}, "whole_tree": False}
        body = json.dumps(request).encode()
        with Path(os.devnull).open("wb") as output:
            socket.send_fds(warden, [len(body).to_bytes(4, "big") + body], [output.fileno()])

    try:
        socket.send_fds(ours, [b"w"], [end.fileno()])
        end.close()
        send(f"{marked.sleep} & (setsid {marked.sleep} &); sleep 0.1; exit 4")
        answer = json.loads(warden.recv(65536))
        assert answer["exit"] == 4
        assert len(marked.alive()) == 1, "what left the group survives here, as documented"
        marked.alive()[0].kill()

        send(f"{marked.sleep} & {marked.sleep}; true")
        deadline = time.monotonic() + 5
        while len(marked.alive()) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(marked.alive()) == 3
        ours.close()
        warden.close()
        assert running.wait(10) == 0
        assert not marked.alive()
    finally:
        running.kill()
        running.wait()


def test_grants_of_nothing_write_nothing() -> None:
    assert Grant.of(()) == Grant(write=False, network=False, secret=False, outside=())
