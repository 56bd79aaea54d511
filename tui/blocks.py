"""What a conversation shows, folded from events and from what streams. Nothing here draws."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..agent.events import (
    Answer,
    AnyEvent,
    Approval,
    AssistantMessage,
    BudgetReached,
    CallDropped,
    Decision,
    Effects,
    Elided,
    Error,
    FilesChanged,
    Finish,
    ImagePart,
    Interruption,
    LogRepaired,
    Part,
    Plan,
    PrefixChanged,
    Question,
    RepositoryLoaded,
    RunEnded,
    ScopeGranted,
    TextPart,
    ToolCall,
    ToolResult,
    ToolStarted,
    UserMessage,
    WindowFilling,
)
from ..agent.providers.base import (
    CallDelta,
    CallOutput,
    ContentDelta,
    Delta,
    Notice,
    ReasoningDelta,
    Waiting,
)
from .text import count

Kind = Literal["user", "harness", "reasoning", "answer", "call", "note", "finish"]
Tone = Literal["plain", "good", "warn", "bad"]
State = Literal["writing", "ready", "waiting", "running", "done", "failed", "denied"]

MOST_LIVE = 200_000
"""Characters of live output kept until the result comes; the result has all that counts."""


@dataclass
class Call:
    """A tool call as shown."""

    name: str = ""
    raw: str = ""
    """Its arguments as they stream."""
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    state: State = "writing"
    why: str = ""
    """What the policy or the person said."""
    output: str = ""
    """Live."""
    result: str = ""
    diff: str = ""
    exit_code: int | None = None

    @property
    def about(self) -> str:
        """What it is about, in a few words: the command, the path."""
        for key in ("command", "path", "pattern", "question", "name", "action", "plan", "summary"):
            if value := self.arguments.get(key):
                return str(value)
        return ""


@dataclass
class Block:
    """One piece of the conversation."""

    kind: Kind
    text: str = ""
    tone: Tone = "plain"
    open: bool | None = None
    """Unfolded or folded by the user; None: as is usual for its kind."""
    live: bool = False
    """More of it comes."""
    began: float = 0.0
    seconds: float = 0.0
    seq: int = -1
    """Of the event it comes from."""
    call: Call | None = None
    images: int = 0
    version: int = 0
    """Raised by each change."""
    number: int = field(default_factory=itertools.count().__next__)
    """Of this block alone."""

    @property
    def searched(self) -> str:
        """All that it holds, for searching and copying."""
        if self.call is None:
            return self.text
        call = self.call
        return "\n".join(filter(None, (f"{call.name} {call.about}", call.result or call.output,
                                       call.diff)))  # fmt: skip


class Transcript:
    """The blocks of a session, kept up event by event."""

    def __init__(self, events: Iterable[AnyEvent] = ()) -> None:
        self.blocks: list[Block] = []
        self.changed: set[int] = set()
        """Positions of blocks that changed since somebody cleared this."""
        self.status = ""
        """What the model does right now."""
        self._calls: dict[str, int] = {}
        self._partial: dict[str, int] = {}
        """Blocks of the reply that streams: `reasoning`, `content`, `call N`."""
        self._first_partial = 0
        for event in events:
            self.add(event)

    # --- changes ---------------------------------------------------------------------------------

    def append(self, block: Block) -> int:
        """Add a block at the end; its position."""
        self.blocks.append(block)
        self.changed.add(len(self.blocks) - 1)
        return len(self.blocks) - 1

    def touch(self, position: int) -> Block:
        """The block at a position, about to change."""
        block = self.blocks[position]
        block.version += 1
        self.changed.add(position)
        return block

    def note(self, text: str, tone: Tone = "plain") -> None:
        """A line from the harness to the person."""
        self.append(Block("note", text, tone))

    def fold(self, position: int, open_: bool | None) -> None:
        """Unfold or fold a block."""
        self.touch(position).open = open_

    # --- what streams ----------------------------------------------------------------------------

    def add(self, item: AnyEvent | Delta) -> None:
        """Take in the next event or delta."""
        match item:
            case ReasoningDelta():
                self._grow("reasoning", "reasoning", item.text)
                self.status = "thinking"
            case ContentDelta():
                self._grow("content", "answer", item.text)
                self.status = "answering"
            case CallDelta():
                self._grow_call(item)
            case CallOutput():
                if (at := self._calls.get(item.call_id)) is not None:
                    call = self.touch(at).call
                    assert call is not None
                    call.output = (call.output + item.text)[-MOST_LIVE:]
            case Waiting():
                self._void()
                self.status = "waiting to try again"
                self.note(
                    f"{item.reason}; trying again in {item.seconds:.0f} s "
                    f"(attempt {item.attempt} of {item.attempts})", "warn",
                )  # fmt: skip
            case Notice():
                self.note(item.text, "warn")
            case _:
                self._event(item)

    def _part(self, key: str, kind: Kind) -> Block:
        if key in self._partial:
            return self.touch(self._partial[key])
        if not self._partial:
            self._first_partial = len(self.blocks)
        block = Block(kind, live=True, began=time.monotonic())
        self._end_others(key)
        self._partial[key] = self.append(block)
        return block

    def _end_others(self, key: str) -> None:
        """What streamed before is complete as soon as something else streams."""
        for other, at in self._partial.items():
            if other != key and self.blocks[at].live and not other.startswith("call"):
                block = self.touch(at)
                block.live, block.seconds = False, time.monotonic() - block.began

    def _grow(self, key: str, kind: Kind, text: str) -> None:
        self._part(key, kind).text += text

    def _grow_call(self, delta: CallDelta) -> None:
        block = self._part(f"call {delta.index}", "call")
        call = block.call = block.call or Call()
        call.name += delta.name
        call.raw += delta.arguments
        self.status = f"writing a call of {call.name}" if call.name else "writing a call"

    def _void(self) -> None:
        """What streamed counts no longer."""
        if self._partial:
            del self.blocks[self._first_partial :]
            self.changed.add(max(self._first_partial - 1, 0))
        self._partial.clear()

    # --- events ----------------------------------------------------------------------------------

    def _event(self, event: AnyEvent) -> None:
        match event:
            case UserMessage():
                self._user(event)
            case RepositoryLoaded():
                exact = "" if event.exact else "about "
                left = [
                    f"{len(group)} {word}"
                    for group, word in ((event.outlined, "as outlines"), (event.skipped, "by name"))
                    if group
                ]
                more = f" ({', '.join(left)})" if left else ""
                self.note(f"Repository loaded: {event.files:,} files whole{more}, "
                          f"{exact}{count(event.tokens)} tokens.")  # fmt: skip
            case AssistantMessage():
                self._reply(event)
            case ToolCall():
                self._call(event)
            case Effects():
                pass
            case Decision():
                self._decision(event)
            case Approval():
                self._set(event.call_id, "ready" if event.approved else "denied",
                          f"{'approved' if event.approved else 'denied'} by {_who(event.by)}"
                          + (f": {event.reason}" if event.reason else ""))  # fmt: skip
            case ToolStarted():
                self._set(event.call_id, "running")
                self.status = "working"
            case ToolResult():
                self._result(event)
            case Question():
                self._set(event.call_id, "waiting")
                self.status = "waiting for your answer"
            case Answer():
                self._set(event.call_id, "ready", f"you answered: {event.text}")
            case Plan():
                self.status = "waiting for you"
            case ScopeGranted():
                paths = ", ".join(event.scope.paths) or "no path"
                kinds = ", ".join(kind.value for kind in event.scope.kinds)
                self.note(f"In scope for this task: {paths} ({kinds or 'no effect'})", "good")
            case Finish():
                self._finish(event)
            case RunEnded():
                self._ended(event)
            case Interruption():
                self._interrupted(event)
            case _:
                self._notice(event)

    def _notice(self, event: AnyEvent) -> None:
        match event:
            case FilesChanged():
                names = sorted({*event.files, *event.left})
                more = f" and {len(names) - 5} more" if len(names) > 5 else ""
                self.note(f"Changed by others, the model is told: {', '.join(names[:5])}{more}")
            case WindowFilling():
                share = event.tokens / max(event.window, 1)
                self.note(f"The context window is {share:.0%} full.", "warn")
            case PrefixChanged():
                self.note(f"The prompt is not as in {event.since} from the {event.block} on: what "
                          "follows is not cached.", "warn")  # fmt: skip
            case BudgetReached():
                self.note(f"Limit reached: {event.kind} {event.used:g} of {event.limit:g}.", "warn")
            case Error():
                self.note(event.message, "bad")
            case Elided():
                self.note(f"Left out of requests from here on: {event.reason}", "warn")
            case CallDropped():
                self.note(f"A call was cut and not run: {event.reason}", "warn")
            case LogRepaired():
                self.note(f"The log had a torn end: {event.lost_bytes} bytes were cut.", "warn")
            case _:
                pass

    def _user(self, event: UserMessage) -> None:
        kind: Kind = "user" if event.origin == "user" else "harness"
        text = words_of(event.parts)
        images = sum(isinstance(part, ImagePart) for part in event.parts)
        self.append(Block(kind, text, seq=event.seq, images=images))

    def _reply(self, event: AssistantMessage) -> None:
        """The reply as stored takes the place of what streamed."""
        for key, kind, text in (
            ("reasoning", "reasoning", event.reasoning),
            ("content", "answer", event.content),
        ):
            if not text.strip():
                continue
            at = self._partial.get(key)
            block = self.touch(at) if at is not None else Block(kind)  # pyright: ignore[reportArgumentType] - one of the two
            if block.live:
                block.seconds = time.monotonic() - block.began
            if at is None:
                self.append(block)
            block.text, block.live, block.seq = text, False, event.seq
        self._calls = {}
        for index, call in enumerate(event.calls):
            at = self._partial.get(f"call {index}")
            if at is not None:
                self._calls[call.id] = at
                self.touch(at).live = False
        self._partial.clear()
        self.status = ""

    def _call(self, event: ToolCall) -> None:
        at = self._calls.get(event.call_id)
        if at is None:
            at = self._calls[event.call_id] = self.append(Block("call", call=Call()))
        block = self.touch(at)
        assert block.call is not None
        block.seq = event.seq
        block.call.name, block.call.arguments, block.call.raw = event.name, event.arguments, ""
        block.call.state = "failed" if event.problem else "ready"
        block.call.why = event.problem or ""

    def _decision(self, event: Decision) -> None:
        match event.decision:
            case "ask":
                self._set(event.call_id, "waiting", event.reason)
                self.status = "waiting for you"
            case "deny":
                self._set(event.call_id, "denied", event.reason)
            case "plan_first":
                self._set(event.call_id, "denied", "a plan is wanted first")
            case "allow":
                self._set(event.call_id, "ready", "")

    def _set(self, call_id: str, state: State, why: str | None = None) -> None:
        if (at := self._calls.get(call_id)) is None:
            return
        block = self.touch(at)
        assert block.call is not None
        block.call.state = state
        if why is not None:
            block.call.why = why
        if state == "running":
            block.began, block.live = time.monotonic(), True

    def _result(self, event: ToolResult) -> None:
        if (at := self._calls.get(event.call_id)) is None:
            return
        block = self.touch(at)
        call = block.call
        assert call is not None
        block.live, block.seconds = False, event.seconds
        call.result, call.diff, call.exit_code = event.text, event.diff, event.exit_code
        call.output = ""
        failed = event.error or event.exit_code not in (None, 0)
        if call.state != "denied":
            call.state = "failed" if failed else "done"
        self.status = ""

    def _finish(self, event: Finish) -> None:
        at = self._calls.get(event.call_id)
        if at is not None and at == len(self.blocks) - 1:
            self.blocks.pop()  # its summary says all
            del self._calls[event.call_id]
            self.changed.add(max(at - 1, 0))
        lines = [event.summary]
        for check in event.verified:
            code = "never finished" if check.exit_code is None else f"exit {check.exit_code}"
            lines.append(f"- `{check.command}`: {code}")
        tone: Tone = "good" if event.status == "done" else "warn"
        self.append(Block("finish", "\n".join(lines), tone, seq=event.seq))

    def _ended(self, event: RunEnded) -> None:
        self.status = ""
        if event.name == "done":
            return
        words = event.reason[:1].upper() + event.reason[1:]
        self.note(f"{words}." if words[-1:].isalnum() else words, "warn")

    def _interrupted(self, event: Interruption) -> None:
        for at in self._partial.values():
            self.touch(at).live = False
        for key, kind, text in (
            ("reasoning", "reasoning", event.reasoning),
            ("content", "answer", event.content),
        ):
            if text and key not in self._partial:
                self.append(Block(kind, text, seq=event.seq))  # pyright: ignore[reportArgumentType] - one of the two
        for at in self._calls.values():
            if self.blocks[at].live:
                block = self.touch(at)
                assert block.call is not None
                block.live, block.call.state, block.call.why = False, "failed", "interrupted"
        self._partial.clear()
        self.status = ""


def words_of(parts: Sequence[Part]) -> str:
    """The text of a message."""
    return "\n".join(part.text for part in parts if isinstance(part, TextPart))


def _who(by: str) -> str:
    return "you" if by == "user" else by
