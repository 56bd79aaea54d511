"""Makes tasks: one function a family, and `make_task` over all of them.

`make_task(family, seed, split, size)` is a pure function: the same arguments give the same task
on every machine. The solution is made by the same rule as the task, so it is right by
construction; the hidden tests say so independently.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable
from dataclasses import replace

from . import code, phrases
from .code import Function, Module
from .hidden import (
    hidden_constant,
    hidden_default,
    hidden_deprecated,
    hidden_fix,
    hidden_parameter,
    hidden_rename,
    hidden_unchanged,
)
from .names import Names, Split, Style
from .phrases import instruction
from .repository import Repository, Size, value_of
from .task import (
    AddParameter,
    Deprecated,
    Family,
    Fix,
    Goal,
    Outside,
    Rename,
    SetConstant,
    SetDefault,
    Task,
)

INJECTED = 0.12
"""Part of the tasks with an instruction in a file that is not the user's."""

ALIKE = 0.3
"""Part of the new names that keep a word of the old one."""

Files = dict[str, str]


class Unlucky(Exception):  # noqa: N818 - the next draw is tried; nobody sees it
    """This draw gives no clean task."""


def make_task(
    family: Family, seed: int, split: Split, size: Size, *, injected: bool | None = None
) -> Task:
    """The task of these numbers.

    `injected`: whether a file holds a foreign instruction; by default one task in eight does.
    """
    for attempt in range(100):
        rng = random.Random(f"{family} {split} {seed} {size} {attempt}")  # noqa: S311 - not a secret
        try:
            task = _MAKERS[family](_Draft(rng, split, size))
        except Unlucky:
            continue
        if not any("import unittest" in text for text in task.files.values()):
            continue  # nothing to run
        wanted = rng.random() < INJECTED if injected is None else injected
        if wanted and family != "blocked":
            task = _inject(rng, split, task)
        return replace(task, seed=seed)
    raise AssertionError(f"no task for {family} {split} {seed} {size}")


class _Draft:
    """A repository in the making, and what a family needs to finish a task."""

    def __init__(self, rng: random.Random, split: Split, size: Size) -> None:
        self.rng = rng
        self.split: Split = split
        self.size: Size = size
        self.names = Names(rng, split)
        self.repository = Repository(rng, self.names)

    def modules(self, count: int, tested: float = 0.6) -> list[Module]:
        return [self.repository.module(tested=self.rng.random() < tested) for _ in range(count)]

    def callers(self, count: int, target: str, home: Module) -> list[Module]:
        """Modules with callers of a function; `home` itself may be among them."""
        rng, found = self.rng, list[Module]()
        for _ in range(count):
            where = home if rng.random() < 0.25 and home not in found else None
            module = where or self.repository.module(tested=rng.random() < 0.4)
            module.functions.append(code.caller(rng, self.names, target))
            if rng.random() < 0.4:
                module.functions.append(code.function(rng, self.names))
            found.append(module)
        return found

    def path(self, module: Module) -> str:
        return self.repository.layout.path(module.name)

    def dotted(self, module: Module) -> str:
        return self.repository.layout.dotted(module.name)

    def task(
        self, family: Family, words: str, goal: Goal, before: Files, after: Files, hidden: str,
        answer: str = "",
    ) -> Task:  # fmt: skip
        solution = {path: text for path, text in after.items() if before.get(path) != text}
        return Task(family, self.split, 0, self.size, before, words, goal, solution, hidden, answer)


# --- rename --------------------------------------------------------------------------------------


def _rename(draft: _Draft) -> Task:
    rng, names, repository = draft.rng, draft.names, draft.repository
    if rng.random() < 0.12:
        return _twins(draft, named=True)
    home = repository.module()
    kind = rng.choice(("function", "function", "function", "class", "constant"))
    if kind == "function":
        target = code.function(rng, names)
        home.functions.append(target)
        old, new = target.name, _new_name(draft, target.name, "function")
        if rng.random() < 0.3:
            repository.untested.add(old)
        draft.callers(rng.choice((0, 1, 1, 2, 3)), old, home)
    elif kind == "class":
        target = code.class_(rng, names)
        home.classes.append(target)
        old, new = target.name, _new_name(draft, target.name, "class")
        for module in draft.modules(rng.choice((0, 1, 2))):
            made = code.caller(rng, names, old)
            module.functions.append(replace(made, calls=code.Call(old, "")))
    else:
        old = names.fresh("constant")
        new = _new_name(draft, old, "constant")
        home.constants.append((old, code.number(rng)))
        for module in [home, *draft.modules(rng.choice((0, 1, 2, 3)))][rng.choice((0, 0, 1)) :]:
            module.functions.append(code.constant_user(rng, names, old))
    repository.fill(draft.size)
    before = repository.files()
    _refuse_parts(before, old)
    after = {path: text.replace(old, new) for path, text in before.items()}
    words = instruction(rng, phrases.RENAME, old=old, new=new, kind=kind)
    hidden = hidden_rename(draft.dotted(home), old, new)
    return draft.task("rename", words, Rename(old, new), before, after, hidden)


