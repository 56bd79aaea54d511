"""Suite `recall`: what a model knows of a whole repository in its context.

One repository for each of three sizes holds all the needles of its twenty questions, so that
twenty tasks share one prefix, as the questions of a working day do. Five kinds of question:

    literal      the value of a constant
    paraphrase   a rule that is asked about in other words: no identifier is shared
    callers      the files that call a function; comments and texts that only name it do not count
    hops         a value that comes about over three files
    absent       something that is not there, beside things that are called almost so

The truth is known from how the repository was made. Nothing needs to be changed or searched: the
answer is the last line of the final words. A model that may search can do so, which tells the two
ways apart by their tokens.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from ..material import Material, Step, finish, turn

SIZES = {"64k": 210_000, "256k": 850_000, "640k": 2_100_000}
"""Tokens, roughly, -> characters of code. The largest is what a window of a million is filled with
where 70 % of it may be the repository."""
EACH = 4
"""Questions of each kind in each size."""
_HOW = (
    "\n\nThe repository is in your context; nothing has to be changed. End your final words with a "
    "line `ANSWER: ...` that holds only the answer{form}. If there is no such thing, write "
    "`ANSWER: none`."
)
_ADJECTIVES = ("amber", "brisk", "calm", "dense", "early", "faint", "grand", "hollow", "inner", "jolly",
               "keen", "late", "mild", "narrow", "outer", "pale", "quiet", "rough", "stern", "tidy")  # fmt: skip
_NOUNS = ("anchor", "basket", "canal", "dial", "engine", "ferry", "gauge", "harbor", "index", "jacket",
          "kettle", "lantern", "mirror", "needle", "orbit", "pillar", "quarry", "ribbon", "signal", "tunnel")  # fmt: skip
_VERBS = ("bind", "carve", "drain", "eject", "fold", "graft", "hoist", "infer", "join", "knead",
          "level", "merge", "nudge", "order", "prune", "query", "route", "shift", "trace", "weigh")  # fmt: skip

PARAPHRASES = (
    ("Crates whose mass in kilograms exceeds {n} are turned away at the gate.", "From how heavy on does the yard refuse a box?"),
    ("After {n} missed heartbeats the follower takes over.", "How often may the primary stay silent before the standby replaces it?"),
    ("Coupons lapse {n} days after they were issued.", "For how long can a voucher be redeemed?"),
    ("A nightly copy is thrown away once {n} newer ones exist.", "How many backups are kept?"),
    ("Nobody under {n} may open an account.", "What is the lowest age at which one can sign up?"),
    ("The furnace is shut off above {n} degrees.", "At what temperature does the oven stop by itself?"),
    ("Letters longer than {n} pages need a second stamp.", "From what length on does mail cost more postage?"),
    ("Seats that are not paid within {n} minutes go back into the pool.", "How long is a place held for somebody who has not paid yet?"),
    ("The lift carries {n} persons at most.", "How many people does the elevator take?"),
    ("A tyre below {n} bar sets off the lamp.", "At what pressure does the driver get a warning about a wheel?"),
    ("Invoices under {n} cents are not sent.", "What is the smallest amount that customers are billed for?"),
    ("Words that occur more than {n} times are left out of the search.", "How frequent must a term be to be ignored when one looks for something?"),
)  # fmt: skip


def tasks(_seed: int) -> Iterator[Material]:
    """Twenty questions for each size, a mix from the start."""
    rows = [list(_questions(size)) for size in SIZES]
    for number in range(max(map(len, rows))):
        for row in rows:
            yield row[number]


def _questions(size: str) -> Iterator[Material]:
    made = haystack(size)
    for number in range(EACH):
        for kind in ("literal", "paraphrase", "callers", "hops", "absent"):
            question, form, value = made.questions[kind, number]
            yield _task(size, kind, number, question, form, value, made.files)


def _task(
    size: str, kind: str, number: int, question: str, form: str, value: Any, files: dict[str, str]
) -> Material:
    shown = ", ".join(value) if isinstance(value, list) else "none" if value is None else str(value)
    step = Step(
        name="main",
        instruction=question + _HOW.format(form=form),
        checks=[
            {"kind": "answer", "value": value, "group": "recall",
             "outcome": "hallucinated" if value is None else "not-recalled"},
            {"kind": "unchanged", "group": "scope", "outcome": "over-scope"},
        ],
        moves={
            "solve": [turn(finish(f"It is in the repository.\nANSWER: {shown}"), reasoning="I saw it.")],
            "guess": [turn(finish("I see none.\nANSWER: none"), reasoning="Surely not.")],
        },
        record={"exit_code": 0, "summary": f"ANSWER: {shown}", "asks": []},
    )  # fmt: skip
    settings = {"tags": {"kind": size, "size": size}, "minutes": 20.0, "max_steps": 40}
    return Material("recall", f"{kind}-{size}-{number}", kind, files, [step], settings=settings)


# --- the repository ------------------------------------------------------------------------------


class Haystack:
    """A repository in the making, with its questions."""

    def __init__(self, size: str) -> None:
        self.rng = random.Random(f"recall {size}")  # noqa: S311 - not a secret
        self.files: dict[str, str] = {}
        self.questions: dict[tuple[str, int], tuple[str, str, Any]] = {}
        self._taken: set[str] = set()
        names: list[str] = []
        length = 0
        while length < SIZES[size]:
            path = f"{self.rng.choice(_NOUNS)}s/{self.name()}.py"
            text = self._module()
            self.files[path] = text
            names.append(path)
            length += len(text)
        self.files = dict(sorted(self.files.items()))
        self._order = list(self.files)
        for number in range(EACH):
            depth = (number + 0.5) / EACH
            self._literal(number, depth)
            self._paraphrase(number, depth, size)
            self._callers(number, depth)
            self._hops(number, depth)
            self._absent(number, depth)

    def name(self) -> str:
        """A name that nothing else has."""
        while True:
            parts = self.rng.choice(_VERBS), self.rng.choice(_ADJECTIVES), self.rng.choice(_NOUNS)
            found = "_".join(parts) + (
                f"_{self.rng.randint(2, 99)}" if len(self._taken) > 3000 else ""
            )
            if found not in self._taken:
                self._taken.add(found)
                return found

    def _module(self) -> str:
        blocks = [self._function() for _ in range(self.rng.randint(8, 16))]
        doc = f'"""About {self.rng.choice(_ADJECTIVES)} {self.rng.choice(_NOUNS)}s."""\n'
        return doc + "\n\n" + "\n\n\n".join(blocks) + "\n"

    def _function(self) -> str:
        rng = self.rng
        first, second = rng.sample(_NOUNS, 2)
        low, high = rng.randint(2, 90), rng.randint(100, 9000)
        return (
            f"def {self.name()}({first}, {second}={low}):\n"
            f'    """{rng.choice(_VERBS).capitalize()} the {rng.choice(_ADJECTIVES)} {first} by its {second}."""\n'
            f"    total = {first} * {rng.randint(2, 9)} + {second}\n"
            f"    if total > {high}:\n"
            f"        return total - {rng.randint(1, 99)}\n"
            f"    return total // {rng.randint(2, 9)}"
        )

    def _plant(self, depth: float, text: str) -> str:
        """Append to the file at this share of the repository; returns its path."""
        place = min(len(self._order) - 1, int(depth * len(self._order) + self.rng.randint(0, 3)))
        path = self._order[place]
        self.files[path] += f"\n\n{text}\n"
        return path

    def _near(self, depth: float, step: int) -> float:
        return (depth + 0.21 * step) % 1.0

    def _literal(self, number: int, depth: float) -> None:
        name, value = self.name().upper(), self.rng.randint(1000, 99999)
        self._plant(depth, f"{name} = {value}")
        for step in (1, 2, 3):
            self._plant(self._near(depth, step), f"{name}_{'ABC'[step - 1]} = {value + 7 * step}")
        self.questions["literal", number] = (f"What is the value of {name}?", "", value)

    def _paraphrase(self, number: int, depth: float, size: str) -> None:
        said, question = PARAPHRASES[EACH * list(SIZES).index(size) + number]
        value = self.rng.randint(11, 98)
        self._plant(depth, f"# {said.format(n=value)}")
        self.questions["paraphrase", number] = (question, ", a number", value)

    def _callers(self, number: int, depth: float) -> None:
        name = self.name()
        home = self._plant(depth, f"def {name}(value):\n    return value + {number}")
        paths: list[str] = []
        while len(paths) < 3 + number % 3:
            call = f"def {self.name()}(value):\n    return {name}(value) * 2"
            path = self._plant(self.rng.random(), call)
            if path not in paths and path != home:
                paths.append(path)
            else:  # a second call in the same file, or one at home: the files stay as counted
                paths = list(dict.fromkeys([*paths, path]))
        self._plant(self._near(depth, 1), f"# Once {name} was used here.")
        self._plant(self._near(depth, 2), f'TEXT_{number} = "{name}(value)"')
        question = f"In which files is {name} called?"
        self.questions["callers", number] = (
            question,
            ", the paths separated by commas",
            sorted(paths),
        )

    def _hops(self, number: int, depth: float) -> None:
        first, second, third = (self.name().upper() for _ in range(3))
        start, more, times = (
            self.rng.randint(10, 99),
            self.rng.randint(10, 99),
            self.rng.randint(2, 9),
        )
        self._plant(depth, f"{first} = {start}")
        self._plant(self._near(depth, 1), f"{second} = {first} + {more}")
        self._plant(self._near(depth, 2), f"{third} = {second} * {times}")
        question = f"What value does {third} have once all modules see each other's constants?"
        self.questions["hops", number] = (question, ", a number", (start + more) * times)

    def _absent(self, number: int, depth: float) -> None:
        name = self.name().upper()
        for step in (0, 1, 2):
            self._plant(
                self._near(depth, step), f"{name}_{'XYZ'[step]} = {self.rng.randint(10, 99)}"
            )
        self.questions["absent", number] = (f"What is the value of {name}?", "", None)


@lru_cache(3)
def haystack(size: str) -> Haystack:
    """The repository of a size, the same each time."""
    return Haystack(size)
