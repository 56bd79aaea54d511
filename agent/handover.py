"""Pure: what a fresh session takes over from one whose window is full.

The user's words, images, the plan, the scope and the open questions go over as they are. Everything
else stays behind, and is listed. Nothing is summarised: what a model would have to retell, it would
retell in its own words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..tools.text import plural
from .events import (
    Answer,
    AnyEvent,
    AssistantMessage,
    FilesChanged,
    Plan,
    Question,
    ScopeGranted,
    SessionStarted,
    SystemMessage,
    TextPart,
    ToolResult,
    UserMessage,
)
from .prompt import instructions_of
from .result import changed_names
from .state import State


def carried_over(events: Sequence[AnyEvent]) -> list[AnyEvent]:
    """The events of another session's log that the fresh one continues with, as they are to be
    appended: the user's messages, a note, the scope that is in force.
    """
    state = State(lambda _usage: None, events)
    words: list[AnyEvent] = [
        UserMessage(parts=event.parts)
        for event in events
        if isinstance(event, UserMessage) and event.origin == "user"
    ]
    note = UserMessage(parts=(TextPart(text="\n".join(_note(events, state))),), origin="harness")
    scope = [] if state.scope is None else [ScopeGranted(scope=state.scope)]
    return [*words, note, *scope]


def instructions(events: Sequence[AnyEvent]) -> str | None:
    """AGENTS.md as the other session was given it."""
    system = next((event for event in events if isinstance(event, SystemMessage)), None)
    return None if system is None else instructions_of(system.text)


def left_behind(events: Sequence[AnyEvent]) -> list[str]:
    """What does not go over, one line for each kind."""
    replies = [event for event in events if isinstance(event, AssistantMessage)]
    results = [event for event in events if isinstance(event, ToolResult)]
    notes = sum(isinstance(event, FilesChanged) for event in events)
    reasoning = sum(len(reply.reasoning) for reply in replies)
    answers = sum(len(reply.content) for reply in replies)
    read = sum(len(result.text) for result in results)
    lines = [
        f"{plural(len(replies), 'step')}: {reasoning:,} characters of reasoning, {answers:,} of answers",
        f"{plural(len(results), 'result')} of calls: {read:,} characters",
    ]
    if notes:
        lines.append(
            f"notes on files that others changed ({notes:,}): they are loaded as they are now"
        )
    return lines


def _note(events: Sequence[AnyEvent], state: State) -> Iterator[str]:
    yield "This session goes on from another one, whose context window filled up."
    yield (
        "The repository above is as it is now, with all that was changed so far. The words of the "
        "user above are all of them, in order and whole, from the first task on."
    )
    plan = next((event for event in reversed(events) if isinstance(event, Plan)), None)
    if plan is not None:
        yield f"\nThe last plan you proposed:\n{plan.text}"
    if state.scope is not None:
        yield f"\nThe scope the user agreed to, still in force:\n{_scope_text(state)}"
    yield from _questions(events)
    changed = changed_names(events)
    if changed:
        yield "\nFiles changed so far:"
        yield from (f"- {name}" for name in changed)
    if state.commands:
        yield "\nCommands run so far, with how the last run of each ended:"
        yield from (
            f"- {command}: {'did not end' if code is None else f'exit {code}'}"
            for command, code in state.commands.items()
        )
    yield "\nLeft behind, and not known to you any more:"
    yield from (f"- {line}" for line in left_behind(events))


def _questions(events: Sequence[AnyEvent]) -> Iterator[str]:
    answers = [event for event in events if isinstance(event, Answer)]
    for event in events:
        if isinstance(event, Question):
            later = (a for a in answers if a.call_id == event.call_id and a.seq > event.seq)
            answer = next(later, None)
            yield f"\nYou asked: {event.text}"
            yield from (f"- {choice}" for choice in event.choices)
            yield "It is still open." if answer is None else f"The user answered: {answer.text}"


def _scope_text(state: State) -> str:
    assert state.scope is not None
    return state.scope.model_dump_json(exclude_defaults=True)


def session_of(events: Sequence[AnyEvent]) -> str:
    """The id of the session that wrote a log; empty where its start is lost."""
    first = next((event for event in events if isinstance(event, SessionStarted)), None)
    return "" if first is None else first.session
