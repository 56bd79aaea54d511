"""From the token ids that K3 generates to reasoning, content and tool calls, as they arrive.

Parsing works on ids, never on text: `<|close|>` written by the model as a control token ends an
element, the same nine characters inside a string argument do not. The generation prefix has
opened the think channel (or the response, in instruct mode), so that is where a reply starts.

What does not fit the grammar is never dropped and never guessed at. The marker is delivered as
literal text where it stood, a `Problem` says so, and parsing goes on. Inside a call that makes the
arguments invalid JSON, so no caller can run a call that the model did not write properly.
(Specification, section 11.7.)
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn

from .render import json_type
from .tokenizer import CLOSE, OPEN, SEP, StreamDecoder, Tokenizer
from .xtml import Tag, read_tag


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the think channel."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the response."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A tool call begins; `index` counts the calls of the message from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """More of a call's arguments: the pieces concatenate to one JSON object."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Problem:
    """Where the output left the grammar, in words; `call` is the index of the call concerned."""

    message: str
    call: int | None = None


Event = ReasoningDelta | ContentDelta | CallStarted | ArgumentsDelta | Problem


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of a reply. `arguments` is the model's JSON, invalid where the model's was."""

    name: str
    arguments: str
    complete: bool
    """Whether the model closed the call; false when the output was cut inside it."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Everything a reply said so far."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[Call, ...] = ()
    problems: tuple[Problem, ...] = ()
    ended: bool = False
    """Whether the model ended its message; false when the output was cut."""


class _Place(Enum):
    """Where in the message the parser stands; the value names the open element."""

    THINK = "think"
    BODY = "message"  # between the channels
    RESPONSE = "response"
    TOOLS = "tools"
    CALL = "call"
    ARGUMENT = "argument"
    AFTER = "end"  # the message is closed


_ARGUMENT_TYPES = ("string", "number", "boolean", "null", "object", "array")
_MAX_TAG_TOKENS = 512  # a tag that long is text after a stray marker; show it


