"""Data that teaches copying and nothing else: names drawn at random, so none can be learnt.

An agent's arguments are copies: of names, paths and lines that stand in the repository or in the
user's words. These samples have that in every line, and are short. Everything is drawn from one
`random.Random`; a seed gives the same samples everywhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from ..chat.render import render
from ..chat.tokenizer import Tokenizer
from .packing import Part, Sample, sample_of_parts, sample_of_segments
from .renaming import spellings, spelt

_ONSETS = ("b", "bl", "br", "c", "ch", "cl", "cr", "d", "dr", "f", "fl", "fr", "g", "gl", "gr", "h",
           "j", "k", "kl", "l", "m", "n", "p", "pl", "pr", "qu", "r", "s", "sc", "sh", "sk", "sl",
           "sp", "st", "str", "t", "th", "tr", "v", "w", "x", "y", "z", "")  # fmt: skip
_NUCLEI = ("a", "e", "i", "o", "u", "ai", "ea", "ee", "io", "oa", "oo", "ou", "y")
_CODAS = ("", "", "", "b", "ck", "d", "ft", "g", "l", "ll", "m", "n", "nd", "ng", "nt", "p", "r",
          "rd", "rk", "s", "sh", "ss", "st", "t", "th", "x")  # fmt: skip
_FOLDERS = ("src", "lib", "core", "app", "tests", "utils")


def word(rng: random.Random, pieces: Sequence[str]) -> str:
    """A word of one to three random syllables, or as many random tokens of letters if given any."""
    if pieces and rng.random() < 0.5:
        return spelt(rng, pieces)
    return "".join(
        rng.choice(_ONSETS) + rng.choice(_NUCLEI) + rng.choice(_CODAS)
        for _ in range(rng.choice((1, 1, 2, 2, 3)))
    )


class Names:
    """A sample's own words, few enough that its names share pieces, as the names of a code do."""

    def __init__(self, rng: random.Random, pieces: Sequence[str] = ()) -> None:
        self.rng, self.pieces = rng, pieces
        self.words = [word(rng, pieces) for _ in range(rng.randint(4, 24))]

    def name(self) -> str:
        """An identifier: snake_case, CamelCase, CONSTANT or one word, at times with a digit."""
        rng = self.rng
        words = [
            rng.choice(self.words) if rng.random() < 0.7 else word(rng, self.pieces)
            for _ in range(rng.choice((1, 2, 2, 2, 3, 3)))
        ]
        style = rng.random()
        if style < 0.65:
            name = "_".join(words)
        elif style < 0.85:
            name = "".join(w.capitalize() for w in words)
        else:
            name = "_".join(words).upper()
        return name + (str(rng.randint(2, 99)) if rng.random() < 0.08 else "")

    def names(self, count: int) -> list[str]:
        """Different identifiers."""
        found: dict[str, None] = {}
        while len(found) < count:
            found[self.name()] = None
        return list(found)

    def path(self) -> str:
        """A path of a Python file."""
        rng = self.rng
        stem = "_".join(rng.choice(self.words) for _ in range(rng.choice((1, 1, 2))))
        folder = rng.choice(("", "", rng.choice(_FOLDERS) + "/", rng.choice(self.words) + "/"))
        return f"{folder}{rng.choice(('', '', '', 'test_'))}{stem}.py"