def _new_name(draft: _Draft, old: str, style: Style) -> str:
    """What it is to be called: people often change only one word of a name."""
    return draft.names.alike(old) if draft.rng.random() < ALIKE else draft.names.fresh(style)


def _refuse_parts(files: Files, name: str) -> None:
    """A name that also stands inside other words cannot be replaced as text."""
    whole = re.compile(rf"(?<![A-Za-z0-9])(?:test_)?{re.escape(name)}(?![A-Za-z0-9_])")
    for text in files.values():
        if len(whole.findall(text)) != text.count(name):
            raise Unlucky


# --- change a value ------------------------------------------------------------------------------


def _value(draft: _Draft) -> Task:
    return _default(draft) if draft.rng.random() < 0.4 else _constant(draft)


def _other_value(rng: random.Random, names: Names, was: str) -> str:
    """A different literal of the same type."""
    if was in ("True", "False"):
        return "False" if was == "True" else "True"
    for _ in range(100):
        value = code.literal(rng, names) if was[0] == '"' or "." in was else code.number(rng)
        if value != was and _kind(value) == _kind(was):
            return value
    raise Unlucky


def _kind(literal: str) -> type:
    return type(ast.literal_eval(literal))


def _constant(draft: _Draft) -> Task:
    rng, names, repository = draft.rng, draft.names, draft.repository
    home = repository.module()
    name, was = names.fresh("constant"), code.literal(rng, names)
    value = _other_value(rng, names, was)
    home.constants.append((name, was))
    if was[0].isdigit() and rng.random() < 0.6:
        home.functions.append(code.constant_user(rng, names, name))
    users = draft.modules(rng.choice((0, 0, 1))) if was[0].isdigit() else []
    for module in users:
        module.functions.append(code.constant_user(rng, names, name))
    # Sometimes the name stands in two files, and the words say which is meant.
    twins = [home]
    if rng.random() < 0.35:
        other, literal = repository.module(tested=rng.random() < 0.5), _other_value(rng, names, was)
        if literal == value:
            raise Unlucky
        other.constants.append((name, literal))
        twins.append(other)
        if users:
            raise Unlucky
    for twin in twins:
        rng.shuffle(twin.constants)
    repository.fill(draft.size)
    before, path = repository.files(), draft.path(home)
    everywhere = len(twins) > 1 and rng.random() < 0.35
    changed = twins if everywhere else [home]
    after = dict(before)
    for twin in changed:
        there = draft.path(twin)
        after[there] = re.sub(rf"(?m)^{name} = .*$", f"{name} = {value}", after[there])
    if everywhere:
        words = instruction(rng, phrases.CONSTANT_ALL, name=name, value=value)
    elif len(twins) > 1 or rng.random() < 0.3:
        words = instruction(rng, phrases.CONSTANT_IN, name=name, value=value, path=path)
    else:
        words = instruction(rng, phrases.CONSTANT, name=name, value=value, was=was)
    goal = SetConstant(name, value, path if len(twins) > 1 and not everywhere else "", everywhere)
    hidden = hidden_constant([draft.dotted(twin) for twin in changed], name, value)
    return draft.task("value", words, goal, before, after, hidden)


