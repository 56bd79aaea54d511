"""Runs commands, and sees to it that none of their processes outlives them or the harness.

The harness starts no command itself: a small supervisor does (supervisor.py), one for each kind of
sandbox that is needed, started with its first command. A command then costs little more than
starting its program, and whatever becomes of the harness, the supervisor ends what it started.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from . import output as capture
from .output import Live, Output
from .sandbox import NOTHING, Grant, Sandbox, Scratch

STOP_GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL for a command that ran out of time."""
CANCEL_GRACE = 0.4
"""The same for one that was cancelled: a cancel is over within a second."""
CANCEL_WAIT = 0.7
OVERDUE = 5.0
"""Seconds after the grace until the supervisor itself is taken for lost."""
LIVE_INTERVAL = 0.05
PIPE_SIZE = 1 << 18
DRAIN_READS = 64
"""Reads after the end of a command: a full pipe and more, but no endless writer."""

ROOMS = 8
"""Sandboxes kept; idle ones beyond that are closed."""

Stop = Literal["timeout", "cancelled", "stopped", "output limit"]


class StartError(Exception):
    """The command could not be started; one line for a person."""


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    exit_code: int | None
    """None when a signal ended it."""
    signal: int | None
    stopped: Stop | None
    """Why the harness ended it, if it did."""
    left: tuple[str, ...]
    """Processes it left behind, `pid command line`; they were ended."""
    unstoppable: tuple[str, ...]
    """Processes that survive even SIGKILL: another user's, or stuck in the kernel."""
    seconds: float
    error: str = ""
    """Why it never started, or what went wrong around it."""


class Running:
    """A command under way."""

    def __init__(
        self,
        room: _Room,
        request: Mapping[str, Any],
        output: Output,
        progress: Callable[[str], None],
    ) -> None:
        self.output = output
        self._progress = progress
        self._room = room
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[Outcome] = self._loop.create_future()
        self._stopped: Stop | None = None
        self._answer = bytearray()
        self._live = Live()
        self._flush: asyncio.TimerHandle | None = None
        self._overdue: asyncio.TimerHandle | None = None
        self._started = time.monotonic()
        pipe, writing = os.pipe()
        try:
            with contextlib.suppress(AttributeError, OSError):  # Linux only, and only a wish
                fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
            self._warden = room.send(request, writing)
        except BaseException:
            os.close(pipe)
            raise
        finally:
            os.close(writing)
        os.set_blocking(pipe, False)
        self._pipe: int | None = pipe
        self._loop.add_reader(pipe, self._read_output)
        self._loop.add_reader(self._warden, self._read_answer)

    @property
    def done(self) -> asyncio.Future[Outcome]:
        """Resolves when the command and its whole tree have ended. Never cancel it."""
        return self._done

    async def wait(self, timeout: float | None = None) -> Outcome:  # noqa: ASYNC109 - it stops the tree
        """See the command to its end; it is stopped after `timeout` seconds, and on cancellation."""
        try:
            await asyncio.wait([self._done], timeout=timeout)
            self.stop("timeout", STOP_GRACE)
            return await asyncio.shield(self._done)
        except asyncio.CancelledError:
            self.stop("cancelled", CANCEL_GRACE)
            await asyncio.wait([self._done], timeout=CANCEL_WAIT)
            raise

    def stop(self, why: Stop = "stopped", grace: float = STOP_GRACE) -> None:
        """End the tree: SIGTERM, and SIGKILL after `grace` seconds. No effect on what has ended."""
        if self._done.done() or self._stopped is not None:
            return
        self._stopped = why
        self._overdue = self._loop.call_later(
            grace + OVERDUE, self._lost, "it could not be stopped"
        )
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._warden.sendall(_frame({"stop": round(grace * 1000)}))

    def _read_output(self) -> None:
        assert self._pipe is not None
        try:
            data = os.read(self._pipe, PIPE_SIZE)
        except BlockingIOError:
            return
        if not data:
            self._close_pipe()
            return
        room_left = capture.LIMIT - self.output.total
        self.output.feed(data[: max(0, room_left)])
        self._live.feed(data)
        if self._flush is None:
            self._show()
            self._flush = self._loop.call_later(LIVE_INTERVAL, self._show_rest)
        if len(data) > room_left:
            self.stop("output limit", CANCEL_GRACE)

    def _show(self) -> None:
        if text := self._live.take():
            self._progress(text)

    def _show_rest(self) -> None:
        self._flush = None
        self._show()

    def _read_answer(self) -> None:
        try:
            data = self._warden.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        self._answer += data
        if not data:
            self._lost("its supervisor ended")
        elif self._answer.endswith(b"\n"):
            self._finish(json.loads(self._answer))

    def _lost(self, why: str) -> None:
        """The warden does not answer. What it held ends with its sandbox or by the supervisor."""
        complaint = self._room.abandon()
        self._finish({"error": ": ".join(filter(None, (why, complaint)))}, reusable=False)

    def _finish(self, answer: Mapping[str, Any], *, reusable: bool = True) -> None:
        self._loop.remove_reader(self._warden)
        for _ in range(DRAIN_READS):
            before = self.output.total
            if self._pipe is not None:
                self._read_output()
            if self.output.total == before:
                break
        self._close_pipe()
        for timer in (self._flush, self._overdue):
            if timer is not None:
                timer.cancel()
        self._show()
        unstoppable = tuple(answer.get("unstoppable", ()))
        self._room.give_back(self._warden, reusable=reusable and not unstoppable)
        self._done.set_result(
            Outcome(
                exit_code=answer.get("exit"),
                signal=answer.get("signal"),
                stopped=self._stopped,
                left=tuple(answer.get("left", ())),
                unstoppable=unstoppable,
                seconds=time.monotonic() - self._started,
                error=answer.get("error", ""),
            )
        )

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            self._loop.remove_reader(self._pipe)
            os.close(self._pipe)
            self._pipe = None