def drill(rng: random.Random, tokenizer: Tokenizer) -> Sample:
    """Random tokens, then the same again, once or more: nothing but looking back helps.

    Of few different tokens mostly, so that the same three or four stand in several places and
    only what came before them tells which place it is.
    """
    few = rng.random() < 0.75
    alphabet = rng.sample(range(tokenizer.base_size), rng.randint(3, 24) if few else 256)
    period = rng.randint(12, 96)
    times = rng.randint(2, max(2, 256 // period))
    once = rng.choices(alphabet, k=period)
    again = (times - 1) * period
    exact = [(at, at + period) for at in range(period, times * period, period)]
    return Sample(once * times, [0.0] * period + [1.0] * again, exact, "copy/drill")


def repeat(some: Names) -> list[Part]:
    """Names, then the same names again."""
    rng = some.rng
    names = some.names(rng.randint(4, 20))
    gap = rng.choice((" ", "\n", ", ", ' "', "(", "/"))
    parts = [Part(gap.join(names) + "\n\n")]
    for name in names:
        parts += [Part(name, 1.0, exact=True), Part(gap, 1.0)]
    return parts


def recall(some: Names) -> list[Part]:
    """A dictionary, then its values by key."""
    rng = some.rng
    keys = some.names(rng.randint(3, 14))
    between = rng.choice((" = ", ": ", " -> "))
    values = [some.path() if rng.random() < 0.3 else some.name() for _ in keys]
    table = dict(zip(keys, values, strict=True))
    parts = [Part("".join(f"{key}{between}{value}\n" for key, value in table.items()) + "\n")]
    for key in rng.choices(keys, k=rng.randint(len(keys), 2 * len(keys))):
        parts += [Part(f"{key}{between}"), Part(table[key], 1.0, exact=True), Part("\n", 1.0)]
    return parts


def lines(some: Names) -> list[Part]:
    """Lines of code, each numbered; then lines by their number."""
    code = code_lines(some, some.rng.randint(4, 14))
    parts = [Part("".join(f"{n}: {line}\n" for n, line in enumerate(code, 1)) + "\n")]
    rng = some.rng
    for n in rng.choices(range(len(code)), k=rng.randint(3, len(code) + 2)):
        parts += [Part(f"{n + 1}: "), Part(code[n], 1.0, exact=True), Part("\n", 1.0)]
    return parts


def replaced(some: Names) -> list[Part]:
    """Lines of code, then the same lines with one name in place of another."""
    old, new, *others = some.names(some.rng.randint(4, 8))
    code = [line for line in code_lines(some, 8, [old, *others]) if old in line]
    code = code or [f"{old} = {others[0]}"]
    parts = [Part(f"{old} -> {new}\n" + "\n".join(code) + "\n\n")]
    for line in code:
        parts += [Part(line.replace(old, new), 1.0, exact=True), Part("\n", 1.0)]
    return parts


def ordered(some: Names) -> list[Part]:
    """A search's hits in files whose paths begin alike; then the paths in their order, then each
    with its lines.

    What stands right before a path's own part is the same for all of them, so what comes next
    follows only from what came before it.
    """
    rng = some.rng
    folder = rng.choice(("", rng.choice(some.words), "_".join(rng.choices(some.words, k=2))))
    folder += "/" if folder else ""
    stems = dict.fromkeys(
        rng.choice(("", "", "", "test_")) + "_".join(rng.choices(some.words, k=rng.choice((1, 2))))
        for _ in range(rng.randint(2, 7))
    )
    target, *others = some.names(rng.randint(3, 8))
    hits: dict[str, list[str]] = {}
    for stem in stems:
        number = 0
        hits[f"{folder}{stem}.py"] = lines = []
        for line in code_lines(some, rng.choice((1, 1, 2, 3)), [target, target, *others]):
            number += rng.randint(1, 12)
            lines.append(f"{number}:{line}")
    parts = [Part("".join(f"{path}\n" + "\n".join(hits[path]) + "\n" for path in hits) + "\n[")]
    for path in hits:
        parts += [Part('"', 1.0), Part(path, 1.0, exact=True), Part('", ', 1.0)]
    for path, lines in hits.items():
        for line in lines:
            parts += [Part("]\n", 1.0), Part(path, 1.0, exact=True), Part("\n", 1.0)]
            parts.append(Part(line.partition(":")[2].strip(), 1.0, exact=True))
    return parts


def changed(some: Names) -> list[Part]:
    """Values and what they are to be; then each as it was, and as it is to be."""
    rng = some.rng

    def value() -> str:
        kind = rng.random()
        if kind < 0.6:
            return str(
                rng.choice((rng.randint(0, 99), rng.randint(100, 999), rng.randint(0, 9999)))
            )
        return f'"{word(rng, some.pieces)}"' if kind < 0.9 else rng.choice(("True", "False"))

    names = [name.upper() if rng.random() < 0.5 else name for name in some.names(rng.randint(2, 7))]
    shape, asked = rng.choice(
        (
            ("{} = {}", "{} is to be {}."), ("{} = {}", "Set {} to {}."), ("{} = {}", "{} -> {}"),
            ("{}={}", "The default of {} should be {}."), ("{}: {}", "{}, now {}"),
        )
    )  # fmt: skip
    was = {name: value() for name in names}
    wanted = {name: value() for name in rng.sample(names, rng.randint(1, len(names)))}
    texts = [shape.format(*pair) + "\n" for pair in was.items()]
    texts += [asked.format(*pair) + "\n" for pair in wanted.items()]
    if rng.random() < 0.5:  # in use, the words come before the file is looked at
        texts = texts[len(was) :] + texts[: len(was)]
    parts = [Part("".join(texts) + "\n")]
    for name, new in wanted.items():
        for begin, given in (("old: ", was[name]), ("new: ", new)):
            parts += [
                Part(begin),
                Part(shape.format(name, given), 1.0, exact=True),
                Part("\n", 1.0),
            ]
    return parts


def latest(some: Names) -> list[Part]:
    """Names that get values more than once; now and then one of them, with the last it got."""
    rng = some.rng
    keys = some.names(rng.randint(2, 5))
    between = rng.choice((" = ", ": ", " is now ", "\n"))
    parts: list[Part] = []
    held: dict[str, str] = {}
    for _ in range(rng.randint(6, 16)):
        key = rng.choice(keys)
        if key in held and rng.random() < 0.6:
            parts += [Part(f"now {key}{between}"), Part(held[key], 1.0, exact=True)]
            parts.append(Part("\n", 1.0))
            continue
        held[key] = rng.choice((some.name(), some.path(), str(rng.randint(0, 9999))))
        parts.append(Part(f"{key}{between}{held[key]}\n"))
    key = rng.choice(list(held))
    return [*parts, Part(f"now {key}{between}"), Part(held[key], 1.0, exact=True), Part("\n", 1.0)]


def chosen(some: Names) -> list[Part]:
    """Paths that begin alike; then one of them is meant, and another, and each is said again."""
    rng = some.rng
    folder = "_".join(rng.choices(some.words, k=rng.choice((1, 1, 2)))) + "/"
    stems = rng.sample(some.words, rng.randint(2, 4))
    paths = [f"{folder}{stem}.py" for stem in stems]
    parts = [
        Part("\n".join(f"{path}\n{rng.randint(1, 30)}:{some.name()}" for path in paths) + "\n")
    ]
    asked = rng.choice(("{}\n", "{}, please.\n", "I mean {}.\n", "The one in {}.\n"))
    for path in rng.choices(paths, k=rng.randint(2, 6)):
        parts += [Part(asked.format(path)), Part("They mean ", 1.0), Part(path, 1.0, exact=True)]
        parts += [Part(". edit ", 1.0), Part(path, 1.0, exact=True), Part("\n", 1.0)]
    return parts


def code_lines(some: Names, count: int, names: list[str] | None = None) -> list[str]:
    """Lines of Python that use a few names again and again."""
    rng = some.rng
    names = names or some.names(max(3, count // 2))
    made: list[str] = []
    for _ in range(count):
        a, b, c = (rng.choice(names) for _ in range(3))
        n = str(rng.choice((0, 1, 2, rng.randint(3, 99), rng.randint(100, 9999))))
        line = rng.choice(
            (
                f"def {a}({b}, {c}={n}):", f"{a} = {b}({c})", f"return {a} + {b}", f"{a} = {n}",
                f"from {a} import {b}", f"if {a} > {n}:", f"self.{a} = {b}", f"class {a}({b}):",
                f'{a}["{b}"] = {c}', f"assert {a}({n}) == {b}", f"{a}.{b}({c}, {n})",
                f"return {a}({b}) * {n}", f"for {a} in {b}.{c}:", f'raise {a}("{b} {c}")',
            )
        )  # fmt: skip
        made.append(" " * (4 * rng.choice((0, 1, 1, 2))) + line)
    return made


def calls(some: Names) -> list[dict[str, Any]]:
    """A small session: find a name, then change it where it was found."""
    rng = some.rng
    old, new, *others = some.names(rng.randint(4, 8))
    asked = rng.choice(
        ("Rename {} to {}.", "{} should be called {}.", "Use {1} instead of {0}.", "{} -> {}")
    ).format(old, new)
    paths = list(dict.fromkeys(some.path() for _ in range(rng.randint(1, 4))))
    hits = [
        (path, rng.randint(1, 120), line)
        for path in sorted(paths)
        for line in code_lines(some, rng.randint(1, 2), [old, *others])
        if old in line
    ]
    found = "\n".join(f"{path}:{number}:{line}" for path, number, line in hits) or "no matches"
    edits = [
        ("edit", {"path": path, "old": old, "new": new}, "done")
        for path in dict.fromkeys(path for path, *_ in hits)
    ]
    messages: list[dict[str, Any]] = [{"role": "user", "content": asked}]
    for tool, arguments, result in [("search", {"pattern": old}, found), *edits]:
        call = {"id": "1", "function": {"name": tool, "arguments": arguments}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": "1", "content": result})
    summary = f"{old} is now {new} in {len(edits)} files."
    return [*messages, {"role": "assistant", "content": summary}]


TEXTS: tuple[Callable[[Names], list[Part]], ...] = (
    repeat, recall, lines, replaced, ordered, ordered, ordered, changed, changed, latest, chosen,
)  # fmt: skip
"""The kinds of samples; what goes wrong longest comes oftener."""


def draw(rng: random.Random, tokenizer: Tokenizer, drills: float = 0.1) -> Sample:
    """A sample of any kind; `drills` is the share of the plainest."""
    if rng.random() < drills:
        return drill(rng, tokenizer)
    some = Names(rng, spellings(tokenizer))
    which = rng.randrange(len(TEXTS) + 2)
    if which < len(TEXTS):
        kind = TEXTS[which]
        return sample_of_parts(kind(some), tokenizer, f"copy/{kind.__name__}")
    segments = render(calls(some), generation_prefix=False)
    return sample_of_segments(segments, tokenizer, "copy/calls")
