"""Scripts: what a stand-in model says, turn by turn, faults of its server included.

One format serves tests, replays, evals and the stand-in of `make run`, as a JSON or TOML file or
as the models below. `scripted_server` serves a script over HTTP; `ScriptedProvider` plays it in
this process. A function from the request to a turn can stand in for the list of turns. See
docs/scripts.md.
"""

from __future__ import annotations

import asyncio
import json
import random
import tomllib
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..events import ReasoningField
from . import faults
from .assembly import Assembly, with_ids
from .base import Delta, ProviderError, Reply, Request, Waiting
from .dialects import WINDOW


class Entry(BaseModel):
    """Base of a script's parts: unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# --- faults ---------------------------------------------------------------------------------------


class Status(Entry):
    """The request is answered with an HTTP error."""

    kind: Literal["status"] = "status"
    status: int = Field(ge=300, le=599)
    headers: dict[str, str] = {}
    body: dict[str, Any] | str = ""


class Page(Entry):
    """The request is answered with status 200 and something that is not a reply."""

    kind: Literal["page"] = "page"
    body: str = "<!doctype html><html><body>Sign in</body></html>"
    type: str = "text/html"


class Drop(Entry):
    """The connection breaks after `after` events; after -1, before the response begins."""

    kind: Literal["drop"] = "drop"
    after: int = Field(default=0, ge=-1)


class Cut(Entry):
    """The response ends in good order after `after` events, but the reply is not complete."""

    kind: Literal["cut"] = "cut"
    after: int = Field(default=0, ge=0)


class Stall(Entry):
    """Nothing more comes after `after` events (-1: not even the head) until the client leaves."""

    kind: Literal["stall"] = "stall"
    after: int = Field(default=0, ge=-1)
    keepalive: float | None = Field(default=None, gt=0)
    """Seconds between comment lines, sent meanwhile."""


class Garbage(Entry):
    """`text` is sent as it is after `after` events; then the stream goes on."""

    kind: Literal["garbage"] = "garbage"
    after: int = Field(default=0, ge=0)
    text: str = 'data: {"choices": [{"del\n\n'


class Storm(Entry):
    """`count` empty tool deltas take the place of the calls. Whole replies are right."""

    kind: Literal["storm"] = "storm"
    count: int = Field(default=1000, ge=0)


class NoCalls(Entry):
    """The finish reason says `tool_calls`, and there are none."""

    kind: Literal["no_calls"] = "no_calls"


class Leak(Entry):
    """The calls come as raw markup in the content."""

    kind: Literal["leak"] = "leak"
    markup: Literal["k3", "k2"] = "k3"


class StreamError(Entry):
    """An error object comes in the stream after `after` events."""

    kind: Literal["error"] = "error"
    after: int = Field(default=0, ge=0)
    error: dict[str, Any] = {"message": "engine failed", "type": "server_error"}


Fault = Annotated[
    Status | Page | Drop | Cut | Stall | Garbage | Storm | NoCalls | Leak | StreamError,
    Field(discriminator="kind"),
]


# --- turns ----------------------------------------------------------------------------------------


class Wire(Entry):
    """How a turn is put on the wire."""

    reasoning_field: ReasoningField = "reasoning_content"
    usage: Literal["top", "choice", "none"] = "top"
    cached: Literal["details", "top", "hit", "none"] = "details"
    """Where the count of cached tokens stands."""
    chunk: int = Field(default=64, ge=0)
    """Characters per delta; 0: all at once."""
    delay: float = Field(default=0.0, ge=0)
    """Seconds before each event."""
    first_delay: float = Field(default=0.0, ge=0)
    """Seconds before the first."""
    interleave: int | None = None
    """Seed for mixing the fragments of parallel calls; without it they follow each other."""
    extra: dict[str, Any] = {}
    """Fields that nobody knows, put in every chunk, choice and delta."""
    line_end: Literal["\n", "\r\n"] = "\n"
    done: bool = True
    """Whether the stream ends with `[DONE]`."""


class ScriptedCall(Entry):
    """A tool call of a turn."""

    name: str
    arguments: dict[str, Any] | str = {}
    """Text goes out as it is, malformed or not."""
    id: str | None = None
    """By default made from the position of the turn and of the call; empty: sent without."""

    @property
    def text(self) -> str:
        """The arguments as sent."""
        if isinstance(self.arguments, str):
            return self.arguments
        return json.dumps(self.arguments, ensure_ascii=False)


class Tokens(Entry):
    """Token counts to report."""

    prompt: int
    completion: int
    cached: int = 0
    reasoning: int | None = None


class Expect(Entry):
    """Conditions on the request that a turn answers."""

    roles: tuple[str, ...] = ()
    """Roles of the last messages."""
    messages: int | None = None
    last: tuple[str, ...] = ()
    """Texts that the last message holds."""
    anywhere: tuple[str, ...] = ()
    """Texts that some message holds."""
    nowhere: tuple[str, ...] = ()
    """Texts that no message holds."""
    tools: tuple[str, ...] | None = None
    """Names of all tools, in any order."""
    body: dict[str, Any] = {}
    """Fields of the body, such as the effort, and their values."""


class Turn(Entry):
    """One reply of the model, with what goes wrong before it succeeds."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    finish: str | None = None
    """By default `tool_calls` when there are calls, else `stop`."""
    usage: Tokens | None = None
    """By default worked out from the bytes: four to a token, cached what the last request shared."""
    wire: dict[str, Any] = {}
    """Fields of `Wire` that differ from the script's."""
    faults: tuple[Fault, ...] = ()
    """Each answers one request; the next request gets the next, and then the reply."""
    expect: Expect | None = None


