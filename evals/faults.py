"""Faults of the infrastructure, which are no answer to how good an agent is.

A trial with a fault has no reward; it is counted apart, and run again when the run goes on.
"""

from __future__ import annotations

import errno
import traceback
from datetime import UTC, datetime
from typing import Any, Literal

Kind = Literal["agent", "provider", "verifier", "sandbox", "disk", "task", "internal"]


class FaultError(Exception):
    """Something that is not the agent's doing; one line for a person."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind: Kind = kind


def kind_of(error: BaseException) -> Kind:
    """The class of a fault."""
    if isinstance(error, FaultError):
        return error.kind
    if isinstance(error, OSError):
        return "disk" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS) else "sandbox"
    return "internal"


def described(error: BaseException) -> dict[str, Any]:
    """As a result holds it: Harbor's `exception_info`, and the class."""
    return {
        "exception_type": type(error).__name__,
        "exception_message": str(error),
        "exception_traceback": "".join(traceback.format_exception(error)),
        "occurred_at": datetime.now(UTC).isoformat(),
        "kind": kind_of(error),
    }
