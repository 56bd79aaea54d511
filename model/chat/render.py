"""From a conversation in OpenAI's form to XTML segments, exactly as K3 was trained to read it.

Order of a prompt: tool declaration, thinking effort, the conversation, tool choice, response
format, generation prefix. What holds for the session stands first and what holds for one request
stands last, so that a longer conversation extends the tokens of a shorter one.
(Specification, sections 11.3 to 11.5.)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from .tokenizer import MEDIA_BEGIN, MEDIA_CONTENT, MEDIA_END, MEDIA_PAD
from .xtml import Image, Segment, XtmlError, close_tag, end_of_message, open_tag, text

Message = Mapping[str, Any]
"""One message in OpenAI's form: `role`, `content`, and by role `reasoning_content`,
`tool_calls`, `tool_call_id`, `name`, `tools`."""

EFFORTS = ("low", "high", "max")


def render(
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    thinking: bool = True,
    effort: str | None = None,
    tool_choice: str | None = None,
    response_format: Mapping[str, Any] | None = None,
    images: Sequence[Image] = (),
    generation_prefix: bool = True,
) -> list[Segment]:
    """Render a conversation.

    Args:
        messages: the conversation. Reasoning is always kept: every assistant message carries a
            think channel, empty where the message has none. A system message with `tools`
            declares further tools from there on.
        tools: the tools of the session, in OpenAI's form.
        thinking: False is the instruct mode, without think channels and effort.
        effort: `low`, `high`, `max`, or None to say nothing.
        tool_choice: `required`, `none`, or `auto` or None to say nothing.
        response_format: OpenAI's object: type `text`, `json_object` or `json_schema`.
        images: one for each image part, in the order of the messages as they are given.
        generation_prefix: open the assistant's message at the end.

    Raises `XtmlError` naming the message and the field that cannot be rendered.
    """
    pictures = _pictures(messages, images)
    segments: list[Segment] = []
    if tools:
        segments += _tool_declaration(tools, _TOOLS)
    if effort is not None:
        if effort not in EFFORTS:
            raise XtmlError(f"thinking effort {effort!r} is not one of {', '.join(EFFORTS)}")
        if thinking:
            segments += _option("thinking-effort", _EFFORT.format(effort))

    calls: list[_Call] = []  # of the last assistant message
    results = 0  # since the last assistant message
    for where, message in _results_in_call_order(messages):
        role = message.get("role")
        if role == "assistant":
            calls, results = _calls(message, where), 0
            segments += _assistant(message, calls, where, thinking, pictures)
        elif role == "tool":
            results += 1
            name = message.get("tool") or message.get("name")
            if not name and results <= len(calls):
                name = calls[results - 1].name
            if not name:
                raise XtmlError(
                    f"{where}: this tool result belongs to no call: give it the `tool_call_id` of "
                    "a call in the assistant message before it, or a `name`"
                )
            opening = open_tag("message", ("role", "tool"), ("tool", name), ("index", results))
            segments += [*opening, *_content(message, where, pictures), *end_of_message()]
        elif role == "system" and message.get("tools"):
            segments += _tool_declaration(message["tools"], _LATE_TOOLS)
        elif role in ("system", "user"):
            opening = open_tag("message", ("role", role), *_name(message))
            segments += [*opening, *_content(message, where, pictures), *end_of_message()]
        else:
            raise XtmlError(f"{where}: role {role!r} is not one of system, user, assistant, tool")
    if tool_choice in ("required", "none"):
        segments += _option("tool-choice", _TOOL_CHOICE[tool_choice])
    elif tool_choice not in ("auto", None):
        raise XtmlError(f"tool_choice {tool_choice!r} is not one of auto, required, none")
    segments += _response_format(response_format)
    if generation_prefix:
        segments += open_tag("message", ("role", "assistant"))
        segments += open_tag("think" if thinking else "response")
    return segments


_TOOLS = "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n{}\n```"
_LATE_TOOLS = (
    "## New Tools Available\n"
    "The system dynamically extends the toolset via lazy-loading.\n"
    "You have access to all existing and extended tools.\n"
    "Here are the specs for the extended tools.\n\n"
    "```json\n{}\n```"
)
_EFFORT = (
    "`thinking_effort` guides on how much to think in your thinking channel (not including the "
    "response channel), supported values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort={}`."
)
_TOOL_CHOICE = {
    "required": (
        "The system is invoked with `tool_choice=required`.\n"
        "You MUST call tools in the next message."
    ),
    "none": (
        "The system is invoked with `tool_choice=none`.\n"
        "You MUST NOT call any tools in the next message."
    ),
}
_JSON_OUTPUT = (
    "The system is invoked with `response_format={}`.\n"
    "Your response must be raw JSON data without markdown code blocks (```json) or any additional "
    "formatting."
)
_SCHEMA = "\nThe JSON data must match the following schema:\n```json\n{}\n```"


def compact_json(value: Any) -> str:
    """JSON as K3 reads declarations: keys sorted throughout, no spaces, non-ASCII kept."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _option(kind: str, body: str) -> list[Segment]:
    """A system message with which the server, not the caller, speaks."""
    opening = open_tag("message", ("role", "system"), ("type", kind))
    return [*opening, *text(body), *end_of_message()]


