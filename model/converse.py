"""One request of a conversation through the engine: messages in, events of the reply out.

This is what the HTTP server, the embedded provider and the command line have in common.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from .chat.parse import ContentDelta, Event, Reply, ReplyParser
from .chat.render import Message, image_parts, render
from .chat.tokenizer import Tokenizer, TokenizerError
from .chat.xtml import Segment, XtmlError, encode
from .engine import Engine, Finished, PlacedImage, Prefill
from .images import ImageError, Picture, read_part
from .sampling import Sampling


class RequestError(ValueError):
    """A request that cannot be answered as it stands; the message is for a person."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        """The field at fault."""
        self.code = code
        """`context_length_exceeded`, where that is the fault."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What to answer, in OpenAI's terms."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: str | None = None
    """`auto`, `none` or `required`: an instruction to the model, not a constraint on it."""
    response_format: Mapping[str, Any] | None = None
    """Likewise an instruction."""
    effort: str | None = "max"
    thinking: bool = True
    max_tokens: int | None = None
    """Reasoning included; None leaves the rest of the window."""
    temperature: float | None = None
    """None leaves it to the model's own default, here and below."""
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    """Texts at which the content ends; they are not part of it."""


@dataclass(frozen=True, slots=True)
class ChatUsage:
    """Exact counts of one request, in tokens."""

    prompt: int
    cached: int
    """Part of `prompt` whose state was reused."""
    completion: int
    reasoning: int
    """Part of `completion` in the think channel, its closing tag included."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The last item of a conversation's stream."""

    reason: Literal["stop", "length", "tool_calls"]
    usage: ChatUsage
    reply: Reply


async def converse(
    engine: Engine, tokenizer: Tokenizer, request: ChatRequest
) -> AsyncGenerator[Prefill | Event | Finish]:
    """Yield how the prompt is read, the events of the reply as they arrive, last one `Finish`.

    Closing the iterator cancels the generation.

    Raises `RequestError` before the first item, `EngineError` at any time.
    """
    prompt, images, max_tokens = await asyncio.to_thread(
        prepare, request, tokenizer, engine.window, engine.sees
    )
    seed = secrets.randbits(63) if request.seed is None else request.seed
    own = engine.defaults
    sampling = Sampling(
        own.temperature if request.temperature is None else request.temperature,
        own.top_p if request.top_p is None else request.top_p,
        seed,
    )
    parser = ReplyParser(tokenizer, thinking=request.thinking)
    stops = _Stops(request.stop)
    cached = completion = reasoning = 0
    reason: Literal["stop", "length", "tool_calls"] = "stop"
    async with aclosing(engine.generate(prompt, max_tokens, sampling, images)) as generation:
        async for item in generation:
            if isinstance(item, Finished):
                reason = item.reason
                break
            if isinstance(item, Prefill):
                cached = item.cached
                yield item
                continue
            completion += 1
            reasoning += parser.thinking
            for event in parser.push([item]):
                for passed in stops.filter(event):
                    yield passed
            if stops.met:
                break
    for event in [*parser.finish(), *stops.rest()]:
        yield event
    reply = parser.reply
    if stops.met:
        reply = replace(reply, content=stops.content)
    elif reason == "stop" and reply.calls:
        reason = "tool_calls"
    yield Finish(reason, ChatUsage(len(prompt), cached, completion, reasoning), reply)


class Prepared(NamedTuple):
    """What the engine is asked for."""

    prompt: list[int]
    images: list[PlacedImage]
    max_tokens: int


def prepare(
    request: ChatRequest, tokenizer: Tokenizer, window: int, sees: bool = False
) -> Prepared:
    """The prompt's token ids, its images, and how many tokens may follow.

    `sees` says whether the model has a vision tower. Raises `RequestError`.
    """
    if request.tool_choice == "required" and not request.tools:
        raise RequestError("tool_choice is required, but there are no tools", param="tool_choice")
    if request.temperature is not None and request.temperature < 0:
        raise RequestError("temperature must not be negative", param="temperature")
    if request.top_p is not None and not 0 < request.top_p <= 1:
        raise RequestError("top_p must be above 0 and at most 1", param="top_p")
    if request.max_tokens is not None and request.max_tokens < 1:
        raise RequestError("max_tokens must be at least 1", param="max_tokens")
    if not all(request.stop):
        raise RequestError("a stop text must not be empty", param="stop")
    try:
        segments = render(
            request.messages,
            tools=request.tools,
            thinking=request.thinking,
            effort=request.effort,
            tool_choice=request.tool_choice,
            response_format=request.response_format,
            images=_read_images(request.messages, sees),
        )
        prompt, images = _encode(segments, tokenizer)
    except (XtmlError, TokenizerError) as error:
        raise RequestError(str(error)) from error
    room = window - len(prompt)
    if room < 1:
        raise RequestError(
            f"the context window is {window:,} tokens; the prompt has {len(prompt):,}, which leaves "
            "no room for a reply",
            param="messages",
            code="context_length_exceeded",
        )
    # A client can only estimate how much a prompt leaves; the limit it gives is an upper one.
    return Prepared(prompt, images, min(request.max_tokens or room, room))


def _read_images(messages: Sequence[Message], sees: bool) -> list[Picture]:
    pictures: list[Picture] = []
    for where, part in image_parts(messages):
        if not sees:
            raise RequestError(f"{where} is an image; this model reads text only", param="messages")
        try:
            pictures.append(read_part(part))
        except ImageError as error:
            raise RequestError(f"{where}: the image: {error}", param="messages") from error
    return pictures


def _encode(
    segments: Sequence[Segment], tokenizer: Tokenizer
) -> tuple[list[int], list[PlacedImage]]:
    """Token ids, and where the images stand in them."""
    prompt: list[int] = []
    images: list[PlacedImage] = []
    for segment in segments:
        piece = encode([segment], tokenizer)
        if isinstance(segment.image, Picture):
            first = len(prompt) + piece.index(tokenizer.media_pad_id)
            images.append(PlacedImage(segment.image, len(prompt), first, len(prompt) + len(piece)))
        prompt += piece
    return prompt, images


class _Stops:
    """Ends the content at the first stop text, holding back what may be the beginning of one."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
        self._passed: list[str] = []
        self.met = False

    @property
    def content(self) -> str:
        """The content so far."""
        return "".join(self._passed)

    def filter(self, event: Event) -> list[Event]:
        """What may be shown, now that the event is there."""
        if not self._stops or self.met:
            return [] if self.met else [event]
        if not isinstance(event, ContentDelta):
            return [*self.rest(), event]
        text = self._held + event.text
        found = [at for at in map(text.find, self._stops) if at >= 0]
        if found:
            self.met, self._held = True, ""
            return self._pass(text[: min(found)])
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return self._pass(text[: len(text) - keep])

    def rest(self) -> list[Event]:
        """What was held back and turned out not to be a stop text."""
        held, self._held = self._held, ""
        return self._pass(held)

    def _pass(self, text: str) -> list[Event]:
        if not text:
            return []
        self._passed.append(text)
        return [ContentDelta(text)]


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of the text are a beginning of the stop text."""
    lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((n for n in lengths if text.endswith(stop[:n])), 0)
