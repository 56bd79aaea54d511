"""Limits on steps, tokens, money and time, checked before each request."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from .events import (
    AnyEvent,
    AssistantMessage,
    BudgetReached,
    Preload,
    Record,
    Usage,
    WindowFilling,
)

Price = Callable[[Usage], float | None]
"""US dollars for the tokens of one request; None when the model's price is unknown."""


MIN_COMPLETION = 1024
"""Tokens that must be left of the window for a request to make sense."""
WARN_SHARE, ASK_SHARE = 0.8, 0.92
"""Parts of the window from which the user is warned, and chooses how to go on."""
THOUGHT_SHARE = 0.9
"""Part of a reply's tokens from which reasoning leaves too little for the answer."""
Said = Literal["", "warned", "asked"]
"""What a session's log says of its window."""

_HANDOVER = "start afresh with what matters by `unabridged run --handover SESSION`"


class Limits(Record):
    """What a session may use at most; None is no limit. Minutes count for each run."""

    steps: int | None = None
    tokens: int | None = None
    """Prompt (cached or not) and completion together, over all requests."""
    cost: float | None = None
    """US dollars."""
    minutes: float | None = None


@dataclass
class Spent:
    """What a session has used."""

    steps: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    cost: float | None = 0.0
    """None once a request could not be priced."""

    def add(self, reply: AssistantMessage | Preload, price: Price) -> None:
        """Count one reply. The repository sent ahead is no step, and counts only where it went."""
        if isinstance(reply, AssistantMessage):
            self.steps += 1
        elif reply.problem:
            return
        if reply.usage is None:
            self.cost = None
            return
        self.prompt += reply.usage.prompt
        self.cached += reply.usage.cached
        self.completion += reply.usage.completion
        cost = price(reply.usage)
        self.cost = None if cost is None or self.cost is None else self.cost + cost

    def merge(self, other: Spent) -> None:
        """Count what somebody else used of the same budget."""
        self.steps += other.steps
        self.prompt += other.prompt
        self.cached += other.cached
        self.completion += other.completion
        known = self.cost is not None and other.cost is not None
        self.cost = (self.cost or 0.0) + (other.cost or 0.0) if known else None


def total(events: Iterable[AnyEvent], price: Price) -> Spent:
    """What a log says was used."""
    spent = Spent()
    for event in events:
        if isinstance(event, AssistantMessage | Preload):
            spent.add(event, price)
    return spent


def reached(limits: Limits, spent: Spent, minutes: float) -> BudgetReached | None:
    """The first limit that allows no further request.

    A cost that became unknown under a cost limit counts as reached: the promise cannot be kept.
    """
    tokens = spent.prompt + spent.completion
    if limits.steps is not None and spent.steps >= limits.steps:
        return BudgetReached(kind="steps", limit=limits.steps, used=spent.steps)
    if limits.tokens is not None and tokens >= limits.tokens:
        return BudgetReached(kind="tokens", limit=limits.tokens, used=tokens)
    if limits.cost is not None and (spent.cost is None or spent.cost >= limits.cost):
        used = limits.cost if spent.cost is None else spent.cost
        return BudgetReached(kind="cost", limit=limits.cost, used=used)
    if limits.minutes is not None and minutes >= limits.minutes:
        return BudgetReached(kind="minutes", limit=limits.minutes, used=minutes)
    return None


def eaten_by_thinking(usage: Usage | None, allowed: int) -> str | None:
    """A warning when reasoning took most of the tokens that a reply was allowed."""
    if usage is None or usage.reasoning is None or usage.reasoning <= THOUGHT_SHARE * allowed:
        return None
    return (
        f"Thinking took {usage.reasoning:,} of the {allowed:,} tokens that the reply could have: "
        "little was left for the answer. Lower the effort; if it is low, the endpoint may not "
        "honour it."
    )


def filling(tokens: int, window: int, said: Said) -> tuple[WindowFilling | None, str | None]:
    """What to log before a request of `tokens`, and why there is none if there is none.

    The user is warned once, and once the run stops so that the user can choose: hand over, use up
    the rest, or leave it.
    """
    about = f"about {tokens:,} of {window:,} tokens"
    if window - tokens < MIN_COMPLETION:
        return None, f"the context window is full, {about}: {_HANDOVER}"
    if tokens >= ASK_SHARE * window and said != "asked":
        event = WindowFilling(tokens=tokens, window=window, asks=True)
        share = f"{tokens / window:.0%}"
        return event, f"the context window is {share} full, {about}: {_HANDOVER}, or use up the rest with --resume"  # fmt: skip
    if tokens >= WARN_SHARE * window and not said:
        return WindowFilling(tokens=tokens, window=window), None
    return None, None
