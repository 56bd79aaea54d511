"""Pure: what went wrong with a request, in one line for a person, and whether to try again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast
from urllib.parse import quote, unquote, urlsplit

from .base import FaultKind, Reply


@dataclass(eq=False)
class AttemptError(Exception):
    """One attempt failed. Its words are the server's in part: redact before showing them."""

    kind: FaultKind
    message: str
    """One line, says what to do."""
    status: int | None = None
    retry: bool = False
    after: float | None = None
    """Seconds to wait, where the server said so."""
    window: int | None = None
    """Context window in tokens, where an overflow message gave it."""
    stream_broken: bool = False
    """The server's streaming produced nonsense: a whole reply may be right."""
    unsupported: str = ""
    """A field of the request that the server does not know and that can be sent another way."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the failed request was, for the words of the message."""

    endpoint: str
    model: str
    size: int
    """Bytes of the body."""
    key: bool
    """Whether a key was sent."""


# --- HTTP answers -------------------------------------------------------------------------------

_RETRY = frozenset({408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 525, 529})

# Anchored to billing words: a bare "quota" also occurs in limits per minute, which pass.
_QUOTA = re.compile(
    r"exceeded_current_quota|insufficient_quota|insufficient[_ ]balance|billing_hard_limit"
    r"|exceeded your current (?:token )?quota|check your account balance|account is suspended"
    r"|recharge|in arrears|out of credits|insufficient (?:credits|funds)|requires more credits"
    r"|usage limit for this|membership benefits|access_terminated|access terminated",
    re.IGNORECASE,
)
_OVERFLOW = re.compile(
    r"context_length_exceeded|(?:maximum|max) context length|model's context length"
    r"|model token limit|context[ _-]window.*exceed|exceed\w*.*context[ _-](?:window|size|length)"
    r"|exceeds? the available context|prompt is too long|too many tokens"
    r"|exceeds? (?:the )?max(?:imum)? (?:number of )?tokens|longer than the model's",
    re.IGNORECASE,
)
_WINDOW = re.compile(
    r"(?:context length|context window|context size|token limit|maximum number of tokens)"
    r"(?:\s+(?:is|of|allowed|for\s+\S+)|\s*[:=(])*\s*(?:is\s+)?(?:only\s+)?([\d,_]{4,})",
    re.IGNORECASE,
)
_MODEL = re.compile(
    r"model_not_found|(?:not found|unknown|invalid|no such)\W+(?:the )?model\b"
    r"|\bmodel\b.{0,80}?(?:not found|not exist|is unknown|not available)"
    r"|not a valid model|no endpoints found for",
    re.IGNORECASE,
)
_UNSUPPORTED = re.compile(
    r"(stream_options|max_completion_tokens)[^.]{0,80}?"
    r"(?:not (?:supported|permitted|allowed)|unsupported|unknown|unrecognized|unexpected|extra)"
    r"|(?:not support|unsupported|unknown|unrecognized|unexpected|extra)[^.]{0,60}?"
    r"(stream_options|max_completion_tokens)",
    re.IGNORECASE,
)


def from_response(
    status: int, headers: Mapping[str, str], body: bytes, asked: Asked, now: float
) -> AttemptError:
    """Read an HTTP answer that is not a reply. `now` is Unix time, for dates in headers.

    `headers` has lower-case names.
    """
    if 300 <= status < 400:
        target = headers.get("location", "elsewhere")
        return AttemptError(
            "not_found",
            f"{asked.endpoint} redirects to {_site(target)}: set the base URL to where it leads.",
            status,
        )
    failure = from_error(_error_object(body, headers), asked, status)
    if failure.retry:
        return _with_after(failure, retry_after(headers, now))
    return failure


