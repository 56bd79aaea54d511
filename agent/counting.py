"""Tokens of a repository as its endpoint counts them, where that has a call for it.

Totals only: what is chosen, and how it is cut, follows from the estimate, so that the text of a
pack depends on no server. Counts are kept by content: a second load asks for what changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .config import LOCAL, Config, without_secrets
from .context.load import Load
from .context.tokens import MESSAGE_TOKENS, Counts, key
from .providers.dialects import DIALECTS, choose_dialect, is_local

if TYPE_CHECKING:
    from .http import httpx

WORTH = 20_000
"""Tokens below which a session does with the estimate, unless half of its window is filled."""
MOST_CALLS = 64
"""Of one load; a message of a large window has 32,768 tokens."""
SECONDS = 20.0
"""For all calls of one load."""
CALL_SECONDS = 10.0
NO_CALL = "the endpoint has no call that counts tokens"


class CountProblem(Exception):  # noqa: N818 - one line for a person
    """The endpoint gave no count; the text says why."""


@dataclass(frozen=True, slots=True)
class Call:
    """How one dialect is asked for the tokens of a user message."""

    path: Callable[[str], str]
    """Path of the endpoint, up to `/v1` -> path of the call."""
    body: Callable[[str, str], dict[str, Any]]
    """Model and text -> what is sent."""
    tokens: Callable[[Any], Any]
    """What comes back -> the count."""
    around: int
    """Tokens that the chat format puts around the text and that the answer leaves out."""


_TOKENIZE = Call(
    path=lambda path: f"{path.removesuffix('/v1')}/tokenize",
    body=lambda model, text: {"model": model, "prompt": text, "add_special_tokens": False},
    tokens=lambda answer: answer["count"],
    around=MESSAGE_TOKENS,
)
CALLS: Mapping[str, Call] = {
    "moonshot": Call(
        path=lambda path: f"{path}/tokenizers/estimate-token-count",
        body=lambda model, text: {"model": model, "messages": [{"role": "user", "content": text}]},
        tokens=lambda answer: answer["data"]["total_tokens"],
        around=0,
    ),
    "vllm": _TOKENIZE,
    "sglang": _TOKENIZE,
}
"""By dialect; the others have none."""


def counting(config: Config, *, asked: bool = False) -> EndpointCounter | None:
    """Who counts for the endpoint of the settings; None where nobody does, or nobody shall.

    Unless it is `asked` for, a server outside of one's own network counts only if the settings say
    so: to count is to send the files. Raises ConfigError for a key that cannot be read.
    """
    if config.base_url.startswith(LOCAL):
        return None
    dialect = config.dialect or choose_dialect(config.base_url).name
    own = is_local(urlsplit(config.base_url).hostname or "")
    wanted = asked or config.count == "endpoint" or (config.count == "auto" and own)
    if not wanted or dialect not in CALLS or dialect not in DIALECTS:
        return None
    from .config import ConfigError
    from .credentials import CredentialError, find

    try:
        credential = find(config.base_url)
    except CredentialError as error:
        raise ConfigError(str(error)) from error
    return EndpointCounter(
        config.base_url, config.model, credential and credential.value, CALLS[dialect]
    )


class EndpointCounter:
    """The counter behind an endpoint's call: of a whole user message, with what is around it."""

    exact = True

    def __init__(self, base_url: str, model: str, api_key: str | None, call: Call) -> None:
        self.place = without_secrets(base_url)
        self.identity = f"{call.path('')} {self.place} {model}"
        self._base_url = base_url
        self._model = model
        self._key = api_key
        self._call = call
        self._client: httpx.Client | None = None

    def count(self, text: str) -> int:
        """Ask. Raises CountProblem."""
        from .http import httpx

        if self._client is None:
            headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
            self._client = httpx.Client(timeout=CALL_SECONDS, headers=headers)
        url = httpx.URL(self._base_url)
        base = url.path.rstrip("/").removesuffix("/chat/completions")
        try:
            answer = self._client.post(
                url.copy_with(path=self._call.path(base)), json=self._call.body(self._model, text)
            )
        except httpx.TimeoutException:
            raise CountProblem(f"no count within {CALL_SECONDS:g} s") from None
        except httpx.HTTPError as error:
            raise CountProblem(f"the endpoint did not count: {type(error).__name__}") from None
        if answer.status_code in (404, 405, 501):
            raise CountProblem(NO_CALL)
        if answer.status_code != 200:
            raise CountProblem(f"the endpoint did not count: HTTP {answer.status_code}")
        try:
            tokens = self._call.tokens(answer.json())
        except (ValueError, KeyError, TypeError):
            tokens = None
        if type(tokens) is not int or not 0 < tokens <= 8 * len(text.encode()) + MESSAGE_TOKENS:
            raise CountProblem("the endpoint's count could not be read")
        return tokens + self._call.around

    def close(self) -> None:
        """Leave the endpoint alone."""
        if self._client is not None:
            self._client.close()
            self._client = None


def counted(loaded: Load, asks: EndpointCounter, cache: Path | None, least: int = 0) -> Load:
    """The load with its total as the endpoint counts it, as far as that goes; blocking.

    The rest is estimated, corrected by what was counted; `Load.note` says which. Nothing fails.
    A load of fewer than `least` tokens is not worth a call.
    """
    if loaded.exact or loaded.tokens < least:
        return loaded
    counts = Counts(cache, asks)
    began, left = time.monotonic(), MOST_CALLS
    problem, known, estimated, rest, messages = "", 0, 0, 0, 0
    try:
        for segment in loaded.segments:
            estimate = segment.tokens + MESSAGE_TOKENS
            if not counts.knows(key(b"text", segment.text.encode())):
                if not problem and (not left or time.monotonic() - began > SECONDS):
                    problem = (
                        f"not within {MOST_CALLS} calls and {SECONDS:g} s; more at the next load"
                    )
                if problem:
                    rest += estimate
                    continue
                left -= 1
            try:
                known += counts.text(segment.text)
            except CountProblem as error:
                problem = str(error)
                rest += estimate
                continue
            estimated += estimate
            messages += 1
    finally:
        asks.close()
        counts.save()
    if not messages:
        return replace(loaded, note=f"estimated: {problem}")
    if not rest:
        return replace(loaded, tokens=known, exact=True, note=f"counted by {asks.place}")
    note = (
        f"{messages} of {len(loaded.segments)} messages counted by {asks.place}, "
        f"the rest estimated: {problem}"
    )
    return replace(loaded, tokens=known + round(rest * known / estimated), note=note)
