"""Pure: the log -> the messages of the next request.

Every assistant message goes back exactly as it was received: reasoning, content, each call's id,
name and argument string, under the field name the endpoint used. Four events can change that for
a message they name (`elided`, `call_dropped`, `arguments_quoted`, `empty_skipped`); nothing else
can. Each message is serialised once, and what is serialised never changes, so a request is a
byte-extension of the one before it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .events import (
    AnyEvent,
    ArgumentsQuoted,
    AssistantMessage,
    Call,
    CallDropped,
    Elided,
    EmptySkipped,
    FilesChanged,
    ImagePart,
    PackSegment,
    Part,
    Preload,
    ReplayException,
    RequestSent,
    SystemMessage,
    TextPart,
    ToolResult,
    UserMessage,
)


class ReplayError(Exception):
    """A request would not repeat what the model said: it must not be sent."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the request and the event it comes from."""

    seq: int
    data: bytes
    """JSON, UTF-8."""


class View:
    """The fold of a log into messages. `View(events)` and adding one by one give the same."""

    def __init__(self, events: Iterable[AnyEvent] = ()) -> None:
        self.messages: list[Message] = []
        self.tools: bytes = b"[]"
        self.size = 0
        """Bytes of all messages."""
        self.packed = 0
        """Bytes of the repository among them."""
        self.pack_end = 0
        """Messages through the last of the repository."""
        self.pack_hash = ""
        """`prefix_hash` there."""
        self._notes: set[int] = set()
        """Messages about the world, which stay true when the replies around them are left out."""
        self._hash = hashlib.sha256()
        self._reply: AssistantMessage | None = None
        self._exceptions: list[ReplayException] = []
        self._results: dict[str, ToolResult] = {}
        for event in events:
            self.add(event)

    def add(self, event: AnyEvent) -> None:
        """Take in the next event of the log.

        Raises ReplayError when the log holds a request that this view would not have sent.
        """
        match event:
            case SystemMessage():
                self.tools = dumps(list(event.tools))
                self._push(event.seq, {"role": "system", "content": event.text})
            case PackSegment():
                data = self._push(event.seq, {"role": "user", "content": event.text})
                self.packed += len(data)
                self.pack_end, self.pack_hash = len(self.messages), self.prefix_hash
            case FilesChanged():
                self._settle()
                self._push(event.seq, {"role": "user", "content": event.text})
                self._notes.add(event.seq)
            case UserMessage():
                self._settle()
                self._push(event.seq, {"role": "user", "content": _content(event.parts)})
            case AssistantMessage():
                self._settle()
                self._reply = event
            case Elided():
                self._settle()
                self._drop(event.message, event.through)
            case CallDropped() | ArgumentsQuoted() | EmptySkipped():
                self._exceptions.append(event)
            case ToolResult():
                self._results[event.call_id] = event
            case RequestSent():
                self._settle()
                self._check(event, len(self.messages), self.prefix_hash)
            case Preload():
                self._check(event, self.pack_end, self.pack_hash)
            case _:
                pass

    @property
    def prefix_hash(self) -> str:
        """SHA-256 over all messages, each ended by a newline."""
        return self._hash.hexdigest()

    @property
    def open_calls(self) -> tuple[Call, ...]:
        """Calls of the last reply that have no result yet, in order."""
        if self._reply is None:
            return ()
        return tuple(call for call in self._kept_calls() if call.id not in self._results)

    def request(self) -> list[bytes]:
        """The messages of the next request.

        Raises ReplayError when a call has no result yet, or when there is nothing to answer.
        """
        self._settle()
        if not self.messages:
            raise ReplayError("the log has nothing to send.")
        return [message.data for message in self.messages]

    def _kept_calls(self) -> list[Call]:
        assert self._reply is not None
        dropped = {e.call_id for e in self._exceptions if isinstance(e, CallDropped)}
        return [call for call in self._reply.calls if call.id not in dropped]

    def _settle(self) -> None:
        """Serialise the last reply with its results, in call order, once nothing can change it."""
        reply = self._reply
        if reply is None:
            return
        if self.open_calls:
            waiting = ", ".join(call.id for call in self.open_calls)
            raise ReplayError(f"calls without a result: {waiting}.")
        calls = self._kept_calls()
        if not any(isinstance(e, EmptySkipped) for e in self._exceptions):
            quoted = {e.call_id for e in self._exceptions if isinstance(e, ArgumentsQuoted)}
            message = assistant_message(reply, calls, quoted)
            check_replay(self._push(reply.seq, message), reply, calls, quoted)
        for call in calls:
            self._push(reply.seq, tool_message(self._results[call.id]))
        self._reply = None
        self._exceptions = []
        self._results = {}

    def _push(self, seq: int, message: dict[str, Any]) -> bytes:
        data = dumps(message)
        self.messages.append(Message(seq, data))
        self.size += len(data)
        self._hash.update(data)
        self._hash.update(b"\n")
        return data

    def _check(self, event: RequestSent | Preload, messages: int, prefix_hash: str) -> None:
        if (event.messages, event.prefix_hash) != (messages, prefix_hash):
            raise ReplayError(
                f"event {event.seq} records a request of {event.messages} messages that this log "
                "does not give: it was written by another version, or edited."
            )

    def _drop(self, first: int, last: int) -> None:
        kept = [
            message
            for message in self.messages
            if not first <= message.seq <= last or message.seq in self._notes
        ]
        self.messages, self.size, self._hash = kept, 0, hashlib.sha256()
        for message in kept:
            self.size += len(message.data)
            self._hash.update(message.data)
            self._hash.update(b"\n")


