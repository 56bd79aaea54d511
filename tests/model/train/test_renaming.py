"""Sessions under other names are the same sessions."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unabridged.model.chat.tokenizer import Tokenizer
from unabridged.model.train.corpus import Mixture, Sessions
from unabridged.model.train.recipe import Phase, Recipe
from unabridged.model.train.renaming import renamed, spellings, spelt, words_of

NANO = Path(__file__).parents[3] / "model" / "nano"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(NANO)


def session(old: str, new: str, path: str) -> dict[str, Any]:
    """A search and an edit, as the oracle's sessions have them."""
    arguments = json.dumps({"path": path, "old": f"def {old}(a):\n", "new": f"def {new}(a):\n"})
    call = {"id": "1", "type": "function", "function": {"name": "edit", "arguments": arguments}}
    return {
        "family": "rename", "split": "train",
        "messages": [
            {"role": "user", "content": f"Rename {old} to {new}"},
            {"role": "assistant", "content": "", "reasoning_content": f"{old} is in {path}.",
             "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": f"Replaced 1 occurrence in {path}."},
        ],
    }  # fmt: skip


def test_every_place_gets_the_same_other_words_in_the_same_case(tokenizer: Tokenizer):
    given_ = session("wug_blick", "WUG_DAX", "blick/TestWug.py")
    other = renamed(given_, ["wug", "blick", "dax"], random.Random(0), spellings(tokenizer))
    asked = other["messages"][0]["content"].split()
    wug, blick = asked[1].split("_")
    dax = asked[3].split("_")[1].lower()
    assert len({wug, blick, dax, "wug", "blick", "dax"}) == 6
    expected = session(
        f"{wug}_{blick}", f"{wug}_{dax}".upper(), f"{blick}/Test{wug.capitalize()}.py"
    )
    assert other == expected


@given(st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_different_words_stay_different_and_the_rest_stays(seed: int):
    pieces = spellings(Tokenizer.from_file(NANO))
    given_ = session("wug_blick", "dax_fep", "src/zup.py")
    names = {"wug", "blick", "dax", "fep", "zup"}
    other = renamed(given_, names, random.Random(seed), pieces)
    assert words_of(given_) & words_of(other) == words_of(given_) - names
    assert len(words_of(other)) == len(words_of(given_))
    back = dict(zip(*(_words(s) for s in (other, given_)), strict=True))
    assert len(set(back.values())) == len(back)
    assert given_ == session("wug_blick", "dax_fep", "src/zup.py")


def _words(session: dict[str, Any]) -> list[str]:
    old, _, new = session["messages"][0]["content"].split()[1:]
    return [*old.split("_"), *new.split("_")]


def test_words_are_spelt_from_all_tokens_of_letters(tokenizer: Tokenizer):
    pieces = spellings(tokenizer)
    assert {"port", "ske", "hold"} <= set(pieces)
    rng = random.Random(1)
    words = [spelt(rng, pieces) for _ in range(20 * len(pieces))]
    assert all(3 <= len(word) <= 10 and word.isalpha() and word.islower() for word in words)
    said = {token for word in words for token in tokenizer.encode(word)}
    single = [p for p in pieces if len(tokenizer.encode(p)) == 1]
    assert len([p for p in single if tokenizer.encode(p)[0] in said]) > 0.97 * len(single)


def test_only_words_that_hardly_any_other_session_has_are_replaced(
    tokenizer: Tokenizer, tmp_path: Path
):
    names = [("wug", "dax", "zup"), ("fep", "blick", "tov"), ("kiv", "toma", "glip")]
    file = tmp_path / "sessions.jsonl"
    lines = [json.dumps(session(a, b, f"src/{c}.py")) + "\n" for a, b, c in names]
    file.write_bytes("".join(lines).encode())
    sessions = Sessions([file], "train")
    assert sorted(sessions.made_up(sessions[0])) == ["dax", "wug", "zup"]
    phase = {"steps": 1, "pack_tokens": 600, "longest": 600, "copies": 0.0}
    for share, kept in ((0.0, True), (1.0, False)):
        recipe = Recipe(
            muon_lr=1e-3, adam_lr=1e-3, phases=(Phase.model_validate({**phase, "renamed": share}),)
        )
        pack = Mixture(recipe, tokenizer, sessions).pack(0, 0)
        text = "".join(tokenizer.decode(sample.tokens) for sample in pack.samples)
        assert "Replaced 1 occurrence in src/" in text
        assert any(word in text for name in names for word in name) is kept


def test_the_english_words_of_names_are_replaced_however_often_they_come(tmp_path: Path):
    file = tmp_path / "sessions.jsonl"
    lines = [
        json.dumps(session("fill_market", "plan_cabin", "src/a.py")) + "\n" for _ in range(400)
    ]
    file.write_bytes("".join(lines).encode())
    sessions = Sessions([file], "train")
    # `fill` and `plan` mean something outside of names, `src` and `py` are in no list of words.
    assert sorted(sessions.made_up(sessions[0])) == ["cabin", "market"]
