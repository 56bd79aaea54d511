"""Small Python code, generated: functions that say in words what they compute, with test cases.

Every function's docstring tells its operator and its literals, so that whoever breaks one of them
leaves a mistake that the docstring and the test both show.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .names import Names


@dataclass(frozen=True)
class Call:
    """A call of another function of the repository, on a line of its own."""

    target: str
    """Name of the function."""
    argument: str
    """Source of its one argument."""


@dataclass(frozen=True)
class Function:
    """A top-level function."""

    name: str
    parameters: tuple[str, ...]
    """As written, defaults included."""
    doc: str
    body: tuple[str, ...]
    """Lines without indentation; `{}` in one stands for the call of `calls`."""
    cases: tuple[tuple[str, ...], ...] = ()
    """Arguments of test calls, as source."""
    wrong: tuple[tuple[int, str], ...] = ()
    """Mistakes that one operator or literal makes: position in `body`, the wrong line."""
    calls: Call | None = None
    constant: str | None = None
    """A constant of another module that it uses."""

    def lines(self, call: str = "") -> list[str]:
        """The source, `call` in place of `{}`."""
        made = [f"def {self.name}({', '.join(self.parameters)}):"]
        if self.doc:
            made.append(f'    """{self.doc}"""')
        return made + ["    " + (line.replace("{}", call) if self.calls else line)
                       for line in self.body]  # fmt: skip


@dataclass(frozen=True)
class Class:
    """A class with attributes that its `__init__` sets and methods that change them."""

    name: str
    doc: str
    attributes: tuple[tuple[str, str], ...]
    """Class attribute -> literal."""
    lines: tuple[str, ...]
    """Methods, indented."""
    case: tuple[str, str] | None = None
    """An expression over `{}`, an instance, and its value."""

    def source(self) -> list[str]:
        """The source."""
        made = [f"class {self.name}:", f'    """{self.doc}"""', ""]
        made += [f"    {name} = {value}" for name, value in self.attributes]
        if self.attributes:
            made.append("")
        return made + list(self.lines)


@dataclass
class Module:
    """One file of code."""

    name: str
    doc: str
    constants: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    functions: list[Function] = field(default_factory=list[Function])
    classes: list[Class] = field(default_factory=list[Class])


# --- functions -----------------------------------------------------------------------------------

_LISTS = ("items", "values", "numbers", "entries", "sizes", "marks", "points", "weights")
_NUMBERS = ("amount", "count", "size", "level", "height", "score", "speed", "depth", "total")
_PAIRS = (("left", "right"), ("first", "second"), ("base", "extra"), ("one", "other"),
          ("width", "length"), ("start", "step"), ("price", "tax"), ("near", "far"))  # fmt: skip
_TEXTS = ("text", "word", "label", "title", "line")
_COMPARISONS = {
    ">": "above",
    "<": "below",
    ">=": "at least",
    "<=": "at most",
    "==": "equal to",
    "!=": "other than",
}
_ARITHMETIC = {"+": "plus", "-": "minus", "*": "times"}
_SEPARATORS = ("-", "/", ":", "_", ".", "+", "=", "#")

Maker = Callable[[random.Random, Names, str], Function]


def _others(rng: random.Random, of: Sequence[str], one: str) -> str:
    return rng.choice([other for other in of if other != one])


def _number_list(rng: random.Random, around: int = 5) -> str:
    return str([rng.randint(max(0, around - 4), around + 4) for _ in range(rng.randint(3, 5))])


def _near(rng: random.Random, number: int) -> int:
    return max(0, number + rng.choice((-2, -1, 1, 2))) if number > 1 else number + 1


def arithmetic(rng: random.Random, names: Names, name: str) -> Function:
    """`left + right`."""
    a, b = rng.choice(_PAIRS)
    op = rng.choice(list(_ARITHMETIC))
    bad = _others(rng, list(_ARITHMETIC), op)
    cases = tuple((str(rng.randint(5, 30)), str(rng.randint(3, 9))) for _ in range(2))
    return Function(name, (a, b), f"{a.capitalize()} {_ARITHMETIC[op]} {b}.",
                    (f"return {a} {op} {b}",), cases, ((0, f"return {a} {bad} {b}"),))  # fmt: skip


def scaled(rng: random.Random, names: Names, name: str) -> Function:
    """`amount * 3`."""
    a = rng.choice(_NUMBERS)
    op, n = rng.choice(list(_ARITHMETIC)), rng.randint(3, 60)
    bad = _others(rng, list(_ARITHMETIC), op)
    cases = tuple((str(rng.randint(10, 90)),) for _ in range(2))
    wrong = ((0, f"return {a} {bad} {n}"), (0, f"return {a} {op} {_near(rng, n)}"))
    return Function(name, (a,), f"The {a} {_ARITHMETIC[op]} {n}.", (f"return {a} {op} {n}",),
                    cases, wrong)  # fmt: skip


def filtered(rng: random.Random, names: Names, name: str) -> Function:
    """`[item for item in items if item > 3]`."""
    many, op, n = rng.choice(_LISTS), rng.choice(list(_COMPARISONS)), rng.randint(4, 40)
    one = rng.choice(("item", "value", "each"))
    bad = _others(rng, list(_COMPARISONS), op)
    line = "return [{0} for {0} in {1} if {0} {2} {3}]"
    cases = (
        (str([n - 1, n, n + 1, n + 2]),),
        (str([n + 1, n - 2, n, n]),),
    )
    wrong = ((0, line.format(one, many, bad, n)), (0, line.format(one, many, op, _near(rng, n))))
    return Function(name, (many,), f"The {many} {_COMPARISONS[op]} {n}.",
                    (line.format(one, many, op, n),), cases, wrong)  # fmt: skip


def counted(rng: random.Random, names: Names, name: str) -> Function:
    """`sum(1 for item in items if item > 3)`."""
    many, op, n = rng.choice(_LISTS), rng.choice(list(_COMPARISONS)), rng.randint(4, 40)
    one = rng.choice(("item", "value", "each"))
    bad = _others(rng, list(_COMPARISONS), op)
    line = "return sum(1 for {0} in {1} if {0} {2} {3})"
    cases = ((str([n - 1, n, n, n + 1, n + 2, n + 3]),), (str([n, n - 2, n - 3]),))
    wrong = ((0, line.format(one, many, bad, n)), (0, line.format(one, many, op, _near(rng, n))))
    return Function(name, (many,), f"How many {many} are {_COMPARISONS[op]} {n}.",
                    (line.format(one, many, op, n),), cases, wrong)  # fmt: skip


def sliced(rng: random.Random, names: Names, name: str) -> Function:
    """`items[:3]`."""
    many, n = rng.choice(_LISTS), rng.randint(2, 4)
    shape, doc = rng.choice(
        (
            ("[:{}]", "The first {} of the {}."),
            ("[-{}:]", "The last {} of the {}."),
            ("[{}:]", "All but the first {} of the {}."),
            ("[:-{}]", "All but the last {} of the {}."),
        )
    )
    numbers = str([rng.randint(1, 99) for _ in range(7)])
    wrong = ((0, f"return {many}{shape.format(_near(rng, n))}"),)
    return Function(name, (many,), doc.format(n, many), (f"return {many}{shape.format(n)}",),
                    ((numbers,),), wrong)  # fmt: skip


def divided(rng: random.Random, names: Names, name: str) -> Function:
    """`amount % 3 == 0`."""
    a, n = rng.choice(_NUMBERS), rng.randint(3, 9)
    bad = _near(rng, n) if n > 3 else 5
    cases = ((str(n * rng.randint(2, 9)),), (str(n * 3 + 1),))
    wrong = ((0, f"return {a} % {n} != 0"), (0, f"return {a} % {bad} == 0"))
    return Function(name, (a,), f"Whether the {a} is a multiple of {n}.",
                    (f"return {a} % {n} == 0",), cases, wrong)  # fmt: skip


def joined(rng: random.Random, names: Names, name: str) -> Function:
    """`text + "-" + word`."""
    a, b = rng.sample(_TEXTS, 2)
    separator = rng.choice(_SEPARATORS)
    bad = _others(rng, _SEPARATORS, separator)
    line = f'return {a} + "{{0}}" + {b}'
    cases = ((f'"{names.piece()}"', f'"{names.piece()}"'),)
    return Function(name, (a, b), f'{a.capitalize()} and {b} with "{separator}" between.',
                    (line.format(separator),), cases, ((0, line.format(bad)),))  # fmt: skip


def both(rng: random.Random, names: Names, name: str) -> Function:
    """`left > 3 and right < 5`."""
    a, b = rng.choice(_PAIRS)
    (low, low_word), (high, high_word) = rng.sample(list(_COMPARISONS.items())[:4], 2)
    n, m = rng.randint(5, 40), rng.randint(5, 40)
    word = rng.choice(("and", "or"))
    line = "return {0} {1} {2} {3} {4} {5} {6}"
    # Both ends of both comparisons, so that each mistake shows.
    cases = tuple((str(n + i), str(m + j)) for i, j in ((1, -1), (-1, 1), (1, 1), (-1, -1)))
    wrong = ((0, line.format(a, low, n, "or" if word == "and" else "and", b, high, m)),)
    return Function(name, (a, b), f"Whether {a} is {low_word} {n} {word} {b} is {high_word} {m}.",
                    (line.format(a, low, n, word, b, high, m),), cases, wrong)  # fmt: skip


def accumulated(rng: random.Random, names: Names, name: str) -> Function:
    """A loop that adds up."""
    many, n = rng.choice(_LISTS), rng.randint(0, 30)
    one, total = rng.choice(("item", "value", "each")), rng.choice(("total", "result", "found"))
    body = (f"{total} = {n}", f"for {one} in {many}:", f"    {total} += {one}", f"return {total}")
    wrong = ((2, f"    {total} -= {one}"), (0, f"{total} = {_near(rng, n + 2)}"))
    return Function(
        name, (many,), f"The {many} added to {n}.", body, ((_number_list(rng),),), wrong
    )


def looked_up(rng: random.Random, names: Names, name: str) -> Function:
    """`table.get(key, 3)`."""
    table, key = rng.choice((("table", "key"), ("prices", "name"), ("places", "label")))
    n = rng.randint(0, 50)
    word = names.piece()
    cases = ((f'{{"{word}": {rng.randint(1, 9)}}}', f'"{word}"'), ("{}", f'"{word}"'))
    wrong = ((0, f"return {table}.get({key}, {_near(rng, n + 2)})"),)
    return Function(name, (table, key), f"The {key} in {table}, or {n}.",
                    (f"return {table}.get({key}, {n})",), cases, wrong)  # fmt: skip


def limited(rng: random.Random, names: Names, name: str) -> Function:
    """`min(amount, 3)`."""
    a, n = rng.choice(_NUMBERS), rng.randint(5, 80)
    function, doc = rng.choice((("min", "at most"), ("max", "at least")))
    cases = ((str(n - 3),), (str(n + 4),))
    wrong = ((0, f"return {function}({a}, {_near(rng, n)})"),)
    return Function(name, (a,), f"The {a}, {doc} {n}.", (f"return {function}({a}, {n})",),
                    cases, wrong)  # fmt: skip


MAKERS: tuple[Maker, ...] = (
    arithmetic, scaled, filtered, counted, sliced, divided, joined, both, accumulated, looked_up,
    limited,
)  # fmt: skip


def function(rng: random.Random, names: Names) -> Function:
    """A function of any kind, with a fresh name."""
    return rng.choice(MAKERS)(rng, names, names.fresh("function"))


def with_default(rng: random.Random, names: Names, count: int = 1) -> Function:
    """A function with one or two defaults that its tests do not lean on."""
    many = rng.choice(_LISTS)
    name = names.fresh("function")
    options = [names.fresh("variable") for _ in range(count)]
    values = [str(rng.randint(2, 90)) for _ in range(count)]
    parameters = (many, *(f"{o}={v}" for o, v in zip(options, values, strict=True)))
    if count == 1:
        line, doc = rng.choice(
            (
                (f"return {many}[:{options[0]}]", f"The first {options[0]} of the {many}."),
                (f"return [each + {options[0]} for each in {many}]", f"The {many} plus {options[0]}."),
                (f"return sum({many}) * {options[0]}", f"The sum of the {many} times {options[0]}."),
            )
        )  # fmt: skip
    else:
        line = f"return sum({many}) * {options[0]} + {options[1]}"
        doc = f"The sum of the {many} times {options[0]} plus {options[1]}."
    given = tuple(str(rng.randint(1, 6)) for _ in options)
    return Function(name, parameters, doc, (line,), ((_number_list(rng), *given),))


def caller(rng: random.Random, names: Names, target: str) -> Function:
    """A function that calls another one on a line of its own."""
    argument = rng.choice(_LISTS)
    result = names.fresh("variable")
    name = names.fresh("function")
    n = rng.randint(2, 60)
    line, doc = rng.choice(
        (
            (f"return {result} + {n}", f"What comes of the {argument}, plus {n}."),
            (f"return {result} * {n}", f"{n} times what comes of the {argument}."),
            (f"return [{result}, {n}]", f"What comes of the {argument}, and {n}."),
            (f"return {result} == {n}", f"Whether {n} comes of the {argument}."),
        )
    )
    return Function(name, (argument,), doc, (f"{result} = {{}}", line),
                    calls=Call(target, argument))  # fmt: skip


def constant_user(rng: random.Random, names: Names, constant: str) -> Function:
    """A function that uses a constant; no test leans on its value."""
    a = rng.choice(_NUMBERS)
    line, doc = rng.choice(
        (
            (f"return {a} * {constant}", f"The {a} times {constant}."),
            (f"return {a} + {constant}", f"The {a} plus {constant}."),
            (f"return min({a}, {constant})", f"The {a}, at most {constant}."),
            (f"return {a} > {constant}", f"Whether the {a} is above {constant}."),
        )
    )
    return Function(names.fresh("function"), (a,), doc, (line,), constant=constant)


def literal(rng: random.Random, names: Names) -> str:
    """A value for a constant."""
    kind = rng.random()
    if kind < 0.6:
        return str(
            rng.choice((rng.randint(2, 99), rng.randint(100, 9000), rng.randint(2, 30) * 10))
        )
    if kind < 0.8:
        return f'"{names.piece()}"'
    if kind < 0.9:
        return f"{rng.randint(0, 9)}.{rng.randint(1, 9)}"
    return rng.choice(("True", "False"))


def number(rng: random.Random) -> str:
    """A whole number."""
    return str(rng.choice((rng.randint(2, 99), rng.randint(100, 9000), rng.randint(2, 30) * 10)))


def class_(rng: random.Random, names: Names) -> Class:
    """A class with one or two methods."""
    name = names.fresh("class")
    attribute, method = names.fresh("variable"), names.fresh("function")
    value, n = number(rng), rng.randint(2, 40)
    limit = names.fresh("variable")
    op = rng.choice(("+", "-"))
    lines = (
        "    def __init__(self):",
        f"        self.{attribute} = {n}",
        "",
        f"    def {method}(self, amount):",
        f'        """Change {attribute} by the amount."""',
        f"        self.{attribute} {op}= amount",
        f"        return self.{attribute}",
    )
    given = rng.randint(1, 9)
    result = n + given if op == "+" else n - given
    words = f"A {attribute} and its {method}."
    return Class(name, words, ((limit, value),), lines, (f"{{}}.{method}({given})", str(result)))