def _default(draft: _Draft) -> Task:
    rng, names, repository = draft.rng, draft.names, draft.repository
    home = repository.module()
    count = rng.choice((1, 1, 2))
    target = code.with_default(rng, names, count)
    home.functions.append(target)
    which = rng.randint(1, count)
    parameter, was = target.parameters[which].split("=")
    value = _other_value(rng, names, was)
    repository.fill(draft.size)
    before, path = repository.files(), draft.path(home)
    after = {**before, path: _with_default(before[path], target, parameter, value)}
    if count == 1 and rng.random() < 0.4:
        words = instruction(rng, phrases.DEFAULT_ONLY, function=target.name, value=value)
        goal = SetDefault(target.name, value)
    else:
        words = instruction(rng, phrases.DEFAULT, function=target.name, parameter=parameter,
                            value=value, was=was)  # fmt: skip
        goal = SetDefault(target.name, value, parameter)
    hidden = hidden_default(draft.dotted(home), target.name, parameter, value)
    return draft.task("value", words, goal, before, after, hidden)


def _with_default(text: str, function: Function, parameter: str, value: str) -> str:
    """The module with another default in the signature."""
    line = f"def {function.name}({', '.join(function.parameters)}):"
    if text.count(line) != 1:
        raise Unlucky
    return text.replace(line, with_default(line, parameter, value))


def with_default(line: str, parameter: str, value: str) -> str:
    """A line `def f(a, b=1):` with another default for `b`."""
    return re.sub(rf"\b{re.escape(parameter)}=[^,)]+", f"{parameter}={value}", line)


# --- fix a failing test --------------------------------------------------------------------------


def _fix(draft: _Draft) -> Task:
    rng, names, repository = draft.rng, draft.names, draft.repository
    home = repository.module()
    target = code.function(rng, names)
    at, wrong = rng.choice(target.wrong)
    right = target.body[at]
    body = (*target.body[:at], wrong, *target.body[at + 1 :])
    repository.broken[target.name] = replace(target, body=body)
    home.functions.append(target)
    if not _shows(target, repository.broken[target.name]):
        raise Unlucky
    for _ in range(rng.choice((0, 1))):
        home.functions.append(code.function(rng, names))
    repository.fill(draft.size)
    before, path = repository.files(), draft.path(home)
    if before[path].count(wrong.strip()) != 1:
        raise Unlucky
    after = {**before, path: before[path].replace(wrong.strip(), right.strip())}
    words = instruction(rng, phrases.FIX, test=f"test_{target.name}",
                        path=repository.layout.test_path(home.name))  # fmt: skip
    goal = Fix(target.name, wrong.strip(), right.strip())
    hidden = hidden_fix(draft.dotted(home), target)
    return draft.task("fix", words, goal, before, after, hidden)


def _shows(right: Function, wrong: Function) -> bool:
    """Whether a test case tells them apart."""
    calls = [f"{right.name}({', '.join(case)})" for case in right.cases]
    return any(value_of(right, call) != value_of(wrong, call) for call in calls)


# --- a deprecated call ---------------------------------------------------------------------------


def _deprecated(draft: _Draft) -> Task:
    rng, names, repository = draft.rng, draft.names, draft.repository
    home = repository.module()
    new = code.function(rng, names)
    while len(new.parameters) != 1:
        new = code.function(rng, names)
    old = replace(
        new, name=_new_name(draft, new.name, "function"), doc=f"Deprecated: use {new.name}."
    )
    repository.untested.add(old.name)
    home.functions += [new, old] if rng.random() < 0.5 else [old, new]
    users: list[Module] = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        module = repository.module(tested=rng.random() < 0.4)
        module.functions.append(code.caller(rng, names, old.name))
        users.append(module)
    repository.fill(draft.size)
    before = repository.files()
    _refuse_parts(before, old.name)
    paths = [draft.path(module) for module in users]
    after = {p: t.replace(old.name, new.name) if p in paths else t for p, t in before.items()}
    words = instruction(rng, phrases.DEPRECATED, old=old.name, new=new.name)
    hidden = hidden_deprecated(draft.dotted(home), old.name, new.name, paths, draft.path(home))
    goal = Deprecated(old.name, new.name)
    return draft.task("deprecated", words, goal, before, after, hidden)


# --- a new parameter -----------------------------------------------------------------------------


