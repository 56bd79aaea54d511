"""The signals that stop a run, also before it has begun."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Generator
from types import FrameType

from .exits import Exit

SIGNALS = {
    signal.SIGINT: Exit.INTERRUPTED,
    signal.SIGTERM: Exit.TERMINATED,
    signal.SIGHUP: Exit.HANGUP,
}


class Stopped(BaseException):
    """A signal came before the run had begun to listen for it."""

    def __init__(self, code: Exit) -> None:
        super().__init__(code.label)
        self.code = code


@contextlib.contextmanager
def stoppable() -> Generator[None]:
    """Raise `Stopped` on a signal, unless something inside takes the signals over."""

    def stop(code: Exit) -> None:
        raise Stopped(code)

    with _handled(stop):
        yield


@contextlib.contextmanager
def held() -> Generator[Callable[[], bool]]:
    """Hold a signal back; gives the question whether one came. `Stopped` is raised at the end.

    For work that must not break off just anywhere: it asks now and then, and ends in its own way.
    """
    came: list[Exit] = []
    try:
        with _handled(came.append):
            yield lambda: bool(came)
    finally:
        if came:
            raise Stopped(came[0])


@contextlib.contextmanager
def _handled(stop: Callable[[Exit], None]) -> Generator[None]:
    """Have signals answered by a function. Only the main thread can; elsewhere nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def answer(number: int, _frame: FrameType | None) -> None:
        stop(SIGNALS[signal.Signals(number)])

    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:  # as under nohup
                signal.signal(number, answer)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
