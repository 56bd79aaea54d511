"""A scripted agent that solves the tasks: what K3-nano is trained to do.

It looks only at its conversation (the messages of the request) and at what the user's words mean
(`Task.goal`). Every path, name and line it writes stood there before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .families import with_default, with_parameter
from .task import (
    TESTS,
    AddParameter,
    Deprecated,
    Fix,
    Goal,
    Outside,
    Rename,
    SetConstant,
    SetDefault,
)

Call = tuple[str, dict[str, Any]]
"""Tool and arguments."""

_SKILLS = (
    "I can rename a name, change a constant or a default, fix an operator or a literal, replace a "
    "call, or add a parameter. For more, use Kimi K3."
)


_TESTS: tuple[Call, ...] = (("shell", {"command": TESTS}),)
_AGAIN = "That failed. Again, word for word."


@dataclass(frozen=True)
class Reply:
    """What the agent thinks and does next."""

    reasoning: str
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Hits:
    """A search result, read: path -> lines as number and text."""

    lines: Mapping[str, Sequence[tuple[int, str]]] = field(
        default_factory=dict[str, Sequence[tuple[int, str]]]
    )

    @classmethod
    def read(cls, text: str) -> Hits:
        """Read the result of `search`."""
        found: dict[str, list[tuple[int, str]]] = {}
        path = ""
        for line in text.splitlines()[1:]:
            shown = re.match(r"(\d+)[:-](.*)$", line)
            if shown is None:
                path = line
            else:
                found.setdefault(path, []).append((int(shown[1]), shown[2]))
        return cls(found)

    def matching(self, pattern: str) -> dict[str, str]:
        """Path -> its first line that matches."""
        found: dict[str, str] = {}
        for path, lines in self.lines.items():
            for _number, text in lines:
                if re.search(pattern, text):
                    found.setdefault(path, text)
        return found


def next_reply(goal: Goal, messages: Sequence[Mapping[str, Any]]) -> Reply:
    """The reply to a conversation that ends with the user's words or a tool's result.

    What stands in many places is changed one place at a time, and looked for again after each:
    the next place is always the first of the latest search result.
    """
    if isinstance(goal, Outside):
        return Reply("None of the things I can do.", (_blocked(_SKILLS),))
    done = list(_done(messages))
    if not done:
        return Reply(*_look(goal))
    (last, given), result = done[-1]
    looked = _look(goal)[1][0]
    if last == "search" and given != looked[1]:
        return Reply("That is not the name. Again.", (looked,))
    hits = Hits.read(next(text for call, text in reversed(done) if call == looked))
    answer = next((text for call, text in done if call[0] == "ask_user"), "")
    made = [call for call, text in done if text.startswith("Replaced ")]
    once = bool(answer) or not _many(goal)
    match last:
        case "search" if made and not hits.lines:
            return Reply("Nothing is left. Now the tests.", _TESTS)
        case "search" if any(call[0] == "propose_plan" for call, _text in done):
            return _act(goal, hits, "")
        case "search":
            return _after_search(goal, hits)
        case "ask_user":
            return _act(goal, hits, result)
        case "propose_plan" if not once:
            return Reply("The plan stands. Where is it?", (looked,))
        case "propose_plan":
            return Reply("The plan stands.", tuple(_edits(goal, hits, "")))
        case "edit" if once:
            left = [call for call in _edits(goal, hits, answer) if call not in made]
            if left:
                return Reply(_AGAIN, tuple(left))
            return Reply("Edited. Now the tests.", _TESTS)
        case "edit" if result.startswith("Replaced "):
            return Reply("What is left?", (looked,))
        case "edit":
            return Reply(_AGAIN, (_edits(goal, hits, "")[0],))
        case _:
            return _after_tests(goal, result)


def _many(goal: Goal) -> bool:
    """Whether a goal is reached when a search finds nothing more."""
    match goal:
        case Rename(where=where):
            return not where
        case Deprecated() | AddParameter():
            return True
        case _:
            return False


def _done(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Call, str]]:
    """Every call with its result, in order."""
    results = {m["tool_call_id"]: str(m["content"]) for m in messages if m["role"] == "tool"}
    for message in messages:
        for call in message.get("tool_calls", ()) if message["role"] == "assistant" else ():
            function = call["function"]
            yield (function["name"], json.loads(function["arguments"])), results[call["id"]]


# --- look ----------------------------------------------------------------------------------------


def _look(goal: Goal) -> tuple[str, tuple[Call, ...]]:
    """The first step: where is it?"""
    match goal:
        case Rename(old, new):
            return f"Rename {old} to {new}. Where is it?", (_search(old),)
        case SetConstant(name, value):
            return f"{name} is to be {value}. Where is it set?", (_search(name),)
        case SetDefault(function, value, parameter):
            what = f"{parameter} of {function}" if parameter else f"The default of {function}"
            return f"{what} is to be {value}. Look at it.", (_search(f"def {function}"),)
        case Fix(function):
            call = ("search", {"pattern": f"def {function}", "context": 4})
            return f"The test is of {function}. Look at it.", (call,)
        case Deprecated(old, new):
            # The definition stays, and so would be found for ever.
            return f"Call {new}, not {old}. Who calls it?", (_search(f"= .*{old}"),)
        case AddParameter(function):
            told = f"{function}. {_definition(goal)}. {_call(goal)}."
            return told, (_search(rf"{function}\(\w+\)"),)
        case Outside():
            raise AssertionError("nothing to look for")


def _search(pattern: str) -> Call:
    return "search", {"pattern": pattern}


# --- act -----------------------------------------------------------------------------------------


def _after_search(goal: Goal, hits: Hits) -> Reply:
    name = _subject(goal)
    if not hits.lines:
        return Reply(f"There is no {name}.", (_blocked(f"There is no {name} in this repository."),))
    choices = _choices(goal, hits)
    if len(choices) > 1:
        what = f"default of {name}" if isinstance(goal, SetDefault) else name
        question = {"question": f"Which {what} do you mean?", "choices": choices}
        return Reply("It could be either. Ask.", (("ask_user", question),))
    paths = list(dict.fromkeys(call[1]["path"] for call in _edits(goal, hits, "")))
    if len(paths) > 1:
        plan = {"plan": _say(goal), "paths": paths, "commands": [TESTS.split()]}
        return Reply(f"{len(paths)} files: a plan first.", (("propose_plan", plan),))
    return _act(goal, hits, "")


def _choices(goal: Goal, hits: Hits) -> list[str]:
    """What the words could mean; one thing or none when they are clear."""
    match goal:
        case Rename(old, where=""):
            return list(hits.matching(rf"^(def|class) {old}\b|^{old} = "))
        case SetConstant(name, where="", everywhere=False):
            return list(hits.matching(rf"^{name} = "))
        case SetDefault(function, parameter=""):
            (line,) = hits.matching(rf"^def {function}\(").values()
            return re.findall(r"(\w+)=", line)
        case _:
            return []


def _act(goal: Goal, hits: Hits, answer: str) -> Reply:
    """The edits; where there are many places, that of the first."""
    edits = _edits(goal, hits, answer)
    paths = list(dict.fromkeys(call[1]["path"] for call in edits))
    if answer:
        return Reply(f"They mean {_meant(goal, hits, answer)}.", tuple(edits))
    if not _many(goal):
        return Reply(_saw(goal, hits, paths[0]), tuple(edits))
    what = f"Next:\n{paths[0]}"
    if isinstance(goal, AddParameter):
        defined = edits[0][1]["old"].startswith("def ")
        what += f"\n{_definition(goal) if defined else _call(goal)}"
    return Reply(what, (edits[0],))


def _definition(goal: AddParameter) -> str:
    return f"definition: {goal.parameter}={goal.default}"


def _call(goal: AddParameter) -> str:
    return f"call: {goal.parameter}={goal.value}"


def _meant(goal: Goal, hits: Hits, answer: str) -> str:
    """The choice that an answer names."""
    return next(choice for choice in _choices(goal, hits) if choice in answer)


def _saw(goal: Goal, hits: Hits, path: str) -> str:
    """What the search showed, for a change in one file."""
    if isinstance(goal, Fix):
        lines = [text for _number, text in hits.lines[path]]
        at = next(n for n, text in enumerate(lines) if text.startswith(f"def {goal.function}("))
        doc = lines[at + 1].strip().strip('"')
        return f"It should be: {doc}"
    return f"Only\n{path}"


def _edits(goal: Goal, hits: Hits, answer: str) -> list[Call]:
    """The edits, file by file in the order of the search result."""
    match goal:
        case Rename(old, new, where):
            where = _meant(goal, hits, answer) if answer else where
            return [_replace(path, old, new) for path in hits.lines if where in ("", path)]
        case SetConstant(name, value, where):
            where = _meant(goal, hits, answer) if answer else where
            lines = hits.matching(rf"^{name} = ")
            return [
                _edit(path, line, f"{name} = {value}")
                for path, line in lines.items()
                if where in ("", path)
            ]
        case SetDefault(function, value, parameter):
            ((path, line),) = hits.matching(rf"^def {function}\(").items()
            if answer:
                parameter = _meant(goal, hits, answer)
            parameter = parameter or _choices(goal, hits)[0]
            return [_edit(path, line, with_default(line, parameter, value))]
        case Fix(function, wrong, right):
            ((path, _line),) = hits.matching(rf"def {function}\(").items()
            return [_edit(path, wrong, right)]
        case Deprecated(old, new):
            return [_replace(path, old, new) for path in hits.lines]
        case AddParameter(function, parameter, default, value):
            edits: list[Call] = []
            for path, lines in hits.lines.items():
                for _number, line in lines:
                    new = with_parameter(line, function, parameter, default, value)
                    if new != line:
                        edits.append(_edit(path, line.strip(), new.strip()))
            return edits
        case Outside():
            return []


def _edit(path: str, old: str, new: str) -> Call:
    return "edit", {"path": path, "old": old, "new": new}


def _replace(path: str, old: str, new: str) -> Call:
    return "edit", {"path": path, "old": old, "new": new, "replace_all": True}


# --- end -----------------------------------------------------------------------------------------


def _after_tests(goal: Goal, result: str) -> Reply:
    if result.startswith("exit code 0"):
        done = {"status": "done", "summary": _said(goal), "verified": [TESTS]}
        return Reply("The tests pass.", (("finish", done),))
    failed = {"status": "partial", "summary": f"{_said(goal)} But the tests fail."}
    return Reply("The tests fail.", (("finish", failed),))


def _blocked(summary: str) -> Call:
    return "finish", {"status": "blocked", "summary": summary}


def _subject(goal: Goal) -> str:
    """The name it is about."""
    match goal:
        case Rename(old) | Deprecated(old):
            return old
        case SetConstant(name):
            return name
        case SetDefault(function) | Fix(function) | AddParameter(function):
            return function
        case Outside():
            return ""


def _say(goal: Goal) -> str:
    """The plan in words."""
    match goal:
        case Rename(old, new):
            return f"Rename {old} to {new}."
        case SetConstant(name, value):
            return f"Set {name} to {value}."
        case Deprecated(old, new):
            return f"Call {new} instead of {old}."
        case AddParameter(function, parameter):
            return f"Add {parameter} to {function} and its calls."
        case _:
            raise AssertionError("one file needs no plan")


def _said(goal: Goal) -> str:
    """The summary at the end."""
    match goal:
        case Rename(old, new):
            return f"{old} is now {new}."
        case SetConstant(name, value):
            return f"{name} is now {value}."
        case SetDefault(function, value):
            return f"The default of {function} is now {value}."
        case Fix(function):
            return f"{function} is right now."
        case Deprecated(old, new):
            return f"{new} is called instead of {old}."
        case AddParameter(function, parameter):
            return f"{function} takes {parameter} now."
        case Outside():
            return ""
