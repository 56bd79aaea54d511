"""Where trials run: in this process, in a pool of processes, on a Ray cluster.

All run the same function, `trial.run_trial`, which takes JSON and gives JSON. Which one it is
changes nothing in the results.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol

from .spec import SpecError
from .trial import run_trial

Stored = Mapping[str, Any]


class LostError(Exception):
    """The worker of a trial died; the trial has no result and may be run again."""


class Executor(Protocol):
    """Runs trials."""

    def submit(self, trial: Stored) -> None:
        """Take a trial on."""
        ...

    def as_completed(self) -> Iterator[dict[str, Any]]:
        """Results as they come, of all that was submitted. Raises LostError."""
        ...

    def close(self) -> None:
        """Begin nothing more, and let go of the workers."""
        ...


class InlineExecutor:
    """One after the other, in this process."""

    def __init__(self) -> None:
        self._waiting: list[Stored] = []

    def submit(self, trial: Stored) -> None:
        """See Executor."""
        self._waiting.append(trial)

    def as_completed(self) -> Iterator[dict[str, Any]]:
        """See Executor."""
        while self._waiting:
            yield run_trial(self._waiting.pop(0))

    def close(self) -> None:
        """See Executor."""
        self._waiting.clear()


class ProcessExecutor:
    """So many at a time, each worker a process."""

    def __init__(self, jobs: int) -> None:
        # Spawned: a fork would take threads of the servers of this process with it.
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(jobs, mp_context=context)
        self._futures: list[Future[dict[str, Any]]] = []

    def submit(self, trial: Stored) -> None:
        """See Executor."""
        self._futures.append(self._pool.submit(run_trial, dict(trial)))

    def as_completed(self) -> Iterator[dict[str, Any]]:
        """See Executor."""
        try:
            for future in as_completed(self._futures):
                yield future.result()
        except BrokenProcessPool as error:
            raise LostError("a worker died: the run can go on with --resume") from error

    def close(self) -> None:
        """See Executor."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class RayExecutor:
    """On a Ray cluster. Tasks and --out must lie on a file system that all nodes share."""

    def __init__(self, address: str | None, jobs: int) -> None:
        # Read when Ray is imported. A start takes most of a minute on a busy machine, where Ray gives
        # up after half of one; and nothing about a run is to be reported to Ray's makers.
        os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray  # pyright: ignore[reportMissingImports] - an extra
        except ImportError:
            raise SpecError(
                "the executor ray needs Ray: install it with `pip install 'unabridged[ray]'`"
            ) from None
        self._ray: Any = ray
        if address:
            _reach(address)
        # Trials are a few kilobytes of JSON, so the smallest store that is sensible will do.
        here = {"num_cpus": jobs, "include_dashboard": False, "object_store_memory": 100 << 20}
        options: dict[str, Any] = {"address": address} if address else here
        try:
            self._ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:
            where = f"at {address}" if address else "on this machine"
            said = " ".join(str(error).split())[:200]
            raise SpecError(f"Ray {where} cannot be used: {said}") from error
        # Which failures are tried again is decided by the results, not by the cluster.
        self._remote: Any = self._ray.remote(num_cpus=1, max_retries=0)(run_trial)
        self._waiting: list[Any] = []

    def submit(self, trial: Stored) -> None:
        """See Executor."""
        self._waiting.append(self._remote.remote(dict(trial)))

    def as_completed(self) -> Iterator[dict[str, Any]]:
        """See Executor."""
        while self._waiting:
            ready, self._waiting = self._ray.wait(self._waiting, num_returns=1)
            try:
                yield self._ray.get(ready[0])
            except self._ray.exceptions.RayError as error:
                raise LostError(f"a worker died ({error}): go on with --resume") from error

    def close(self) -> None:
        """See Executor."""
        for one in self._waiting:
            self._ray.cancel(one, force=True)
        self._ray.shutdown()


def _reach(address: str) -> None:
    """Raises SpecError at once where nobody listens: Ray itself would try for many minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host:  # such as `auto`, which Ray looks up
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise SpecError(f"there is no Ray at {address}: {error}") from error


def executor(name: str, jobs: int) -> Executor:
    """`inline`, `process`, `ray` (on this machine) or `ray:ADDRESS`. Raises SpecError."""
    kind, _, address = name.partition(":")
    match kind:
        case "inline":
            return InlineExecutor()
        case "process":
            return ProcessExecutor(jobs)
        case "ray":
            return RayExecutor(address or None, jobs)
        case _:
            raise SpecError(
                f"there is no executor {name!r}: choose inline, process or ray[:ADDRESS]"
            )
