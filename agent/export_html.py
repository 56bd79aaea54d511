"""Pure: a session as one HTML page that needs nothing else and runs nothing. Reasoning is whole."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html import escape

from .events import (
    AnyEvent,
    Approval,
    AssistantMessage,
    Decision,
    Elided,
    Error,
    FilesChanged,
    Finish,
    ImagePart,
    Interruption,
    PackSegment,
    Plan,
    RunEnded,
    RunStarted,
    ScopeGranted,
    SessionNamed,
    SessionStarted,
    TextPart,
    ToolCall,
    ToolResult,
    UserMessage,
)

STYLE = """\
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --add: #2a82; --del: #c332; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
pre { background: var(--soft); border: 1px solid var(--line); border-radius: .4rem; padding: .6rem;
  overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; font-size: .85rem; }
.prose { white-space: pre-wrap; overflow-wrap: anywhere; }
.reasoning { border-left: .2rem solid var(--line); padding-left: .8rem; opacity: .85; }
.user { background: var(--soft); border-radius: .4rem; padding: .6rem .8rem; }
.note, dt { opacity: .7; } .bad { color: #c33; } .add { background: var(--add); }
.del { background: var(--del); } .hunk { opacity: .6; } dl { display: grid;
  grid-template-columns: max-content 1fr; gap: .2rem 1rem; } dd { margin: 0; } img { max-width: 100%; }
summary { cursor: pointer; } a { color: inherit; } nav { columns: 12rem; font-size: .9rem; }
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
FOLDED = 40
"""Lines from which a result is folded; its text is on the page all the same."""


def html(session: str, events: Sequence[AnyEvent]) -> str:
    """The page."""
    named = [event.name for event in events if isinstance(event, SessionNamed)]
    title = escape(named[-1] if named else f"Session {session}")
    steps = [event for event in events if isinstance(event, AssistantMessage)]
    links = "".join(f'<a href="#step-{s.step}">Step {s.step}</a><br>' for s in steps)
    body = "\n".join(part for event in events for part in _section(event))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{title}</h1>\n{_about(session, events)}\n<nav>{links}</nav>\n{body}\n</body>\n</html>\n"
    )


def _about(session: str, events: Sequence[AnyEvent]) -> str:
    rows = {"Session": session}
    for event in events:
        match event:
            case SessionStarted():
                rows |= {"Repository": event.repo, "Started": event.at}
                rows |= {"Unabridged": event.version}
            case RunStarted():
                rows |= {"Model": f"{event.model} at {event.endpoint}"}
            case RunEnded():
                rows |= {"Ended": f"{event.name} ({event.exit_code}): {event.reason}"}
            case _:
                pass
    return "<dl>" + "".join(f"<dt>{k}</dt><dd>{escape(v)}</dd>" for k, v in rows.items()) + "</dl>"


def _section(event: AnyEvent) -> Iterator[str]:
    match event:
        case PackSegment():
            names = "\n".join(event.files)
            yield _folded(f"A segment of the repository: {len(event.files)} whole files", names)
        case FilesChanged():
            yield _folded("Files changed by others", event.text)
        case UserMessage():
            who = "User" if event.origin == "user" else "Harness"
            parts = "".join(map(_part, event.parts))
            yield f'<h2>{who}</h2><div class="user">{parts}</div>'
        case AssistantMessage():
            yield f'<h2 id="step-{event.step}">Step {event.step}</h2>'
            if event.reasoning:
                yield f'<div class="prose reasoning">{escape(event.reasoning)}</div>'
            if event.content:
                yield f'<div class="prose">{escape(event.content)}</div>'
            if event.usage is not None:
                usage = event.usage
                yield _note(
                    f"{usage.prompt:,} tokens in, {usage.cached:,} of them cached; "
                    f"{usage.completion:,} out"
                )
        case ToolCall():
            given = json.dumps(event.arguments, indent=2, ensure_ascii=False)
            yield f"<h3>{escape(event.name)}</h3>{_pre(given)}"
            if event.problem:
                yield _note(f"Not run: {event.problem}", bad=True)
        case Plan():
            yield f'<h3>Plan</h3><div class="prose">{escape(event.text)}</div>'
        case Decision(decision="ask" | "deny" | "plan_first"):
            yield _note(f"{event.decision}: {event.reason}", bad=event.decision == "deny")
        case Approval():
            verb = "Approved" if event.approved else "Denied"
            why = f": {event.reason}" if event.reason else ""
            yield _note(f"{verb} by {event.by}{why}", bad=not event.approved)
        case ScopeGranted():
            yield _note(f"Agreed to: {event.scope.model_dump_json(exclude_defaults=True)}")
        case ToolResult():
            yield from _result(event)
        case Elided():
            yield _note(f"Left out of requests from here on: {event.reason}")
        case Interruption():
            kept = "\n".join(filter(None, (event.reasoning, event.content)))
            yield _note(f"Interrupted during {event.during}", bad=True) + (
                _pre(kept) if kept else ""
            )
        case Error():
            yield _note(f"Error: {event.message}", bad=True)
        case Finish():
            yield f'<h2>Finished: {event.status}</h2><div class="prose">{escape(event.summary)}</div>'
        case RunEnded():
            yield _note(f"Run ended: {event.name} ({event.exit_code}): {event.reason}")
        case _:
            pass


def _result(event: ToolResult) -> Iterator[str]:
    ended = "" if event.exit_code is None else f" (exit {event.exit_code})"
    title = f"{'Error' if event.error else 'Result'}{ended}"
    if event.text.count("\n") >= FOLDED:
        yield _folded(title, event.text)
    else:
        yield _note(title, bad=event.error) + _pre(event.text)
    if event.diff:
        yield f"<pre>{_diff(event.diff)}</pre>"
    yield from map(_part, event.images)


def _diff(text: str) -> str:
    marks = {"+": "add", "-": "del", "@": "hunk"}
    lines = text.splitlines()
    return "\n".join(
        f'<span class="{marks[line[0]]}">{escape(line)}</span>' if line[:1] in marks else escape(line)
        for line in lines
    )  # fmt: skip


def _part(part: TextPart | ImagePart) -> str:
    if isinstance(part, TextPart):
        return f'<div class="prose">{escape(part.text)}</div>'
    return f'<img alt="image" src="{escape(part.url)}">'


def _pre(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"


def _note(text: str, *, bad: bool = False) -> str:
    return f'<p class="{"bad" if bad else "note"}">{escape(text)}</p>'


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{_pre(text)}</details>"
