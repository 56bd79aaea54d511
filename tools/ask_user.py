"""`ask_user`: the model asks instead of guessing. The loop carries the question and the answer."""

from __future__ import annotations

from pydantic import Field

from ..agent.effects import Effect
from .base import Arguments, Context, Facts, Result, Tool


class AskUserArguments(Arguments):
    """One question."""

    question: str = Field(min_length=1, description="One question, with what you need to know.")
    choices: tuple[str, ...] = Field(
        default=(), max_length=6, description="Possible answers, if there are only a few."
    )


class AskUser(Tool[AskUserArguments]):
    """Ask the user."""

    name = "ask_user"
    description = (
        "Ask the user one question and wait for the answer. Use it when the task can be read in "
        "more than one way, or when something you found calls for a decision that is the user's."
    )
    arguments = AskUserArguments

    def effects(self, args: AskUserArguments, facts: Facts) -> tuple[Effect, ...]:
        """None: it touches nothing."""
        return ()

    async def run(self, args: AskUserArguments, context: Context) -> Result:
        """Give back the answer that the loop collected."""
        return Result(context.answer or "")
