"""`finish`: the model says that it is done, how far, and what it verified."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ..agent.effects import Effect
from .base import Arguments, Context, Facts, Result, Tool


class FinishArguments(Arguments):
    """How the task ended."""

    status: Literal["done", "partial", "blocked"] = Field(
        description="done: all of it; partial: some of it; blocked: could not go on."
    )
    summary: str = Field(
        min_length=1, description="What was done, what was not, and what the user should know."
    )
    verified: tuple[str, ...] = Field(
        default=(),
        description="Shell commands you ran that show the result is right, exactly as you ran them.",
    )


class Finish(Tool[FinishArguments]):
    """End the task."""

    name = "finish"
    description = (
        "End the task. Call it alone, after reading the results of everything else. The commands "
        "named in `verified` are looked up in the log: their last run must have succeeded."
    )
    arguments = FinishArguments

    def effects(self, args: FinishArguments, facts: Facts) -> tuple[Effect, ...]:
        """None: it touches nothing."""
        return ()

    async def run(self, args: FinishArguments, context: Context) -> Result:
        """Acknowledge; the loop checks the verification and ends the run."""
        return Result("Finished.")
