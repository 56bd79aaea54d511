"""The vocabulary of a session: frozen, versioned events, appended and never edited.

The log of these events is the truth. A request to the model is a pure function of it (`view`),
so everything that reaches the model is here: the system text, the tools, the pack, every word of
the model's reasoning, every result.
"""

# Annotations are values here: as strings, each would be compiled anew at every start.

import hashlib
import json
from functools import cache
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from .effects import Effect
from .scope import Scope

SCHEMA_VERSION = 1
"""Raised when an old reader could misread a new log."""

ReasoningField = Literal["reasoning_content", "reasoning", "reasoning_details"]


class Record(BaseModel):
    """Base of events and of their parts: immutable, no unknown fields."""

    # Each model is built when it is first used: a start needs few of them.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Event(Record):
    """One line of the log; each kind adds its literal `type`."""

    seq: int = -1
    """Position in the log, from 0; given by the store."""
    at: str = ""
    """UTC, ISO 8601 with milliseconds; given by the store. Never part of a request."""


# --- what the model is given -------------------------------------------------------------------


class SessionStarted(Event):
    """First event of every log."""

    type: Literal["session_started"] = "session_started"
    schema_version: int = SCHEMA_VERSION
    session: str
    repo: str
    version: str
    model: str
    endpoint: str
    """Base URL without credentials, or the name of an offline provider."""
    forked_from: str = ""
    """The session this one was copied from."""
    continues: str = ""
    """The session this one took over from when its window was full."""


class RunStarted(Event):
    """A run begins or is resumed, with the settings that count for it."""

    type: Literal["run_started"] = "run_started"
    model: str
    endpoint: str
    effort: str
    mode: str
    on_ask: str
    window: int
    """Context window in tokens."""
    rules: tuple[dict[str, Any], ...] = ()
    """Rules given for this session on the command line."""
    limits: dict[str, float] = {}


class SystemMessage(Event):
    """The system text and the tools' declarations, as sent."""

    type: Literal["system_message"] = "system_message"
    text: str
    tools: tuple[dict[str, Any], ...]


class PackSegment(Event):
    """A part of the repository, sent as one user message."""

    type: Literal["pack_segment"] = "pack_segment"
    text: str
    files: dict[str, str] = {}
    """Files held whole in this segment: name -> SHA-256 of their bytes."""


class RepositoryLoaded(Event):
    """All segments are there; what of the repository is not whole in them, and why."""

    type: Literal["repository_loaded"] = "repository_loaded"
    files: int
    """Given whole."""
    tokens: int
    """Of all segments, with the room for the chat format around each."""
    exact: bool
    """Whether they were counted: with the model's vocabulary, or by the endpoint."""
    counted: str = ""
    """Who counted, or why nobody did, where an endpoint was to."""
    estimated: int = 0
    """The estimate before it was corrected by earlier reports; 0 where it was counted."""
    options: dict[str, Any] = {}
    """What was asked for, by option."""
    outlined: dict[str, str] = {}
    skipped: dict[str, str] = {}


class FilesChanged(Event):
    """What others changed since the model was last told, sent as one user message."""

    type: Literal["files_changed"] = "files_changed"
    text: str
    files: dict[str, str] = {}
    """Files known whole after it: name -> SHA-256 of their bytes, `absent` if deleted."""
    left: dict[str, str] = {}
    """Files that are not shown, or not any more: name -> reason."""


class TextPart(Record):
    """Words of the user."""

    text: str


class ImagePart(Record):
    """PNG, JPEG or WebP of at most 20 MB, as a base64 data URL."""

    url: str


Part = TextPart | ImagePart


class UserMessage(Event):
    """Words to the model: the user's own, or a note of the harness, marked as such."""

    type: Literal["user_message"] = "user_message"
    parts: tuple[Part, ...]
    origin: Literal["user", "harness"] = "user"


# --- what the model says -----------------------------------------------------------------------


class RequestSent(Event):
    """A request leaves for the model."""

    type: Literal["request_sent"] = "request_sent"
    step: int
    messages: int
    size: int
    """Bytes of the messages."""
    prefix_hash: str
    """SHA-256 over all message bytes; the next request must extend them."""
    estimated_tokens: int
    max_completion_tokens: int


class Call(Record):
    """A tool call as received."""

    id: str
    name: str
    arguments: str


class Usage(Record):
    """Tokens of one request."""

    prompt: int
    cached: int
    completion: int
    reasoning: int | None = None
    """Part of `completion`, where the endpoint says so."""


