"""Pure: a session's log for other readers. The reasoning is always whole."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from .events import (
    AnyEvent,
    Approval,
    AssistantMessage,
    Decision,
    Elided,
    FilesChanged,
    Finish,
    ImagePart,
    Interruption,
    PackSegment,
    PrefixChanged,
    Preload,
    RunEnded,
    RunStarted,
    SessionStarted,
    TextPart,
    ToolCall,
    ToolResult,
    UserMessage,
    WindowFilling,
    to_line,
)

STREAM_SCHEMA = 1
"""Version of the stream-JSON: a head line, one line an event, and for a run a last result line."""


def stream_head(session: str) -> bytes:
    """The first line of the stream-JSON."""
    head = {"type": "stream", "schema_version": STREAM_SCHEMA, "session": session}
    return json.dumps(head).encode("ascii") + b"\n"


def stream_json(session: str, events: Iterable[AnyEvent]) -> Iterator[bytes]:
    """The stream-JSON of a log, line by line."""
    yield stream_head(session)
    for event in events:
        yield to_line(event)


def markdown(session: str, events: Sequence[AnyEvent]) -> str:
    """A session as a document for people. The pack is named, not repeated."""
    parts = [f"# Session {session}"]
    for event in events:
        parts += _section(event)
    return "\n\n".join(parts) + "\n"


def _section(event: AnyEvent) -> list[str]:
    match event:
        case SessionStarted():
            origin = f" It goes on from session {event.continues}." if event.continues else ""
            return [
                f"Repository `{event.repo}`, started {event.at}, Unabridged {event.version}.{origin}"
            ]
        case RunStarted():
            return [f"*Run with {event.model} at {event.endpoint}, effort {event.effort}.*"]
        case PackSegment():
            return [f"*A segment of the repository: {len(event.files)} whole files.*"]
        case FilesChanged():
            return ["## Harness", "*Files changed by others:*", fenced(event.text)]
        case Preload():
            how = f": {event.problem}" if event.problem else ", so that its state is kept"
            verb = "could not be sent" if event.problem else "was sent"
            return [f"*The repository {verb} ahead{how}*"]
        case PrefixChanged():
            return [f"*The prefix is not that of {event.since} from here on: {event.block}.*"]
        case WindowFilling():
            share = event.tokens / event.window
            return [f"*The context window is {share:.0%} full: {event.tokens:,} tokens.*"]
        case UserMessage():
            who = "User" if event.origin == "user" else "Harness"
            shown = [p.text if isinstance(p, TextPart) else _image(p) for p in event.parts]
            return [f"## {who}", *shown]
        case AssistantMessage():
            title = f"## Step {event.step}"
            reasoning = [f"### Reasoning\n\n{event.reasoning}"] if event.reasoning else []
            return [title, *reasoning, *([event.content] if event.content else [])]
        case ToolCall():
            arguments = json.dumps(event.arguments, indent=2, ensure_ascii=False)
            problem = [f"*Not run: {event.problem}*"] if event.problem else []
            return [f"### Call `{event.name}`", fenced(arguments, "json"), *problem]
        case Decision(decision="ask" | "deny" | "plan_first"):
            return [f"*{event.decision}: {event.reason}*"]
        case Approval():
            verb = "Approved" if event.approved else "Denied"
            return [f"*{verb} by {event.by}{': ' + event.reason if event.reason else ''}*"]
        case ToolResult():
            title = "### Result" + (" (error)" if event.error else "")
            images = [_image(image) for image in event.images]
            diff = [fenced(event.diff, "diff")] if event.diff else []
            return [title, fenced(event.text), *images, *diff]
        case Elided():
            return [f"*Left out of requests from here on: {event.reason}*"]
        case Interruption():
            kept = [fenced(text) for text in (event.reasoning, event.content) if text]
            return [f"*Interrupted during {event.during}*", *kept]
        case Finish():
            return [f"## Finished: {event.status}", event.summary]
        case RunEnded():
            return [f"*Run ended: {event.name} ({event.exit_code}): {event.reason}*"]
        case _:
            return []


def _image(image: ImagePart) -> str:
    return f"![image]({image.url})"


def fenced(text: str, language: str = "") -> str:
    """A code block that no content can close."""
    fence = "```"
    while fence in text:
        fence += "`"
    ending = "" if text.endswith("\n") else "\n"
    return f"{fence}{language}\n{text}{ending}{fence}"