def _tool_declaration(tools: Any, body: str) -> list[Segment]:
    return _option("tool-declare", body.format(compact_json(tools)))


def _response_format(response_format: Mapping[str, Any] | None) -> list[Segment]:
    kind = response_format.get("type") if response_format is not None else "text"
    if kind == "text":
        return []
    if kind == "json_object":
        return _option("response-format", _JSON_OUTPUT.format(kind))
    if kind == "json_schema" and response_format is not None:
        schema = response_format.get("json_schema")
        if not isinstance(schema, Mapping):
            raise XtmlError("response_format of type json_schema needs an object `json_schema`")
        schema = schema.get("schema", schema.get("json_schema", schema))
        body = _JSON_OUTPUT.format(kind) + _SCHEMA.format(compact_json(schema))
        return _option("response-format", body)
    raise XtmlError(f"response_format type {kind!r} is not one of text, json_object, json_schema")


def _name(message: Message) -> list[tuple[str, str]]:
    return [("name", message["name"])] if message.get("name") else []


def image_parts(messages: Sequence[Message]) -> Iterator[tuple[str, Any]]:
    """All image parts, each with where it stands."""
    for number, message in enumerate(messages):
        content = message.get("content") if isinstance(message, Mapping) else None
        for at, part in enumerate(content if isinstance(content, list | tuple) else ()):
            if isinstance(part, Mapping) and part.get("type") in ("image", "image_url"):
                yield f"messages[{number}]: content[{at}]", part


def _pictures(messages: Sequence[Message], images: Sequence[Image]) -> dict[int, Image]:
    """The image of each part, by the part's `id`: results may be rendered in another order."""
    parts = [part for _, part in image_parts(messages)]
    if len(images) > len(parts):
        raise XtmlError(f"{len(images)} images were given, but the messages have fewer image parts")
    return {id(part): image for part, image in zip(parts, images, strict=False)}


def _content(message: Message, where: str, pictures: Mapping[int, Image]) -> list[Segment]:
    content = message.get("content")
    if content is None:
        return []
    if isinstance(content, str):
        return text(content)
    if not isinstance(content, Sequence):
        raise XtmlError(f"{where}: content is neither a text nor a list of parts")
    segments: list[Segment] = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "text" and isinstance(part.get("text"), str):
            segments += text(part["text"])
        elif kind in ("image", "image_url"):
            picture = pictures.get(id(part))
            if picture is None:
                raise XtmlError(f"{where}: content[{number}] is an image whose size was not given")
            segments.append(_image(picture))
        else:
            raise XtmlError(f"{where}: content[{number}] is neither a text part nor an image part")
    return segments


def _image(image: Image) -> Segment:
    """The pads stand where the vision tower's vectors go; the size is that of the original."""
    size = f"image {image.width}x{image.height}"
    markup = f"{MEDIA_BEGIN}{size}{MEDIA_CONTENT}{MEDIA_PAD * image.tokens}{MEDIA_END}"
    return Segment(markup, control=True, image=image)


