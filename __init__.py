"""Unabridged: an agentic coding harness for Kimi K3 that never abridges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Session", "__version__"]

if TYPE_CHECKING:
    from .agent.session import Session


def __getattr__(name: str) -> Any:
    """Import the public SDK on first use, so that `unabridged --version` stays instant."""
    if name == "Session":
        from .agent.session import Session

        return Session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
