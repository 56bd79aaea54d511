"""Pure: a session's log as a trajectory in ATIF v1.8, which Harbor and others read.

The format: https://www.harborframework.com/docs/agents/trajectory-format (RFC 0001). Reasoning is
whole, and everything that was asked, allowed and refused is kept under `extra`. The repository's
pack is named and not repeated: its files lie in the repository.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from .events import (
    Answer,
    AnyEvent,
    Approval,
    AssistantMessage,
    Decision,
    FilesChanged,
    PackSegment,
    Preload,
    RunEnded,
    RunStarted,
    SessionStarted,
    SystemMessage,
    TextPart,
    ToolResult,
    Usage,
    UserMessage,
)
from .prices import cost

SCHEMA = "ATIF-v1.8"

Json = dict[str, Any]


def trajectory(session: str, events: Sequence[AnyEvent]) -> Json:
    """The trajectory of a session as a JSON document.

    Raises ValueError for a log that holds nothing a trajectory could show.
    """
    started = next((e for e in events if isinstance(e, SessionStarted)), None)
    run = next((e for e in events if isinstance(e, RunStarted)), None)
    system = next((e for e in events if isinstance(e, SystemMessage)), None)
    steps: list[Json] = []
    for event in events:
        step = _step(event, events, run)
        if step is not None:
            steps.append({"step_id": len(steps) + 1, **_when(event), **step})
    if not steps:
        raise ValueError(f"session {session} has no message yet: there is nothing to export.")
    agent: Json = {
        "name": "unabridged",
        "version": started.version if started is not None else "unknown",
        "model_name": started.model if started is not None else None,
        "tool_definitions": list(system.tools) if system is not None else None,
    }
    extra: Json = (
        {"endpoint": started.endpoint, "repo": started.repo} if started is not None else {}
    )
    if started is not None and started.continues:
        extra["continues_session"] = started.continues
    return {
        "schema_version": SCHEMA,
        "session_id": session,
        "agent": _without_none(agent),
        "steps": steps,
        "final_metrics": _total(events, len(steps)),
        "extra": {**extra, "exit": _exits(events)},
    }


def _step(event: AnyEvent, events: Sequence[AnyEvent], run: RunStarted | None) -> Json | None:
    match event:
        case SystemMessage():
            return {"source": "system", "message": event.text}
        case PackSegment():
            named = f"[{len(event.files)} files of the repository, {len(event.text)} characters]"
            return {"source": "user", "message": named, "extra": {"pack": dict(event.files)}}
        case FilesChanged():
            return {"source": "user", "message": event.text, "extra": {"origin": "harness"}}
        case UserMessage():
            texts = [
                part.text if isinstance(part, TextPart) else "[an image]" for part in event.parts
            ]
            return {
                "source": "user", "message": "\n".join(texts), "extra": {"origin": event.origin},
            }  # fmt: skip
        case AssistantMessage():
            return _reply(event, events, run)
        case _:
            return None


def _reply(event: AssistantMessage, events: Sequence[AnyEvent], run: RunStarted | None) -> Json:
    ids = {call.id for call in event.calls}
    results = [e for e in events if isinstance(e, ToolResult) and e.call_id in ids]
    permissions = [
        one for e in events if (one := _permission(e)) is not None and one["tool_call_id"] in ids
    ]
    made: Json = {
        "source": "agent",
        "message": event.content,
        "model_name": event.model,
        "reasoning_effort": run.effort or None if run is not None else None,
        "reasoning_content": event.reasoning or None,
        "tool_calls": [
            {
                "tool_call_id": call.id,
                "function_name": call.name,
                "arguments": _arguments(call.arguments),
            }
            for call in event.calls
        ]
        or None,
        "observation": {
            "results": [
                {
                    "source_call_id": one.call_id,
                    "content": one.text,
                    "extra": _without_none({"error": one.error, "exit_code": one.exit_code}),
                }
                for one in results
            ]
        }
        if results
        else None,
        "metrics": _metrics(event.usage, event.model or ""),
        "llm_call_count": 1,
    }
    extra: Json = {"permissions": permissions} if permissions else {}
    if event.finish_reason:
        extra["finish_reason"] = event.finish_reason
    return _without_none({**made, "extra": extra or None})


def _permission(event: AnyEvent) -> Json | None:
    """What the policy, a person or the user said about a call."""
    match event:
        case Decision():
            found = {"decision": event.decision, "reason": event.reason, "by": "policy"}
        case Approval():
            said = "approved" if event.approved else "denied"
            found = {"decision": said, "reason": event.reason, "by": event.by}
        case Answer():
            found = {"decision": "answered", "reason": event.text, "by": "user"}
        case _:
            return None
    return {"tool_call_id": event.call_id, **found}


def _arguments(text: str) -> Json:
    try:
        value: Any = json.loads(text or "{}")
    except ValueError:
        value = None
    return cast("Json", value) if isinstance(value, dict) else {"malformed_arguments": text}


def _metrics(usage: Usage | None, model: str) -> Json | None:
    if usage is None:
        return None
    extra = {"reasoning_tokens": usage.reasoning} if usage.reasoning is not None else None
    return _without_none(
        {
            "prompt_tokens": usage.prompt,
            "completion_tokens": usage.completion,
            "cached_tokens": usage.cached,
            "cost_usd": cost(model, usage),
            "extra": extra,
        }
    )


def _total(events: Sequence[AnyEvent], steps: int) -> Json:
    run = next((e for e in events if isinstance(e, RunStarted)), None)
    usages: list[Usage] = []
    costs: list[float | None] = []
    for event in events:
        if isinstance(event, AssistantMessage | Preload) and event.usage is not None:
            model = event.model if isinstance(event, AssistantMessage) else run and run.model
            usages.append(event.usage)
            costs.append(cost(model or "", event.usage))
    known = [one for one in costs if one is not None]
    return _without_none(
        {
            "total_prompt_tokens": sum(one.prompt for one in usages),
            "total_completion_tokens": sum(one.completion for one in usages),
            "total_cached_tokens": sum(one.cached for one in usages),
            "total_cost_usd": sum(known) if costs and len(known) == len(costs) else None,
            "total_steps": steps,
        }
    )


def _exits(events: Sequence[AnyEvent]) -> list[Json]:
    return [
        {"exit_code": e.exit_code, "name": e.name, "reason": e.reason}
        for e in events
        if isinstance(e, RunEnded)
    ]


def _when(event: AnyEvent) -> Json:
    return {"timestamp": event.at} if event.at else {}


def _without_none(values: Json) -> Json:
    return {key: value for key, value in values.items() if value is not None}
