"""`unabridged doctor --endpoint`: a server that keeps the contract passes, one that breaks it fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from unabridged.agent.contract import examine_endpoint
from unabridged.cli import main
from unabridged.model.chat.render import render
from unabridged.model.chat.tokenizer import Tokenizer
from unabridged.model.chat.xtml import encode

VOCABULARY = Path(__file__).parents[2] / "model/nano"


class Server:
    """An endpoint that keeps every promise but those in `breaks`."""

    def __init__(self, *breaks: str) -> None:
        self.breaks = breaks
        self.tokenizer = Tokenizer.from_file(VOCABULARY)
        self.seen: list[list[int]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/models"):
            return httpx.Response(200, json={"data": [{"id": "k3", "max_model_len": 4096}]})
        body = json.loads(request.content)
        messages = body["messages"]
        if "replay" in self.breaks:
            messages = [
                {k: v for k, v in m.items() if not k.startswith("reasoning")} for m in messages
            ]
        if "order" in self.breaks and len(messages) > 3 and "degrees" in str(messages[2]):
            messages = [*messages, *_GREETING] if "1 degrees" in str(messages[2]) else messages
        segments = render(messages, tools=body.get("tools"), effort=body.get("reasoning_effort"))
        prompt = encode(segments, self.tokenizer)
        prompt += [0] * ("count" in self.breaks)
        cached = max((_common(prompt, earlier) for earlier in self.seen), default=0)
        self.seen.append(prompt)
        message: dict[str, Any] = {
            "role": "assistant", "content": "Hello.", "reasoning_content": "Greet.",
        }  # fmt: skip
        reason = "stop"
        if body.get("tools") and "weather" in str(messages[-1]):
            arguments = "{city" if "arguments" in self.breaks else '{"city": "Paris"}'
            function = {"name": "get_weather", "arguments": arguments}
            message["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
            reason = "tool_calls"
        usage = {
            "prompt_tokens": len(prompt),
            "completion_tokens": 3,
            "total_tokens": len(prompt) + 3 + ("usage" in self.breaks),
            "prompt_tokens_details": {"cached_tokens": 0 if "cache" in self.breaks else cached},
        }
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reason}
            return httpx.Response(200, json={"choices": [choice], "usage": usage})
        if "stream" in self.breaks:
            message["content"] = "Hell"
        chunks = [{"choices": [{"index": 0, "delta": message}]}, {"choices": [], "usage": usage}]
        lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
        return httpx.Response(200, text="".join([*lines, "data: [DONE]\n\n"]))


_GREETING = [{"role": "user", "content": "x"}]


def _common(a: list[int], b: list[int]) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


@pytest.fixture
def examine(monkeypatch: pytest.MonkeyPatch) -> Any:
    real = httpx.Client

    def run(*breaks: str) -> dict[str, Any]:
        transport = httpx.MockTransport(Server(*breaks))
        monkeypatch.setattr(httpx, "Client", lambda **_: real(transport=transport))
        found = examine_endpoint("http://k3.example/v1", None, None, VOCABULARY)
        return {check.name: check for check in found}

    return run


def test_an_endpoint_that_keeps_the_contract_passes(examine: Any) -> None:
    checks = examine()
    assert {check.status for check in checks.values()} == {"ok"}
    assert list(checks) == [
        "models", "reply", "stream", "repeat", "reasoning", "effort", "calls", "results", "cache",
        "tokens",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("broken", "name", "told"),
    [
        ("usage", "reply", "does not add up"),
        ("stream", "stream", "something else"),
        ("replay", "reasoning", "dropped"),
        ("arguments", "calls", "JSON"),
        ("order", "results", "another order"),
        ("cache", "cache", "none of"),
        ("count", "tokens", "K3's format has"),
    ],
)
def test_each_broken_promise_is_named(broken: str, name: str, told: str, examine: Any) -> None:
    checks = examine(broken)
    faults = {check.name for check in checks.values() if check.status == "fault"}
    assert name in faults
    assert told in checks[name].found


def test_nobody_there_is_one_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--endpoint", "http://127.0.0.1:9/v1"]) == 1
    out = capsys.readouterr().out
    assert "FAULT models" in out
    assert "1 to correct" in out
