"""The end that comes from outside: the terminal goes away, or somebody ends the process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from ..agent.exits import Exit

LAST_SECONDS = 6.0
"""From the loss of the terminal to the end of the process, whatever still waits."""


class Signals:
    """SIGHUP and SIGTERM, for as long as the application runs."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}

    def catch(self, ended: Callable[[Exit], None]) -> None:
        """Call `ended` in this loop when one comes."""
        loop = asyncio.get_running_loop()
        for number, code in ((signal.SIGHUP, Exit.HANGUP), (signal.SIGTERM, Exit.TERMINATED)):

            def handler(_number: int, _frame: object, code: Exit = code) -> None:
                # The loop may stand still, waiting for a terminal that reads no more.
                last = threading.Timer(LAST_SECONDS, os._exit, (int(code),))
                last.daemon = True
                last.start()
                loop.call_soon_threadsafe(ended, code)

            with contextlib.suppress(ValueError):  # only the main thread can
                self._before[number] = signal.signal(number, handler)

    def give_back(self) -> None:
        """Let them do what they did before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
