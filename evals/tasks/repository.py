"""A generated repository: modules in a layout, with imports between them and tests that pass."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from . import code
from .code import Function, Module
from .names import Names

Size = Literal["small", "medium", "large", "huge"]
CHARACTERS: dict[Size, tuple[int, int]] = {
    "small": (300, 1200),
    "medium": (1200, 3200),
    "large": (3200, 9000),
    "huge": (9000, 21_000),
}
"""How much code a repository of a size has, in characters, from and to."""
MOST_FILES = 8
_LONG = 88
"""Characters of a line of imports before it is broken."""


@dataclass(frozen=True)
class Layout:
    """Where modules and tests lie, and how they import each other."""

    package: str
    """Empty when modules lie at the root."""
    tests: str
    """Folder of the tests with its slash; empty for the root."""

    def path(self, module: str) -> str:
        """Path of a module."""
        return f"{self.package}/{module}.py" if self.package else f"{module}.py"

    def test_path(self, module: str) -> str:
        """Path of its tests."""
        return f"{self.tests}test_{module}.py"

    def dotted(self, module: str) -> str:
        """What tests import."""
        return f"{self.package}.{module}" if self.package else module

    def markers(self) -> list[str]:
        """Empty files that make packages."""
        folders = [f"{self.package}/"] if self.package else []
        folders += [self.tests] if self.tests and self.tests not in folders else []
        return [f"{folder}__init__.py" for folder in folders]


class Repository:
    """A repository in the making. `files` renders it; the same state gives the same text."""

    def __init__(self, rng: random.Random, names: Names) -> None:
        self.rng = rng
        self.names = names
        self.modules: list[Module] = []
        self.untested: set[str] = set()
        """Functions and classes without a visible test."""
        self.broken: dict[str, Function] = {}
        """Function -> what stands in the repository in its place; the tests are of the right one."""
        self._qualified: dict[tuple[str, str], bool] = {}
        self._seed = rng.random()
        package = names.fresh("module") if rng.random() < 0.5 else ""
        tests = rng.choice(("", "tests/")) if package else rng.choice(("", "", "", "tests/"))
        self.layout = Layout(package, tests)
        self._relative = rng.random() < 0.5

    # --- contents --------------------------------------------------------------------------------

    def module(self, tested: bool = True) -> Module:
        """A new, empty module."""
        name = self.names.fresh("module")
        doc = f"About {name.replace('_', ' ')}." if self.rng.random() < 0.3 else ""
        made = Module(name, doc)
        self.modules.append(made)
        if not tested:
            self.untested.add(name)
        return made

    def fill(self, size: Size) -> None:
        """Add code that has nothing to do with the task until the size is reached."""
        wanted = self.rng.randint(*CHARACTERS[size])
        while (lacking := wanted - sum(map(len, self.files().values()))) > 0:
            # Rendering is what costs, so far from the end several pieces are added at once.
            for _ in range(max(1, lacking // 400)):
                self._add(self._open_module())

    def _open_module(self) -> Module:
        """Where to add: a new module when the others are crowded and there is room for its files."""
        most = sum(1 if m.name in self.untested else 2 for m in self.modules)
        room = most + len(self.layout.markers()) + 2 <= MOST_FILES
        crowded = all(len(m.functions) + 2 * len(m.classes) >= 4 for m in self.modules)
        if room and (not self.modules or (crowded and self.rng.random() < 0.7)):
            return self.module(tested=self.rng.random() < 0.6)
        return self.rng.choice(self.modules)

    def _add(self, module: Module) -> None:
        rng, names = self.rng, self.names
        kind = rng.random()
        if kind < 0.12:
            module.constants.append((names.fresh("constant"), code.literal(rng, names)))
        elif kind < 0.24:
            constant = names.fresh("constant")
            module.constants.append((constant, code.number(rng)))
            self._insert(module, code.constant_user(rng, names, constant))
        elif kind < 0.36 and len(module.classes) < 2:
            module.classes.append(code.class_(rng, names))
        elif kind < 0.46:
            self._insert(module, code.with_default(rng, names))
        else:
            made = code.function(rng, names)
            if rng.random() < 0.4:
                self.untested.add(made.name)
            self._insert(module, made)

    def _insert(self, module: Module, function: Function) -> None:
        module.functions.insert(self.rng.randint(0, len(module.functions)), function)

    # --- text ------------------------------------------------------------------------------------

    def home(self, name: str) -> Module:
        """The first module that defines a name."""
        return next(
            module
            for module in self.modules
            if any(name == f.name for f in module.functions)
            or any(name == c for c, _ in module.constants)
            or any(name == c.name for c in module.classes)
        )

    def files(self) -> dict[str, str]:
        """Path -> text, in order of path."""
        made = dict.fromkeys(self.layout.markers(), "")
        for module in self.modules:
            made[self.layout.path(module.name)] = self._source(module)
            tests = self._tests(module)
            if tests:
                made[self.layout.test_path(module.name)] = tests
        return dict(sorted(made.items()))

    def _source(self, module: Module) -> str:
        needed: dict[str, list[str]] = {}
        blocks: list[list[str]] = []
        for function in module.functions:
            shown = self.broken.get(function.name, function)
            blocks.append(self._function(shown, module, needed))
        blocks += [one.source() for one in module.classes]
        head = [f'"""{module.doc}"""'] if module.doc else []
        imports = [self._import(module.name, home, names) for home, names in sorted(needed.items())]
        constants = [f"{name} = {value}" for name, value in module.constants]
        top = "\n\n".join("\n".join(part) for part in (head, imports, constants) if part)
        body = "\n\n\n".join("\n".join(block) for block in blocks)
        return "\n\n\n".join(part for part in (top, body) if part) + "\n"

    def _function(
        self, function: Function, module: Module, needed: dict[str, list[str]]
    ) -> list[str]:
        """The lines of a function; what it uses of other modules is added to `needed`."""

        def name_here(name: str) -> str:
            home = self.home(name).name
            if home == module.name:
                return name
            used = needed.setdefault(home, [])
            if name not in used:
                used.append(name)
            return f"{home}.{name}" if self._is_qualified(module.name, home) else name

        call = function.calls
        text = f"{name_here(call.target)}({call.argument})" if call else ""
        lines = function.lines(text)
        constant = function.constant
        if constant and self.home(constant) is not module:
            lines = [line.replace(constant, name_here(constant)) for line in lines]
        return lines

    def _is_qualified(self, user: str, home: str) -> bool:
        """Whether `user` writes `home.name`; drawn once for each pair."""
        key = (user, home)
        if key not in self._qualified:
            drawn = random.Random(f"{self._seed}{user}{home}")  # noqa: S311 - not a secret
            self._qualified[key] = drawn.random() < 0.3
        return self._qualified[key]

    def _import(self, user: str, home: str, names: Sequence[str]) -> str:
        package = self.layout.package
        if self._is_qualified(user, home):
            if not package:
                return f"import {home}"
            return f"from {'.' if self._relative else package} import {home}"
        where = f".{home}" if package and self._relative else self.layout.dotted(home)
        return _from_import(where, names)

    def _tests(self, module: Module) -> str:
        """The test file of a module, empty when nothing of it is tested."""
        if module.name in self.untested:
            return ""
        functions = [f for f in module.functions if f.cases and f.name not in self.untested]
        classes = [c for c in module.classes if c.case and c.name not in self.untested]
        if not functions and not classes:
            return ""
        names = [f.name for f in functions] + [c.name for c in classes]
        lines = [
            "import unittest",
            "",
            _from_import(self.layout.dotted(module.name), names),
            "",
            "",
        ]
        lines.append(f"class Test{camel(module.name)}(unittest.TestCase):")
        blocks: list[str] = []
        for function in functions:
            block = [f"    def test_{function.name}(self):"]
            for case in function.cases:
                call = f"{function.name}({', '.join(case)})"
                block.append(f"        self.assertEqual({call}, {value_of(function, call)})")
            blocks.append("\n".join(block))
        for one in classes:
            assert one.case is not None
            expression, value = one.case
            call = expression.replace("{}", f"{one.name}()")
            blocks.append(
                f"    def test_{one.name.lower()}(self):\n        self.assertEqual({call}, {value})"
            )
        return "\n".join(lines) + "\n" + "\n\n".join(blocks) + "\n"


@lru_cache(4096)
def value_of(function: Function, call: str) -> str:
    """What a call of the function gives, as source. The function uses nothing else."""
    scope: dict[str, object] = {}
    exec("\n".join(function.lines()), scope)  # noqa: S102 - code of ours, made here
    return repr(eval(call, scope))  # noqa: S307 - the same


def camel(name: str) -> str:
    """`a_b` -> `AB`."""
    return "".join(part.capitalize() for part in name.split("_"))


def _from_import(where: str, names: Sequence[str]) -> str:
    line = f"from {where} import {', '.join(names)}"
    if len(line) <= _LONG:
        return line
    return f"from {where} import (\n" + "".join(f"    {name},\n" for name in names) + ")"
