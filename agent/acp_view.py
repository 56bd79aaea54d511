"""Pure but for reading files: events of a session as updates of the Agent Client Protocol."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import acp
from acp import schema as wire

from ..tools.base import ToolError
from ..tools.diff import spliced
from ..tools.edit import EditArguments
from ..tools.edit import make_plan as plan_edit
from ..tools.write import WriteArguments
from ..tools.write import make_plan as plan_write
from .calls import BadCall, understand
from .events import (
    AnyEvent,
    AssistantMessage,
    Call,
    Finish,
    ImagePart,
    Plan,
    Question,
    ScopeGranted,
    TextPart,
    ToolCall,
    ToolResult,
    ToolStarted,
    UserMessage,
)
from .providers.base import CallOutput, ContentDelta, Delta, ReasoningDelta
from .session import Pending, Session

AskedCall = wire.ToolCallUpdate
LIVE = 8_000
"""Characters of a running command's output that are shown: its end."""

_KINDS: dict[str, Any] = {
    "read": "read", "list": "search", "search": "search", "symbols": "search", "edit": "edit",
    "write": "edit", "shell": "execute", "git": "execute", "propose_plan": "think",
    "ask_user": "other", "finish": "other", "task": "think",
}  # fmt: skip
"""Tool -> kind, by which an editor chooses an icon."""


class Shown:
    """What a session shows, item by item. Diffs and costs need the session at work."""

    def __init__(self, root: Path, session: Session | None = None) -> None:
        self._root = root
        self._session = session
        self._streamed: set[type] = set()
        self._output: dict[str, str] = {}
        self._plan: Plan | None = None

    def updates(self, item: AnyEvent | Delta) -> Iterator[Any]:
        """The updates of one item."""
        match item:
            case ReasoningDelta():
                self._streamed.add(ReasoningDelta)
                yield acp.update_agent_thought_text(item.text)
            case ContentDelta():
                self._streamed.add(ContentDelta)
                yield acp.update_agent_message_text(item.text)
            case AssistantMessage():
                # What did not stream is shown whole.
                if item.reasoning and ReasoningDelta not in self._streamed:
                    yield acp.update_agent_thought_text(item.reasoning)
                if item.content and ContentDelta not in self._streamed:
                    yield acp.update_agent_message_text(item.content)
                self._streamed.clear()
                yield from self._usage(item)
            case ToolCall():
                yield self._started(item)
            case ToolStarted():
                yield acp.update_tool_call(item.call_id, status="in_progress")
            case CallOutput():
                text = (self._output.get(item.call_id, "") + item.text)[-LIVE:]
                self._output[item.call_id] = text
                yield acp.update_tool_call(item.call_id, content=[_text(text)])
            case ToolResult():
                self._output.pop(item.call_id, None)
                yield acp.update_tool_call(
                    item.call_id,
                    status="failed" if item.error else "completed",
                    # A diff that is shown already stays as it is.
                    content=None
                    if item.diff and self._session
                    else [_text(item.diff or item.text)],
                    raw_output={"text": item.text, "exit_code": item.exit_code},
                )
            case Plan():
                self._plan = item
                yield from self._entries("pending")
            case ScopeGranted():
                yield from self._entries("in_progress")
            case Finish(status="done"):
                yield from self._entries("completed")
            case Question():
                choices = "".join(f"\n- {choice}" for choice in item.choices)
                yield acp.update_agent_message_text(f"{item.text}{choices}")
            case _:
                pass

    def _usage(self, reply: AssistantMessage) -> Iterator[Any]:
        if reply.usage is None or self._session is None:
            return
        cost = self._session.core.spent.cost
        yield wire.UsageUpdate(
            session_update="usage_update",
            used=reply.usage.prompt + reply.usage.completion,
            size=self._session.provider.window,
            cost=None if cost is None else wire.Cost(amount=cost, currency="USD"),
        )

    def _started(self, event: ToolCall) -> Any:
        path = event.arguments.get("path")
        place = str(self._root / path) if isinstance(path, str) else None
        return acp.start_tool_call(
            event.call_id,
            _title(event.name, event.arguments),
            kind=_KINDS.get(event.name, "other"),
            status="pending",
            content=diffs_of(self._session, event.call_id) if self._session else None,
            locations=None if place is None else [wire.ToolCallLocation(path=place)],
            raw_input=event.arguments,
        )

    def _entries(self, status: wire.PlanEntryStatus) -> Iterator[Any]:
        """The plan, one entry for each of its lines."""
        if self._plan is None:
            return
        lines = [line.strip().removeprefix("- ") for line in self._plan.text.splitlines()]
        yield acp.update_plan([acp.plan_entry(line, status=status) for line in lines if line])


def replayed(events: Sequence[AnyEvent], root: Path) -> Iterator[Any]:
    """A whole session for an editor that shows nothing of it yet."""
    shown = Shown(root)
    for event in events:
        if isinstance(event, UserMessage) and event.origin == "user":
            yield from (acp.update_user_message(_block(part)) for part in event.parts)
        else:
            yield from shown.updates(event)


def asked_call(session: Session, item: Pending) -> AskedCall:
    """A call that needs a person, with all that the person is to judge."""
    diffs = diffs_of(session, item.call_id)
    effects = "\n".join(f"- {effect.describe()}" for effect in item.effects)
    words = [item.preview] if item.preview and not diffs else []
    told = "\n\n".join([*words, item.reason, *([effects] if effects else [])])
    return AskedCall(
        tool_call_id=item.call_id,
        title=_title(item.tool, item.arguments),
        kind=_KINDS.get(item.tool, "other"),
        status="pending",
        content=[*diffs, _text(told)],
        raw_input=item.arguments,
    )


def diffs_of(session: Session, call_id: str) -> list[Any]:
    """The file that an open `edit` or `write` would change, before and after; else nothing."""
    found = next((call for call in session.core.view.open_calls if call.id == call_id), None)
    return [] if found is None else _diffs(session, found)


def _diffs(session: Session, call: Call) -> list[Any]:
    facts = session.core.facts
    try:
        _, args = understand(call, session.core.tools)
        if isinstance(args, EditArguments):
            edit = plan_edit(args, facts)
            where, before = edit.where, edit.was.data
            after = b"".join(spliced(edit.was.data, edit.splices))
        elif isinstance(args, WriteArguments):
            write = plan_write(args, facts)
            where, after = write.where, write.data
            before = None if write.was is None else write.was.data
        else:
            return []
    except (BadCall, ToolError, OSError):
        return []  # the call's own result says what is wrong
    old = None if before is None else before.decode("utf-8", "replace")
    return [acp.tool_diff_content(str(where.path), after.decode("utf-8", "replace"), old)]


def _title(tool: str, arguments: dict[str, Any]) -> str:
    if tool == "mcp":
        words = (arguments.get(key, "") for key in ("action", "server", "tool"))
        return " ".join((tool, *filter(None, map(str, words))))[:200]
    keys = ("command", "path", "pattern", "action", "question", "status", "task")
    about = next((str(arguments[key]) for key in keys if key in arguments), "")
    return f"{tool} {about}".strip().partition("\n")[0][:200]


def _text(text: str) -> Any:
    return acp.tool_content(acp.text_block(text))


def _block(part: TextPart | ImagePart) -> Any:
    if isinstance(part, TextPart):
        return acp.text_block(part.text)
    mime, _, data = part.url.removeprefix("data:").partition(";base64,")
    return acp.image_block(data, mime)
