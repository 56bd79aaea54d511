"""The end that comes from outside: the terminal goes away, or somebody ends the process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable
from typing import Any

from ..agent.exits import Exit

LAST_SECONDS = 6.0
"""From the loss of the terminal to the end of the process, whatever still waits."""


WATCH_MILLISECONDS = 1000
"""Between two looks at whether the watch is over."""


class Signals:
    """SIGHUP, SIGTERM and a terminal that is gone, for as long as the application runs."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._over = threading.Event()

    def catch(self, ended: Callable[[Exit], None], terminal: int | None) -> None:
        """Call `ended` in this loop when one comes; `terminal` is the file that is drawn on."""
        loop = asyncio.get_running_loop()

        def end(code: Exit) -> None:
            # The loop may stand still, waiting for a terminal that reads no more.
            last = threading.Timer(LAST_SECONDS, os._exit, (int(code),))
            last.daemon = True
            last.start()
            loop.call_soon_threadsafe(ended, code)

        for number, code in ((signal.SIGHUP, Exit.HANGUP), (signal.SIGTERM, Exit.TERMINATED)):

            def handler(_number: int, _frame: object, code: Exit = code) -> None:
                end(code)

            with contextlib.suppress(ValueError):  # only the main thread can
                self._before[number] = signal.signal(number, handler)
        if terminal is not None:
            threading.Thread(target=self._watch, args=(terminal, end), daemon=True).start()

    def _watch(self, terminal: int, end: Callable[[Exit], None]) -> None:
        """SIGHUP comes only from the terminal that controls this process; it may run in another."""
        poll = select.poll()
        poll.register(terminal, 0)  # errors and hanging up are told unasked
        while not self._over.is_set():
            if poll.poll(WATCH_MILLISECONDS):
                end(Exit.HANGUP)
                return

    def give_back(self) -> None:
        """Let them do what they did before."""
        self._over.set()
        for number, handler in self._before.items():
            signal.signal(number, handler)