class ReplyParser:
    """Parses one reply, token by token.

    `push` returns what became certain; `reply` is the sum of it all. Feeding the same ids in
    other portions gives the same reply.
    """

    def __init__(self, tokenizer: Tokenizer, *, thinking: bool = True) -> None:
        self._tokenizer = tokenizer
        self._decoder = StreamDecoder(tokenizer)
        self._place = _Place.THINK if thinking else _Place.RESPONSE
        self._seen = {self._place}
        self._marker: str | None = None  # OPEN or CLOSE while a tag is being read …
        self._tag: list[int] = []  # … and the ids after it
        self._stray = False  # text outside an element has been reported here
        self._keys: set[str] = set()  # of the current call
        self._type = ""  # of the current argument
        self._value: list[str] = []  # of the current argument, unless it is a string

        self._events: list[Event] = []
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._names: list[str] = []
        self._arguments: list[list[str]] = []
        self._closed: list[bool] = []
        self._problems: list[Problem] = []
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether the model has ended its message."""
        return self._ended

    @property
    def thinking(self) -> bool:
        """Whether the model is still in its think channel."""
        return self._place is _Place.THINK

    @property
    def reply(self) -> Reply:
        """Everything parsed so far."""
        calls = zip(self._names, map("".join, self._arguments), self._closed, strict=True)
        return Reply(
            reasoning="".join(self._reasoning),
            content="".join(self._content),
            calls=tuple(Call(*call) for call in calls),
            problems=tuple(self._problems),
            ended=self._ended,
        )

    def push(self, tokens: Iterable[int]) -> list[Event]:
        """Take the next ids and return what they settle."""
        for token in tokens:
            self._push(token)
        return self._take_events()

    def finish(self) -> list[Event]:
        """The stream is over, wherever it stopped.

        A message that was cut (`reply.ended` is false) may stop inside a tag or a character;
        these tails say nothing yet and are trimmed.
        """
        self._marker, self._tag = None, []
        self._decoder.flush()
        return self._take_events()

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _push(self, token: int) -> None:
        tokenizer = self._tokenizer
        if not tokenizer.is_control(token):
            if self._marker is None:
                self._text(self._decoder.push(token))
            else:
                self._tag.append(token)
                if len(self._tag) > _MAX_TAG_TOKENS:
                    self._misfit(self._unread_tag(), "a marker without an element")
            return

        self._text(self._decoder.flush())
        if token == tokenizer.sep_id and self._marker is not None:
            self._read_tag()
            return
        if self._marker is not None:
            self._misfit(self._unread_tag(), "a marker without an element")
        if token == tokenizer.open_id:
            self._marker = OPEN
        elif token == tokenizer.close_id:
            self._marker = CLOSE
        elif token == tokenizer.end_of_msg_id and not self._ended:
            if self._place is not _Place.AFTER:
                self._problem(f"the message ended inside <{self._place.value}>")
                self._go(_Place.AFTER)
            self._ended = True
        else:
            self._misfit(tokenizer.decode([token]), "a control token that belongs to no element")

    def _unread_tag(self) -> str:
        """Give up on the tag being read; its text as it was written."""
        literal = f"{self._marker}{self._tokenizer.decode(self._tag)}"
        self._marker, self._tag = None, []
        return literal

    def _read_tag(self) -> None:
        opening = self._marker == OPEN
        tag = read_tag(self._tokenizer.decode(self._tag))
        literal = self._unread_tag() + SEP
        fits = tag is not None and (self._open(tag) if opening else self._close(tag))
        if not fits:
            self._misfit(literal, "an element that does not belong here")

    def _open(self, tag: Tag) -> bool:
        """Enter an element; False when it does not fit."""
        place, attributes = self._place, tag.attributes
        channel = {"response": _Place.RESPONSE, "tools": _Place.TOOLS}.get(tag.name)
        if channel is not None and not attributes and channel not in self._seen:
            if place not in (_Place.BODY, _Place.THINK, _Place.RESPONSE):
                return False
            if place is not _Place.BODY:
                self._problem(f"<{place.value}> was not closed before <{tag.name}>")
            if channel is _Place.TOOLS and _Place.RESPONSE not in self._seen:
                self._problem("<response> is missing")
            self._go(channel)
            return True
        if tag.name == "call" and place is _Place.TOOLS and attributes.keys() == {"tool", "index"}:
            return bool(attributes["tool"]) and self._open_call(**attributes)
        if tag.name == "argument" and place is _Place.CALL and attributes.keys() == {"key", "type"}:
            return attributes["type"] in _ARGUMENT_TYPES and self._open_argument(**attributes)
        return False

    def _open_call(self, tool: str, index: str) -> bool:
        number = len(self._names)
        self._names.append(tool)
        self._arguments.append([])
        self._closed.append(False)
        self._keys = set()
        self._events.append(CallStarted(number, tool))
        if index != str(number + 1):
            self._problem(f"call {number + 1} is numbered {index!r}", number)
        self._go(_Place.CALL)
        self._emit_arguments("{")
        return True

    def _open_argument(self, key: str, type: str) -> bool:  # noqa: A002 - the attribute's name
        if key in self._keys:
            self._problem(f"argument {key!r} is given twice", len(self._names) - 1)
        separator = ", " if self._keys else ""
        self._keys.add(key)
        self._type, self._value = type, []
        quote = '"' if type == "string" else ""
        self._emit_arguments(f"{separator}{_json(key)}: {quote}")
        self._go(_Place.ARGUMENT)
        return True

    def _close(self, tag: Tag) -> bool:
        """Leave an element; False when it is not the one that is open."""
        place = self._place
        if tag.attributes or place is _Place.AFTER:
            return False
        if tag.name == "message":
            if place is not _Place.BODY:
                self._problem(f"the message was closed inside <{place.value}>")
            elif not self._seen & {_Place.RESPONSE, _Place.TOOLS}:
                self._problem("<response> is missing")
            self._go(_Place.AFTER)
            return True
        if tag.name != place.value:
            return False
        if place is _Place.ARGUMENT:
            self._close_argument()
            self._go(_Place.CALL)
        elif place is _Place.CALL:
            self._emit_arguments("}")
            self._closed[-1] = True
            self._go(_Place.TOOLS)
        else:
            self._go(_Place.BODY)
        return True

    def _close_argument(self) -> None:
        if self._type == "string":
            self._emit_arguments('"')
            return
        literal = "".join(self._value)
        try:
            fits = json_type(json.loads(literal, parse_constant=_refuse)) == self._type
        except ValueError:
            fits = False
        if not fits:
            excerpt = literal if len(literal) <= 80 else f"{literal[:80]}…"
            self._problem(f"{excerpt!r} is not JSON of type {self._type}", len(self._names) - 1)

    def _go(self, place: _Place) -> None:
        self._place = place
        self._seen.add(place)
        self._stray = False

    def _text(self, text: str) -> None:
        """Deliver text where the parser stands."""
        if not text:
            return
        match self._place:
            case _Place.THINK:
                self._reasoning.append(text)
                self._events.append(ReasoningDelta(text))
            case _Place.RESPONSE:
                self._emit_content(text)
            case _Place.ARGUMENT if self._type == "string":
                self._emit_arguments(_json(text)[1:-1])
            case _Place.ARGUMENT:
                self._value.append(text)
                self._emit_arguments(text)
            case _Place.CALL:
                self._report_stray()
                self._emit_arguments(text)
            case _Place.BODY | _Place.TOOLS | _Place.AFTER:
                self._report_stray()
                self._emit_content(text)

    def _report_stray(self) -> None:
        if not self._stray:
            self._stray = True
            inside = self._place is _Place.CALL
            call = len(self._names) - 1 if inside else None
            self._problem(f"text directly inside <{self._place.value}>", call)

    def _misfit(self, literal: str, what: str) -> None:
        inside = self._place in (_Place.CALL, _Place.ARGUMENT)
        self._problem(f"{what}: {literal[:80]!r}", len(self._names) - 1 if inside else None)
        self._stray = True  # reported just now
        self._text(literal)

    def _problem(self, message: str, call: int | None = None) -> None:
        problem = Problem(message, call)
        self._problems.append(problem)
        self._events.append(problem)

    def _emit_content(self, text: str) -> None:
        self._content.append(text)
        self._events.append(ContentDelta(text))

    def _emit_arguments(self, text: str) -> None:
        index = len(self._names) - 1
        self._arguments[index].append(text)
        self._events.append(ArgumentsDelta(index, text))


def parse(tokens: Iterable[int], tokenizer: Tokenizer, *, thinking: bool = True) -> Reply:
    """Parse a whole reply at once."""
    parser = ReplyParser(tokenizer, thinking=thinking)
    parser.push(tokens)
    parser.finish()
    return parser.reply


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def new_call_id() -> str:
    """An id for a call: the model numbers its calls, clients want names unique in a session."""
    return f"call_{secrets.token_hex(12)}"


def to_message(reply: Reply, call_ids: Sequence[str]) -> dict[str, Any]:
    """The reply as an assistant message in OpenAI's form, with the given ids for its calls."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": reply.content or None,
        "reasoning_content": reply.reasoning,
    }
    if reply.calls:
        message["tool_calls"] = [
            {
                "id": call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call_id, call in zip(call_ids, reply.calls, strict=True)
        ]
    return message
