"""Pure: what a run gave, from its log. The result JSON of headless runs and of the SDK."""

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from .budget import Spent
from .effects import Effect
from .events import (
    AnyEvent,
    AssistantMessage,
    Finish,
    PrefixChanged,
    Record,
    RepositoryLoaded,
    RunEnded,
    RunStarted,
    ToolResult,
    Verification,
    WindowFilling,
)
from .undo import OUTSIDE

RESULT_SCHEMA = 1


class ChangedFile(Record):
    """One file of the change; None where lines cannot be counted (binary, too large)."""

    path: str
    change: Literal["added", "modified", "deleted"]
    added: int | None
    removed: int | None


class Tokens(Record):
    """Over all requests of the session."""

    prompt: int
    cached: int
    uncached: int
    completion: int


class PendingCall(Record):
    """A call that waits for approval."""

    call_id: str
    tool: str
    effects: tuple[Effect, ...]
    reason: str
    preview: str


class OpenQuestion(Record):
    """A question that waits for an answer."""

    call_id: str
    text: str
    choices: tuple[str, ...]


class ContextReport(Record):
    """What of the repository the model was not shown whole, with the reason."""

    files: int = 0
    tokens: int = 0
    exact: bool = False
    outlined: Mapping[str, str] = Field(default_factory=dict[str, str])
    skipped: Mapping[str, str] = Field(default_factory=dict[str, str])
    prefix_changes: tuple[str, ...] = ()
    """The first block that broke the prefix, each time that something did."""
    filled: float | None = None
    """Part of the window that was filled when it was last warned of; None when it was not."""


class OutsideChange(Record):
    """A path that a command changed although nobody agreed to that."""

    path: str
    step: int
    """`unabridged undo SESSION --step` with this number puts it back."""


class Result(Record):
    """What a run gave."""

    schema_version: int = RESULT_SCHEMA
    session: str
    exit_code: int
    exit_name: str
    reason: str
    status: Literal["done", "partial", "blocked"] | None
    """What the model said in `finish`; None when it did not call it."""
    summary: str
    files_changed: tuple[ChangedFile, ...]
    verified: bool
    """Every command named in `finish.verified` (at least one) last exited 0."""
    verification: tuple[Verification, ...]
    steps: int
    tokens: Tokens
    cost_usd: float | None
    """None when the price of the model is not known."""
    seconds: float
    model: str
    endpoint: str
    pending: tuple[PendingCall, ...] = ()
    questions: tuple[OpenQuestion, ...] = ()
    jobs_killed: tuple[str, ...] = ()
    """Background commands that were still running at the end and were stopped."""
    outside_scope: tuple[OutsideChange, ...] = ()
    """Over the whole session."""
    sandbox: str = ""
    """What held commands in this run, in words."""
    context: ContextReport | None = None


def build_result(
    *,
    session: str,
    events: Sequence[AnyEvent],
    ended: RunEnded,
    spent: Spent,
    files_changed: tuple[ChangedFile, ...],
    seconds: float,
    pending: tuple[PendingCall, ...] = (),
    questions: tuple[OpenQuestion, ...] = (),
    jobs_killed: tuple[str, ...] = (),
    sandbox: str = "",
) -> Result:
    """Put the result of the last run together."""
    run = next((e for e in reversed(events) if isinstance(e, RunStarted)), None)
    finish = _finish_of_run(events)
    verification = finish.verified if finish is not None else ()
    return Result(
        session=session,
        exit_code=ended.exit_code,
        exit_name=ended.name,
        reason=ended.reason,
        status=finish.status if finish is not None else None,
        summary=finish.summary if finish is not None else "",
        files_changed=files_changed,
        verified=bool(verification) and all(v.exit_code == 0 for v in verification),
        verification=verification,
        steps=spent.steps,
        tokens=Tokens(
            prompt=spent.prompt,
            cached=spent.cached,
            uncached=spent.prompt - spent.cached,
            completion=spent.completion,
        ),
        cost_usd=spent.cost,
        seconds=round(seconds, 3),
        model=run.model if run is not None else "",
        endpoint=run.endpoint if run is not None else "",
        pending=pending,
        questions=questions,
        jobs_killed=jobs_killed,
        outside_scope=outside_changes(events),
        sandbox=sandbox,
        context=_context(events),
    )


def _context(events: Sequence[AnyEvent]) -> ContextReport | None:
    loaded = next((e for e in events if isinstance(e, RepositoryLoaded)), None)
    if loaded is None:
        return None
    changes = [e for e in events if isinstance(e, PrefixChanged)]
    fillings = [e for e in events if isinstance(e, WindowFilling)]
    return ContextReport(
        files=loaded.files,
        tokens=loaded.tokens,
        exact=loaded.exact,
        outlined=loaded.outlined,
        skipped=loaded.skipped,
        prefix_changes=tuple(f"{event.block}, since {event.since}" for event in changes),
        filled=round(fillings[-1].tokens / fillings[-1].window, 3) if fillings else None,
    )


def _finish_of_run(events: Sequence[AnyEvent]) -> Finish | None:
    """The `finish` of the last run, not of one before it."""
    for event in reversed(events):
        if isinstance(event, Finish):
            return event
        if isinstance(event, RunStarted):
            return None
    return None


def outside_changes(events: Sequence[AnyEvent]) -> tuple[OutsideChange, ...]:
    """What commands changed although nobody agreed to that, each path at its first step."""
    found: dict[str, int] = {}
    step = 0
    for event in events:
        if isinstance(event, AssistantMessage):
            step = event.step
        elif isinstance(event, ToolResult):
            for path in event.data.get(OUTSIDE, ()):
                found.setdefault(str(path), step)
    return tuple(OutsideChange(path=path, step=step) for path, step in found.items())


def changed_names(events: Sequence[AnyEvent]) -> tuple[str, ...]:
    """Files changed in the session, in order of first change."""
    names: Mapping[str, None] = {
        name: None for e in events if isinstance(e, ToolResult) for name in e.changed
    }
    return tuple(names)