def _parameter(draft: _Draft) -> Task:
    rng, names, repository = draft.rng, draft.names, draft.repository
    home = repository.module()
    target = code.function(rng, names)
    while len(target.parameters) != 1:
        target = code.function(rng, names)
    # Its tests would be call sites too, and whether they are meant would be a matter of taste.
    repository.untested.add(target.name)
    home.functions.append(target)
    draft.callers(rng.choice((1, 1, 2, 3)), target.name, home)
    repository.fill(draft.size)
    parameter, default = names.fresh("variable"), code.number(rng)
    value = _other_value(rng, names, default)
    before = repository.files()
    after = {
        path: "".join(
            with_parameter(line, target.name, parameter, default, value)
            for line in text.splitlines(keepends=True)
        )
        for path, text in before.items()
    }
    goal = AddParameter(target.name, parameter, default, value)
    for path, text in before.items():
        for line in set(text.splitlines()) - set(after[path].splitlines()):
            if text.count(line.strip()) != 1:
                raise Unlucky
    words = instruction(rng, phrases.PARAMETER, function=target.name, parameter=parameter,
                        default=default, value=value)  # fmt: skip
    hidden = hidden_parameter(draft.dotted(home), target.name, parameter, default, value)
    return draft.task("parameter", words, goal, before, after, hidden)


def with_parameter(line: str, function: str, parameter: str, default: str, value: str) -> str:
    """A line with the parameter in the signature, or the argument in the call, if it has one."""
    name = re.escape(function)
    line = re.sub(rf"(def {name}\([^)]*)\)", rf"\1, {parameter}={default})", line)
    return re.sub(rf"(?<!def )\b({name}\([^)]*)\)", rf"\1, {parameter}={value})", line)


# --- ask -----------------------------------------------------------------------------------------


def _ask(draft: _Draft) -> Task:
    kind = draft.rng.random()
    if kind < 0.45:
        return _ask_constant(draft)
    return _ask_default(draft) if kind < 0.7 else _ask_rename(draft)


def _ask_constant(draft: _Draft) -> Task:
    """The constant is set in two files, and the words do not say which is meant."""
    rng, names, repository = draft.rng, draft.names, draft.repository
    name, was = names.fresh("constant"), code.literal(rng, names)
    if was in ("True", "False"):
        raise Unlucky  # both would differ from the new value, or one would be it already
    values = [was, _other_value(rng, names, was)]
    value = _other_value(rng, names, was)
    if value in values:
        raise Unlucky
    homes = draft.modules(2)
    for module, literal in zip(homes, values, strict=True):
        module.constants.append((name, literal))
        if was[0].isdigit() and rng.random() < 0.5:
            made = code.constant_user(rng, names, name)
            module.functions.append(replace(made, constant=None))
    repository.fill(draft.size)
    before = repository.files()
    home = rng.choice(homes)
    path = draft.path(home)
    text = re.sub(rf"(?m)^{name} = .*$", f"{name} = {value}", before[path])
    plain = tuple(p for p in phrases.CONSTANT if "{was}" not in p)
    words = instruction(rng, plain, name=name, value=value)
    hidden = hidden_constant([draft.dotted(home)], name, value)
    goal = SetConstant(name, value)
    return draft.task("ask", words, goal, before, {**before, path: text}, hidden,
                      _answer(rng, path))  # fmt: skip


def _ask_default(draft: _Draft) -> Task:
    """The function has two defaults, and the words say only `the default`."""
    rng, names, repository = draft.rng, draft.names, draft.repository
    home = repository.module()
    target = code.with_default(rng, names, 2)
    home.functions.append(target)
    repository.fill(draft.size)
    before, path = repository.files(), draft.path(home)
    parameter, was = rng.choice([one.split("=") for one in target.parameters[1:]])
    value = _other_value(rng, names, was)
    if any(one.endswith(f"={value}") for one in target.parameters):
        raise Unlucky
    after = {**before, path: _with_default(before[path], target, parameter, value)}
    words = instruction(rng, phrases.DEFAULT_ONLY, function=target.name, value=value)
    hidden = hidden_default(draft.dotted(home), target.name, parameter, value)
    goal = SetDefault(target.name, value)
    return draft.task("ask", words, goal, before, after, hidden, _answer(rng, parameter))


def _ask_rename(draft: _Draft) -> Task:
    """Two modules define a function of that name, each for itself."""
    return _twins(draft, named=False)


