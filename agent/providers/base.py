"""What the loop needs from a model: stream a request, end with one complete reply."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from ..events import Call, ReasoningField, Usage


@dataclass(frozen=True, slots=True)
class Request:
    """One request, as the view built it.

    `messages` are serialised once, when they enter the view; a provider joins the bytes and never
    parses or rewrites them.
    """

    model: str
    messages: Sequence[bytes]
    """One JSON object each, UTF-8."""
    tools: bytes
    """JSON array of declarations; `[]` when there are none."""
    effort: str
    """`low`, `high` or `max`; empty to say nothing of it."""
    max_completion_tokens: int


# --- what streams while a reply arrives (shown, never stored) -----------------------------------


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallDelta:
    """More of the call at `index`: an id, a name, or a fragment of its arguments."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The request failed and will be sent again after `seconds`; what streamed so far is void."""

    attempt: int
    attempts: int
    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class Notice:
    """Something a person should know: a fallback, a dialect learned."""

    text: str


@dataclass(frozen=True, slots=True)
class CallOutput:
    """Live output of a running call, from the loop: its result holds what counts."""

    call_id: str
    text: str


Delta = ReasoningDelta | ContentDelta | CallDelta | Waiting | Notice | CallOutput


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete reply, every field exactly as received. Absent text is empty text."""

    reasoning: str = ""
    reasoning_field: ReasoningField = "reasoning_content"
    reasoning_details: tuple[Any, ...] | None = None
    content: str = ""
    calls: tuple[Call, ...] = ()
    finish_reason: str | None = None
    usage: Usage | None = None
    model: str | None = None
    response_id: str | None = None


FaultKind = Literal[
    "auth", "quota", "not_found", "bad_request", "context_overflow", "connection", "server",
    "rate", "timeout", "protocol",
]  # fmt: skip


class ProviderError(Exception):
    """The model could not answer; `message` is one line for a person and says what to do.

    Carries no credential: providers redact before raising.
    """

    def __init__(self, kind: FaultKind, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.kind: FaultKind = kind
        self.message = message
        self.status = status


class Provider(Protocol):
    """A model behind some wire, or in this process."""

    endpoint: str
    """Base URL without credentials, or the name of an offline model."""
    window: int
    """Context window in tokens, as known; learned from overflow errors where they say it."""

    def stream(self, request: Request) -> AsyncGenerator[Delta | Reply]:
        """Send the request; yield deltas and, last, the one `Reply`.

        Retries what can be retried. Raises ProviderError when it gives up. Closing the iterator
        or cancelling the task drops the connection at once.
        """
        ...

    async def close(self) -> None:
        """Release connections."""
        ...


@runtime_checkable
class KeepsStates(Protocol):
    """A provider whose endpoint may save a model's state at the end of a prompt, on disk."""

    async def keeps_states(self, model: str) -> bool:
        """Whether it says that it does. One that cannot be asked does not."""
        ...
