"""Packs compute what their samples compute alone; weights fall on what the model writes."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from unabridged.model.chat.tokenizer import Tokenizer
from unabridged.model.k3 import K3
from unabridged.model.train import copying
from unabridged.model.train.packing import Pack, Sample, fill, own, sample_of_session
from unabridged.model.train.trainer import weighted_loss

SESSION: dict[str, Any] = {
    "family": "rename",
    "messages": [
        {"role": "system", "content": "You are terse."},
        {"role": "user", "content": "Rename foo to bar."},
        {
            "role": "assistant",
            "reasoning_content": "Find foo.",
            "content": "",
            "tool_calls": [
                {"id": "1", "function": {"name": "search", "arguments": '{"pattern": "foo"}'}},
                {"id": "2", "function": {"name": "read", "arguments": '{"path": "a.py"}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "a.py:1:foo"},
        {"role": "tool", "tool_call_id": "2", "content": "foo = 1"},
        {"role": "assistant", "reasoning_content": "", "content": "It is there."},
    ],
}


def test_packed_samples_do_not_see_each_other(
    tokenizer: Tokenizer, tiny_model: Callable[..., K3]
) -> None:
    """Same loss and same gradient as one by one. Products of other sizes round differently."""
    model = tiny_model()
    rng = random.Random(0)
    samples = [copying.draw(rng, tokenizer) for _ in range(6)]
    for sample in samples:
        loss, _ = weighted_loss(model, Pack([sample]))
        loss.backward()
    apart = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    total = sum(weighted_loss(model, Pack([s]))[0].item() for s in samples)
    model.zero_grad()
    loss, weight = weighted_loss(model, Pack(samples))
    loss.backward()
    assert loss.item() == pytest.approx(total, rel=1e-5)
    assert weight == pytest.approx(sum(sum(s.weights[1:]) for s in samples))
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            scale = float(apart[name].abs().max())
            torch.testing.assert_close(
                parameter.grad, apart[name], rtol=0, atol=2e-4 * scale + 1e-7, msg=name
            )


def test_a_neighbour_changes_nothing(tokenizer: Tokenizer, tiny_model: Callable[..., K3]) -> None:
    model = tiny_model()
    rng = random.Random(1)
    first, a, b = (copying.draw(rng, tokenizer) for _ in range(3))
    with torch.no_grad():
        hidden = [
            model.hidden(torch.tensor(first.tokens + other.tokens), [len(first), len(other)])
            for other in (a, b)
        ]
    torch.testing.assert_close(
        hidden[0][: len(first)], hidden[1][: len(first)], rtol=1e-4, atol=1e-5
    )


def test_targets_are_the_next_tokens_of_the_same_sample() -> None:
    pack = Pack([Sample([5, 6, 7], [0.0, 1.0, 0.5], [], "x"), Sample([8, 9], [1.0, 1.0], [], "x")])
    tokens, targets, weights = (tensor.tolist() for tensor in pack.tensors())
    assert tokens == [5, 6, 7, 8, 9]
    assert targets == [6, 7, 0, 9, 0]
    assert weights == [1.0, 0.5, 0.0, 1.0, 0.0]


def test_the_model_answers_for_what_it_writes(tokenizer: Tokenizer) -> None:
    sample = sample_of_session(SESSION, tokenizer, context_weight=0.2)
    written = tokenizer.decode([sample.tokens[i] for i in own(sample)])
    assert "Rename" not in written
    assert "foo = 1" not in written
    assert written.count("<|end_of_msg|>") == 2
    assert "<|open|>call tool=" in written
    assert "Find foo." in written
    # The generation prefix is given: it is not the model's to write.
    assert not written.startswith("<|open|>message")
    assert set(sample.weights) == {0.2, 1.0}
    arguments = [tokenizer.decode(sample.tokens[a:b]) for a, b in sample.exact]
    assert arguments == ["foo<|close|>", "a.py<|close|>"]


def test_bare_leaves_out_what_every_session_has(tokenizer: Tokenizer) -> None:
    preamble = {"role": "user", "content": "<preamble>\nrules\n</preamble>\n<file path=a>"}
    messages = [SESSION["messages"][0], preamble, *SESSION["messages"][1:]]
    session = {**SESSION, "messages": messages, "tools": [{"type": "function"}]}
    full = sample_of_session(session, tokenizer)
    bare = sample_of_session(session, tokenizer, shown="bare")
    text = tokenizer.decode(bare.tokens)
    assert text.startswith('<|open|>message role="user"<|sep|><file path=a>')
    assert tokenizer.decode(full.tokens).endswith(text.partition("<|sep|>")[2])
    words = sample_of_session(session, tokenizer, shown="words")
    assert tokenizer.decode(words.tokens).startswith('<|open|>message role="user"<|sep|>Rename')
    for part in (bare, words):
        assert [part.tokens[i] for i in own(part)] == [full.tokens[i] for i in own(full)]


def test_the_start_of_an_argument_can_weigh_more(tokenizer: Tokenizer) -> None:
    sample = sample_of_session(SESSION, tokenizer, start_weight=4.0)
    heavy = [i for i, weight in enumerate(sample.weights) if weight == 4.0]
    assert tokenizer.decode([sample.tokens[i] for i in heavy]) == "foa."
    assert own(sample) == own(sample_of_session(SESSION, tokenizer))


def test_a_pack_is_filled_and_nothing_is_cut() -> None:
    sizes = iter([40, 30, 30, 20, 500, 10])
    drawn: list[Sample] = []

    def draw() -> Sample:
        drawn.append(Sample([1] * next(sizes), [1.0], [], "x"))
        return drawn[-1]

    assert fill(draw, 100).lengths == [40, 30, 30]
    assert fill(draw, 100).lengths == [20]  # 500 did not fit and is not counted
    assert fill(draw, 10).lengths == [10]


def test_copying_is_the_same_everywhere_for_a_seed_and_never_the_same_for_two(
    tokenizer: Tokenizer,
) -> None:
    def some(seed: int) -> list[Sample]:
        rng = random.Random(seed)
        return [copying.draw(rng, tokenizer) for _ in range(80)]

    assert some(1) == some(1)
    ours, others = some(1), some(2)
    assert {s.family for s in ours} == {
        "copy/drill", "copy/repeat", "copy/recall", "copy/lines", "copy/replaced", "copy/calls",
        "copy/ordered", "copy/changed", "copy/latest", "copy/chosen",
    }  # fmt: skip
    assert all(a.tokens != b.tokens for a in ours for b in others)
    for sample in ours:
        assert sample.exact
        assert all(sample.weights[i] == 1.0 for a, b in sample.exact for i in range(a, b))


def test_what_is_copied_stands_in_the_context(tokenizer: Tokenizer) -> None:
    rng = random.Random(3)
    for _ in range(100):
        sample = copying.draw(rng, tokenizer)
        if sample.family in (
            "copy/drill",
            "copy/repeat",
            "copy/recall",
            "copy/lines",
            "copy/ordered",
            "copy/latest",
            "copy/chosen",
        ):
            for a, b in sample.exact:
                copied = tokenizer.decode_bytes(sample.tokens[a:b])
                assert copied in tokenizer.decode_bytes(sample.tokens[:a])


def test_paths_that_begin_alike_come_in_the_order_in_which_they_were_shown() -> None:
    for seed in range(30):
        parts = copying.ordered(copying.Names(random.Random(seed)))
        shown = [line for line in parts[0].text.splitlines() if line.endswith(".py")]
        assert [part.text for part in parts if part.exact][: len(shown)] == shown


def test_what_is_changed_is_said_as_it_was_and_then_as_it_is_to_be() -> None:
    for seed in range(30):
        first, *rest = copying.changed(copying.Names(random.Random(seed)))
        pairs = zip(rest[::3], rest[1::3], strict=True)
        told = [(begin.text, line.text) for begin, line in pairs]
        for (old, before), (new, after) in zip(told[::2], told[1::2], strict=True):
            assert (old, new) == ("old: ", "new: ")
            assert before in first.text.splitlines()
            name = before.partition("=")[0].partition(":")[0].strip()
            value = after.removeprefix(before[: len(name)]).lstrip(" =:")
            assert after.startswith(name)
            assert any(name in line and value in line for line in first.text.splitlines())


def test_the_last_value_of_a_name_is_the_one_to_say() -> None:
    for seed in range(30):
        held: dict[str, str] = {}
        said = ""
        for part in copying.latest(copying.Names(random.Random(seed))):
            if part.exact:
                assert part.text == held[said]
            held.update(re.findall(r"^(?!now )(\w+)(?: = |: | is now |\n)(.+)\n$", part.text))
            if asked := re.match(r"now (\w+)", part.text):
                said = asked[1]
