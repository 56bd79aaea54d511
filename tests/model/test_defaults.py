"""A checkpoint says how it is asked where a request does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from unabridged.model.chat.tokenizer import Tokenizer
from unabridged.model.config import ConfigError
from unabridged.model.converse import ChatRequest, converse
from unabridged.model.engine import Engine, Finished, Usage
from unabridged.model.sampling import Defaults, Sampling
from unabridged.model.server import CompletionRequest


def stored(folder: Path, text: str) -> Defaults:
    (folder / "generation_config.json").write_text(text)
    return Defaults.of_checkpoint(folder)


def test_k3_s_own_where_nothing_is_said(tmp_path: Path) -> None:
    assert Defaults.of_checkpoint(tmp_path) == Defaults(1.0, 0.95, "max")
    assert stored(tmp_path, "{}") == Defaults(1.0, 0.95, "max")


def test_what_a_checkpoint_says(tmp_path: Path) -> None:
    said = '{"do_sample": false, "top_p": 0.9, "thinking_effort": null}'
    assert stored(tmp_path, said) == Defaults(0.0, 0.9, None)
    assert stored(tmp_path, '{"temperature": 0.6, "eos_token_id": 1}').temperature == 0.6


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "JSON"),
        ("[]", "object"),
        ('{"temperature": -1}', "temperature"),
        ('{"temperature": "warm"}', "generation_config.json"),
        ('{"top_p": 0}', "top_p"),
        ('{"thinking_effort": "much"}', "thinking_effort"),
    ],
)
def test_what_cannot_be_is_named(text: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=named) as error:
        stored(tmp_path, text)
    assert "generation_config.json" in str(error.value)


class Recorder:
    """Stands where an engine would, and keeps how it was asked."""

    def __init__(self, defaults: Defaults) -> None:
        self.defaults = defaults
        self.window = 1000
        self.sees = False
        self.asked: Sampling | None = None

    async def generate(self, _prompt: Any, _most: int, sampling: Sampling, _images: Any) -> Any:
        self.asked = sampling
        yield Finished("stop", Usage(1, 0, 0))


@pytest.mark.parametrize(
    ("request_", "temperature"),
    [({}, 0.0), ({"temperature": 0.7}, 0.7), ({"temperature": 1.0}, 1.0)],
)
async def test_a_request_goes_before_the_default(
    request_: dict[str, Any], temperature: float, tokenizer: Tokenizer
) -> None:
    engine = Recorder(Defaults(0.0, 0.8, None))
    messages = [{"role": "user", "content": "hi"}]
    stand_in: Engine = engine  # pyright: ignore[reportAssignmentType]
    async for _ in converse(stand_in, tokenizer, ChatRequest(messages, **request_)):
        pass
    assert engine.asked is not None
    assert (engine.asked.temperature, engine.asked.top_p) == (temperature, 0.8)


@pytest.mark.parametrize(("sent", "effort"), [({}, None), ({"reasoning_effort": "low"}, "low")])
def test_the_server_says_the_model_s_effort(sent: dict[str, str], effort: str | None) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **sent}
    request = CompletionRequest.model_validate_json(json.dumps(body))
    assert request.chat_request(None).effort == effort
    assert request.chat_request("max").effort == (effort or "max")