class Preload(Event):
    """The repository went ahead as a request of its own; its reply is no part of the session."""

    type: Literal["preload"] = "preload"
    messages: int
    """Of the next request, from its beginning."""
    prefix_hash: str
    """SHA-256 over the bytes of these messages."""
    estimated_tokens: int
    usage: Usage | None = None
    problem: str = ""
    """Why it failed. The session goes on without it."""
    seconds: float = 0.0


class AssistantMessage(Event):
    """A reply, exactly as received, on disk before any of its calls starts."""

    type: Literal["assistant_message"] = "assistant_message"
    step: int
    reasoning: str = ""
    reasoning_field: ReasoningField = "reasoning_content"
    reasoning_details: tuple[Any, ...] | None = None
    """Structured reasoning of gateways that send it; echoed whole."""
    content: str = ""
    calls: tuple[Call, ...] = ()
    finish_reason: str | None = None
    usage: Usage | None = None
    model: str | None = None
    response_id: str | None = None
    seconds: float = 0.0
    previous: str = ""
    """Hash of the assistant message before this one; empty for the first."""
    hash: str = ""

    def chained(self, previous: str) -> Self:
        """A copy linked to the message before it."""
        linked = self.model_copy(update={"previous": previous, "hash": ""})
        return linked.model_copy(update={"hash": linked.compute_hash()})

    def compute_hash(self) -> str:
        """SHA-256 of everything received and of the link; times and positions do not count."""
        kept = self.model_dump(exclude={"seq", "at", "hash", "seconds"})
        text = json.dumps(kept, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("ascii")).hexdigest()


# --- the four exceptions to exact replay -------------------------------------------------------


class ReplayException(Event):
    """A place where a later request differs from what was received, and why."""

    message: int
    """`seq` of the assistant message concerned."""
    hash: str
    """Its hash."""
    reason: str


class Elided(ReplayException):
    """A stuck tail, from this message on, is left out of requests from here on."""

    type: Literal["elided"] = "elided"
    through: int
    """`seq` of the last event of the tail."""


class CallDropped(ReplayException):
    """A call cut by the length limit is left out; reasoning and content stay."""

    type: Literal["call_dropped"] = "call_dropped"
    call_id: str


class ArgumentsQuoted(ReplayException):
    """Arguments that are not a JSON object go out quoted in one."""

    type: Literal["arguments_quoted"] = "arguments_quoted"
    call_id: str


class EmptySkipped(ReplayException):
    """A message with no reasoning, no content and no call is not sent."""

    type: Literal["empty_skipped"] = "empty_skipped"


# --- acting ------------------------------------------------------------------------------------


class ToolCall(Event):
    """A call was read: its arguments are understood, or `problem` says why not."""

    type: Literal["tool_call"] = "tool_call"
    call_id: str
    name: str
    arguments: dict[str, Any] = {}
    problem: str | None = None


class Effects(Event):
    """What a call would do."""

    type: Literal["effects"] = "effects"
    call_id: str
    effects: tuple[Effect, ...]


class Decision(Event):
    """What the policy says to a call."""

    type: Literal["decision"] = "decision"
    call_id: str
    decision: Literal["allow", "ask", "deny", "plan_first"]
    reason: str
    rule: str | None = None
    """The deciding rule with its origin."""


class Approval(Event):
    """What a person says to a call."""

    type: Literal["approval"] = "approval"
    call_id: str
    approved: bool
    by: Literal["user", "headless"] = "user"
    reason: str = ""
    scope: Scope | None = None
    """For a plan: the scope as the user edited it; None as proposed."""


class Checkpoint(Event):
    """Copies of files taken before a call touches them: name -> blob, `absent` if there was none."""

    type: Literal["checkpoint"] = "checkpoint"
    call_id: str
    files: dict[str, str]


class ToolStarted(Event):
    """A call begins to act; from here on its outcome is unknown until its result is logged."""

    type: Literal["tool_started"] = "tool_started"
    call_id: str


class ToolResult(Event):
    """What a call gave; `text` and `images` go to the model."""

    type: Literal["tool_result"] = "tool_result"
    call_id: str
    text: str
    error: bool = False
    images: tuple[ImagePart, ...] = ()
    seen: dict[str, str] = {}
    diff: str = ""
    changed: tuple[str, ...] = ()
    exit_code: int | None = None
    data: dict[str, Any] = {}
    seconds: float = 0.0


