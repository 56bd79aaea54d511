"""Pure: chunks of a reply -> what to show now, and the complete reply at the end.

A stream and a whole body go through the same code, so both give the same reply. Nothing received
is trimmed or repaired; fields that are not understood are passed over.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from ..events import Call, ReasoningField, Usage
from .base import CallDelta, ContentDelta, ReasoningDelta, Reply

Shown = ReasoningDelta | ContentDelta | CallDelta


@dataclass(slots=True, eq=False)
class _Call:
    index: int
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])


class Assembly:
    """The reply so far. `add` each chunk; `reply` when the stream has ended."""

    def __init__(self, reasoning_field: ReasoningField = "reasoning_content") -> None:
        self.finish_reason: str | None = None
        self.size = 0
        """Characters of reasoning, content and arguments received."""
        self._field: ReasoningField = reasoning_field
        self._observed = False
        self._reasoning: list[str] = []
        self._details: list[Any] = []
        self._content: list[str] = []
        self._calls: list[_Call] = []
        self._usage: Usage | None = None
        self._model: str | None = None
        self._id: str | None = None

    def add(self, chunk: Mapping[str, Any]) -> tuple[list[Shown], bool]:
        """Take in one chunk of a stream, or a whole body.

        Returns what it adds for the screen, and whether it brought the reply forward at all.
        """
        self._model = self._model or _text(chunk.get("model")) or None
        self._id = self._id or _text(chunk.get("id")) or None
        moved = self._take_usage(chunk.get("usage"))
        shown: list[Shown] = []
        for choice in _dicts(chunk.get("choices")):
            if choice.get("index") not in (0, None):
                continue
            moved |= self._take_usage(choice.get("usage"))
            if finish := _text(choice.get("finish_reason")):
                self.finish_reason = finish
                moved = True
            message = _dict(choice.get("message"))
            shown += self._take(message or _dict(choice.get("delta")), bool(message))
        return shown, moved or bool(shown)

    def reply(self) -> Reply:
        """The complete reply. Calls without an id have an empty one: see `with_ids`."""
        calls = sorted(self._calls, key=lambda call: call.index)
        return Reply(
            reasoning=_join(self._reasoning),
            reasoning_field=self._field,
            reasoning_details=tuple(_clean(item) for item in self._details) or None,
            content=_join(self._content),
            calls=tuple(
                Call(id=_join([c.id]), name=_join([c.name]), arguments=_join(c.arguments))
                for c in calls
                if c.id or c.name or any(c.arguments)
            ),
            finish_reason=self.finish_reason,
            usage=self._usage,
            model=self._model,
            response_id=self._id,
        )

    def _take(self, delta: dict[str, Any], whole: bool) -> list[Shown]:
        shown: list[Shown] = []
        if reasoning := self._take_reasoning(delta, whole):
            self._reasoning.append(reasoning)
            shown.append(ReasoningDelta(_join([reasoning])))
        if content := _parts_text(delta.get("content")):
            self._content.append(content)
            shown.append(ContentDelta(_join([content])))
        for position, fragment in enumerate(_dicts(delta.get("tool_calls"))):
            call = self._find_call(fragment, position if whole else None)
            shown += self._take_call(call, fragment)
        self.size += len(reasoning) + len(content)
        return shown

    def _take_reasoning(self, delta: dict[str, Any], whole: bool) -> str:
        """The text of the first reasoning field that has any; the one seen before goes first."""
        details: Any = delta.get("reasoning_details")
        self._take_details(_list(details), whole)
        texts: dict[ReasoningField, Any] = {
            "reasoning_content": delta.get("reasoning_content"),
            "reasoning": delta.get("reasoning"),
            "reasoning_details": _details_text(details),
        }
        for name in (self._field, *texts):
            value = texts[name]
            if isinstance(value, str) and value:
                if not self._observed:
                    self._field, self._observed = name, True
                return value
        return ""

    def _take_details(self, details: list[Any], whole: bool) -> None:
        """Structured reasoning: a stream sends each block in pieces that share index and type."""
        for item in details:
            if not isinstance(item, dict):
                self._details.append(item)
                continue
            piece = cast(dict[str, Any], item)
            block = None if whole else self._open_block(piece)
            if block is None:
                self._details.append(dict(piece))
                continue
            for name, value in piece.items():
                before = block.get(name)
                if name in {"text", "summary"} and isinstance(before, str):
                    block[name] = before + _text(value)
                elif value is not None:
                    block[name] = value

    def _open_block(self, piece: dict[str, Any]) -> dict[str, Any] | None:
        key = (piece.get("index"), piece.get("type"))
        blocks = [_dict(block) for block in self._details]
        if key[0] is None:
            blocks = blocks[-1:]
        for block in reversed(blocks):
            if block and (block.get("index"), block.get("type")) == key:
                return block
        return None

    def _find_call(self, fragment: dict[str, Any], position: int | None) -> _Call:
        """The call a fragment belongs to: by index, else by id, else the one before."""
        call_id = _text(fragment.get("id"))
        index = fragment.get("index") if position is None else position
        if isinstance(index, int):
            same = [call for call in self._calls if call.index == index]
            # Some servers give every call index 0 and tell them apart by id.
            if same and not (call_id and same[-1].id and call_id != same[-1].id):
                return same[-1]
        else:
            starts = bool(_text(_dict(fragment.get("function")).get("name")))
            same = [c for c in self._calls if call_id and c.id == call_id]
            if not same and not call_id and not starts:
                same = self._calls[-1:]
            if same:
                return same[-1]
            index = max((call.index for call in self._calls), default=-1) + 1
        self._calls.append(_Call(index))
        return self._calls[-1]

    def _take_call(self, call: _Call, fragment: dict[str, Any]) -> list[Shown]:
        function = _dict(fragment.get("function"))
        call_id, name = _text(fragment.get("id")), _text(function.get("name"))
        arguments = function.get("arguments")
        if isinstance(arguments, dict):  # not the contract, but what was meant is clear
            arguments = json.dumps(arguments, ensure_ascii=False)
        arguments = _text(arguments)
        call.id = call.id or call_id
        if name and name != call.name:
            call.name += name
        call.arguments.append(arguments)
        self.size += len(arguments)
        if not (call_id or name or arguments):
            return []
        return [CallDelta(self._calls.index(call), call_id, name, _join([arguments]))]

    def _take_usage(self, value: object) -> bool:
        usage = read_usage(value)
        if usage is None or usage == self._usage:
            return False
        self._usage = usage
        return True


def with_ids(reply: Reply, messages: Sequence[bytes]) -> Reply:
    """The reply with an id on every call, none given twice.

    An id that is missing or repeated is replaced by one that depends only on the request and the
    reply, so that a replay gives the same.
    """
    if len({call.id for call in reply.calls} - {""}) == len(reply.calls):
        return reply
    digest = hashlib.sha256(b"\n".join(messages))
    digest.update((reply.response_id or "").encode())
    calls: list[Call] = []
    taken: set[str] = set()
    for index, call in enumerate(reply.calls):
        if not call.id or call.id in taken:
            own = digest.copy()
            own.update(f"{index} {call.name} {call.arguments}".encode())
            call = Call(id=f"call_{own.hexdigest()[:24]}", name=call.name, arguments=call.arguments)
        taken.add(call.id)
        calls.append(call)
    return replace(reply, calls=tuple(calls))


def read_usage(value: object) -> Usage | None:
    """Token counts from where endpoints put them; None when there are none."""
    usage = _dict(value)
    prompt = _count(usage, "prompt_tokens", "input_tokens")
    completion = _count(usage, "completion_tokens", "output_tokens")
    if prompt is None and completion is None:
        return None
    details = _dict(usage.get("prompt_tokens_details") or usage.get("input_tokens_details"))
    cached = _count(details, "cached_tokens")
    if cached is None:
        cached = _count(
            usage, "cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens"
        )
    output = _dict(usage.get("completion_tokens_details") or usage.get("output_tokens_details"))
    reasoning = _count(output, "reasoning_tokens")
    return Usage(
        prompt=prompt or 0,
        cached=min(cached or 0, prompt or 0),
        completion=completion or 0,
        reasoning=_count(usage, "reasoning_tokens") if reasoning is None else reasoning,
    )


def _count(values: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = values.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
            return int(value)
    return None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _dict(value: object) -> dict[str, Any]:
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else []


def _dicts(value: object) -> list[dict[str, Any]]:
    return [cast(dict[str, Any], item) for item in _list(value) if isinstance(item, dict)]


def _parts_text(value: object) -> str:
    """Content as text: a string, or the text parts of a list."""
    if isinstance(value, str):
        return value
    return "".join(_text(part.get("text")) for part in _dicts(value))


def _details_text(value: object) -> str:
    if isinstance(value, str):
        return value
    return "".join(_text(item.get("text")) or _text(item.get("summary")) for item in _dicts(value))


def _join(parts: Iterable[str]) -> str:
    """Joined text that can be written as UTF-8.

    A gateway that cuts text by UTF-16 units splits a character over two chunks: the halves are
    joined again. A half without its other half is not Unicode text and becomes U+FFFD.
    """
    text = "".join(parts)
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return _join([value])
    if isinstance(value, list):
        return [_clean(item) for item in cast(list[Any], value)]
    if isinstance(value, dict):
        return {_join([k]): _clean(v) for k, v in cast(dict[str, Any], value).items()}
    return value
