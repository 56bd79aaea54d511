"""Unabridged: an agentic coding harness for Kimi K3 that never abridges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Pending", "Result", "Session", "__version__", "events"]

if TYPE_CHECKING:
    from .agent import events
    from .agent.result import Result
    from .agent.session import Pending, Session


def __getattr__(name: str) -> Any:
    """Import the public SDK on first use, so that `unabridged --version` stays instant."""
    match name:
        case "Session" | "Pending":
            from .agent import session

            return getattr(session, name)
        case "Result":
            from .agent.result import Result

            return Result
        case "events":
            from .agent import events

            return events
        case _:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