@dataclass
class Job:
    """A command that runs in the background."""

    id: str
    owner: str
    command: str
    running: Running
    shown: int = 0
    """Bytes of its output that its owner has been shown."""

    @property
    def outcome(self) -> Outcome | None:
        """How it ended; None while it runs."""
        return self.running.done.result() if self.running.done.done() else None


@dataclass
class Processes:
    """The commands of one session: starts them, lists its jobs, ends everything when closed.

    Use it from one event loop.
    """

    sandbox: Sandbox = field(default_factory=Sandbox.detect)
    jobs: dict[str, Job] = field(default_factory=dict[str, Job])
    """Background jobs by id, ended ones included."""
    _rooms: dict[tuple[Grant, Path, int], _Room] = field(default_factory=dict[Any, Any])
    _scratch: Scratch | None = None
    _running: set[Running] = field(default_factory=set[Running])

    def start(
        self,
        argv: Sequence[str],
        *,
        root: Path,
        env: Mapping[str, str],
        output: Output,
        grant: Grant = NOTHING,
        progress: Callable[[str], None] = lambda _text: None,
        whole_tree: bool = False,
    ) -> Running:
        """Start `argv` (its first word an absolute path) in `root`, without input.

        With `whole_tree` it counts as running until its last descendant ends; otherwise what is
        left when `argv` ends is ended too. Raises StartError when nothing can be started.
        """
        request = {"argv": list(argv), "cwd": str(root), "env": dict(env), "whole_tree": whole_tree}
        try:
            running = Running(self._room(root, grant), request, output, progress)
        except OSError as error:
            raise StartError(f"The command could not be started: {error}.") from error
        self._running.add(running)
        running.done.add_done_callback(lambda _done: self._running.discard(running))
        return running

    def prepare(self, root: Path, grant: Grant = NOTHING) -> None:
        """Start the supervisor for such commands ahead of the first, some tens of milliseconds.

        Raises StartError when it cannot be started.
        """
        try:
            self._room(root, grant).prepare()
        except OSError as error:
            raise StartError(f"No command can be started: {error}.") from error

    def background(self, owner: str, command: str, running: Running) -> Job:
        """Enter a command into the registry of jobs."""
        job = Job(f"job-{len(self.jobs) + 1}", owner, command, running)
        self.jobs[job.id] = job
        return job

    def live_jobs(self) -> list[Job]:
        """The jobs that still run."""
        return [job for job in self.jobs.values() if job.outcome is None]

    async def close(self) -> list[Job]:
        """End every command, supervisor and sandbox; the jobs that this ended."""
        killed = self.live_jobs()
        running = list(self._running)
        for each in running:
            each.stop("stopped", CANCEL_GRACE)
        if running:
            await asyncio.wait([each.done for each in running])
        for room in self._rooms.values():
            room.close()
        self._rooms.clear()
        for job in self.jobs.values():
            job.running.output.close()
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None
        return killed

    def _room(self, root: Path, grant: Grant) -> _Room:
        """The supervisor in the right sandbox, started when there is none yet."""
        if not self.sandbox.active:
            grant = NOTHING  # nothing to tell apart
        # A repository that was removed and made again is another folder for a sandbox.
        key = (grant, root, root.stat().st_ino)
        room = self._rooms.get(key)
        if room is None or not room.alive:
            if self._scratch is None and self.sandbox.active:
                self._scratch = Scratch()
            scratch = self._scratch

            def confine(argv: Sequence[str]) -> list[str]:
                if scratch is None:
                    return list(argv)
                return self.sandbox.command(argv, root=root, grant=grant, scratch=scratch)

            self._close_idle_rooms()
            room = self._rooms[key] = _Room(confine, confined=self.sandbox.active)
        return room

    def _close_idle_rooms(self) -> None:
        for key in list(self._rooms):
            if len(self._rooms) < ROOMS:
                return
            if self._rooms[key].idle:
                self._rooms.pop(key).close()


