"""Chains of dependent steps: a package that grows by the user's words, turn after turn.

A module is a sequence of named parts, and a step says which parts it adds, replaces or takes away.
From that follow the solution, the state that every step starts from, and what an agent does that
works on the code as it remembers it from the start. After each step all hidden tests so far are
run, but for those that later words revoked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..material import Material, Step, Turn, edit, finish, shell, turn, write

TEST = "python3 -m unittest -q"
Parts = dict[str, dict[str, str]]
"""Path -> part -> text."""


@dataclass(frozen=True)
class Link:
    """One step of a chain."""

    name: str
    words: str
    parts: Mapping[tuple[str, str], str | None]
    """(path, part) -> its text now; None takes it away."""
    test: str
    """Body of a hidden test."""
    revokes: Sequence[str] = field(default_factory=tuple[str, ...])
    """Steps whose tests no longer hold."""


def chain(slug: str, base: Parts, links: Sequence[Link], *, kind: str) -> Material:
    """A chain as a task."""
    start = _texts(base)
    states = [base]
    for link in links:
        states.append(_changed(states[-1], link))
    remembered = start
    steps: list[Step] = []
    active: dict[str, str] = {}
    for number, link in enumerate(links):
        for name in link.revokes:
            del active[name]
        active[link.name] = link.test
        before, after = _texts(states[number]), _texts(states[number + 1])
        forgot = {**remembered, **_from_memory(states, number, link)}
        steps.append(
            Step(
                name=f"{number + 1:02}-{link.name}",
                instruction=link.words,
                checks=[
                    {"kind": "tests", "folder": "hidden", "pattern": "hidden_*.py", "least": len(active),
                     "group": "steps", "outcome": "red"},
                    {"kind": "scope", "allowed": [*start, "*/*.py", "*.md"], "group": "scope", "outcome": "over-scope"},
                ],
                tests={f"hidden/hidden_{_slug(name)}.py": _module(name, body) for name, body in active.items()},
                moves={"solve": _moves(before, after), "forget": _moves(remembered, forgot)},
                solution={path: text for path, text in after.items() if before.get(path) != text},
                record={"exit_code": 0, "summary": link.words, "asks": []},
            )
        )  # fmt: skip
        remembered = forgot
    settings: dict[str, Any] = {
        "tags": {"kind": kind}, "allow": ["write:**", f"execute:{TEST}"], "window": 131072,
        "minutes": 10.0, "default_reply": "As you think best.",
    }  # fmt: skip
    return Material("marathon", slug, slug, start, steps, settings=settings)


def _changed(state: Parts, link: Link) -> Parts:
    made = {path: dict(parts) for path, parts in state.items()}
    for (path, part), text in link.parts.items():
        if text is None:
            made[path].pop(part, None)
        else:
            made.setdefault(path, {})[part] = text
    return made


def _texts(state: Parts) -> dict[str, str]:
    return {path: "".join(parts.values()) for path, parts in state.items()}


def _from_memory(states: Sequence[Parts], number: int, link: Link) -> dict[str, str]:
    """The files of a step made on the code as it was at the start."""
    touched = {path for path, _part in link.parts}
    texts = _texts(_changed(states[0], link))
    return {path: texts[path] for path in touched if path in texts}


def _moves(before: Mapping[str, str], after: Mapping[str, str]) -> list[Turn]:
    made = [
        turn(edit(path, before[path], text) if before.get(path) else write(path, text),
             reasoning=f"This goes into {path}.")
        for path, text in after.items()
        if before.get(path) != text
    ]  # fmt: skip
    end = turn(finish("Done.", verified=[TEST]), reasoning="This step is done.")
    return [*made, turn(shell(TEST), reasoning="Is all still green?"), end]


def _module(name: str, body: str) -> str:
    lines = "\n".join(f"        {line}" if line else "" for line in body.strip().splitlines())
    return f"import unittest\n\n\nclass Hidden(unittest.TestCase):\n    def test_{_slug(name)}(self):\n{lines}\n"


def _slug(name: str) -> str:
    return name.replace("-", "_")
