"""`task`: a question for a subagent, which reads the same repository in a session of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pydantic import Field

from ..agent.effects import Effect, EffectKind
from .base import Arguments, Context, Facts, Result, Tool


@dataclass(frozen=True)
class Report:
    """What a subagent came back with."""

    text: str
    error: bool
    session: str
    log: str
    """Path of its log."""


class Subagents(Protocol):
    """Starts subagents for a session."""

    def price(self) -> str:
        """What one costs at least, in words for a person."""
        ...

    async def run(self, task: str, progress: Callable[[str], None]) -> Report:
        """Carry a task out to its end. Raises ToolError where none can be started."""
        ...


class TaskArguments(Arguments):
    """One task."""

    task: str = Field(
        min_length=1,
        description="What to find out, with all the subagent must know: it sees the repository "
        "and this text, nothing of your conversation.",
    )


class Task(Tool[TaskArguments]):
    """Give a task to a subagent."""

    name = "task"
    description = (
        "Give a question about the repository to a subagent: it starts afresh with the whole "
        "repository, reads, searches and runs what changes nothing, and answers in one message. "
        "Use it for a long search whose way you need not see. It can change nothing."
    )
    arguments = TaskArguments

    def __init__(self, subagents: Subagents) -> None:
        self._subagents = subagents

    def effects(self, args: TaskArguments, facts: Facts) -> tuple[Effect, ...]:
        """A session is started, which costs what it costs."""
        return (Effect(kind=EffectKind.SPAWN, detail=self._subagents.price()),)

    def preview(self, args: TaskArguments, facts: Facts) -> str:
        """The task, whole."""
        return args.task

    async def run(self, args: TaskArguments, context: Context) -> Result:
        """Run the subagent to its end."""
        report = await self._subagents.run(args.task, context.progress)
        return Result(
            report.text, error=report.error, data={"session": report.session, "log": report.log}
        )
