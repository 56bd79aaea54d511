"""Hidden tests: what a right solution does, said independently of how the task was made.

Each is the source of a unittest module that runs at the root of the repository.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .code import Function

_HEAD = '''\
import ast
import importlib
import inspect
import pathlib
import unittest


def trees():
    """Every file of the repository, parsed."""
    for path in sorted(pathlib.Path.cwd().rglob("*.py")):
        yield path.relative_to(pathlib.Path.cwd()).as_posix(), ast.parse(path.read_bytes())


def names(tree):
    """Every name that a file defines, imports or uses."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.alias):
            yield node.name.rpartition(".")[2]


class Hidden(unittest.TestCase):
    def test_everything_imports(self):
        for path, _tree in trees():
            importlib.import_module(path.removesuffix(".py").replace("/", "."))

'''


def _module(body: str) -> str:
    return _HEAD + body


def hidden_rename(module: str, old: str, new: str, only: str = "") -> str:
    """`new` is there and `old` is gone, everywhere or in the file `only`."""
    return _module(f"""\
    def test_renamed(self):
        module = importlib.import_module({module!r})
        self.assertTrue(hasattr(module, {new!r}))
        self.assertFalse(hasattr(module, {old!r}))

    def test_no_use_is_left(self):
        for path, tree in trees():
            if {only!r} in ("", path):
                self.assertNotIn({old!r}, set(names(tree)), path)
            else:
                self.assertNotIn({new!r}, set(names(tree)), path)
""")


def hidden_constant(modules: Sequence[str], name: str, value: str) -> str:
    """The constant has the value in exactly these modules."""
    return _module(f"""\
    def test_value(self):
        for path, tree in trees():
            module = path.removesuffix(".py").replace("/", ".")
            for node in tree.body:
                if isinstance(node, ast.Assign) and node.targets[0].id == {name!r}:
                    value = ast.literal_eval(node.value)
                    same = (type(value), value) == (type({value}), {value})
                    self.assertEqual(same, module in {list(modules)!r}, path)

    def test_it_is_there(self):
        for module in {list(modules)!r}:
            self.assertEqual(getattr(importlib.import_module(module), {name!r}), {value})
""")


def hidden_default(module: str, function: str, parameter: str, value: str) -> str:
    """The parameter has the default."""
    return _module(f"""\
    def test_default(self):
        function = getattr(importlib.import_module({module!r}), {function!r})
        self.assertEqual(inspect.signature(function).parameters[{parameter!r}].default, {value})
""")


def hidden_fix(module: str, function: Function) -> str:
    """The function gives what the right one gives, beyond the cases of the visible tests."""
    source = "\n".join(function.lines())
    more = [*function.cases, *(_varied(case) for case in function.cases)]
    return _module(f"""\
    def test_same_as_the_right_one(self):
        right = {{}}
        exec({source!r}, right)
        mine = getattr(importlib.import_module({module!r}), {function.name!r})
        for case in {[f"({', '.join(case)},)" for case in more]!r}:
            arguments = eval(case)
            self.assertEqual(mine(*arguments), right[{function.name!r}](*arguments), case)
""")


def _varied(case: Sequence[str]) -> tuple[str, ...]:
    """The same shape with other numbers."""
    return tuple(
        f"[each + 1 for each in {one}]" if one.startswith("[") and '"' not in one
        else f"{one} + 1" if one.isdigit()
        else one
        for one in case
    )  # fmt: skip


def hidden_deprecated(module: str, old: str, new: str, users: Sequence[str], home: str) -> str:
    """Nobody but the module itself knows `old`; the users call `new`."""
    return _module(f"""\
    def test_callers_moved(self):
        for path, tree in trees():
            found = set(names(tree))
            if path != {home!r}:
                self.assertNotIn({old!r}, found, path)
            if path in {list(users)!r}:
                self.assertIn({new!r}, found, path)

    def test_both_are_defined(self):
        module = importlib.import_module({module!r})
        self.assertTrue(hasattr(module, {old!r}))
        self.assertTrue(hasattr(module, {new!r}))
""")


def hidden_parameter(module: str, function: str, parameter: str, default: str, value: str) -> str:
    """The parameter is there with its default, and every call passes the value."""
    return _module(f"""\
    def test_signature(self):
        function = getattr(importlib.import_module({module!r}), {function!r})
        self.assertEqual(inspect.signature(function).parameters[{parameter!r}].default, {default})

    def test_calls(self):
        for path, tree in trees():
            for node in ast.walk(tree):
                if not isinstance(node, ast.Call):
                    continue
                called = getattr(node.func, "id", getattr(node.func, "attr", ""))
                if called == {function!r}:
                    passed = {{k.arg: ast.unparse(k.value) for k in node.keywords}}
                    self.assertEqual(passed.get({parameter!r}), {value!r}, path)
""")


def hidden_unchanged(files: Mapping[str, str]) -> str:
    """Every file is as it was."""
    return _module(f"""\
    def test_unchanged(self):
        for path, text in {dict(files)!r}.items():
            self.assertEqual(pathlib.Path(path).read_bytes(), text.encode())
""")
