"""Pure: what an agent did, from the log of its session."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from ..agent.events import (
    Answer,
    AnyEvent,
    Approval,
    AssistantMessage,
    Decision,
    Error,
    Finish,
    Question,
    RepositoryLoaded,
    RunEnded,
    ToolCall,
    ToolResult,
    UserMessage,
)
from ..agent.prices import cost

_TESTING = ("unittest", "pytest", "make test", "tox")


def record(events: Sequence[AnyEvent]) -> dict[str, Any]:
    """What verifiers read and reports count; all counts are over the whole session.

    `asks`: question, answer, and whether something had been changed before. `calls`: name and
    arguments. `permissions`: what would ask or was refused. `exit_code`, `status`, `summary`: of
    the last run.
    """
    replies = [e for e in events if isinstance(e, AssistantMessage)]
    calls = [e for e in events if isinstance(e, ToolCall)]
    results = {e.call_id: e for e in events if isinstance(e, ToolResult)}
    ends = [e for e in events if isinstance(e, RunEnded)]
    finishes = [e for e in events if isinstance(e, Finish)]
    loaded = next((e for e in events if isinstance(e, RepositoryLoaded)), None)
    last = replies[-1] if replies else None
    summary = finishes[-1].summary if finishes else ""
    if last is not None and (not finishes or last.seq > finishes[-1].seq):
        summary = last.content or summary
    return {
        "exit_code": ends[-1].exit_code if ends else None,
        "exits": [end.exit_code for end in ends],
        "status": finishes[-1].status if finishes else None,
        "summary": summary,
        "claimed_done": bool(finishes) and finishes[-1].status == "done",
        "self_verified": _self_verified(calls, results),
        "asks": _asks(events),
        "calls": [{"name": call.name, "arguments": call.arguments} for call in calls],
        "permissions": _permissions(events),
        "steps": len(replies),
        "tokens": _tokens(replies),
        "cost_usd": _cost(replies),
        "model_seconds": round(sum(reply.seconds for reply in replies), 3),
        "tool_seconds": round(sum(one.seconds for one in results.values()), 3),
        "reasoning_characters": sum(len(reply.reasoning) for reply in replies),
        "loops": loops(calls),
        "pack_tokens": loaded.tokens if loaded else None,
        "private": _private(events),
        "errors": [e.message for e in events if isinstance(e, Error)],
    }


def timeline(events: Sequence[AnyEvent]) -> list[dict[str, Any]]:
    """Each step in order, for the report: tokens, seconds, and its calls with their ends."""
    results = {e.call_id: e for e in events if isinstance(e, ToolResult)}
    made: list[dict[str, Any]] = []
    for event in events:
        if isinstance(event, AssistantMessage):
            usage = event.usage
            made.append(
                {
                    "seconds": round(event.seconds, 3),
                    "prompt": usage.prompt if usage else None,
                    "cached": usage.cached if usage else None,
                    "completion": usage.completion if usage else None,
                    "calls": [
                        {"name": call.name, "error": _failed(results.get(call.id))}
                        for call in event.calls
                    ],
                }
            )
    return made


def _failed(result: ToolResult | None) -> bool:
    return result is None or result.error


def loops(calls: Sequence[ToolCall]) -> dict[str, float]:
    """`repeat_rate`: share of calls that were made before word for word; `longest_run`: of
    identical calls, one after the other."""
    keys = [json.dumps([c.name, c.arguments], sort_keys=True) for c in calls]
    longest = run = 0
    for number, key in enumerate(keys):
        run = run + 1 if number and key == keys[number - 1] else 1
        longest = max(longest, run)
    repeated = len(keys) - len(set(keys))
    return {"repeat_rate": round(repeated / len(keys), 4) if keys else 0.0, "longest_run": longest}


def _self_verified(calls: Sequence[ToolCall], results: dict[str, ToolResult]) -> bool:
    """Whether tests ran, and passed, after the last change."""
    verified = False
    for call in calls:
        result = results.get(call.call_id)
        if result is None:
            continue
        if result.changed:
            verified = False
        command = str(call.arguments.get("command", ""))
        if call.name == "shell" and any(word in command for word in _TESTING):
            verified = result.exit_code == 0
    return verified


def _private(events: Sequence[AnyEvent]) -> str | None:
    """What the reasoning of the first turn noted last as `PRIVATE: ...`."""
    noted: list[str] = []
    turns = 0
    for event in events:
        turns += isinstance(event, UserMessage) and event.origin == "user"
        if isinstance(event, AssistantMessage) and turns == 1:
            noted += re.findall(r"PRIVATE:[ *`]*(.+?)[ *`]*$", event.reasoning, re.MULTILINE)
    return noted[-1] if noted else None


def _asks(events: Sequence[AnyEvent]) -> list[dict[str, Any]]:
    answers = {e.call_id: e.text for e in events if isinstance(e, Answer)}
    changed = False
    made: list[dict[str, Any]] = []
    for event in events:
        if isinstance(event, ToolResult) and event.changed:
            changed = True
        if isinstance(event, UserMessage) and event.origin == "user":
            changed = False  # what an earlier turn changed was wanted
        if isinstance(event, Question):
            answer = answers.get(event.call_id)
            made.append({"question": event.text, "answer": answer, "changed": changed})
    return made


def _permissions(events: Sequence[AnyEvent]) -> list[dict[str, Any]]:
    names = {e.call_id: e.name for e in events if isinstance(e, ToolCall)}
    approved = {e.call_id: e.approved for e in events if isinstance(e, Approval)}
    return [
        {
            "tool": names.get(e.call_id, ""),
            "decision": e.decision,
            "reason": e.reason,
            "approved": approved.get(e.call_id),
        }
        for e in events
        if isinstance(e, Decision) and e.decision != "allow"
    ]


def _tokens(replies: Sequence[AssistantMessage]) -> dict[str, int]:
    usages = [reply.usage for reply in replies if reply.usage is not None]
    return {
        "prompt": sum(usage.prompt for usage in usages),
        "cached": sum(usage.cached for usage in usages),
        "completion": sum(usage.completion for usage in usages),
        "reasoning": sum(usage.reasoning or 0 for usage in usages),
    }


def _cost(replies: Sequence[AssistantMessage]) -> float | None:
    """US dollars at list prices; None where the model has none."""
    costs = [
        cost(reply.model or "", reply.usage, {}) for reply in replies if reply.usage is not None
    ]
    known = [one for one in costs if one is not None]
    return round(sum(known), 6) if costs and len(known) == len(costs) else None
