"""A learnt vocabulary cuts a name into the same tokens wherever it stands."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unabridged.model.chat.tokenizer import Tokenizer, write_ranks
from unabridged.model.train.copying import Names, code_lines
from unabridged.model.train.vocabulary import SPACED, learn


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    rng = random.Random(0)
    texts = ["\n".join(code_lines(Names(rng), 20)) for _ in range(300)]
    texts.append(" ".join(SPACED) * 50)
    path = tmp_path_factory.mktemp("vocabulary") / "tiktoken.model"
    write_ranks(learn(texts, 900), path)
    return Tokenizer.from_file(path)


AROUND = (
    "{}",
    " {}",
    '"{}"',
    "({}, 1)",
    "src/{}.py",
    "self.{}(x)",
    "\n{} = 1",
    "`{}`",
    "a\n    {}:",
)


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 10**6))
def test_a_name_is_the_same_tokens_everywhere(learnt: Tokenizer, seed: int) -> None:
    name = Names(random.Random(seed)).name()
    if any(name.startswith(word) for word in SPACED):
        return
    alone = learnt.encode(name)
    for around in AROUND:
        tokens = learnt.encode(around.format(name))
        found = [tokens[i : i + len(alone)] for i in range(len(tokens))]
        assert alone in found, (name, around)


def test_digits_stand_alone_and_names_are_pieces(learnt: Tokenizer) -> None:
    assert [learnt.decode([t]) for t in learnt.encode("2048")] == ["2", "0", "4", "8"]
    pieces = [learnt.decode([t]) for t in learnt.encode("return load_total")]
    assert pieces[0] == "return"
    assert "_" in pieces
    assert learnt.encode(" return") == [learnt.encode("x return")[-1]]


def test_any_text_comes_back(learnt: Tokenizer) -> None:
    text = "näme = '日本'\r\n\t# 🎉  x\n\n"
    assert learnt.decode(learnt.encode(text)) == text


def test_a_vocabulary_has_the_size_asked_for_at_most(learnt: Tokenizer) -> None:
    assert 700 < learnt.base_size <= 900
