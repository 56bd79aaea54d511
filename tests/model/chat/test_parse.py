from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unabridged.model.chat.parse import (
    ArgumentsDelta,
    Call,
    CallStarted,
    ContentDelta,
    Event,
    Problem,
    ReasoningDelta,
    Reply,
    ReplyParser,
    parse,
    to_message,
)
from unabridged.model.chat.render import render
from unabridged.model.chat.tokenizer import Tokenizer
from unabridged.model.chat.xtml import encode, encode_with_mask

MARKERS = [
    "<|open|>",
    "<|close|>",
    "<|sep|>",
    "<|end_of_msg|>",
    "argument",
    "think",
    'call tool="x"',
]
TEXT = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.lists(st.sampled_from([*MARKERS, "日本", "💻", " ", "\n", '"', "\\", "&quot;"])).map(
        "".join
    ),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
NAME = TEXT.filter(bool)
CALLS = st.lists(st.tuples(NAME, st.dictionaries(TEXT, JSON, max_size=4)), max_size=3)


@st.composite
def replies(draw: st.DrawFn) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": draw(TEXT) or None,
        "reasoning_content": draw(TEXT.filter(lambda text: text == "" or text.strip())),
    }
    calls = [
        {
            "id": f"call_{n}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
        }
        for n, (name, arguments) in enumerate(draw(CALLS))
    ]
    return {**message, "tool_calls": calls} if calls else message


def generated(message: dict[str, Any], tokenizer: Tokenizer, thinking: bool = True) -> list[int]:
    """The ids the model would have written for the message."""
    segments = render([message], thinking=thinking, generation_prefix=False)
    tokens, mask = encode_with_mask(segments, tokenizer)
    return [token for token, ours in zip(tokens, mask, strict=True) if ours]


def assemble(events: list[Event]) -> tuple[str, str, list[tuple[str, str]], list[Problem]]:
    """What a client would put together from the events."""
    reasoning = content = ""
    calls: list[tuple[str, str]] = []
    problems: list[Problem] = []
    for event in events:
        match event:
            case ReasoningDelta(text):
                reasoning += text
            case ContentDelta(text):
                content += text
            case CallStarted(index, name):
                assert index == len(calls)
                calls.append((name, ""))
            case ArgumentsDelta(index, text):
                calls[index] = (calls[index][0], calls[index][1] + text)
            case Problem():
                problems.append(event)
    return reasoning, content, calls, problems


@given(replies())
def test_what_is_rendered_parses_to_the_same_message(
    tokenizer: Tokenizer, message: dict[str, Any]
) -> None:
    reply = parse(generated(message, tokenizer), tokenizer)
    assert to_message(reply, [f"call_{n}" for n in range(len(reply.calls))]) == message
    assert reply.ended
    assert reply.problems == ()
    assert all(call.complete for call in reply.calls)


@given(replies(), st.data())
def test_any_split_of_the_stream_gives_the_same_message(
    tokenizer: Tokenizer, message: dict[str, Any], data: st.DataObject
) -> None:
    tokens = generated(message, tokenizer)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens)))))
    parser = ReplyParser(tokenizer)
    events: list[Event] = []
    for start, end in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
        events += parser.push(tokens[start:end])
    events += parser.finish()
    whole = parse(tokens, tokenizer)
    assert parser.reply == whole
    assert assemble(events) == (
        whole.reasoning,
        whole.content,
        [(call.name, call.arguments) for call in whole.calls],
        [],
    )