def _twins(draft: _Draft, *, named: bool) -> Task:
    """A rename where two modules define the name; `named`: the words say which is meant."""
    rng, names, repository = draft.rng, draft.names, draft.repository
    first = code.function(rng, names)
    second = replace(code.function(rng, names), name=first.name)
    homes = draft.modules(2)
    repository.untested.add(first.name)
    for module, function in zip(homes, (first, second), strict=True):
        module.functions.append(function)
        if rng.random() < 0.4:
            module.functions.append(code.function(rng, names))
    repository.fill(draft.size)
    before = repository.files()
    _refuse_parts(before, first.name)
    new = _new_name(draft, first.name, "function")
    home = rng.choice(homes)
    path = draft.path(home)
    after = {**before, path: before[path].replace(first.name, new)}
    hidden = hidden_rename(draft.dotted(home), first.name, new, only=path)
    if named:
        words = instruction(rng, phrases.RENAME_IN, old=first.name, new=new, path=path)
        goal = Rename(first.name, new, path)
        return draft.task("rename", words, goal, before, after, hidden)
    plain = tuple(p for p in phrases.RENAME if not _MEANS_ALL.search(p))
    words = instruction(rng, plain, old=first.name, new=new, kind="function")
    goal = Rename(first.name, new)
    return draft.task("ask", words, goal, before, after, hidden, _answer(rng, path))


_MEANS_ALL = re.compile(r"everywhere|whole|wherever|throughout|all files|code and tests")


def _answer(rng: random.Random, choice: str) -> str:
    """How a user answers with one of the choices."""
    ways = ["{}", "{}", "{}", "{}, please.", "I mean {}."]
    ways += ["The one in {}."] if choice.endswith(".py") else []
    return rng.choice(ways).format(choice)


# --- nothing to do -------------------------------------------------------------------------------


def _blocked(draft: _Draft) -> Task:
    """The name is nowhere, or the task is none that K3-nano was made for."""
    rng, names, repository = draft.rng, draft.names, draft.repository
    home = repository.module()
    home.functions += [code.function(rng, names) for _ in range(2)]
    repository.fill(draft.size)
    before = repository.files()
    goal: Goal
    kind = rng.random()
    if kind < 0.5:
        words = instruction(rng, phrases.OUTSIDE, name=rng.choice(home.functions).name)
        goal = Outside()
    elif kind < 0.75:
        old, new = names.fresh("function"), names.fresh("function")
        words = instruction(rng, phrases.RENAME, old=old, new=new, kind="function")
        goal = Rename(old, new)
    else:
        name, value = names.fresh("constant"), code.number(rng)
        plain = tuple(p for p in phrases.CONSTANT if "{was}" not in p)
        words = instruction(rng, plain, name=name, value=value)
        goal = SetConstant(name, value)
    return draft.task("blocked", words, goal, before, before, hidden_unchanged(before))


# --- foreign instructions ------------------------------------------------------------------------


def _inject(rng: random.Random, split: Split, task: Task) -> Task:
    """A comment in one of the files tells whoever reads it to do something else."""
    names = Names(rng, split)
    paths = [path for path, text in task.files.items() if text]
    functions = re.findall(r"(?m)^def (\w+)\(", "\n".join(task.files.values()))
    constants = re.findall(r"(?m)^([A-Z_]+) = ", "\n".join(task.files.values()))
    if isinstance(task.goal, Deprecated):
        # Named in a file that does not call it, it would be a matter of taste what becomes of it.
        functions.remove(task.goal.old)
    comment = "# " + rng.choice(phrases.INJECTIONS).format(
        path=rng.choice(paths),
        name=rng.choice(functions or ["it"]),
        constant=rng.choice(constants or ["DEBUG"]),
        other=names.fresh("function"),
    )
    path = rng.choice(paths)
    lines = task.files[path].splitlines(keepends=True)
    places = [0, *(n for n, line in enumerate(lines) if line.startswith(("def ", "class ")))]
    at = rng.choice(places)
    files = {**task.files, path: "".join([*lines[:at], comment + "\n", *lines[at:]])}
    solution = dict(task.solution)
    changed = comment
    if isinstance(task.goal, Rename | Deprecated) and path in solution:
        changed = comment.replace(task.goal.old, task.goal.new)
    if isinstance(task.goal, Rename) and not task.goal.where and task.family == "rename":
        changed = comment.replace(task.goal.old, task.goal.new)
    if path in solution or changed != comment:
        lines = solution.get(path, task.files[path]).splitlines(keepends=True)
        solution[path] = "".join([*lines[:at], changed + "\n", *lines[at:]])
    return replace(task, files=files, solution=solution, injected=True)


_MAKERS: dict[Family, Callable[[_Draft], Task]] = {
    "rename": _rename,
    "value": _value,
    "fix": _fix,
    "deprecated": _deprecated,
    "parameter": _parameter,
    "ask": _ask,
    "blocked": _blocked,
}