class Script(Entry):
    """A model's whole part."""

    model: str | None = None
    """Requests for another model get 404."""
    window: int = WINDOW
    turns: tuple[Turn, ...] = ()
    wire: Wire = Wire()
    order: Literal["sequence", "history"] = "sequence"
    """`sequence`: every answered request moves to the next turn. `history`: the turn is the number
    of assistant messages in the request, so that resumed and forked sessions find their place."""
    end: Literal["error", "repeat"] = "error"
    """After the last turn: an error, or the last turn again."""


Policy = Callable[["Question"], "Turn | dict[str, Any]"]
"""A scripted agent: looks at the request and says the next turn."""


def load_script(path: Path) -> Script:
    """Read a script from a `.json` or `.toml` file.

    Raises OSError, and ValueError with the file and the fields that are wrong.
    """
    data = path.read_bytes()
    try:
        if path.suffix == ".toml":
            return Script.model_validate(tomllib.loads(data.decode()))
        return Script.model_validate_json(data)
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'script'}: {e['msg']}" for e in error.errors()
        )
        raise ValueError(f"{path}: {wrong}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


# --- playing --------------------------------------------------------------------------------------


class Question:
    """The request that a turn answers, parsed when looked at."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        """The body, or in this process the messages, as bytes."""

    @classmethod
    def of(cls, request: Request) -> Question:
        """The question a `Request` asks."""
        head = json.dumps(
            {"model": request.model, "reasoning_effort": request.effort, "stream": True}
        )
        messages = b",".join(request.messages)
        return cls(
            b'%s,"tools":%s,"messages":[%s],"max_completion_tokens":%d}'
            % (head.encode()[:-1], request.tools, messages, request.max_completion_tokens)
        )

    @cached_property
    def body(self) -> dict[str, Any]:
        """Every field of the request."""
        value: Any = json.loads(self.raw)
        return cast(dict[str, Any], value) if isinstance(value, dict) else {}

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages, oldest first."""
        return self.body.get("messages", [])

    @property
    def tools(self) -> list[str]:
        """Names of the declared tools."""
        return [tool["function"]["name"] for tool in self.body.get("tools", [])]

    @property
    def turn(self) -> int:
        """How many replies the history holds."""
        return sum(message.get("role") == "assistant" for message in self.messages)

    def text(self, position: int = -1) -> str:
        """The text of a message's content."""
        content: Any = self.messages[position].get("content") if self.messages else ""
        if isinstance(content, list):
            parts = cast(list[dict[str, Any]], content)
            return "".join(str(part.get("text", "")) for part in parts)
        return str(content or "")

    def results(self) -> dict[str, str]:
        """The last tool results: call id -> text. A note on changed files may follow them."""
        found: dict[str, str] = {}
        for position in range(len(self.messages) - 1, -1, -1):
            if not found and self.text(position).startswith("<changes>"):
                continue
            if self.messages[position].get("role") != "tool":
                break
            found[str(self.messages[position].get("tool_call_id"))] = self.text(position)
        return dict(reversed(found.items()))


class ScriptError(Exception):
    """The script cannot answer the request, or the request is not what a turn expects."""


class Answer(Entry):
    """What a request gets: a turn, or a fault of it."""

    turn: Turn
    number: int
    """Of the turn, from 0."""
    fault: Fault | None
    wire: Wire
    usage: Tokens


class Player:
    """Keeps the place in a script."""

    def __init__(self, script: Script | Policy) -> None:
        self.script = script if isinstance(script, Script) else Script()
        self._policy = None if isinstance(script, Script) else script
        self._next = 0
        self._faults: dict[int, int] = {}
        """Turn -> how many of its faults have been played."""
        self._last = b""

    def answer(self, question: Question, *, whole: bool = False) -> Answer:
        """What the request gets. Faults that only streaming has do not count for `whole` replies.

        Raises ScriptError.
        """
        turn, number = self._turn(question)
        if turn.expect is not None:
            _check(turn.expect, question, number)
        usage = turn.usage or self._count(turn, question)
        try:
            wire = Wire.model_validate({**self.script.wire.model_dump(), **turn.wire})
        except ValidationError as error:
            raise ScriptError(f"turn {number}: {error.errors()[0]['msg']} in its wire.") from None
        played = self._faults.get(number, 0)
        left = [f for f in turn.faults[played:] if not (whole and isinstance(f, Storm))]
        fault = left[0] if left else None
        if fault is not None:
            self._faults[number] = turn.faults.index(fault, played) + 1
        else:
            self._next = number + 1
            self._faults.pop(number, None)
        return Answer(turn=turn, number=number, fault=fault, wire=wire, usage=usage)

    def _turn(self, question: Question) -> tuple[Turn, int]:
        history = self.script.order == "history" or self._policy is not None
        number = question.turn if history else self._next
        if self._policy is not None:
            said = self._policy(question)
            return (said if isinstance(said, Turn) else Turn.model_validate(said)), number
        turns = self.script.turns
        if number < len(turns):
            return turns[number], number
        if turns and self.script.end == "repeat":
            return turns[-1], number
        raise ScriptError(f"the script has {len(turns)} turns, and this request asks for one more.")

    def _count(self, turn: Turn, question: Question) -> Tokens:
        shared = _common_prefix(self._last, question.raw)
        self._last = question.raw
        thought = len(turn.reasoning) // 4
        said = sum(len(call.name) + len(call.text) for call in turn.calls) + len(turn.content)
        return Tokens(
            prompt=max(1, len(question.raw) // 4),
            cached=shared // 4,
            completion=thought + said // 4 + 1,
            reasoning=thought,
        )


def _common_prefix(a: bytes, b: bytes) -> int:
    """Length of the common prefix, by halving: comparing slices is a memcmp."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _check(expect: Expect, question: Question, number: int) -> None:
    everything = [question.text(i) for i in range(len(question.messages))]
    roles = [str(message.get("role")) for message in question.messages]
    wrong: list[str] = []
    if expect.roles and tuple(roles[-len(expect.roles) :]) != expect.roles:
        wrong.append(f"the last roles are {roles[-len(expect.roles) :]}")
    if expect.messages is not None and len(roles) != expect.messages:
        wrong.append(f"there are {len(roles)} messages, not {expect.messages}")
    wrong += [f"the last message lacks {t!r}" for t in expect.last if t not in question.text()]
    wrong += [
        f"no message has {t!r}" for t in expect.anywhere if not any(t in m for m in everything)
    ]
    wrong += [f"a message has {t!r}" for t in expect.nowhere if any(t in m for m in everything)]
    if expect.tools is not None and sorted(question.tools) != sorted(expect.tools):
        wrong.append(f"the tools are {question.tools}")
    wrong += [
        f"{name} is {question.body.get(name)!r}"
        for name, value in expect.body.items()
        if question.body.get(name) != value
    ]
    if wrong:
        raise ScriptError(f"turn {number} expects another request: {'; '.join(wrong)}.")


# --- what goes over the wire ----------------------------------------------------------------------


def message_of(answer: Answer) -> dict[str, Any]:
    """The complete assistant message of a turn, as a whole reply carries it."""
    turn, wire = answer.turn, answer.wire
    message: dict[str, Any] = {"role": "assistant", "content": turn.content, **wire.extra}
    message.update(_reasoning(turn.reasoning, wire))
    if turn.calls:
        message["tool_calls"] = [
            {
                **_id(answer, position),
                "type": "function",
                "function": {"name": call.name, "arguments": call.text},
            }
            for position, call in enumerate(turn.calls)
        ]
    return message


def body_of(answer: Answer, model: str) -> dict[str, Any]:
    """The whole reply of a turn."""
    answer = _spoiled(answer)
    choice = {"index": 0, "message": message_of(answer), "finish_reason": _finish(answer.turn)}
    body = _envelope(answer, model, "chat.completion", choice)
    _put_usage(body, answer)
    return body


def chunks_of(answer: Answer, model: str) -> list[dict[str, Any]]:
    """The chunks of a turn's stream, in order."""
    answer = _spoiled(answer)
    turn, wire = answer.turn, answer.wire
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [_reasoning(piece, wire) for piece in _pieces(turn.reasoning, wire.chunk)]
    deltas += [{"content": piece} for piece in _pieces(turn.content, wire.chunk)]
    if isinstance(answer.fault, Storm):
        empty = {"tool_calls": [{"index": 0, "function": {"arguments": ""}}]}
        deltas += [empty] * answer.fault.count
    else:
        deltas += _call_deltas(answer)
    chunks = [
        _envelope(answer, model, "chat.completion.chunk", {"index": 0, "delta": d, **wire.extra})
        for d in ({**delta, **wire.extra} for delta in deltas)
    ]
    end: dict[str, Any] = {"index": 0, "delta": {}, "finish_reason": _finish(turn)}
    chunks.append(_envelope(answer, model, "chat.completion.chunk", end))
    if wire.usage == "choice":
        _put_usage(chunks[-1], answer)
    elif wire.usage == "top":
        chunks.append({**chunks[-1], "choices": []})
        _put_usage(chunks[-1], answer)
    return chunks


def _spoiled(answer: Answer) -> Answer:
    """The answer with its turn changed as its fault says, where the fault changes the turn."""
    turn = answer.turn
    match answer.fault:
        case NoCalls():
            turn = turn.model_copy(update={"calls": (), "finish": "tool_calls"})
        case Leak(markup=markup):
            said = turn.content + _markup(turn.calls, markup)
            turn = turn.model_copy(update={"calls": (), "content": said, "finish": "stop"})
        case Storm():
            turn = turn.model_copy(update={"finish": "tool_calls"})
        case _:
            return answer
    return answer.model_copy(update={"turn": turn})


def _markup(calls: Sequence[ScriptedCall], markup: str) -> str:
    """The calls as the model writes them before a server's parser has read them."""
    if markup == "k2":
        inner = "".join(
            f"<|tool_call_begin|>functions.{call.name}:{i}<|tool_call_argument_begin|>{call.text}"
            "<|tool_call_end|>"
            for i, call in enumerate(calls)
        )
        return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"
    inner = ""
    for i, call in enumerate(calls, 1):
        values = call.arguments if isinstance(call.arguments, dict) else {}
        given = "".join(
            f'<|open|>argument key="{key}" type="string"<|sep|>{value}<|close|>argument<|sep|>'
            for key, value in values.items()
        )
        inner += f'<|open|>call tool="{call.name}" index="{i}"<|sep|>{given}<|close|>call<|sep|>'
    return f"<|open|>tools<|sep|>{inner}<|close|>tools<|sep|>"


def _finish(turn: Turn) -> str:
    return turn.finish or ("tool_calls" if turn.calls else "stop")


def _id(answer: Answer, position: int) -> dict[str, str]:
    given = answer.turn.calls[position].id
    made = f"call_{answer.number}_{position}" if given is None else given
    return {"id": made} if made else {}


def _reasoning(text: str, wire: Wire) -> dict[str, Any]:
    if wire.reasoning_field != "reasoning_details":
        return {wire.reasoning_field: text}
    block = {"type": "reasoning.text", "index": 0, "format": "unknown", "text": text}
    return {"reasoning_details": [block] if text else []}


def _call_deltas(answer: Answer) -> list[dict[str, Any]]:
    """Fragments of the calls: in order within each call, mixed between calls when asked."""
    queues: list[list[dict[str, Any]]] = []
    for position, call in enumerate(answer.turn.calls):
        first = {"name": call.name, "arguments": ""}
        start = {"index": position, **_id(answer, position), "type": "function", "function": first}
        pieces = _pieces(call.text, answer.wire.chunk)
        queues.append(
            [start, *({"index": position, "function": {"arguments": piece}} for piece in pieces)]
        )
    order = [position for position, queue in enumerate(queues) for _ in queue]
    if answer.wire.interleave is not None:
        random.Random(answer.wire.interleave).shuffle(order)  # noqa: S311 - not for secrets
    return [{"tool_calls": [queues[position].pop(0)]} for position in order]


def _envelope(answer: Answer, model: str, kind: str, choice: dict[str, Any]) -> dict[str, Any]:
    head = {"id": f"chatcmpl-{answer.number}", "object": kind, "created": 0, "model": model}
    return {**head, "choices": [choice], **answer.wire.extra}


def _put_usage(chunk: dict[str, Any], answer: Answer) -> None:
    tokens, wire = answer.usage, answer.wire
    if wire.usage == "none":
        return
    total = tokens.prompt + tokens.completion
    usage: dict[str, Any] = {
        "prompt_tokens": tokens.prompt,
        "completion_tokens": tokens.completion,
        "total_tokens": total,
    }
    if tokens.reasoning is not None:
        usage["completion_tokens_details"] = {"reasoning_tokens": tokens.reasoning}
    if wire.cached == "details":
        usage["prompt_tokens_details"] = {"cached_tokens": tokens.cached}
    elif wire.cached == "top":
        usage["cached_tokens"] = tokens.cached
    elif wire.cached == "hit":
        usage["prompt_cache_hit_tokens"] = tokens.cached
    (chunk["choices"][0] if wire.usage == "choice" else chunk)["usage"] = usage


def _pieces(text: str, size: int) -> list[str]:
    if not text:
        return []
    return [text[i : i + size] for i in range(0, len(text), size)] if size else [text]


# --- in this process ------------------------------------------------------------------------------


class ScriptedProvider:
    """A `Provider` that plays a script without HTTP.

    Faults that `KimiProvider` would retry show as `Waiting` and cost no time; those it would give
    up on are raised. Delays of the script are waited for; a stall is a fault at once.
    """

    def __init__(
        self, script: Script | Policy, *, window: int | None = None, endpoint: str = "scripted"
    ) -> None:
        self.player = Player(script)
        self.endpoint = endpoint
        self.window = window or self.player.script.window
        self.requests: list[Request] = []
        """Every request, in order."""
        self.attempts = 10

    async def stream(self, request: Request) -> AsyncGenerator[Delta | Reply]:
        """See `Provider.stream`. Raises ProviderError `bad_request` where the script has no answer."""
        self.requests.append(request)
        question = Question.of(request)
        asked = faults.Asked(self.endpoint, request.model, len(question.raw), key=True)
        for attempt in range(1, self.attempts + 1):
            try:
                answer = self.player.answer(question)
            except ScriptError as error:
                raise ProviderError("bad_request", str(error)) from None
            assembly = Assembly(answer.wire.reasoning_field)
            failure = _immediate(answer.fault, asked)
            if failure is None:
                chunks = chunks_of(answer, request.model)
                after = getattr(answer.fault, "after", len(chunks))
                await asyncio.sleep(answer.wire.first_delay)
                for chunk in chunks[: max(0, after)]:
                    if answer.wire.delay:
                        await asyncio.sleep(answer.wire.delay)
                    for delta in assembly.add(chunk)[0]:
                        yield delta
                failure = _late(answer.fault, assembly, asked)
            if failure is None:
                yield with_ids(assembly.reply(), request.messages)
                return
            if failure.window is not None:
                self.window = min(self.window, failure.window)
            if not failure.retry or attempt == self.attempts:
                raise ProviderError(failure.kind, failure.message, status=failure.status)
            yield Waiting(attempt + 1, self.attempts, 0.0, failure.message)

    async def close(self) -> None:
        """Nothing to release."""


def _immediate(fault: Fault | None, asked: faults.Asked) -> faults.AttemptError | None:
    """The failure of a fault that leaves nothing of the reply."""
    if isinstance(fault, Status):
        body = fault.body if isinstance(fault.body, str) else json.dumps(fault.body)
        headers = {name.lower(): value for name, value in fault.headers.items()}
        return faults.from_response(fault.status, headers, body.encode(), asked, 0.0)
    if isinstance(fault, Page):
        return faults.not_an_api(fault.type, fault.body.encode(), asked)
    return None


def _late(
    fault: Fault | None, assembly: Assembly, asked: faults.Asked
) -> faults.AttemptError | None:
    """The failure of a fault that spoils a reply on its way."""
    if isinstance(fault, StreamError):
        return faults.from_error(fault.error, asked, 500)
    if isinstance(fault, Drop | Cut | Stall | Garbage):
        return faults.AttemptError("connection", "the scripted connection broke.", retry=True)
    try:
        faults.check_reply(assembly.reply(), asked)
    except faults.AttemptError as failure:
        return failure
    return None