def assistant_message(
    reply: AssistantMessage, calls: list[Call], quoted: set[str]
) -> dict[str, Any]:
    """A reply as it goes back. The reasoning field is there even when it is empty."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.reasoning_field == "reasoning_details":
        message["reasoning_details"] = list(reply.reasoning_details or ())
    else:
        message[reply.reasoning_field] = reply.reasoning
        if reply.reasoning_details is not None:
            message["reasoning_details"] = list(reply.reasoning_details)
    if calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": quote(call.arguments) if call.id in quoted else call.arguments,
                },
            }
            for call in calls
        ]
    return message


def tool_message(result: ToolResult) -> dict[str, Any]:
    """A result as it goes to the model."""
    content: Any = result.text
    if result.images:
        content = [{"type": "text", "text": result.text}, *map(_image, result.images)]
    return {"role": "tool", "tool_call_id": result.call_id, "content": content}


def quote(arguments: str) -> str:
    """The valid stand-in for arguments that are not a JSON object."""
    return json.dumps({"malformed_arguments": arguments}, ensure_ascii=False)


def check_replay(data: bytes, reply: AssistantMessage, calls: list[Call], quoted: set[str]) -> None:
    """Compare the serialised message with what was received, field by field.

    Raises ReplayError on any difference that no event allows.
    """
    sent = json.loads(data)
    expected_calls = [
        (call.id, call.name, quote(call.arguments) if call.id in quoted else call.arguments)
        for call in calls
    ]
    sent_calls = [
        (call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in sent.get("tool_calls", [])
    ]
    reasoning = sent.get("reasoning_content", sent.get("reasoning", ""))
    if reply.reasoning_field == "reasoning_details":
        reasoning = reply.reasoning
    same = (
        sent["content"] == reply.content
        and reasoning == reply.reasoning
        and reply.reasoning_field in sent
        and sent.get("reasoning_details", []) == list(reply.reasoning_details or ())
        and sent_calls == expected_calls
    )
    if not same:
        raise ReplayError(f"event {reply.seq} would not go back as it was received.")


def dumps(value: Any) -> bytes:
    """The one serialiser of the wire: compact, UTF-8, key order kept, any string whole."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    except UnicodeEncodeError:
        # A lone surrogate has no UTF-8 form; its JSON escape keeps it.
        return json.dumps(value, separators=(",", ":")).encode("ascii")


def _content(parts: tuple[Part, ...]) -> str | list[dict[str, Any]]:
    """Plain text where that is all there is."""
    if len(parts) == 1 and isinstance(parts[0], TextPart):
        return parts[0].text
    return [
        {"type": "text", "text": part.text} if isinstance(part, TextPart) else _image(part)
        for part in parts
    ]


def _image(part: ImagePart) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": part.url}}