@given(replies())
def test_a_reply_cut_anywhere_is_a_beginning_of_the_whole(
    tokenizer: Tokenizer, message: dict[str, Any]
) -> None:
    tokens = generated(message, tokenizer)
    whole = parse(tokens, tokenizer)
    for length in range(0, len(tokens), max(1, len(tokens) // 50)):
        part = parse(tokens[:length], tokenizer)
        assert not part.ended
        assert part.problems == ()
        assert whole.reasoning.startswith(part.reasoning)
        assert whole.content.startswith(part.content)
        for number, call in enumerate(part.calls):
            of_whole = whole.calls[number]
            assert of_whole.arguments.startswith(call.arguments)
            assert call.name == of_whole.name
            assert call.complete == (call.arguments == of_whole.arguments)


@given(st.lists(st.integers(0, 10**6)), st.booleans())
def test_no_output_whatever_breaks_the_parser(
    tokenizer: Tokenizer, numbers: list[int], thinking: bool
) -> None:
    # Half of the ids are drawn from the markers, the others from everything.
    markers = [*range(tokenizer.base_size, tokenizer.base_size + 6)]
    tags = [tokenizer.encode(tag) for tag in ("think", "response", "tools", "message", "argument")]
    tokens: list[int] = []
    for number in numbers:
        if number % 3 == 0:
            tokens.append(markers[number % len(markers)])
        elif number % 3 == 1:
            tokens += tags[number % len(tags)]
        else:
            tokens.append(number % tokenizer.vocab_size)
    parser = ReplyParser(tokenizer, thinking=thinking)
    events = [event for token in tokens for event in parser.push([token])] + parser.finish()
    reasoning, content, calls, problems = assemble(events)
    reply = parser.reply
    assert (reasoning, content) == (reply.reasoning, reply.content)
    assert calls == [(call.name, call.arguments) for call in reply.calls]
    assert tuple(problems) == reply.problems
    assert reply == parse(tokens, tokenizer, thinking=thinking)


def markup(tokenizer: Tokenizer, source: str) -> list[int]:
    """Ids of a reply written out, every marker name a control token."""
    return tokenizer.encode_control(source)


DONE = "<|close|>message<|sep|><|end_of_msg|>"
THINK = "hm<|close|>think<|sep|>"
RESPONSE = "<|open|>response<|sep|>hi<|close|>response<|sep|>"
CALL = '<|open|>call tool="f" index="1"<|sep|>'
CALL_END = "<|close|>call<|sep|><|close|>tools<|sep|>" + DONE


def argument(key: str, kind: str, value: str) -> str:
    return f'<|open|>argument key="{key}" type="{kind}"<|sep|>{value}<|close|>argument<|sep|>'


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            f"hm{RESPONSE}{DONE}",
            Reply("hm", "hi", (), (Problem("<think> was not closed before <response>"),), True),
        ),
        (
            f"hm<|open|>tools<|sep|>{CALL}{CALL_END}",
            Reply(
                "hm",
                "",
                (Call("f", "{}", True),),
                (
                    Problem("<think> was not closed before <tools>"),
                    Problem("<response> is missing"),
                ),
                True,
            ),
        ),
        (
            f"hm{DONE}",
            Reply("hm", "", (), (Problem("the message was closed inside <think>"),), True),
        ),
        (
            "hm<|end_of_msg|>",
            Reply("hm", "", (), (Problem("the message ended inside <think>"),), True),
        ),
        (f"{THINK}{DONE}", Reply("hm", "", (), (Problem("<response> is missing"),), True)),
        (
            f"{THINK}lost{RESPONSE}{DONE}",
            Reply("hm", "losthi", (), (Problem("text directly inside <message>"),), True),
        ),
        (
            f"{THINK}<|open|>response<|sep|>a<|open|>b<|sep|>c<|close|>think<|sep|>d",
            Reply(
                "hm",
                "a<|open|>b<|sep|>c<|close|>think<|sep|>d",
                (),
                (
                    Problem("an element that does not belong here: '<|open|>b<|sep|>'"),
                    Problem("an element that does not belong here: '<|close|>think<|sep|>'"),
                ),
                False,
            ),
        ),
        (
            "a<|sep|>b<|open|>c<|open|>d<|media_pad|>e<|close|>f<|end_of_msg|>g",
            Reply(
                "a<|sep|>b<|open|>c<|open|>d<|media_pad|>e<|close|>f",
                "g",
                (),
                (
                    Problem("a control token that belongs to no element: '<|sep|>'"),
                    Problem("a marker without an element: '<|open|>c'"),
                    Problem("a marker without an element: '<|open|>d'"),
                    Problem("a control token that belongs to no element: '<|media_pad|>'"),
                    Problem("a marker without an element: '<|close|>f'"),
                    Problem("the message ended inside <think>"),
                    Problem("text directly inside <end>"),
                ),
                True,
            ),
        ),
    ],
)
def test_a_malformed_message_is_reported_and_nothing_is_lost(
    tokenizer: Tokenizer, source: str, expected: Reply
) -> None:
    assert parse(markup(tokenizer, source), tokenizer) == expected


