"""Sessions under other names: the same work, with every made-up word replaced by another.

A model this small says a token in an argument only if it has said that token before. The sessions'
own words use some tokens a thousand times and others never, so a name of another repository may
need a token the model has unlearnt. Here words are spelt from tokens that are all as likely.
"""

from __future__ import annotations

import functools
import json
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...evals.tasks.names import VERBS, WORDS
from ..chat.tokenizer import Tokenizer

RARE = 0.003
"""Share of the sessions up to which a word counts as made up: phrases and Python come oftener."""
_SAID = (
    "build", "check", "close", "count", "draw", "editor", "event", "field", "fill", "filter",
    "find", "fold", "folder", "hold", "join", "keep", "match", "move", "open", "owner", "place",
    "plan", "print", "read", "sample", "seed", "shape", "share", "signal", "split", "start",
    "take", "turn", "watch", "write",
)  # fmt: skip
"""Words of generated names that users, tools and code say too: what they mean there must stay."""
_PARAMETERS = (
    "items", "values", "numbers", "entries", "sizes", "marks", "points", "weights", "amount",
    "level", "height", "score", "speed", "depth", "extra", "near", "far", "price", "tax", "width",
    "length",
)  # fmt: skip
"""Of generated functions: so few that a model would rather guess than look."""
NAMED: frozenset[str] = frozenset((*WORDS, *VERBS, *_PARAMETERS)).difference(_SAID)
"""The English words of generated names. They come in many sessions, and are made up all the same."""
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_SHORTEST, _LONGEST = 3, 10
"""Letters of a word."""


@functools.cache
def spellings(tokenizer: Tokenizer) -> tuple[str, ...]:
    """What can be spelt with one token of letters, in lower case, each once."""
    texts = {tokenizer.decode([token]) for token in range(tokenizer.base_size)}
    letters = {text.lower() for text in texts if text.isascii() and text.isalpha()}
    return tuple(sorted(letters))


def spelt(rng: random.Random, pieces: Sequence[str]) -> str:
    """A word of one to three pieces, all as likely."""
    while True:
        word = "".join(rng.choices(pieces, k=rng.choice((1, 2, 2, 2, 3))))
        if _SHORTEST <= len(word) <= _LONGEST:
            return word


def words_of(session: Mapping[str, Any]) -> set[str]:
    """The words of a session's messages, in lower case; a name may have several."""
    found: set[str] = set()

    def look(text: str) -> str:
        found.update(word.lower() for word in _WORD.findall(text))
        return text

    _mapped(session, look)
    return found


def renamed(
    session: Mapping[str, Any], words: Iterable[str], rng: random.Random, pieces: Sequence[str]
) -> dict[str, Any]:
    """The session with other words for these, in every place and in the same case.

    Args:
        session: see `sample_of_session`.
        words: in lower case.
        pieces: see `spellings`.
    """
    taken = words_of(session)
    other: dict[str, str] = {}
    for word in sorted(words):
        new = spelt(rng, pieces)
        while new in taken:
            new = spelt(rng, pieces)
        taken.add(new)
        other[word] = new

    def replaced(match: re.Match[str]) -> str:
        word = match[0]
        new = other.get(word.lower())
        if new is None:
            return word
        return new if word.islower() else new.upper() if word.isupper() else new.capitalize()

    return _mapped(session, lambda text: _WORD.sub(replaced, text))


def _mapped(session: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """The session with every text of its messages changed, arguments too; a copy."""

    def value(given: Any) -> Any:
        if isinstance(given, str):
            return change(given)
        if isinstance(given, list):
            return [value(one) for one in given]
        if isinstance(given, dict):
            return {key: value(one) for key, one in given.items()}
        return given

    messages: list[dict[str, Any]] = []
    for message in session["messages"]:
        copy = dict(message)
        for key in ("content", "reasoning_content"):
            if key in copy:
                copy[key] = value(copy[key])
        if "tool_calls" in copy:
            copy["tool_calls"] = [_call(call, value) for call in copy["tool_calls"]]
        messages.append(copy)
    return {**session, "messages": messages}


def _call(call: Mapping[str, Any], value: Callable[[Any], Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    if isinstance(arguments, str):
        arguments = json.dumps(value(json.loads(arguments)), ensure_ascii=False)
    else:
        arguments = value(arguments)
    return {**call, "function": {**function, "arguments": arguments}}
