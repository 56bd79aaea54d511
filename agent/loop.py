"""Ask the model, settle its calls, append; until the run ends.

Everything the loop decides on is in the log (through `view` and `state`), so a run that stopped
anywhere goes on from its log. `Session` is the loop's only door.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing

from .budget import eaten_by_thinking, filling, reached
from .calls import replay_exceptions
from .core import Core, ended
from .events import (
    AssistantMessage,
    BudgetReached,
    CallDropped,
    Elided,
    Error,
    RequestSent,
    RunEnded,
    TextPart,
    ToolResult,
    UserMessage,
)
from .exits import Exit
from .partial import Partial
from .preload import preload
from .providers.base import Notice, Provider, ProviderError, Reply, Request
from .settle import NOBODY, Settler
from .stuck import circle

MAX_TRUNCATIONS = 3
"""Calls cut by the length limit in a row before the run ends."""

THINK_ONLY = (
    "You stopped after thinking, without an answer or a call. Go on: act through a tool, or call "
    "finish."
)
GO_ON = "Go on with the task: act through a tool, or call finish."
CUT = (
    "Your last call was cut by the output limit and was not run. Send it again, smaller: write "
    "large files in parts, the first with write, the rest appended with edit."
)


class Loop:
    """One run over a core, with one model."""

    def __init__(self, core: Core, provider: Provider, settler: Settler) -> None:
        self.core = core
        self.provider = provider
        self.settler = settler
        self._started = core.began = time.monotonic()

    async def run(self) -> RunEnded:
        """Go on until something ends the run; the ending is logged and returned.

        Cancelling the task logs an `interruption` and raises CancelledError.
        """
        end: RunEnded | None = None
        while end is None:
            if self.core.view.open_calls:
                end = self._circle() or await self.settler.settle()
            else:
                end = self.settler.finished() or self._after_reply() or self._over_budget()
                end = end or self._over_load_limit() or await self._preload() or await self._ask()
        return self.core.append(self._honest(end), sync=True)

    def _honest(self, end: RunEnded) -> RunEnded:
        """A run in which calls were denied for want of a person did not simply finish."""
        denied = self.core.state.denied_headless
        if denied and end.exit_code in (Exit.DONE, Exit.UNFINISHED):
            return ended(Exit.NEEDS_APPROVAL, f"{denied} denied: {NOBODY}; {end.reason}")
        return end

    # --- between requests --------------------------------------------------------------------

    def _after_reply(self) -> RunEnded | None:
        """What follows when the last thing in the log is a reply that has no call to settle."""
        reply = self.core.state.reply
        later = self.core.store.events[reply.seq + 1 :] if reply else []
        if reply is None or any(isinstance(e, UserMessage) for e in later):
            return None
        cut = any(isinstance(event, CallDropped) for event in later)
        if reply.calls and not cut:
            return None
        if any(isinstance(event, RunEnded) for event in later):
            # A run ended on this reply already, and the user wants the session to go on.
            self._say(CUT if cut else GO_ON)
            return None
        if cut:
            return self._after_cut()
        if reply.content.strip():
            if self.core.on_ask == "wait":
                return ended(Exit.DONE, "the model answered")
            return ended(Exit.UNFINISHED, "the model stopped without calling finish")
        if self._continued():
            text = "the model twice thought without an answer or a call"
            self.core.append(Error(kind="think_only", message=text))
            return ended(Exit.PROVIDER, text)
        self._say(THINK_ONLY)
        return None

    def _after_cut(self) -> RunEnded | None:
        """A call was cut by the output limit: advise, and stop at the third in a row."""
        replies = [e for e in self.core.store.events if isinstance(e, AssistantMessage)]
        dropped = {e.message for e in self.core.store.events if isinstance(e, CallDropped)}
        in_a_row = 0
        for reply in reversed(replies):
            if reply.seq not in dropped:
                break
            in_a_row += 1
        if in_a_row >= MAX_TRUNCATIONS:
            return ended(Exit.STUCK, f"{in_a_row} calls in a row were cut by the output limit")
        self._say(CUT)
        return None

    def _continued(self) -> bool:
        """Whether the reply before this one was already answered with THINK_ONLY."""
        for event in reversed(self.core.store.events[:-1]):
            if isinstance(event, UserMessage):
                return event.parts == (TextPart(text=THINK_ONLY),)
            if isinstance(event, AssistantMessage) and event.calls:
                return False
        return False

    def _say(self, text: str) -> None:
        """A note of the harness to the model. Never an assistant prefill."""
        self.core.append(UserMessage(parts=(TextPart(text=text),), origin="harness"))

    def _circle(self) -> RunEnded | None:
        """Break a circle: its last step is not run, and its tail is left out from here on."""
        found = circle(self.core.store.events)
        if found is None:
            return None
        for call in self.core.view.open_calls:
            self.core.append(
                ToolResult(call_id=call.id, text=f"Not run: {found.reason}", error=True)
            )
        self.core.append(
            Elided(
                message=found.first.seq,
                hash=found.first.hash,
                reason=found.reason,
                through=len(self.core.store.events) - 1,
            )
        )
        return ended(Exit.STUCK, found.reason)

    def _over_budget(self) -> RunEnded | None:
        minutes = (time.monotonic() - self._started) / 60
        event = reached(self.core.limits, self.core.spent, minutes)
        if event is None:
            return None
        self.core.append(event)
        return ended(Exit.BUDGET, f"{event.kind}: {event.used:g} of {event.limit:g} used")

    def _seconds_left(self) -> float | None:
        """Until the limit on minutes ends the run, and a request in its middle; None without one."""
        minutes = self.core.limits.minutes
        if minutes is None:
            return None
        return max(0.0, self._started + 60 * minutes - time.monotonic())

    def _out_of_time(self) -> RunEnded:
        """The limit on minutes was met within a request."""
        minutes = self.core.limits.minutes
        assert minutes is not None
        self.core.append(BudgetReached(kind="minutes", limit=minutes, used=minutes))
        return ended(Exit.BUDGET, f"minutes: all {minutes:g} used, in the middle of a request")

    def _over_load_limit(self) -> RunEnded | None:
        """Nothing is sent when the first request alone would cost more than it may."""
        core, limit = self.core, self.core.load_limit
        if limit is None or core.state.spent.steps:
            return None
        tokens = core.estimate
        cost = core.state.cold_price(tokens)
        if cost is None or cost <= limit:
            return None
        core.append(BudgetReached(kind="cost", limit=limit, used=cost))
        return ended(
            Exit.BUDGET,
            f"loading about {tokens:,} tokens would cost {cost:.2f} USD, over the limit of "
            f"{limit:.2f}: raise it with --max-cost or money.load_limit",
        )

    async def _preload(self) -> RunEnded | None:
        """The repository ahead of the first request, to an endpoint that saves its state there."""
        limit = asyncio.timeout(self._seconds_left())
        try:
            async with limit:
                sent = await preload(self.core, self.provider)
        except TimeoutError:
            if not limit.expired():
                raise
            return self._out_of_time()
        return self._over_budget() if sent else None

    # --- the request -------------------------------------------------------------------------

    async def _ask(self) -> RunEnded | None:
        """One request: sent only after it is logged; its reply is on disk before anything acts."""
        core, view = self.core, self.core.view
        core.hear()
        await core.notice(self.provider.window)
        messages = view.request()
        estimate = core.estimate
        left = self.provider.window - estimate
        event, full = filling(estimate, self.provider.window, core.state.filling)
        if event is not None:
            core.append(event)
        if full is not None:
            return ended(Exit.BUDGET, full)
        core.announce()
        left = min(left, core.longest_reply or left)
        run = core.state.run
        assert run is not None
        sent = core.append(
            RequestSent(
                step=core.state.spent.steps + 1,
                messages=len(messages),
                size=view.size,
                prefix_hash=view.prefix_hash,
                estimated_tokens=estimate,
                max_completion_tokens=left,
            )
        )
        request = Request(run.model, messages, view.tools, run.effort, left)
        limit = asyncio.timeout(self._seconds_left())
        began = time.monotonic()
        try:
            async with limit:
                reply = await self._receive(request)
        except ProviderError as error:
            return self._failed(error, self.provider.window < estimate + left)
        except TimeoutError:
            if not limit.expired():
                raise
            return self._out_of_time()
        message = core.append(
            AssistantMessage(
                step=sent.step,
                reasoning=reply.reasoning,
                reasoning_field=reply.reasoning_field,
                reasoning_details=reply.reasoning_details,
                content=reply.content,
                calls=reply.calls,
                finish_reason=reply.finish_reason,
                usage=reply.usage,
                model=reply.model,
                response_id=reply.response_id,
                seconds=round(time.monotonic() - began, 3),
            )
        )
        for exception in replay_exceptions(message):
            core.append(exception)
        warning = eaten_by_thinking(reply.usage, left)
        if warning is not None:
            core.emit(Notice(warning))
        return None

    async def _receive(self, request: Request) -> Reply:
        """Stream the reply. What came of one that is interrupted is kept in the log."""
        partial = Partial()
        try:
            async with aclosing(self.provider.stream(request)) as stream:
                async for item in stream:
                    if isinstance(item, Reply):
                        return item
                    partial.add(item)
                    self.core.emit(item)
        except asyncio.CancelledError:
            self.core.append(partial.interruption(), sync=True)
            raise
        raise ProviderError("protocol", "the provider ended without a reply")

    def _failed(self, error: ProviderError, smaller: bool) -> RunEnded | None:
        """The model could not answer. An overflow is tried again only as a smaller request."""
        self.core.append(Error(kind=error.kind, message=error.message))
        if error.kind == "context_overflow" and smaller:
            return None
        return ended(Exit.PROVIDER, error.message)
