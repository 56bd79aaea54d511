"""Whether an endpoint keeps what a session with K3 stands on.

Small requests, one after the other, each about one promise: reasoning is returned, and counts when
it is sent back; efforts are understood; calls have ids and arguments that are JSON; a stream says
what a whole reply says; usage is told; a prompt has the tokens that K3's format gives it; a prefix
that was read is not read again. What a small model does not show in its answers is not asked of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx

from ..model.chat.render import render
from ..model.chat.tokenizer import Tokenizer, TokenizerError
from ..model.chat.xtml import encode
from .doctor import Check, Status

_SECONDS = 600.0
_SHORT = 24
"""Tokens of a reply that is only looked at."""
_LONG_PREFIX = 1500
"""Words of a prompt that is sent twice."""
_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
_ASKED = [{"role": "user", "content": "Say hello."}]
_THOUGHT = "The user greets. I answer with the same word and nothing else. " * 4

Json = dict[str, Any]


class _BrokenError(Exception):
    """A promise that was not kept; the text says how."""


def examine_endpoint(
    url: str, model: str | None, key: str | None, vocabulary: Path | None
) -> Iterator[Check]:
    """All checks of an endpoint. Later ones are left out when nobody answers.

    Args:
        url: with its `/v1`.
        model: None takes the first that the endpoint names.
        vocabulary: K3's `tiktoken.model` or its folder, for the count of tokens; None leaves it out.
    """
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(headers=headers, timeout=_SECONDS, trust_env=False) as client:
        endpoint = _Endpoint(client, url.rstrip("/"), model or "")
        first = _checked("models", lambda: _models(endpoint))
        yield first
        if first.status == "fault":
            return
        checks: list[tuple[str, Callable[[], str]]] = [
            ("reply", lambda: _reply(endpoint)),
            ("stream", lambda: _stream(endpoint)),
            ("repeat", lambda: _repeat(endpoint)),
            ("reasoning", lambda: _reasoning(endpoint)),
            ("effort", lambda: _effort(endpoint)),
            ("calls", lambda: _calls(endpoint)),
            ("results", lambda: _results(endpoint)),
            ("cache", lambda: _cache(endpoint)),
        ]
        if vocabulary is not None:
            checks.append(("tokens", lambda: _tokens(endpoint, vocabulary)))
        for name, check in checks:
            yield _checked(name, check)


def _checked(name: str, check: Callable[[], str]) -> Check:
    try:
        found = check()
    except _BrokenError as failure:
        return Check(name, "fault", str(failure))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return Check(name, "fault", f"no answer: {error or type(error).__name__}")
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        return Check(name, "fault", f"not OpenAI's form: {type(error).__name__} {error}")
    status: Status = "note" if found.startswith("not shown") else "ok"
    return Check(name, status, found)


@dataclass(slots=True)
class _Endpoint:
    client: httpx.Client
    url: str
    model: str
    last: Json = field(default_factory=dict[str, Any])

    def ask(self, messages: list[Json], **more: Any) -> Json:
        """A whole reply to a greedy request."""
        body = {"model": self.model, "messages": messages, "temperature": 0, "max_tokens": _SHORT}
        answer = self.client.post(f"{self.url}/chat/completions", json=body | more)
        if answer.status_code != 200:
            raise _BrokenError(f"HTTP {answer.status_code}: {answer.text[:200]}")
        return cast(Json, answer.json())

    def prompt_tokens(self, messages: list[Json], **more: Any) -> int:
        return int(self.ask(messages, max_tokens=1, **more)["usage"]["prompt_tokens"])


def _message(reply: Json) -> Json:
    return cast(Json, reply["choices"][0]["message"])


def _thoughts(message: Mapping[str, Any]) -> str:
    return str(message.get("reasoning_content") or message.get("reasoning") or "")


def _models(endpoint: _Endpoint) -> str:
    answer = endpoint.client.get(f"{endpoint.url}/models")
    if answer.status_code != 200:
        raise _BrokenError(f"HTTP {answer.status_code} from {endpoint.url}/models")
    cards = cast(list[Json], answer.json()["data"])
    names = [str(card["id"]) for card in cards]
    endpoint.model = endpoint.model or names[0]
    if endpoint.model not in names:
        raise _BrokenError(f"{endpoint.model} is not served; {', '.join(names)} is")
    card = cards[names.index(endpoint.model)]
    window = card.get("context_length") or card.get("max_model_len")
    said = f"{window:,} tokens" if isinstance(window, int) else "its window is not told"
    kept = cast(Json, card.get("unabridged") or {}).get("state_store")
    return f"{endpoint.model}, {said}{', keeps states on disk' if kept else ''}"


def _reply(endpoint: _Endpoint) -> str:
    reply = endpoint.ask(_ASKED)
    usage, reason = reply["usage"], reply["choices"][0]["finish_reason"]
    total = usage["prompt_tokens"] + usage["completion_tokens"]
    if usage.get("total_tokens") != total or not 0 < usage["completion_tokens"] <= _SHORT:
        raise _BrokenError(f"usage does not add up: {json.dumps(usage)[:160]}")
    if reason not in ("stop", "length", "tool_calls"):
        raise _BrokenError(f"finish_reason is {reason!r}")
    endpoint.last = reply
    return f"{usage['prompt_tokens']} tokens in, {usage['completion_tokens']} out, {reason}"


def _stream(endpoint: _Endpoint) -> str:
    body = {
        "model": endpoint.model,
        "messages": _ASKED,
        "temperature": 0,
        "max_tokens": _SHORT,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    content, thoughts, usage, ended, chunks = "", "", None, False, 0
    with endpoint.client.stream("POST", f"{endpoint.url}/chat/completions", json=body) as answer:
        if answer.status_code != 200:
            raise _BrokenError(f"HTTP {answer.status_code}")
        for line in answer.iter_lines():
            if not line.startswith("data:"):
                continue
            data = line.removeprefix("data:").strip()
            if data == "[DONE]":
                ended = True
                continue
            chunk = json.loads(data)
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                chunks += 1
                content += choice["delta"].get("content") or ""
                thoughts += _thoughts(choice["delta"])
    if not ended:
        raise _BrokenError("the stream ends without [DONE]")
    if usage is None:
        raise _BrokenError("the stream tells no usage, though it was asked to")
    whole = _message(endpoint.last)
    if (content, thoughts) != (whole.get("content") or "", _thoughts(whole)):
        raise _BrokenError(
            "the stream says something else than the whole reply to the same request"
        )
    return f"{chunks} chunks, the same as the whole reply"


def _repeat(endpoint: _Endpoint) -> str:
    again = _message(endpoint.ask(_ASKED))
    whole = _message(endpoint.last)
    if (again.get("content"), _thoughts(again)) != (whole.get("content"), _thoughts(whole)):
        return "not shown: a greedy request was answered differently the second time"
    return "a greedy request has one answer"


def _reasoning(endpoint: _Endpoint) -> str:
    """Reasoning that is sent back must be read by the model."""
    name = "reasoning_content" if "reasoning_content" in _message(endpoint.last) else "reasoning"
    answered: Json = {"role": "assistant", "content": "Hello."}
    more: list[Json] = [{"role": "user", "content": "Again."}]
    without = endpoint.prompt_tokens([*_ASKED, answered, *more])
    with_it = endpoint.prompt_tokens([*_ASKED, answered | {name: _THOUGHT}, *more])
    if with_it <= without:
        raise _BrokenError(f"{name} of an earlier turn is dropped: the prompt has no token more")
    returned = "returned" if _thoughts(_message(endpoint.last)) else "none in this reply"
    return f"{name}: {returned}; sent back, it is {with_it - without} tokens of the prompt"


def _effort(endpoint: _Endpoint) -> str:
    counts = {
        effort: endpoint.prompt_tokens(_ASKED, reasoning_effort=effort)
        for effort in ("low", "high", "max")
    }
    return "accepts " + ", ".join(f"{name} ({n} tokens)" for name, n in counts.items())


def _calls(endpoint: _Endpoint) -> str:
    asked = [{"role": "user", "content": "What is the weather in Paris? Use the tool."}]
    reply = endpoint.ask(asked, tools=[_TOOL], max_tokens=256)
    calls = cast(list[Json], _message(reply).get("tool_calls") or [])
    if not calls:
        return "not shown: accepted, but the model called nothing"
    for call in calls:
        if not call.get("id") or call.get("type") != "function":
            raise _BrokenError(f"a call without id or type: {json.dumps(call)[:160]}")
        json.loads(call["function"]["arguments"])
    if len({call["id"] for call in calls}) != len(calls):
        raise _BrokenError("two calls have one id")
    if reply["choices"][0]["finish_reason"] not in ("tool_calls", "length"):
        raise _BrokenError("a reply with calls does not end with tool_calls")
    return f"{calls[0]['function']['name']}, id {calls[0]['id']}, arguments are JSON"


def _results(endpoint: _Endpoint) -> str:
    """Two results, sent back in the other order, belong to their calls by id."""
    calls: list[Json] = [
        {
            "id": f"call_{city}",
            "type": "function",
            "function": {"name": "get_weather", "arguments": json.dumps({"city": city})},
        }
        for city in ("Paris", "Oslo")
    ]
    results: list[Json] = [
        {"role": "tool", "tool_call_id": call["id"], "content": f"rain, {number} degrees"}
        for number, call in enumerate(calls)
    ]
    head: list[Json] = [*_ASKED, {"role": "assistant", "content": "", "tool_calls": calls}]
    in_order = endpoint.ask([*head, *results], tools=[_TOOL])
    swapped = endpoint.ask([*head, *results[::-1]], tools=[_TOOL])
    counts = [reply["usage"]["prompt_tokens"] for reply in (in_order, swapped)]
    if counts[0] != counts[1]:
        raise _BrokenError("results in another order than their calls make another prompt")
    return f"accepted, {counts[0]} tokens in either order"


def _cache(endpoint: _Endpoint) -> str:
    words = " ".join(f"word{number}" for number in range(_LONG_PREFIX))
    messages: list[Json] = [{"role": "user", "content": words}]
    endpoint.ask(messages, max_tokens=1)
    more: list[Json] = [{"role": "assistant", "content": "Read."}, *_ASKED]
    usage = endpoint.ask([*messages, *more], max_tokens=1)["usage"]
    details = cast(Json, usage.get("prompt_tokens_details") or {})
    cached = details.get("cached_tokens", usage.get("cached_tokens"))
    if cached is None:
        raise _BrokenError("usage does not tell cached_tokens")
    if not cached:
        raise _BrokenError(f"none of {usage['prompt_tokens']:,} tokens came from the cache")
    return f"{cached:,} of {usage['prompt_tokens']:,} tokens of a longer prompt were not read again"


def _tokens(endpoint: _Endpoint, vocabulary: Path) -> str:
    try:
        tokenizer = Tokenizer.from_file(vocabulary)
    except TokenizerError as error:
        raise _BrokenError(str(error)) from None
    text = "def f(x):\n\treturn x  # naïve <|open|> 你好\n"
    messages: list[Json] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": text},
        {"role": "assistant", "content": "Yes.", "reasoning_content": "A function."},
        {"role": "user", "content": "And?"},
    ]
    told = endpoint.prompt_tokens(messages, tools=[_TOOL], reasoning_effort="low")
    ours = len(encode(render(messages, tools=[_TOOL], effort="low"), tokenizer))
    if told != ours:
        raise _BrokenError(f"the endpoint counts {told} tokens where K3's format has {ours}")
    return f"{told} tokens, as K3's format has them"
