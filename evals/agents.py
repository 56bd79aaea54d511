"""Who is measured: the harness with some model, a scripted model, or another program.

`unabridged` and `scripted:NAME` are the same process, a session of this harness, and differ only
in the model behind it. `command:...` is any other agent: it is started in the repository with the
words in $INSTRUCTION and on standard input, and a model's address in OPENAI_BASE_URL.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from .drive import FORWARD, Driver, Job
from .sandbox import PACKAGE, confined, environment

NANO = "k3-nano"
_READY_SECONDS = 120
_DRIVE = [sys.executable, "-m", "unabridged.evals.drive"]
APP, LOGS, SOCKET = "/app", "/logs", "/run/unabridged"
"""Where things are inside the sandbox."""


class AgentError(Exception):
    """An agent cannot be started; one line for a person."""


class CrashedError(Exception):
    """The agent's process ended when it should not have; with what it said last."""


class SlowError(Exception):
    """The agent was still at work when its time was over."""


class Conversation(Protocol):
    """A task's turns with one agent."""

    def do(self, order: dict[str, Any], seconds: float) -> dict[str, Any]:
        """An order of `drive`. Raises CrashedError, SlowError."""
        ...

    def kill(self) -> None:
        """Stop it as a power cut would."""
        ...

    def close(self) -> None:
        """End it in good order."""
        ...


class Place:
    """The folders of one trial, on the host."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.app = folder / "app"
        self.logs = folder / "logs"
        self.sessions = folder / "logs" / "agent" / "sessions"

    def make(self) -> None:
        """Make them."""
        for name in ("app", "logs/agent/sessions", "logs/verifier"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)


class ProcessConversation:
    """The harness as a process of its own, in a sandbox."""

    def __init__(self, job: Job, place: Place, sockets: Path) -> None:
        path = place.logs / "agent" / "job.json"
        path.write_text(json.dumps(job.to_json()))
        command = confined(
            [*_DRIVE, f"{LOGS}/agent/job.json"], cwd=APP, harness=True,
            writable={APP: place.app, f"{LOGS}/agent": place.logs / "agent"},
            readable={SOCKET: sockets},
            env={"PYTHONPATH": _parent()},
        )  # fmt: skip
        self._errors = (place.logs / "agent" / "stderr").open("ab")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
        )

    def do(self, order: dict[str, Any], seconds: float) -> dict[str, Any]:
        """See Conversation."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        slow = threading.Event()

        def stop() -> None:
            slow.set()
            self.kill()

        timer = threading.Timer(seconds, stop)
        timer.start()
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = b""
        finally:
            timer.cancel()
        if slow.is_set():
            raise SlowError
        if not line.endswith(b"\n"):
            code = self._process.wait()
            raise CrashedError(f"the agent's process ended with {code}: {_tail(self._errors.name)}")
        return json.loads(line)

    def kill(self) -> None:
        """See Conversation. The sandbox's processes end with it."""
        self._process.kill()

    def close(self) -> None:
        """See Conversation."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


class InlineConversation:
    """The harness in this process, unisolated but for its own sandbox around commands."""

    def __init__(self, job: Job) -> None:
        self._loop = asyncio.new_event_loop()
        try:
            self._driver = Driver(job, job.url)
        except BaseException:
            self._loop.close()
            raise

    def do(self, order: dict[str, Any], seconds: float) -> dict[str, Any]:
        """See Conversation."""
        try:
            return self._loop.run_until_complete(asyncio.wait_for(self._driver.do(order), seconds))
        except TimeoutError:
            raise SlowError from None

    def kill(self) -> None:
        """See Conversation."""
        raise AgentError("only an agent in a process of its own can be killed: use the sandbox")

    def close(self) -> None:
        """See Conversation."""
        try:
            self._loop.run_until_complete(self._driver.close())
        finally:
            self._loop.close()


class CommandConversation:
    """Another program, once for each turn."""

    def __init__(self, command: str, place: Place, sockets: Path, url: str, isolated: bool) -> None:
        self._command, self._place, self._sockets = command, place, sockets
        self._url, self._isolated = url, isolated
        self._process: subprocess.Popen[bytes] | None = None

    def do(self, order: dict[str, Any], seconds: float) -> dict[str, Any]:
        """See Conversation; only `say` means something to it."""
        if order["do"] != "say":
            return {}
        words = str(order["words"] or "")
        env = {"INSTRUCTION": words}
        command = ["sh", "-c", self._command]
        if self._isolated:
            socket_path = f"{SOCKET}/model"
            command = confined(
                [*_DRIVE, FORWARD, socket_path, *command], cwd=APP, harness=True,
                writable={APP: self._place.app, f"{LOGS}/agent": self._place.logs / "agent"},
                readable={SOCKET: self._sockets}, env={**env, "PYTHONPATH": _parent()},
            )  # fmt: skip
        else:
            env |= {**environment(), "HOME": str(self._place.logs / "agent")}
            env |= {"OPENAI_BASE_URL": self._url, "UNABRIDGED_BASE_URL": self._url}
        with (self._place.logs / "agent" / "output").open("ab") as out:
            self._process = subprocess.Popen(
                command, cwd=self._place.app, stdin=subprocess.PIPE, stdout=out,
                stderr=subprocess.STDOUT, env=None if self._isolated else env,
            )  # fmt: skip
            try:
                self._process.communicate(words.encode(), timeout=seconds)
            except subprocess.TimeoutExpired:
                self.kill()
                raise SlowError from None
        code = self._process.returncode
        if code in (126, 127) or code < 0:
            raise CrashedError(f"the command ended with {code}: {_tail(out.name)}")
        said = (self._place.logs / "agent" / "output").read_text(errors="replace")
        return {"exit_code": code, "summary": said[-4000:], "questions": [], "pending": []}

    def kill(self) -> None:
        """See Conversation."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """See Conversation."""


def _parent() -> str:
    """Where `unabridged` is imported from: empty where it is installed and needs no help."""
    return "" if PACKAGE.name != "unabridged" else str(PACKAGE.parent)


def _tail(path: str | Path) -> str:
    lines = Path(path).read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"


# --- a model that is shipped ---------------------------------------------------------------------


@contextmanager
def served(folder: Path, log: Path) -> Generator[str]:
    """A checkpoint, served by a process of its own while the block runs; gives its base URL.

    Args:
        folder: the checkpoint, a K3-nano.
        log: where the server writes.

    Raises AgentError when it does not come up.
    """
    port = _free_port()
    command = [
        sys.executable, "-m", "unabridged", "model", "serve", "--weights", str(folder.resolve()),
        "--name", NANO, "--port", str(port), "--no-states", "--dtype", "float32",
    ]  # fmt: skip
    url = f"http://127.0.0.1:{port}/v1"
    with log.open("wb") as out:
        server = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            _wait_for(url, server, log)
            yield url
        finally:
            server.terminate()
            server.wait()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _READY_SECONDS
    while time.monotonic() < end:
        if server.poll() is not None:
            lines = log.read_text(errors="replace").strip().splitlines()
            raise AgentError(lines[-1] if lines else f"the server ended with {server.returncode}")
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(f"{url}/models", timeout=2) as answer:  # noqa: S310 - http
                models: dict[str, Any] = json.load(answer)
            assert models["data"], models
            return
        time.sleep(0.1)
    raise AgentError(f"the model in the server did not come up within {_READY_SECONDS} s: {log}")