class Question(Event):
    """The model asks the user."""

    type: Literal["question"] = "question"
    call_id: str
    text: str
    choices: tuple[str, ...] = ()


class Answer(Event):
    """The user answers."""

    type: Literal["answer"] = "answer"
    call_id: str
    text: str


class Plan(Event):
    """The model proposes a plan with its scope."""

    type: Literal["plan"] = "plan"
    call_id: str
    text: str
    scope: Scope


class ScopeGranted(Event):
    """The user agreed to a scope for this task."""

    type: Literal["scope_granted"] = "scope_granted"
    scope: Scope
    by: Literal["user", "rules"] = "user"


# --- how it goes -------------------------------------------------------------------------------


class BudgetReached(Event):
    """A limit was met before a request."""

    type: Literal["budget_reached"] = "budget_reached"
    kind: Literal["steps", "tokens", "cost", "minutes"]
    limit: float
    used: float


class Error(Event):
    """Something failed; the message is for a person."""

    type: Literal["error"] = "error"
    kind: str
    message: str
    trace: str = ""
    """Where it happened, for a bug report."""


class WindowFilling(Event):
    """The context window fills up: a warning, or a stop at which the user chooses how to go on."""

    type: Literal["window_filling"] = "window_filling"
    tokens: int
    """Estimated for the next request."""
    window: int
    asks: bool = False


class PrefixChanged(Event):
    """The next request does not begin like one before, so that an endpoint finds less cached."""

    type: Literal["prefix_changed"] = "prefix_changed"
    block: str
    """The first that differs: `endpoint`, `model`, `effort`, `system`, `tools`, `pack segment N`
    or `message N`, from 1."""
    since: str
    """Which request it is compared with."""


class Interruption(Event):
    """The user or a signal stopped the run; a partial reply is kept here, and is never sent."""

    type: Literal["interruption"] = "interruption"
    during: Literal["request", "tools", "waiting"]
    reasoning: str = ""
    content: str = ""
    calls: tuple[Call, ...] = ()


class SessionNamed(Event):
    """The user gave the session a name; the last one counts."""

    type: Literal["session_named"] = "session_named"
    name: str


class LogRepaired(Event):
    """A torn last line was cut when the log was opened; its bytes are kept here."""

    type: Literal["log_repaired"] = "log_repaired"
    lost_bytes: int
    torn: str
    """The bytes, decoded as Latin-1."""


class Verification(Record):
    """A command the model named as its verification, with what the log says of its last run."""

    command: str
    exit_code: int | None
    """None when the log has no finished run of it."""


class Finish(Event):
    """The model called `finish`."""

    type: Literal["finish"] = "finish"
    call_id: str
    status: Literal["done", "partial", "blocked"]
    summary: str
    verified: tuple[Verification, ...] = ()


class RunEnded(Event):
    """A run is over."""

    type: Literal["run_ended"] = "run_ended"
    exit_code: int
    name: str
    reason: str


AnyEvent = Annotated[
    SessionStarted
    | RunStarted
    | SystemMessage
    | PackSegment
    | RepositoryLoaded
    | FilesChanged
    | UserMessage
    | RequestSent
    | Preload
    | AssistantMessage
    | Elided
    | CallDropped
    | ArgumentsQuoted
    | EmptySkipped
    | ToolCall
    | Effects
    | Decision
    | Approval
    | Checkpoint
    | ToolStarted
    | ToolResult
    | Question
    | Answer
    | Plan
    | ScopeGranted
    | BudgetReached
    | WindowFilling
    | PrefixChanged
    | Error
    | Interruption
    | SessionNamed
    | LogRepaired
    | Finish
    | RunEnded,
    Field(discriminator="type"),
]


@cache
def _adapter() -> TypeAdapter[AnyEvent]:
    return TypeAdapter(AnyEvent)


def to_line(event: AnyEvent) -> bytes:
    """One line of JSON for any content: ASCII, no raw newline, fields at their default left out."""
    # Not in pydantic's own JSON mode: it cannot write every string that JSON can hold.
    kept = {"type": event.type, **event.model_dump(exclude_defaults=True)}
    return json.dumps(kept, separators=(",", ":")).encode("ascii") + b"\n"


def from_line(line: bytes) -> AnyEvent:
    """Read one line back. Raises ValueError (pydantic's included) when it is not an event."""
    return _adapter().validate_python(json.loads(line))
