"""Who is measured: this harness with some model, and scripted agents that keep the suite honest.

All of them are the same process, `unabridged run`, and differ in the model behind it: the
scripted ones are served over HTTP like any other.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from ..agent.providers.scripted import Question, ScriptedCall, Turn
from ..agent.providers.scripted_server import serving_in_thread
from .tasks.oracle import next_reply
from .tasks.task import Task

NANO = "k3-nano"

Options = list[str]
"""Of `unabridged run`: which model."""

Agent = Callable[[Task], AbstractContextManager[Options]]
"""Makes a model ready for a task and says how `run` reaches it."""

_READY_SECONDS = 120


class AgentError(Exception):
    """An agent cannot be started; one line for a person."""


# --- scripted ------------------------------------------------------------------------------------


def oracle(task: Task) -> AbstractContextManager[Options]:
    """Solves every task: what it fails is a mistake of the suite."""

    def policy(asked: Question) -> Turn:
        reply = next_reply(task.goal, asked.messages)
        calls = tuple(ScriptedCall(name=name, arguments=given) for name, given in reply.calls)
        return Turn(reasoning=reply.reasoning, calls=calls)

    return _scripted(policy)


def noop(_task: Task) -> AbstractContextManager[Options]:
    """Does nothing and says that it is done: what it solves is a mistake of the suite."""
    finish = ScriptedCall(name="finish", arguments={"status": "done", "summary": "Done."})
    return _scripted(lambda _asked: Turn(reasoning="Nothing to do.", calls=(finish,)))


@contextmanager
def _scripted(policy: Callable[[Question], Turn]) -> Generator[Options]:
    with serving_in_thread(policy) as server:
        yield ["--base-url", server.url, "--model", NANO, "--window", "16384"]


# --- a model -------------------------------------------------------------------------------------


def endpoint(options: Options) -> Agent:
    """A model that somebody serves; `options` as `unabridged run` takes them."""
    return lambda _task: contextlib.nullcontext(options)


@contextmanager
def served(folder: Path, log: Path) -> Generator[Agent]:
    """A checkpoint, served by a process of its own while the block runs.

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
            yield endpoint(["--base-url", url, "--model", NANO])
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
