"""Pure: what to make of a reply's calls before anything happens."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic import ValidationError

from ..tools.base import Arguments, Tool
from .effects import Effect, EffectKind
from .events import (
    AnyEvent,
    ArgumentsQuoted,
    AssistantMessage,
    Call,
    CallDropped,
    EmptySkipped,
)
from .policy import Decided

AnyTool = Tool[Any]
OwnException = CallDropped | ArgumentsQuoted | EmptySkipped

QUIET = frozenset({EffectKind.READ, EffectKind.OUTSIDE_ROOT, EffectKind.SECRET})
"""Kinds that change nothing; with understood commands, calls of these run side by side."""


class BadCall(Exception):  # noqa: N818 - it is the model's mistake, not ours
    """A call that cannot be run; the text goes to the model."""


def replay_exceptions(reply: AssistantMessage) -> list[OwnException]:
    """Where this reply cannot go back as it came, by its own content alone."""
    seq, own = reply.seq, reply.hash
    exceptions: list[OwnException] = []
    for position, call in enumerate(reply.calls, 1):
        if reply.finish_reason == "length" and position == len(reply.calls):
            reason = "the reply was cut by the length limit, so its last call may be incomplete"
            exceptions.append(CallDropped(message=seq, hash=own, reason=reason, call_id=call.id))
        elif parse_arguments(call.arguments) is None:
            reason = malformed(call.arguments)
            exceptions.append(
                ArgumentsQuoted(message=seq, hash=own, reason=reason, call_id=call.id)
            )
    dropped = sum(isinstance(exception, CallDropped) for exception in exceptions)
    said = reply.content or reply.reasoning or reply.reasoning_details
    if not said and len(reply.calls) == dropped:
        exceptions.append(EmptySkipped(message=seq, hash=own, reason="nothing in it"))
    return exceptions


def missing_exceptions(reply: AssistantMessage, events: Sequence[AnyEvent]) -> list[OwnException]:
    """Those of a reply that the log does not hold yet (a crash may have come between)."""
    logged = [event for event in events[reply.seq + 1 :] if isinstance(event, OwnException)]
    # They are written in order, so what is missing is the rest.
    return replay_exceptions(reply)[len(logged) :]


def parse_arguments(text: str) -> dict[str, Any] | None:
    """The arguments if the text is a JSON object, else None. Never repaired."""
    try:
        value: object = _STRICT.decode(text)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def malformed(text: str) -> str:
    """What is wrong with arguments that are not a JSON object: position and excerpt."""
    try:
        _STRICT.decode(text)
    except json.JSONDecodeError as error:
        around = text[max(error.pos - 30, 0) : error.pos + 30]
        return f"not valid JSON: {error.msg} at character {error.pos}, near {around!r}"
    except (ValueError, RecursionError) as error:
        return f"not valid JSON: {error}"
    return f"not a JSON object: {text[:60]!r}"


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


_STRICT = json.JSONDecoder(parse_constant=_refuse)


def understand(call: Call, tools: Mapping[str, AnyTool]) -> tuple[AnyTool, Arguments]:
    """The tool and its validated arguments. Raises BadCall with what to do instead."""
    tool = tools.get(call.name)
    if tool is None:
        raise BadCall(f"There is no tool {call.name!r}. Tools: {', '.join(tools)}.")
    parsed = parse_arguments(call.arguments)
    if parsed is None:
        raise BadCall(
            f"The arguments of {call.name} were {malformed(call.arguments)}. The call was not "
            "run. Send it again with valid JSON."
        )
    try:
        return tool, tool.arguments.model_validate_json(json.dumps(parsed))
    except ValidationError as error:
        lone = re.search("[\ud800-\udfff]", json.dumps(parsed, ensure_ascii=False))
        if lone is not None:
            raise BadCall(
                f"The arguments of {call.name} hold U+{ord(lone[0]):04X}, half of a surrogate pair "
                "and no character of its own. The call was not run."
            ) from error
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or 'arguments'}: {problem['msg']}"
            for problem in error.errors(include_url=False, include_input=False)
        )
        raise BadCall(
            f"The arguments of {call.name} do not fit: {problems}. The call was not run."
        ) from error


@dataclass(frozen=True)
class Judged:
    """A call with what it would do and what the policy says to that."""

    call: Call
    tool: AnyTool | None = None
    args: Arguments | None = None
    effects: tuple[Effect, ...] = ()
    decided: Decided | None = None
    problem: str | None = None
    """Why it cannot be run at all; then the rest is empty."""

    @property
    def quiet(self) -> bool:
        """Whether running it changes nothing."""
        return all(
            effect.kind in QUIET or (effect.kind is EffectKind.EXECUTE and effect.understood)
            for effect in self.effects
        )


def same_effects(now: Sequence[Effect], then: Sequence[Effect], ours: Mapping[str, str]) -> bool:
    """Whether a decision made for `then` still covers `now`.

    A file that differs only by what this session itself wrote to it (`ours`: the digests the
    model knows) counts as the same.
    """

    def settled(effect: Effect, other: Effect) -> bool:
        if effect == other:
            return True
        same = effect.model_copy(update={"before": other.before}) == other
        return same and effect.path is not None and ours.get(effect.path) == effect.before

    return len(now) == len(then) and all(map(settled, now, then))


def plan_effects(paths: Sequence[str], kinds: Sequence[EffectKind],
                 commands: Sequence[tuple[str, ...]]) -> list[Effect]:  # fmt: skip
    """The effects a plan asks for: each kind on each path, and each command."""
    effects = [Effect(kind=kind, path=path) for kind in kinds for path in paths]
    effects += [Effect(kind=kind) for kind in kinds if not paths]
    effects += [Effect(kind=EffectKind.EXECUTE, command=words) for words in commands]
    return effects
