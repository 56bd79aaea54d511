"""Pure: whether the model goes round in circles.

Reminders do not break K3's loops, and each one adds another wrong call to what it has just read.
So the break is structural: the repeated tail is left out of the next request (never of the log),
and the run stops for the user.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from .calls import parse_arguments
from .events import AnyEvent, AssistantMessage, ToolResult, UserMessage

REPEATS = 5
"""The step that makes the same calls for this many times, with the same results so far, is not
run. Alternating between two steps counts too, so the break comes within ten steps."""
SAID_NOT_DONE = 8
"""Steps in a row that say they will change something and only look at the same few places."""

LOOKING = frozenset({"read", "list", "search", "symbols"})
_INTENT = re.compile(
    r"\b(?:I'll|I will|let me|I'm going to|I am going to|I should|I need to|now)\b[^.\n]{0,60}?"
    r"\b(?:edit|write|apply|modify|change|replace|fix|rename|update)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Step:
    """One reply with calls, and what they gave as far as it is known."""

    reply: AssistantMessage
    calls: tuple[str, ...]
    results: tuple[str, ...]


@dataclass(frozen=True)
class Circle:
    """A tail of the log that leads nowhere."""

    first: AssistantMessage
    """From here on it only repeats."""
    reason: str


def steps_of(events: Sequence[AnyEvent]) -> list[Step]:
    """The last steps, as many as matter, since the user last spoke."""
    found: list[Step] = []
    reply: AssistantMessage | None = None
    results: dict[str, str] = {}

    def close() -> None:
        if reply is not None and reply.calls:
            calls = tuple(f"{call.name} {_canonical(call.arguments)}" for call in reply.calls)
            given = tuple(results[call.id] for call in reply.calls if call.id in results)
            found.append(Step(reply, calls, given))

    for event in events[_start(events) :]:
        match event:
            case AssistantMessage():
                close()
                reply, results = event, {}
            case ToolResult():
                results[event.call_id] = event.text
            case _:
                pass
    close()
    return found


def _start(events: Sequence[AnyEvent]) -> int:
    """Where the last steps begin: the loop asks at every step, so this looks no further back."""
    replies = 0
    for position in range(len(events) - 1, -1, -1):
        event = events[position]
        if isinstance(event, UserMessage) and event.origin == "user":
            return position + 1
        replies += isinstance(event, AssistantMessage)
        if replies == 2 * REPEATS:
            return position
    return 0


def circle(events: Sequence[AnyEvent]) -> Circle | None:
    """The circle that the last reply, not yet run, would close once more; None if there is none."""
    steps = steps_of(events)
    if not steps:
        return None
    for period in (1, 2):
        repeated = _repeats(steps, period)
        if repeated >= REPEATS:
            first = steps[-1 - (repeated - 2) * period].reply
            what = steps[-1].calls[0][:120]
            how = "in a row" if period == 1 else "alternating with another step"
            return Circle(first, f"the same step {repeated} times {how}: {what}")
    tail = steps[-SAID_NOT_DONE:]
    if (
        len(tail) == SAID_NOT_DONE
        and all(map(_only_looks, tail))
        and len({place for step in tail for place in _places(step)}) <= SAID_NOT_DONE // 2
    ):
        reason = (
            f"{SAID_NOT_DONE} steps in a row said they would change something and only looked "
            "at the same places again"
        )
        return Circle(tail[1].reply, reason)
    return None


def _repeats(steps: Sequence[Step], period: int) -> int:
    """How often the last step stands at the end of the log, every `period` steps.

    Steps in between must repeat as well, and what the same calls gave must be the same: a command
    that is polled and says something new is no circle.
    """
    last = steps[-1]
    count = 1
    position = len(steps) - 1 - period
    earlier: tuple[str, ...] | None = None
    while position >= 0 and steps[position].calls == last.calls:
        if earlier is not None and steps[position].results != earlier:
            break
        between = range(1, period)
        if count > 1 and any(
            steps[position + k].calls != steps[position + period + k].calls for k in between
        ):
            break
        earlier = steps[position].results
        count += 1
        position -= period
    return count


def _only_looks(step: Step) -> bool:
    only = all(call.name in LOOKING for call in step.reply.calls)
    return only and _INTENT.search(step.reply.reasoning) is not None


def _places(step: Step) -> list[str]:
    """What a step looks at: who reads one new file after another is not going round."""
    found = [parse_arguments(call.arguments) or {} for call in step.reply.calls]
    return [str(arguments.get("pattern") or arguments.get("path")) for arguments in found]


@lru_cache(maxsize=64)  # the last steps are looked at again and again
def _canonical(arguments: str) -> str:
    """Arguments that mean the same are the same, whatever their spacing and order."""
    parsed = parse_arguments(arguments)
    return arguments if parsed is None else json.dumps(parsed, sort_keys=True)