def from_error(error: Mapping[str, Any], asked: Asked, status: int) -> AttemptError:
    """Read an error object (`message`, `type`, `code`) that came with an HTTP status."""
    said = one_line(str(error.get("message") or ""))
    labels = f"{error.get('type') or ''} {error.get('code') or ''}"
    words = f"{labels} {said}"
    because = f"HTTP {status}: {said}" if said else f"HTTP {status}"
    where = asked.endpoint
    if status in {400, 413, 422, 500} and _OVERFLOW.search(words):
        window = window_of(said)
        of = f" of {window:,} tokens" if window else ""
        return AttemptError(
            "context_overflow",
            f"the request is larger than the context window{of} that {where} serves ({because}).",
            status,
            window=window,
        )
    if status == 402 or (status in {403, 429} and _QUOTA.search(words)):
        return AttemptError(
            "quota",
            f"{where} says the account has no quota left ({because}): top it up, or wait for "
            "the next period. Trying again does not help.",
            status,
        )
    if status in {401, 403} and not asked.key:
        return AttemptError(
            "auth",
            f"{where} needs an API key ({because}): set UNABRIDGED_API_KEY, or MOONSHOT_API_KEY "
            "for Moonshot's own hosts.",
            status,
        )
    if status == 401:
        return AttemptError(
            "auth",
            f"{where} refused the API key ({because}): check that the key is whole, still valid "
            "and made for this endpoint.",
            status,
        )
    if status == 403:
        return AttemptError(
            "auth", f"{where} denies this key access to {asked.model!r} ({because}).", status
        )
    if status in {400, 404} and _MODEL.search(words):
        return AttemptError(
            "not_found", f"{where} has no model {asked.model!r} ({because}).", status
        )
    if status == 404:
        return AttemptError(
            "not_found",
            f"no chat completions at {where}/chat/completions ({because}): check the base URL; "
            "it usually ends in /v1.",
            status,
        )
    if status == 413:
        return AttemptError(
            "bad_request",
            f"{where} refuses a body of {asked.size / 1e6:.1f} MB ({because}): raise the body "
            "limit of the server or of the proxy before it, or load less of the repository.",
            status,
        )
    if status == 429:
        return AttemptError(
            "rate", f"{where} is limiting requests ({because}).", status, retry=True
        )
    if status in _RETRY or status >= 500:
        retry = status in _RETRY
        return AttemptError("server", f"{where} failed ({because}).", status, retry=retry)
    field = _UNSUPPORTED.search(said)
    return AttemptError(
        "bad_request",
        f"{where} refused the request ({because}).",
        status,
        unsupported=(field[1] or field[2]).lower() if field else "",
    )


def not_an_api(content_type: str, body: bytes, asked: Asked) -> AttemptError:
    """An answer with status 200 that is neither a stream nor a complete JSON reply."""
    if not body.strip():
        return AttemptError(
            "connection", f"{asked.endpoint} sent an empty answer.", 200, retry=True
        )
    if body.lstrip()[:1] == b"{" and b"choices" in body:
        return AttemptError("protocol", f"{asked.endpoint} sent a damaged reply.", 200, retry=True)
    html = "html" in content_type or body.lstrip()[:1] == b"<"
    what = "a web page" if html else f"something that is not JSON ({one_line(_decode(body), 60)!r})"
    return AttemptError(
        "not_found",
        f"{asked.endpoint} answers with {what}, not with a model's reply: check the base URL; it "
        "usually ends in /v1.",
        200,
    )


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds a server asks to wait: `Retry-After-Ms`, or `Retry-After` in seconds or as a date."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name, "").strip()
        try:
            seconds = float(value) * scale
        except ValueError:
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    try:
        when = parsedate_to_datetime(headers.get("retry-after", ""))
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.fromtimestamp(now, UTC)).total_seconds())


def window_of(message: str) -> int | None:
    """The context window in tokens that an overflow message names, if it names one."""
    found = _WINDOW.search(message)
    if not found:
        return None
    digits = re.sub(r"[,_]", "", found[1])
    return int(digits) if digits and 1024 <= int(digits) <= 100_000_000 else None


def _with_after(failure: AttemptError, after: float | None) -> AttemptError:
    return replace(failure, after=after)


