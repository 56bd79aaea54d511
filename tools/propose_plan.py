"""`propose_plan`: the model states what it will touch; approval grants that scope for the task."""

from __future__ import annotations

from pydantic import Field

from ..agent.effects import Effect, EffectKind
from .base import Arguments, Context, Facts, Result, Tool


class ProposePlanArguments(Arguments):
    """The plan is an argument, so that proposing it writes nothing."""

    plan: str = Field(min_length=1, description="What you will do, step by step.")
    paths: tuple[str, ...] = Field(
        default=(), description="Files you will change, as git-ignore style patterns."
    )
    kinds: tuple[EffectKind, ...] = Field(
        default=(EffectKind.WRITE,), description="Kinds of effect on those files."
    )
    commands: tuple[tuple[str, ...], ...] = Field(
        default=(),
        description='Commands you will run, each as a list of words; a last "*" takes the rest.',
    )
    not_touch: tuple[str, ...] = Field(
        default=(), description="What you will leave alone, as patterns."
    )


class ProposePlan(Tool[ProposePlanArguments]):
    """Propose a plan with its scope."""

    name = "propose_plan"
    description = (
        "Propose a plan before changing more than one file: what you will do, which files you "
        "will change, which commands you will run, and what you will not touch. Once approved, "
        "what lies within it needs no further question."
    )
    arguments = ProposePlanArguments

    def effects(self, args: ProposePlanArguments, facts: Facts) -> tuple[Effect, ...]:
        """None: it touches nothing."""
        return ()

    async def run(self, args: ProposePlanArguments, context: Context) -> Result:
        """Say that the plan was approved; the loop runs this only then."""
        return Result("The plan is approved. Stay within it.")
