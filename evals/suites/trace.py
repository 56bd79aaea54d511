"""Suite `trace`: tasks that can only be done by who gets its reasoning back.

In the first turn the model decides something in private and notes it in its thoughts, as a line
`PRIVATE: ...`. Turns of small chores follow. In the last it is asked for what it has not told yet.
The truth is what its own reasoning says, so whatever it decided is right, as long as it stays with
it. Sixty tasks, made to be run in pairs: the same tasks with `--trace full` and with another arm
(`none`, `last-1`, `last-3`, `summary`, `foreign`), compared by `evals report DIR --compare DIR2`.

    numbers  five numbers, three of them told; later the other two
    order    an order of six names, told one by one; later the rest
    word     one of twelve words, with hints; later the word
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..material import Material, Step, finish, turn, write

EACH = 20
_NAMES = ("Ada", "Bo", "Cleo", "Dov", "Esi", "Finn", "Gia", "Hal", "Ines", "Jun")
_WORDS = (
    "amber",
    "birch",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "grove",
    "heron",
    "islet",
    "jetty",
    "knoll",
    "larch",
)
_NOTE = (
    " Decide now, in your thoughts only, and note it there as a line `PRIVATE: ` with {what}. "
    "Keep to it; I will come back to it later. "
)  # fmt: skip


@dataclass(frozen=True)
class Secret:
    """What a scripted model decides, and what is asked of it."""

    words: str
    items: tuple[str, ...]
    told: str
    asked: str
    hidden: tuple[int, ...]
    """Which of the items are asked for at the end."""


def tasks(_seed: int) -> Iterator[Material]:
    """Twenty of each kind, a mix from the start."""
    for number in range(EACH):
        for kind, make in (("numbers", _numbers), ("order", _order), ("word", _word)):
            rng = random.Random(f"trace {kind} {number}")  # noqa: S311 - not a secret
            yield _task(kind, number, make(rng), 1 + number % 5)


def _numbers(rng: random.Random) -> Secret:
    items = tuple(map(str, rng.sample(range(100, 999), 5)))
    return Secret(
        "Think of five different numbers from 100 to 998."
        + _NOTE.format(what="all five, separated by commas")
        + "Tell me the first three, and finish.",
        items, ", ".join(items[:3]),
        "Now tell me the other two of your five numbers.", (3, 4),
    )  # fmt: skip


def _order(rng: random.Random) -> Secret:
    names = rng.sample(_NAMES, 6)
    items = tuple(rng.sample(names, 6))
    return Secret(
        f"We draw lots: put {', '.join(names)} into a random order."
        + _NOTE.format(what="all six in that order, separated by commas")
        + "Tell me who comes first, and finish.",
        items, items[0],
        "Who are the fourth, the fifth and the sixth of your order?", (3, 4, 5),
    )  # fmt: skip


def _word(rng: random.Random) -> Secret:
    word = rng.choice(_WORDS)
    return Secret(
        f"Choose one of these words: {', '.join(_WORDS)}."
        + _NOTE.format(what="the word")
        + "Tell me only that you have chosen, and finish.",
        (word,), "I have chosen.", "Which word did you choose?", (0,),
    )  # fmt: skip


def _task(kind: str, number: int, secret: Secret, chores: int) -> Material:
    answer = ", ".join(secret.items[place] for place in secret.hidden)
    noted = f"PRIVATE: {', '.join(secret.items)}"
    # What recalling looks like for a scripted model; far enough in that a cut summary loses it.
    first = turn(
        finish(secret.told),
        reasoning=f"I decide by the dice, so that nobody can guess it, and note it here. {noted}\nhidden := {answer};",
    )
    steps = [Step("decide", secret.words, moves={"solve": [first]})]
    for place in range(chores):
        path, text = f"notes/{place + 1}.txt", f"chore {place + 1} of {number}\n"
        words = f"Something else: write a file {path} that holds the line `{text.strip()}`."
        made = [turn(write(path, text), reasoning="A small file."),
                turn(finish(f"{path} is there."), reasoning="Done with that.")]  # fmt: skip
        steps.append(
            Step(f"chore-{place + 1}", words, moves={"solve": made}, solution={path: text})
        )
    last = turn(finish("As I decided.\nANSWER: {{recall:hidden}}"), reasoning="What did I note?")
    steps.append(
        Step(
            name="reveal",
            instruction=f"{secret.asked} End your final words with a line `ANSWER: ...` that holds only that.",
            checks=[
                {"kind": "private", "items": list(secret.hidden), "group": "trace", "outcome": "contradicted"},
                {"kind": "files", "there": [f"notes/{place + 1}.txt" for place in range(chores)],
                 "group": "chores", "outcome": "not-solved"},
            ],
            moves={"solve": [last]},
            record={"exit_code": 0, "summary": f"ANSWER: {answer}", "asks": [],
                    "private": ", ".join(secret.items)},
        )
    )  # fmt: skip
    settings: dict[str, Any] = {
        "tags": {"kind": f"{kind} {chores}", "distance": str(chores)},
        "allow": ["write:**"], "window": 32768, "default_reply": "As I said.",
    }  # fmt: skip
    files = {"README.md": "# Notes\n\nA place for small files.\n"}
    return Material("trace", f"{kind}-{number}", kind, files, steps, settings=settings)
