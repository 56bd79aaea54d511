"""Slips: a name copied wrongly, as a small model does it, so that it can learn to try again.

The harness answers such a call with an error; what the oracle does next is what is to be learnt,
not the slip itself.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import Any

from .oracle import Call, Reply

_FIELDS = {"search": ("pattern",), "edit": ("path", "old", "old")}
"""Arguments that can be copied wrongly in a way that the harness notices."""


def slip(rng: random.Random, reply: Reply, seen: str) -> Reply | None:
    """The reply with one argument copied wrongly; None where there is nothing to copy.

    `seen`: the conversation so far; the wrong text does not occur in it.
    """
    places = [number for number, (tool, _given) in enumerate(reply.calls) if tool in _FIELDS]
    if not places:
        return None
    number = rng.choice(places)
    tool, given = reply.calls[number]
    field = rng.choice(_FIELDS[tool])
    for _ in range(20):
        wrong = misremembered(rng, str(given[field]), seen)
        if wrong != given[field] and wrong not in seen:
            return replace(reply, calls=_with(reply.calls, number, {**given, field: wrong}))
    return None


def _with(calls: tuple[Call, ...], number: int, given: dict[str, Any]) -> tuple[Call, ...]:
    return (*calls[:number], (calls[number][0], given), *calls[number + 1 :])


def misremembered(rng: random.Random, text: str, seen: str) -> str:
    """The text with one of its words replaced by one that begins alike, or with a piece lost."""
    words = list(re.finditer(r"[A-Za-z]{3,}", text))
    if not words:
        return text
    word = rng.choice(words)
    was = word[0]
    alike = sorted({w for w in re.findall(r"[A-Za-z]{3,}", seen) if w[:2] == was[:2] and w != was})
    if alike and rng.random() < 0.5:
        now = rng.choice(alike)
    else:
        at = rng.randint(1, len(was) - 1)
        now = was[:at] + was[at + rng.choice((1, 2)) :] if rng.random() < 0.5 else was[: at + 1]
    return text[: word.start()] + now + text[word.end() :]