class _Room:
    """A supervisor and its wardens."""

    def __init__(self, confine: Callable[[Sequence[str]], list[str]], *, confined: bool) -> None:
        self._confined = confined
        self._busy = 0
        ours, theirs = socket.socketpair()
        supervisor = Path(__file__).resolve().with_name("supervisor.py")
        argv = [sys.executable, "-I", "-S", str(supervisor), str(theirs.fileno())]
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as we
        self._socket = ours
        self._idle: list[socket.socket] = []
        with theirs:
            self._process = subprocess.Popen(
                confine(argv),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                env={k: os.environ[k] for k in ("PATH", "LD_LIBRARY_PATH") if k in os.environ},
                cwd="/",
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def idle(self) -> bool:
        return self._busy == 0

    def prepare(self) -> None:
        """Have a warden ready."""
        if not self._idle:
            self._idle.append(self._new_warden())

    def send(self, request: Mapping[str, Any], output: int) -> socket.socket:
        """Give a request to a free warden; its socket, on which the answer will come."""
        frame = _frame(request)
        while True:
            fresh = not self._idle
            warden = self._new_warden() if fresh else self._idle.pop()
            try:
                sent = socket.send_fds(warden, [frame], [output])
                warden.sendall(memoryview(frame)[sent:])
                self._busy += 1
                return warden
            except OSError as error:
                warden.close()
                if fresh:
                    raise OSError(self.abandon() or error.strerror) from error

    def give_back(self, warden: socket.socket, *, reusable: bool) -> None:
        self._busy -= 1
        if reusable:
            self._idle.append(warden)
        else:
            warden.close()

    def close(self) -> None:
        """Let it end, which it does as soon as its wardens have."""
        for warden in self._idle:
            warden.close()
        self._idle.clear()
        self._socket.close()
        try:
            self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def abandon(self) -> str:
        """Something is wrong in here; what the sandbox complained of, if it did.

        A sandbox is killed with all that is in it. A bare supervisor stays, to end what a lost
        warden left behind.
        """
        if self._confined:
            self._process.kill()
            self._process.wait()
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip()

    def _new_warden(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._socket, [b"w"], [theirs.fileno()])
        except OSError as error:
            ours.close()
            raise OSError(self.abandon() or error.strerror) from error
        return ours


def _frame(message: Mapping[str, Any]) -> bytes:
    body = json.dumps(message).encode()
    return len(body).to_bytes(4, "big") + body