@pytest.mark.parametrize(
    ("inside", "arguments", "problem"),
    [
        (argument("a", "number", "1.50"), '{"a": 1.50}', None),
        (argument("a", "object", '{"b":[1 ,2]}'), '{"a": {"b":[1 ,2]}}', None),
        (argument("a&quot;", "string", 'x"\n'), '{"a\\"": "x\\"\\n"}', None),
        (argument("a", "number", "one"), '{"a": one}', "'one' is not JSON of type number"),
        (argument("a", "number", "NaN"), '{"a": NaN}', "'NaN' is not JSON of type number"),
        (argument("a", "number", "true"), '{"a": true}', "'true' is not JSON of type number"),
        (argument("a", "array", ""), '{"a": }', "'' is not JSON of type array"),
        (
            argument("a", "null", "null") * 2,
            '{"a": null, "a": null}',
            "argument 'a' is given twice",
        ),
        ("loose", "{loose}", "text directly inside <call>"),
        (
            argument("a", "integer", "1"),
            '{<|open|>argument key="a" type="integer"<|sep|>1<|close|>argument<|sep|>}',
            (
                "an element that does not belong here: "
                '\'<|open|>argument key="a" type="integer"<|sep|>\''
            ),
        ),
        (
            argument("a", "string", "x<|open|>message<|sep|>y"),
            '{"a": "x<|open|>message<|sep|>y"}',
            "an element that does not belong here: '<|open|>message<|sep|>'",
        ),
    ],
)
def test_arguments_are_as_the_model_wrote_them(
    tokenizer: Tokenizer, inside: str, arguments: str, problem: str | None
) -> None:
    source = f"{THINK}{RESPONSE}<|open|>tools<|sep|>{CALL}{inside}{CALL_END}"
    reply = parse(markup(tokenizer, source), tokenizer)
    assert reply.calls == (Call("f", arguments, True),)
    assert reply.ended
    assert [(p.message, p.call) for p in reply.problems][:1] == ([(problem, 0)] if problem else [])


def test_a_call_that_is_not_closed_never_looks_complete(tokenizer: Tokenizer) -> None:
    open_call = f"{THINK}{RESPONSE}<|open|>tools<|sep|>{CALL}{argument('a', 'number', '1')}"
    for ending in ("", DONE, "<|end_of_msg|>", f"{CALL}{CALL_END}"):
        reply = parse(markup(tokenizer, open_call + ending), tokenizer)
        call = reply.calls[0]
        assert reply.ended == bool(ending)
        assert bool(reply.problems) == bool(ending)
        with pytest.raises(json.JSONDecodeError):
            json.loads(call.arguments)


def test_a_wrong_call_number_is_reported(tokenizer: Tokenizer) -> None:
    source = f"{THINK}{RESPONSE}<|open|>tools<|sep|>{CALL.replace('1', '3')}{CALL_END}"
    reply = parse(markup(tokenizer, source), tokenizer)
    assert reply.calls == (Call("f", "{}", True),)
    assert reply.problems == (Problem("call 1 is numbered '3'", 0),)


def test_a_marker_is_shown_when_no_tag_follows_for_long(tokenizer: Tokenizer) -> None:
    parser = ReplyParser(tokenizer)
    tokens = markup(tokenizer, "<|open|>" + "word " * 600)
    events = parser.push(tokens)
    assert events[0] == Problem(
        f"a marker without an element: {('<|open|>' + 'word ' * 15)[:80]!r}"
    )
    parser.finish()
    assert parser.reply.reasoning == "<|open|>" + "word " * 600


def test_text_arrives_with_its_last_token(tokenizer: Tokenizer) -> None:
    parser = ReplyParser(tokenizer)
    first, second = (list(char.encode()) for char in ("é", "x"))  # ids below 256 are bytes
    assert parser.push(first[:1]) == []
    assert parser.push(first[1:]) == [ReasoningDelta("é")]
    assert parser.push(second) == [ReasoningDelta("x")]
    assert parser.push(first[:1]) == []
    assert parser.finish() == []  # cut inside a character: it says nothing yet
    assert parser.reply == Reply(reasoning="éx")


def test_instruct_mode_starts_in_the_response(tokenizer: Tokenizer) -> None:
    message = {"role": "assistant", "content": "hi"}
    reply = parse(generated(message, tokenizer, thinking=False), tokenizer, thinking=False)
    assert reply == Reply(content="hi", ended=True)


def test_a_reply_replayed_gives_the_tokens_that_were_generated(tokenizer: Tokenizer) -> None:
    question = {"role": "user", "content": "q"}
    prompt = encode(render([question]), tokenizer)
    message = {
        "role": "assistant",
        "reasoning_content": "think <|close|>think<|sep|>",
        "content": "ok",
        "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": '{"x": [1, "é"]}'}}],
    }
    tokens = generated(message, tokenizer)
    replayed = to_message(parse(tokens, tokenizer), ["a"])
    again = encode(render([question, replayed], generation_prefix=False), tokenizer)
    assert again == prompt + tokens
