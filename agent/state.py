"""Pure: what a log says about where a session stands, kept up event by event."""

from __future__ import annotations

from collections.abc import Iterable

from .budget import Price, Said, Spent
from .effects import Effect
from .events import (
    Answer,
    AnyEvent,
    Approval,
    AssistantMessage,
    Decision,
    Effects,
    FilesChanged,
    PackSegment,
    Preload,
    Question,
    RepositoryLoaded,
    RequestSent,
    RunStarted,
    ScopeGranted,
    ToolCall,
    ToolResult,
    ToolStarted,
    Usage,
    UserMessage,
    WindowFilling,
)
from .scope import Scope

FIRST_BYTES_PER_TOKEN = 3.0
"""Before the first reported usage; code has 3 to 4 bytes a token, so this errs on the full side."""
SAFETY = 1.05
"""On the calibrated estimate of what was added since the last reported usage."""


class State:
    """The fold of a log into what the loop needs to know."""

    def __init__(self, price: Price, events: Iterable[AnyEvent] = ()) -> None:
        self._price = price
        self.spent = Spent()
        self.run: RunStarted | None = None
        self.seen: dict[str, str] = {}
        """Digests of the files the model knows, by name."""
        self.reply: AssistantMessage | None = None
        self.calls: dict[str, ToolCall] = {}
        self.effects: dict[str, tuple[Effect, ...]] = {}
        self.decisions: dict[str, Decision] = {}
        self.approvals: dict[str, Approval] = {}
        self.asked: set[str] = set()
        self.answers: dict[str, Answer] = {}
        self.started: set[str] = set()
        self.results: dict[str, ToolResult] = {}
        self.changed: list[str] = []
        """Files changed in this session, in order of first change."""
        self.commands: dict[str, int | None] = {}
        """Shell command -> exit code of its last finished run."""
        self.scope: Scope | None = None
        """Granted by the user since he last spoke. What rules approved gives no more than they."""
        self.planned = False
        """Whether a plan was approved since, by whom ever."""
        self.changed_in_task: set[str] = set()
        self.plan_asked_for = False
        self.denied_headless = 0
        self.filling: Said = ""
        """What was said about the window."""
        self.loaded = 0
        """Tokens of the repository."""
        self.opened = False
        """Whether a request was sent, or the repository ahead of it."""
        self._sent: RequestSent | None = None
        self._measured = (0, 0)
        """Prompt tokens of the last request that reported them, and its bytes."""
        for event in events:
            self.add(event)

    def add(self, event: AnyEvent) -> None:
        """Take in the next event."""
        match event:
            case RunStarted():
                self.run = event
            case PackSegment() | FilesChanged():
                self.seen |= event.files
            case UserMessage(origin="user"):
                self.scope, self.changed_in_task = None, set()
                self.planned = self.plan_asked_for = False
                self.denied_headless = 0
            case RepositoryLoaded():
                self.loaded = event.tokens
            case WindowFilling():
                self.filling = "asked" if event.asks or self.filling == "asked" else "warned"
            case RequestSent():
                self._sent, self.opened = event, True
            case Preload():
                self.opened |= not event.problem
                self.spent.add(event, self._price)
            case AssistantMessage():
                self._reply(event)
            case ToolCall():
                self.calls[event.call_id] = event
            case Effects():
                self.effects[event.call_id] = event.effects
                # An approval holds for the effects it was given for, not for later ones.
                self.decisions.pop(event.call_id, None)
                self.approvals.pop(event.call_id, None)
            case Decision():
                self.decisions[event.call_id] = event
                self.plan_asked_for |= event.decision == "plan_first"
            case Approval():
                self.approvals[event.call_id] = event
                self.denied_headless += event.by == "headless" and not event.approved
            case Question():
                self.asked.add(event.call_id)
            case Answer():
                self.answers[event.call_id] = event
            case ToolStarted():
                self.started.add(event.call_id)
            case ToolResult():
                self._result(event)
            case ScopeGranted():
                self.planned = True
                if event.by == "user":
                    self.scope = event.scope
            case _:
                pass

    def _reply(self, reply: AssistantMessage) -> None:
        self.reply = reply
        # Ids may come back in a later message, so what is known of calls is kept for one reply.
        for known in (self.calls, self.effects, self.decisions, self.approvals, self.answers,
                      self.results):  # fmt: skip
            known.clear()
        self.started.clear()
        self.asked.clear()
        self.spent.add(reply, self._price)
        if reply.usage is not None and self._sent is not None:
            self._measured = (reply.usage.prompt, self._sent.size)

    def _result(self, result: ToolResult) -> None:
        self.results[result.call_id] = result
        self.seen |= result.seen
        for name in result.changed:
            self.changed_in_task.add(name)
            if name not in self.changed:
                self.changed.append(name)
        call = self.calls.get(result.call_id)
        arguments = call.arguments if call is not None else {}
        # What is told of a background job says which command it runs.
        command = arguments.get("command", result.data.get("command"))
        if command is not None:
            self.commands[str(command)] = result.exit_code

    def cold_price(self, tokens: int) -> float | None:
        """US dollars for a prompt of which nothing is cached; None when the price is unknown."""
        return self._price(Usage(prompt=tokens, cached=0, completion=0))

    def prompt_tokens(self, size: int, tools_size: int, packed: int) -> int:
        """Estimate for a request of `size` bytes, of which the repository is `packed`.

        What was last reported, plus what was added; at first what was counted as it was loaded.
        """
        tokens, measured = self._measured
        if tokens == 0 or measured == 0:
            if self.loaded == 0:
                packed = 0
            return self.loaded + int((size - packed + tools_size) / FIRST_BYTES_PER_TOKEN)
        per_byte = max(tokens / (measured + tools_size), 0.2)
        return tokens + int(max(size - measured, 0) * per_byte * SAFETY)