@dataclass(frozen=True, slots=True)
class _Call:
    id: str | None
    name: str
    arguments: dict[str, Any]
    raw: str | None
    """Arguments that are not JSON, shown to the model as it wrote them."""


def _calls(message: Message, where: str) -> list[_Call]:
    calls = message.get("tool_calls") or ()
    return [_call(call, f"{where}.tool_calls[{n}]") for n, call in enumerate(calls)]


def _call(call: Any, where: str) -> _Call:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise XtmlError(f"{where}: a call needs a function with a name")
    call = cast("Mapping[str, Any]", call)
    identity = None if call.get("id") is None else str(call["id"])
    arguments, raw = function.get("arguments"), None
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        arguments = {}
    elif isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except json.JSONDecodeError:
            arguments, raw = {}, arguments
    if not isinstance(arguments, Mapping):
        raise XtmlError(f"{where}: arguments are JSON, but not an object")
    return _Call(identity, function["name"], dict(arguments), raw)


def _assistant(
    message: Message,
    calls: Sequence[_Call],
    where: str,
    thinking: bool,
    pictures: Mapping[int, Image],
) -> list[Segment]:
    opening = open_tag("message", ("role", "assistant"), *_name(message))
    body: list[Segment] = []
    if thinking:
        opening += open_tag("think")
        reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
        if not isinstance(reasoning, str):
            raise XtmlError(f"{where}: reasoning_content is not a text")
        if reasoning.strip():
            body += text(reasoning)
        body += [*close_tag("think"), *open_tag("response")]
    else:
        opening += open_tag("response")
    body += [*_content(message, where, pictures), *close_tag("response")]
    if calls:
        body += open_tag("tools")
        for index, call in enumerate(calls, start=1):
            body += open_tag("call", ("tool", call.name), ("index", index))
            if call.raw is not None:
                body += [*open_tag("json", ("type", "object")), *text(call.raw)]
                body += close_tag("json")
            for key, value in call.arguments.items():
                body += _argument(key, value)
            body += close_tag("call")
        body += close_tag("tools")
    body += end_of_message()
    return opening + [replace(segment, generated=True) for segment in body]


def _argument(key: str, value: Any) -> list[Segment]:
    opening = open_tag("argument", ("key", key), ("type", json_type(value)))
    # Strings stand raw; the rest is JSON with the default separators, `, ` and `: `.
    literal = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return [*opening, *text(literal), *close_tag("argument")]


def json_type(value: Any) -> str:
    """The `type` attribute of an argument."""
    if isinstance(value, bool):  # before the numbers: True is an int
        return "boolean"
    if value is None:
        return "null"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "object" if isinstance(value, Mapping) else "array"


def _results_in_call_order(messages: Sequence[Message]) -> Iterator[tuple[str, Message]]:
    """The messages with where they stood, each run of tool results in the order of the calls.

    K3 binds a result to its call by position, a client by id. A run in which an id matches no
    call keeps its order.
    """
    order: dict[str, tuple[int, str]] = {}  # call id -> (position, name of the function)
    run: list[tuple[str, Message]] = []
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        if not isinstance(message, Mapping):
            raise XtmlError(f"{where} is not an object")
        if message.get("role") == "tool":
            run.append((where, message))
            continue
        yield from _sorted_run(run, order)
        run = []
        if message.get("role") == "assistant":
            order = {}
            for position, call in enumerate(_calls(message, where)):
                if call.id is not None:
                    order.setdefault(call.id, (position, call.name))
        yield where, message
    yield from _sorted_run(run, order)


def _sorted_run(
    run: list[tuple[str, Message]], order: Mapping[str, tuple[int, str]]
) -> list[tuple[str, Message]]:
    ids = [message.get("tool_call_id", message.get("id")) for _, message in run]
    matches = [None if identity is None else order.get(str(identity)) for identity in ids]
    matched = [(*match, *item) for match, item in zip(matches, run, strict=True) if match]
    if len(matched) < len(run):
        return run
    matched.sort(key=lambda item: item[0])
    return [(where, {**message, "tool": name}) for _, name, where, message in matched]
