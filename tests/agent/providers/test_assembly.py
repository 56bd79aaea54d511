"""What arrives in pieces is put together exactly, whatever the server's habits."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unabridged.agent.events import AssistantMessage, Usage
from unabridged.agent.providers.assembly import Assembly, read_usage, with_ids
from unabridged.agent.providers.base import CallDelta, ContentDelta, ReasoningDelta, Reply
from unabridged.agent.providers.scripted import (
    Player,
    Question,
    Script,
    ScriptedCall,
    Tokens,
    Turn,
    Wire,
    body_of,
    chunks_of,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def assemble(*chunks: dict[str, Any]) -> Reply:
    assembly = Assembly()
    for chunk in chunks:
        assembly.add(chunk)
    return assembly.reply()


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields}]}


def fragment(index: int | None, call_id: str = "", name: str = "", arguments: str = "") -> Any:
    piece: dict[str, Any] = {"function": {"arguments": arguments}}
    if index is not None:
        piece["index"] = index
    if call_id:
        piece["id"] = call_id
    if name:
        piece["function"]["name"] = name
    return delta(tool_calls=[piece])


# --- calls --------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    data=st.data(),
    calls=st.lists(st.tuples(st.text("abc_", min_size=1), TEXT), min_size=1, max_size=8),
)
def test_k20_interleaved_fragments_of_parallel_calls(
    data: st.DataObject, calls: list[tuple[str, str]]
) -> None:
    queues: list[list[Any]] = []
    for index, (name, arguments) in enumerate(calls):
        cuts = sorted(data.draw(st.lists(st.integers(0, len(arguments)), max_size=5)))
        pieces = [arguments[a:b] for a, b in zip([0, *cuts], [*cuts, len(arguments)], strict=True)]
        first = fragment(index, f"id-{index}", name, pieces[0])
        queues.append([first, *(fragment(index, arguments=piece) for piece in pieces[1:])])
    order = data.draw(st.permutations([i for i, queue in enumerate(queues) for _ in queue]))
    reply = assemble(*(queues[i].pop(0) for i in order))
    got = [(call.id, call.name, call.arguments) for call in reply.calls]
    assert got == [(f"id-{i}", name, arguments) for i, (name, arguments) in enumerate(calls)]


@settings(max_examples=60)
@given(
    turn=st.builds(
        Turn,
        reasoning=TEXT,
        content=TEXT,
        calls=st.lists(st.builds(ScriptedCall, name=st.just("read"), arguments=TEXT), max_size=8)
        .map(tuple),
    ),
    wire=st.builds(
        Wire,
        reasoning_field=st.sampled_from(["reasoning_content", "reasoning", "reasoning_details"]),
        usage=st.sampled_from(["top", "choice", "none"]),
        cached=st.sampled_from(["details", "top", "hit"]),
        chunk=st.integers(0, 5),
        interleave=st.one_of(st.none(), st.integers(0, 99)),
        extra=st.sampled_from([{}, {"new": {"deep": [1, None]}}]),
    ),
)  # fmt: skip
def test_k4_streaming_and_whole_replies_are_equal(turn: Turn, wire: Wire) -> None:
    script = Script(turns=(turn,), wire=wire)
    answer = Player(script).answer(Question(b"{}"))
    streamed = assemble(*chunks_of(answer, "m"))
    assert streamed == assemble(body_of(answer, "m"))
    assert (streamed.reasoning, streamed.content) == (turn.reasoning, turn.content)
    assert [c.arguments for c in streamed.calls] == [c.text for c in turn.calls]
    assert (streamed.usage is None) == (wire.usage == "none")
    if turn.reasoning:
        assert streamed.reasoning_field == wire.reasoning_field


def test_calls_that_all_have_index_zero_are_told_apart_by_id() -> None:
    reply = assemble(
        fragment(0, "a", "read", "{1"), fragment(0, arguments="}"),
        fragment(0, "b", "list", "{2"), fragment(0, arguments="}"),
    )  # fmt: skip
    assert [(c.id, c.name, c.arguments) for c in reply.calls] == [
        ("a", "read", "{1}"), ("b", "list", "{2}"),
    ]  # fmt: skip


def test_calls_without_index_follow_id_then_the_call_before() -> None:
    reply = assemble(
        fragment(None, "a", "read", "{"), fragment(None, "b", "list", "["),
        fragment(None, arguments="]"), fragment(None, "a", arguments="}"),
    )  # fmt: skip
    assert [(c.id, c.arguments) for c in reply.calls] == [("a", "{}"), ("b", "[]")]


def test_repeated_id_and_name_count_once() -> None:
    reply = assemble(fragment(0, "a", "read", "{"), fragment(0, "a", "read", "}"))
    assert [(c.id, c.name, c.arguments) for c in reply.calls] == [("a", "read", "{}")]


def test_calls_are_in_order_of_their_index() -> None:
    reply = assemble(fragment(1, "b", "list", "{}"), fragment(0, "a", "read", "{}"))
    assert [c.id for c in reply.calls] == ["a", "b"]


def test_empty_tool_deltas_are_no_calls() -> None:
    assembly = Assembly()
    for _ in range(50):
        assert assembly.add(fragment(0)) == ([], False)
    assert assembly.reply().calls == ()


def test_arguments_sent_as_an_object_become_text() -> None:
    call = {"id": "a", "function": {"name": "read", "arguments": {"path": "é"}}}
    reply = assemble({"choices": [{"message": {"tool_calls": [call]}}]})
    assert json.loads(reply.calls[0].arguments) == {"path": "é"}


def test_missing_and_repeated_ids_are_made_unique_and_always_the_same() -> None:
    chunks = [fragment(0, "", "read", "{}"), fragment(1, "x", "read", "{}"),
              fragment(2, "x", "read", "{}"), fragment(3, "", "read", "{}")]  # fmt: skip
    reply = assemble(*chunks)
    first = with_ids(reply, [b"one"])
    ids = [call.id for call in first.calls]
    assert len(set(ids)) == 4
    assert ids[1] == "x"
    assert with_ids(reply, [b"one"]) == first
    assert with_ids(reply, [b"one", b"two"]).calls[0].id != ids[0]


def test_given_ids_are_kept_exactly() -> None:
    reply = assemble(fragment(0, "functions.read:0", "read", "{}"))
    assert with_ids(reply, [b"one"]) is reply


# --- reasoning ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_k24_reasoning_under_each_name_is_taken_and_the_name_kept(name: str) -> None:
    reply = assemble(delta(**{name: "a"}), delta(**{name: "b"}))
    assert (reply.reasoning, reply.reasoning_field) == ("ab", name)


def test_k24_reasoning_details_alone() -> None:
    block = {"type": "reasoning.text", "index": 0, "signature": None}
    reply = assemble(
        delta(reasoning_details=[{**block, "text": "a"}]),
        delta(reasoning_details=[{**block, "text": "b", "signature": "s"}]),
        delta(reasoning_details=[{"type": "reasoning.encrypted", "index": 1, "data": "zz"}]),
    )
    assert (reply.reasoning, reply.reasoning_field) == ("ab", "reasoning_details")
    assert reply.reasoning_details == (
        {"type": "reasoning.text", "index": 0, "text": "ab", "signature": "s"},
        {"type": "reasoning.encrypted", "index": 1, "data": "zz"},
    )


def test_the_same_reasoning_under_two_names_is_taken_once() -> None:
    both = {"reasoning": "a", "reasoning_content": "a"}
    assert assemble(delta(**both), delta(**both)).reasoning == "aa"


def test_the_name_seen_before_is_kept_for_a_reply_without_reasoning() -> None:
    assembly = Assembly("reasoning")
    assembly.add(delta(content="x"))
    assert assembly.reply().reasoning_field == "reasoning"


def test_k25_absent_reasoning_stays_empty() -> None:
    for absent in ({}, {"reasoning_content": None}, {"reasoning_content": ""}):
        assert assemble(delta(content="x", **absent)).reasoning == ""


# --- text ---------------------------------------------------------------------------------------


def test_characters_split_by_utf16_units_are_joined() -> None:
    halves = json.loads('["\\ud83d", "\\ude00"]')
    reply = assemble(delta(content=halves[0]), delta(content=halves[1]))
    assert reply.content == "😀"


def test_half_a_character_can_be_stored() -> None:
    reply = assemble(delta(content="a\ud83db", reasoning_details=[{"text": "\udc00"}]))
    assert reply.content == "a\ufffdb"
    AssistantMessage(step=0, content=reply.content, reasoning_details=reply.reasoning_details)


def test_content_in_parts() -> None:
    reply = assemble(delta(content=[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]))
    assert reply.content == "ab"


def test_what_is_shown_and_whether_it_moves_the_reply() -> None:
    assembly = Assembly()
    assert assembly.add(delta(role="assistant", content="")) == ([], False)
    assert assembly.add(delta(reasoning="r", content="c")) == (
        [ReasoningDelta("r"), ContentDelta("c")], True,
    )  # fmt: skip
    assert assembly.add(fragment(0, "i", "n", "a")) == ([CallDelta(0, "i", "n", "a")], True)
    assert assembly.add({"choices": [{"delta": {}, "finish_reason": "stop"}]}) == ([], True)
    assert assembly.finish_reason == "stop"


def test_other_choices_are_passed_over() -> None:
    chunk = {"choices": [{"index": 1, "delta": {"content": "no"}}]}
    assert assemble(chunk, delta(content="yes")).content == "yes"


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["choices", "delta", "message", "tool_calls", "function", "arguments", "index",
                 "id", "name", "content", "reasoning", "reasoning_details", "usage", "text",
                 "finish_reason", "prompt_tokens", "prompt_tokens_details", "cached_tokens"]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=20,
)  # fmt: skip


@settings(max_examples=60)
@given(
    st.lists(st.dictionaries(st.sampled_from(["choices", "usage", "id", "x"]), JSON), max_size=3)
)
def test_nothing_a_server_sends_crashes_the_assembly(chunks: list[dict[str, Any]]) -> None:
    reply = with_ids(assemble(*chunks), [])
    AssistantMessage(step=0, reasoning=reply.reasoning, content=reply.content, calls=reply.calls)


@settings(max_examples=60)
@given(st.lists(JSON, max_size=3))
def test_no_delta_crashes_the_assembly(deltas: list[Any]) -> None:
    assemble(*({"choices": [{"index": 0, "delta": item}]} for item in deltas))


# --- usage --------------------------------------------------------------------------------------

COUNTS = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}


@pytest.mark.parametrize(
    ("extra", "cached"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 64}}, 64),
        ({"cached_tokens": 64}, 64),
        ({"prompt_cache_hit_tokens": 64}, 64),
        ({"cache_read_input_tokens": 64}, 64),
        ({"prompt_tokens_details": None}, 0),
        ({"cached_tokens": 900}, 100),
        ({"cached_tokens": "64"}, 0),
        ({"cached_tokens": -1}, 0),
        ({}, 0),
    ],
)
def test_cached_tokens_in_their_places(extra: dict[str, Any], cached: int) -> None:
    assert read_usage({**COUNTS, **extra}) == Usage(prompt=100, cached=cached, completion=20)


def test_usage_by_its_other_names() -> None:
    other = {"input_tokens": 5, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 3}}
    assert read_usage(other) == Usage(prompt=5, cached=3, completion=2)
    assert read_usage({**COUNTS, "reasoning_tokens": 7}) == Usage(
        prompt=100, cached=0, completion=20, reasoning=7
    )
    details = {"completion_tokens_details": {"reasoning_tokens": 0}, "reasoning_tokens": 7}
    usage = read_usage({**COUNTS, **details})
    assert usage is not None
    assert usage.reasoning == 0


@pytest.mark.parametrize("value", [None, {}, [], "x", {"total_tokens": 3}])
def test_no_usage(value: Any) -> None:
    assert read_usage(value) is None


def test_usage_in_the_choice_or_at_the_top() -> None:
    usage = Usage(prompt=100, cached=0, completion=20)
    assert assemble({"choices": [{"delta": {}, "usage": COUNTS}]}).usage == usage
    assert assemble({"choices": [], "usage": COUNTS}, {"choices": [], "usage": None}).usage == usage


def test_tokens_a_turn_states_are_reported() -> None:
    turn = Turn(content="x", usage=Tokens(prompt=9, cached=4, completion=2, reasoning=1))
    answer = Player(Script(turns=(turn,))).answer(Question(b"{}"))
    assert assemble(body_of(answer, "m")).usage == Usage(
        prompt=9, cached=4, completion=2, reasoning=1
    )
