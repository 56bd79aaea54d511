"""How endpoints that serve K3 differ on the wire, and the little a request may add to it.

A dialect is data, chosen by host or by setting. It never says whether reasoning is sent back:
that is not a choice.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from ..events import ReasoningField

WINDOW = 1_048_576
"""K3's context window in tokens, where an endpoint does not serve less."""

EFFORTS = ("low", "high", "max")
"""Endpoints ignore other words without an error, so they are refused here."""


def _open_platform(effort: str) -> dict[str, Any]:
    return {"reasoning_effort": effort}


def _kimi_code(effort: str) -> dict[str, Any]:
    return {"thinking": {"type": "enabled", "keep": "all", "effort": effort}}


def _gateway(effort: str) -> dict[str, Any]:
    return {"reasoning": {"effort": effort}}


def _chat_template(effort: str) -> dict[str, Any]:
    kwargs = {"thinking": True, "preserve_thinking": True, "thinking_effort": effort}
    return {"chat_template_kwargs": kwargs}


@dataclass(frozen=True, slots=True)
class Dialect:
    """One endpoint's way of speaking the chat completions wire."""

    name: str
    effort: Callable[[str], dict[str, Any]]
    """Effort -> the fields of the request that carry it."""
    reasoning_field: ReasoningField = "reasoning_content"
    """Name the reasoning goes by until a reply shows another."""
    window: int = WINDOW
    length_field: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens"
    stream_options: bool = True
    """Whether usage is asked for with `stream_options`."""
    service: bool = False
    """Whether it is that of a known service, behind which there is no server of ours."""


DIALECTS: Mapping[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        Dialect("moonshot", _open_platform, service=True),
        Dialect("kimi-code", _kimi_code, service=True),
        Dialect("openrouter", _gateway, reasoning_field="reasoning", service=True),
        Dialect("vllm", _chat_template, reasoning_field="reasoning"),
        Dialect("sglang", _chat_template),
        Dialect("openai", _open_platform),
    )
}
"""By name, as the setting `dialect` takes it. `openai` is any other hosted endpoint."""

_HOSTS = {
    "api.moonshot.ai": "moonshot",
    "api.moonshot.cn": "moonshot",
    "api.kimi.com": "kimi-code",
    "openrouter.ai": "openrouter",
}


def choose_dialect(base_url: str) -> Dialect:
    """The dialect of a host. A host of one's own network is taken for vLLM."""
    host = (urlsplit(base_url).hostname or "").lower()
    return DIALECTS[_HOSTS.get(host) or ("vllm" if is_local(host) else "openai")]


def is_moonshot(base_url: str) -> bool:
    """Whether a URL names a host of Moonshot's own: the only ones that may get its key."""
    url = urlsplit(base_url)
    host = (url.hostname or "").lower()
    return url.scheme == "https" and _HOSTS.get(host) in {"moonshot", "kimi-code"}


def is_loopback(host: str) -> bool:
    """Whether a host name is this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_local(host: str) -> bool:
    """Whether a host name is this machine or one of a private network, by its form."""
    if is_loopback(host) or ("." not in host.strip(".") and ":" not in host):
        return True
    if host.endswith((".local", ".lan", ".internal", ".home.arpa")):
        return True
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return False


# --- limits that endpoints enforce late or not at all -------------------------------------------

MAX_TOOLS = 128
_TOOL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{2,63}")


def check_tools(names: Sequence[str]) -> None:
    """Refuse a list of tool names that K3 endpoints would refuse.

    Raises ValueError, one line that names the tools, for more than 128 tools, a name that is not
    3 to 64 letters, digits, `_` or `-` starting with a letter or `_`, or a name given twice.
    """
    if len(names) > MAX_TOOLS:
        rest = ", ".join(names[MAX_TOOLS:])
        raise ValueError(
            f"{len(names)} tools are declared and K3 endpoints take {MAX_TOOLS}: leave out {rest}."
        )
    bad = [name for name in names if not _TOOL_NAME.fullmatch(name)]
    if bad:
        raise ValueError(
            f"tool names must be 3 to 64 letters, digits, '_' or '-', starting with a letter "
            f"or '_': {', '.join(map(repr, bad))}."
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"tools declared twice: {', '.join(twice)}.")


_FIXED = "K3 fixes its sampling and endpoints refuse other values"
_REASONING = "K3 always reasons and needs all of its reasoning back; set the effort instead"
_OWNED = "the harness sets it for each request"
_REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        ("temperature", "top_p", "top_k", "min_p", "n", "presence_penalty", "frequency_penalty",
         "repetition_penalty"),
        _FIXED,
    ),
    **dict.fromkeys(
        ("thinking", "reasoning", "reasoning_effort", "include_reasoning", "enable_thinking",
         "chat_template_kwargs", "separate_reasoning"),
        _REASONING,
    ),
    **dict.fromkeys(
        ("model", "messages", "tools", "tool_choice", "functions", "stream", "stream_options",
         "max_tokens", "max_completion_tokens", "stop", "response_format",
         "add_generation_prompt", "continue_final_message"),
        _OWNED,
    ),
}  # fmt: skip


def check_extra(extra: Mapping[str, Any]) -> None:
    """Refuse extra body fields that would break K3's contract or the harness's part of it.

    Raises ValueError, one line, with the field and the reason.
    """
    for field in extra:
        if reason := _REFUSED.get(field):
            raise ValueError(f"the request field {field!r} cannot be set: {reason}.")
