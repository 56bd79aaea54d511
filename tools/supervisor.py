"""Runs commands for the harness, and lets no process of theirs outlive them.

A program of its own, started as `python -I -S supervisor.py FD`, inside a sandbox or not, and
standard library only, so that it starts fast and stays small. Its two roles:

- The *supervisor* reads the socket FD. With each byte comes the descriptor of another socket, for
  which it forks a warden. It adopts and ends what a lost warden leaves behind.
- A *warden* runs the commands that arrive on its socket, one after the other, each in a session of
  its own. On Linux it is a child subreaper: every descendant whose parent ends becomes its child,
  however it forks or changes its session, so "no children left" means that the whole tree is gone.
  When the command ends, the rest of the tree is ended too. When the harness says so, or is gone in
  whatever way and the socket closes, the tree is ended: SIGTERM, a short grace, then SIGKILL until
  nothing is left.

Elsewhere there is no subreaper: the process group and the tree as `ps` shows it are ended, and a
process that leaves both survives.

Messages to a warden are a 4-byte big-endian length and JSON:
- `{"argv", "cwd", "env", "whole_tree"}` runs a command; the descriptor for its output comes with
  the first byte. With `whole_tree` it counts as running until its last descendant ends (a
  background job). The answer, when all is over, is one line of JSON: `{"exit": int | null,
  "signal": int | null, "error": str, "left": [str], "unstoppable": [str]}`.
- `{"stop": milliseconds}` ends the command, with that grace. Ignored when none runs.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import time

TYPE_CHECKING = False  # `typing` itself would cost start-up time
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any, NoReturn

LINUX = sys.platform == "linux"

PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36

LINGER = 0.2
"""Seconds the rest of a tree has to end by itself after the command, such as `> >(tee log)`."""
GRACE = 0.3
"""Seconds between SIGTERM and SIGKILL where the harness did not say."""
KILLING = 3.0
"""Seconds to go on with SIGKILL before giving up on what is stuck in the kernel or not ours."""
MOST_NAMED = 20
"""Processes left behind that are named."""
AGAIN = 0.02
"""Seconds between two rounds of it."""


# --- processes ---------------------------------------------------------------------------------


def prctl(option: int, value: int) -> None:
    """Linux's prctl(2); nothing elsewhere."""
    if LINUX and ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def slurp(path: str) -> bytes:
    """A file of /proc, which may be gone: OSError."""
    with open(path, "rb") as file:  # noqa: PTH123 - pathlib would cost start-up time
        return file.read(65536)


def children(pid: int) -> list[int]:
    """Linux: the children of a process, of all its threads; none when it is gone.

    Costs as much as there are children, however many processes the machine has.
    """
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - as above
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:  # noqa: PTH123
                found += map(int, file.read().split())
    return found


def below(pid: int) -> Iterator[int]:
    """Linux: the descendants of a process, each as soon as it is found."""
    seen = {pid}
    ahead = [pid]
    while ahead:
        for child in children(ahead.pop()):
            if child not in seen:
                seen.add(child)
                ahead.append(child)
                yield child


def listing() -> list[tuple[int, int, int, str]]:
    """Elsewhere: (pid, parent, group, command line) of what has not ended."""
    import subprocess

    argv = ["/bin/ps", "-axo", "pid=,ppid=,pgid=,stat=,command="]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as ps:
        lines = ps.communicate()[0].decode(errors="replace").splitlines()
    found: list[tuple[int, int, int, str]] = []
    for line in lines:
        pid, parent, group, state, *command = line.split(None, 4)
        if not state.startswith("Z") and int(pid) != ps.pid:
            found.append((int(pid), int(parent), int(group), "".join(command)))
    return found


def send_signal(pid: int, number: int) -> None:
    """To a process; one that is gone or another user's is left, and reported if it stays."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def wake_on_child() -> int:
    """A descriptor that becomes readable when a child ends."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    return reading


def drain(descriptor: int) -> None:
    """Empty a pipe that does not block."""
    with contextlib.suppress(BlockingIOError):
        while os.read(descriptor, 4096):
            pass


