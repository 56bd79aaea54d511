"""The policies on generated tasks, where the oracle looks at what its tools show it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..material import ask, turn, write
from ..suites.generated import remake
from ..tasks.oracle import next_reply


def looking(
    generator: Mapping[str, Any], policy: str
) -> Callable[[Sequence[Mapping[str, Any]]], dict[str, Any]]:
    """A model that solves the task as `evals.tasks.oracle` does, in the manner of a policy."""
    goal = remake(generator).goal  # whoever asks first ends there: the user of this suite is away

    def reply(messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        said = sum(one["role"] == "assistant" for one in messages)
        if policy == "always-asker" and said == 0:
            return turn(ask("Shall I go ahead?", ["yes", "no"]), reasoning="Ask first.")
        made = next_reply(goal, messages)
        if policy == "over-eager" and made.calls[0][0] == "finish" and not _wrote(messages):
            return turn(write("IMPROVEMENTS.md", "# Improvements\n"), reasoning="And this.")
        if policy == "guesser" and made.calls[0][0] == "ask_user":
            return turn(_guess(messages), reasoning="It will be this one.")
        return turn(*made.calls, reasoning=made.reasoning)

    return reply


def _wrote(messages: Sequence[Mapping[str, Any]]) -> bool:
    return any(
        call["function"]["name"] == "write"
        for one in messages
        for call in one.get("tool_calls") or ()
    )


def _guess(messages: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, Any]]:
    """Something is done, be it right or not."""
    if _wrote(messages):
        return "finish", {"status": "done", "summary": "Changed.", "verified": []}
    return write("GUESSED.md", "It was changed in the first place that fits.\n")