def _error_object(body: bytes, headers: Mapping[str, str]) -> Mapping[str, Any]:
    """The error of a body: `{"error": {...}}` and its many relatives, or its plain text."""
    try:
        value: Any = json.loads(body)
    except ValueError:
        text = _decode(body)
        html = "html" in headers.get("content-type", "") or text.lstrip()[:1] == "<"
        return {"message": "" if html else text}
    if not isinstance(value, dict):
        return {"message": value if isinstance(value, str) else ""}
    outer = cast(dict[str, Any], value)
    inner = outer.get("error", outer)
    if isinstance(inner, str):
        return {**outer, "message": inner}
    if not isinstance(inner, dict):
        return {"message": ""}
    error = cast(dict[str, Any], inner)
    detail = error.get("detail")  # FastAPI
    if "message" not in error and detail is not None:
        return {**error, "message": detail if isinstance(detail, str) else json.dumps(detail)}
    return error


def _decode(body: bytes) -> str:
    return body[:4096].decode("utf-8", "replace")


def _site(url: str) -> str:
    """A URL without credentials, query or fragment."""
    parts = urlsplit(url)
    if not parts.netloc:
        return parts.path
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


# --- replies that are wrong in themselves -------------------------------------------------------

# Structure, not a lone marker: a model may well write about these tokens, in backticks mostly.
_LEAK = re.compile(
    r"<\|open\|>\s*(?:tools\s*<\|sep\|>|call\s+tool=|argument\s+key=)"
    r"|<\|close\|>\s*(?:tools|call|argument)\s*<\|sep\|>"
    r"|<\|tool_calls_section_begin\|>|<\|tool_call_argument_begin\|>"
    r"|<\|tool_call_begin\|>\s*[\w.:-]+"
)
_QUOTED = re.compile(r"^(`{3,}|~{3,}).*?^\1|(`+)[^`].*?\2", re.DOTALL | re.MULTILINE)


def check_reply(reply: Reply, asked: Asked) -> None:
    """Raise AttemptError for a complete reply that is no answer: a fault of the server, not a choice.

    No call where `finish_reason` announces some; a call without a name; tool markup as text.
    """
    if not reply.calls and reply.finish_reason == "tool_calls":
        raise AttemptError(
            "protocol",
            f"{asked.endpoint} ended a reply with tool calls and sent none: its tool parser "
            "failed.",
            retry=True,
            stream_broken=True,
        )
    if any(not call.name for call in reply.calls):
        raise AttemptError(
            "protocol",
            f"{asked.endpoint} sent a tool call without a name: its tool parser failed.",
            retry=True,
            stream_broken=True,
        )
    text = reply.content or ("" if reply.calls else reply.reasoning)
    if "<|" in text and _LEAK.search(_QUOTED.sub("", text)):
        raise AttemptError(
            "protocol",
            f"{asked.endpoint} returned tool calls as text: its tool parser failed. If the "
            "server is yours, check that it runs with the tool and reasoning parsers for K3.",
            retry=True,
        )
    if reply.finish_reason in {"error", "abort"}:
        raise AttemptError("server", f"{asked.endpoint} broke off the reply.", retry=True)


# --- words ---------------------------------------------------------------------------------------


def one_line(text: str, limit: int = 300) -> str:
    """Text of others on one line: no control characters, cut at `limit` characters."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    line = " ".join(printable.split()).rstrip(".")
    return line if len(line) <= limit else line[: limit - 1] + "…"


_KEY_LIKE = re.compile(r"\b(?:sk|pk|key)-[\w-]{6,}|(?i:bearer)\s+[\w.~+/=-]{6,}")
_USERINFO = re.compile(r"(?<=://)[^/\s@]+@")


def redact(text: str, secrets: Iterable[str]) -> str:
    """Text without the secrets, in plain and percent form, and without what looks like one."""
    for secret in secrets:
        for form in {secret, quote(secret, safe=""), unquote(secret)}:
            if len(form) >= 4:
                text = text.replace(form, "***")
    return _USERINFO.sub("***@", _KEY_LIKE.sub("***", text))
