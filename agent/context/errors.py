"""What can go wrong while a repository is loaded, and how a front end stops it."""

from __future__ import annotations

from collections.abc import Callable


class ContextError(Exception):
    """The repository cannot be loaded as asked: one line for a person, with what to do."""


class Cancelled(Exception):  # noqa: N818 - not an error: the user asked for it
    """The caller's `stop` said so."""


Stop = Callable[[], bool]
"""Asked now and then during long work; true stops it with `Cancelled`."""


def never() -> bool:
    """The `Stop` of work that nobody interrupts."""
    return False


def check(stop: Stop) -> None:
    """Raise `Cancelled` if the caller wants to stop."""
    if stop():
        raise Cancelled
