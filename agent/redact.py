"""Pure: secrets in what leaves the machine, replaced by their kind.

Known by their form (keys and tokens of well-known services, private keys, passwords in addresses)
or by their value (the keys this machine gives its endpoints). A secret of no form, whose value is
not known, stays: read an export before you give it away.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast

from .events import AnyEvent

E = TypeVar("E", bound=AnyEvent)

_FORMS: Mapping[str, str] = {
    "private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    "GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{60,255})\b",
    "GitLab token": r"\bglpat-[A-Za-z0-9_-]{20,}",
    "AWS key id": r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    "Google key": r"\bAIza[A-Za-z0-9_-]{35}\b",
    "Slack token": r"\bxox[abposr]-[A-Za-z0-9-]{10,}",
    "Stripe key": r"\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,}",
    "npm token": r"\bnpm_[A-Za-z0-9]{36}\b",
    "PyPI token": r"\bpypi-[A-Za-z0-9_-]{50,}",
    "Hugging Face token": r"\bhf_[A-Za-z0-9]{30,}\b",
    "API key": r"\bsk-[A-Za-z0-9_-]{20,}",
    "JSON web token": r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}",
}
_WITHIN: Mapping[str, str] = {
    "password": r"(?P<before>\b[a-z][a-z0-9+.-]*://[^\s/:@\"']*:)[^\s/@\"']+(?=@)",
    "authorization": r"(?i:(?P<before>\bauthorization[\"']?\s*[:=]\s*[\"']?(?:bearer|basic|token)\s+))[A-Za-z0-9._~+/=-]{8,}",
}
"""Forms of which the part `before` stays."""

_ANY = re.compile(
    "|".join(
        f"(?P<k{number}>{pattern.replace('?P<before>', f'?P<b{number}>')})"
        for number, pattern in enumerate((*_FORMS.values(), *_WITHIN.values()))
    )
)
_KINDS = (*_FORMS, *_WITHIN)
SHORTEST = 8
"""Characters of a known value that is looked for: shorter ones would be found in anything."""


class Redactor:
    """Replaces secrets by `[redacted: KIND]`, and counts them."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        known = sorted({value for value in values if len(value) >= SHORTEST}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None
        self.count = 0

    def text(self, text: str) -> str:
        """A text without its secrets."""
        if self._known is not None:
            text = self._known.sub(self._value, text)
        return _ANY.sub(self._form, text)

    def _value(self, _match: re.Match[str]) -> str:
        self.count += 1
        return "[redacted: key of this machine]"

    def _form(self, match: re.Match[str]) -> str:
        self.count += 1
        number = int(cast("str", match.lastgroup)[1:])
        before = match.groupdict().get(f"b{number}") or ""
        return f"{before}[redacted: {_KINDS[number]}]"

    def event(self, event: E) -> E:
        """An event without its secrets; of a reply, the hash no longer holds."""
        before = event.model_dump()
        after = self._all(before)
        return event if after == before else type(event).model_validate(after)

    def _all(self, value: Any) -> Any:
        match value:
            case str():
                return self.text(value)
            case dict():
                return {k: self._all(v) for k, v in cast("dict[Any, Any]", value).items()}
            case list() | tuple():
                items = cast("list[Any]", value)
                return type(items)(self._all(item) for item in items)
            case _:
                return value


def known_values(env: Mapping[str, str], base_url: str) -> list[str]:
    """Keys of this machine: of the environment by their names, and what the endpoint would get.

    A keyring that cannot be read is passed over: an export works without it.
    """
    from .credentials import CredentialError, find

    named = re.compile(r"(?i)(api_?key|token|secret|password|passwd|credential)s?$")
    values = [value for name, value in env.items() if named.search(name)]
    try:
        found = find(base_url, env)
    except CredentialError:
        found = None
    return [*values, *([found.value] if found is not None else [])]