def reap() -> tuple[dict[int, int], bool]:
    """Collect ended children: (pid -> wait status, whether any child is left)."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, False
        if pid == 0:
            return ended, True
        ended[pid] = status


class Tree:
    """A command's processes: those below this one; elsewhere than on Linux, also its group."""

    def __init__(self, group: int) -> None:
        self.group = group

    def pids(self) -> Iterable[int]:
        """Its members, and on Linux those that ended and were not reaped yet."""
        return below(os.getpid()) if LINUX else [pid for pid, _ in self._listed()]

    def _listed(self) -> list[tuple[int, str]]:
        found: dict[int, str] = {}
        known = listing()
        grown = True
        while grown:
            new = {
                pid: command
                for pid, parent, group, command in known
                if pid not in found
                and (parent in found or parent == os.getpid() or group == self.group)
            }
            found |= new
            grown = bool(new)
        return list(found.items())

    def describe(self) -> list[str]:
        """`pid command line` of each member, for a person; only so many of them."""
        lines = [f"{pid} {command[:200]}".rstrip() for pid, command in self._named()]
        more = len(lines) - MOST_NAMED
        return lines if more <= 0 else [*lines[:MOST_NAMED], f"and {more} more"]

    def _named(self) -> list[tuple[int, str]]:
        if not LINUX:
            return sorted(self._listed())
        found: list[tuple[int, str]] = []
        for pid in sorted(self.pids()):
            with contextlib.suppress(OSError):  # gone
                # "pid (name) state ...": a name may hold anything, so look after the last ")"
                if slurp(f"/proc/{pid}/stat").rpartition(b")")[2].split()[0] != b"Z":
                    words = slurp(f"/proc/{pid}/cmdline").rstrip(b"\0").replace(b"\0", b" ")
                    found.append((pid, words.decode(errors="replace")))
        return found

    def terminate(self) -> None:
        """Ask all to end; those that are stopped are woken to hear it."""
        for pid in self.pids():
            send_signal(pid, signal.SIGTERM)
            send_signal(pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill each as it is found, until a look finds nobody new.

        Who forks and ends in time to escape has its child handed to us, to be found at once.
        """
        killed: set[int] = set()
        fresh = True
        while fresh:
            fresh = False
            for pid in self.pids():
                if pid not in killed:
                    send_signal(pid, signal.SIGKILL)
                    killed.add(pid)
                    fresh = True

    def orphans(self) -> bool:
        """Whether any are left that are not our children, which happens only elsewhere."""
        if LINUX:
            return False
        try:
            os.killpg(self.group, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # what is left of it has ended, or is another user's
        return bool(self._listed())


# --- wardens -----------------------------------------------------------------------------------


def receive(stream: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """(message, descriptors), or None when the harness closed its end."""

    def exactly(count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            chunk = stream.recv(count - len(data))
            if not chunk:
                raise EOFError
            data += chunk
        return bytes(data)

    try:
        head, descriptors, _, _ = socket.recv_fds(stream, 4, 1)
        if not head:
            return None
        head += exactly(4 - len(head))
        return json.loads(exactly(int.from_bytes(head, "big"))), descriptors
    except (EOFError, ConnectionError):
        return None


def start(request: dict[str, Any], output: int) -> int:
    """Start the command with no input, both outputs on `output`, default signals, own session."""
    os.chdir(request["cwd"])
    return os.posix_spawn(
        request["argv"][0],
        request["argv"],
        request["env"],
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, output, 1),
            (os.POSIX_SPAWN_DUP2, output, 2),
        ],
        setsid=True,
        setsigmask=(),
        setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
    )


def ward(
    request: dict[str, Any], output: int, stream: socket.socket, wake: int
) -> dict[str, int | str | list[str] | None]:
    """See one command through to the end of its last process; the answer for the harness."""
    answer: dict[str, int | str | list[str] | None]
    answer = {"exit": None, "signal": None, "error": "", "left": [], "unstoppable": []}
    try:
        main = start(request, output)
    except (OSError, ValueError) as error:
        answer["error"] = str(error)
        return answer
    finally:
        os.close(output)

    tree = Tree(main)
    running = True
    phase = "run"  # linger, terminate, kill
    until = float("inf")
    give_up = float("inf")
    watched: list[int | socket.socket] = [wake, stream]
    while True:
        ended, more = reap()
        if main in ended and running:
            running = False
            code = os.waitstatus_to_exitcode(ended[main])
            answer["exit" if code >= 0 else "signal"] = abs(code)
        if not running and not more and not tree.orphans():
            return answer

        now = time.monotonic()
        if phase == "run" and not running and not request["whole_tree"]:
            phase, until = "linger", now + LINGER
        elif phase == "linger" and now >= until:
            answer["left"] = tree.describe()
            tree.terminate()
            phase, until = "terminate", now + GRACE
        elif phase == "terminate" and now >= until:
            phase, give_up = "kill", now + KILLING
        if phase == "kill":
            if now > give_up:
                answer["unstoppable"] = tree.describe()
                return answer
            tree.kill()
            until = now + AGAIN

        timeout = None if until == float("inf") else max(0.0, until - time.monotonic())
        ready, _, _ = select.select(watched, [], [], timeout)
        if wake in ready:
            drain(wake)
        if stream in ready:
            message = receive(stream)
            if message is None:
                watched.remove(stream)  # the harness is gone
            if phase in ("run", "linger"):
                grace = GRACE if message is None else message[0]["stop"] / 1000
                tree.terminate()
                phase, until = "terminate", time.monotonic() + grace


def run_warden(stream: socket.socket) -> NoReturn:
    """The life of a warden. Ends the process: this is a fork, with nothing to return to."""
    status = 1
    try:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        wake = wake_on_child()
        while message := receive(stream):
            request, descriptors = message
            if "stop" in request:
                continue  # meant for the command that has just ended
            answer = ward(request, descriptors[0], stream, wake)
            stream.sendall(json.dumps(answer).encode() + b"\n")
            if answer["unstoppable"]:
                break  # never taken for part of the next command
        status = 0
    except (BrokenPipeError, ConnectionResetError):
        status = 0  # the harness left first
    finally:
        os._exit(status)


# --- supervisor --------------------------------------------------------------------------------


def supervise(stream: socket.socket) -> None:
    """Fork wardens until the harness closes its end, then wait for those at work."""
    # Commands of the same user must neither trace this process nor take its descriptors.
    prctl(PR_SET_DUMPABLE, 0)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    wake = wake_on_child()
    watched: list[int | socket.socket] = [wake, stream]
    wardens: set[int] = set()
    while True:
        ready, _, _ = select.select(watched, [], [])
        if stream in ready:
            byte, descriptors, _, _ = socket.recv_fds(stream, 1, 1)
            if not byte:
                watched.remove(stream)
            else:
                warden = os.fork()
                if warden == 0:
                    stream.close()
                    run_warden(socket.socket(fileno=descriptors[0]))
                wardens.add(warden)
                os.close(descriptors[0])
        drain(wake)
        ended, more = reap()
        lost = any(status != 0 for pid, status in ended.items() if pid in wardens)
        wardens.difference_update(ended)
        if lost:
            end_orphans(wardens)
        if stream not in watched and not more:
            return


def end_orphans(wardens: set[int]) -> None:
    """A warden was killed and its tree became ours: end it."""
    if not LINUX:
        return  # nobody adopts orphans there
    give_up = time.monotonic() + KILLING
    while time.monotonic() < give_up:
        orphans = [pid for pid in children(os.getpid()) if pid not in wardens]
        for orphan in orphans:
            for pid in (orphan, *below(orphan)):
                send_signal(pid, signal.SIGKILL)
        wardens.difference_update(reap()[0])
        if not orphans:
            return
        time.sleep(AGAIN)


def main() -> None:
    """Serve the socket whose descriptor is the argument."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends when the harness does, after its work
    gc.freeze()
    supervise(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
