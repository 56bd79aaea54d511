"""The pure part of faults: headers, numbers in messages, redaction."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unabridged.agent.providers.faults import (
    Asked,
    from_response,
    one_line,
    redact,
    retry_after,
    window_of,
)

NOW = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT
ASKED = Asked("https://h/v1", "k", 10, key=True)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "5"}, 5.0),
        ({"retry-after": " 0.5 "}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "Tue, 14 Nov 2023 22:13:50 GMT"}, 30.0),
        ({"retry-after": "Tue, 14 Nov 2023 22:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({}, None),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, NOW) == seconds


@pytest.mark.parametrize(
    ("message", "window"),
    [
        ("request exceeded model token limit: 262144 (requested: 269030)", 262144),
        ("maximum context length is 1048576 tokens", 1048576),
        ("maximum context length of 131,072 tokens", 131072),
        ("the model's context length (262144 tokens)", 262144),
        ("exceeds the available context size (32768 tokens)", 32768),
        ("context window of only 65536", 65536),
        ("the prompt is too long", None),
        ("context length is 12 tokens", None),
    ],
)
def test_window_in_a_message(message: str, window: int | None) -> None:
    assert window_of(message) == window


@pytest.mark.parametrize(
    "body",
    [
        b'{"error": {"message": "why"}}',
        b'{"error": "why"}',
        b'{"message": "why"}',
        b'{"detail": "why"}',
        b'{"object": "error", "message": "why", "code": 400}',
        b'"why"',
        b"why",
    ],
)
def test_words_of_an_error_wherever_they_stand(body: bytes) -> None:
    assert "HTTP 400: why)" in from_response(400, {}, body, ASKED, NOW).message


@given(st.integers(300, 599), st.binary(max_size=200))
def test_no_answer_of_a_server_crashes(status: int, body: bytes) -> None:
    message = from_response(status, {}, body, ASKED, NOW).message
    assert message.isprintable()


@given(st.text(max_size=400))
def test_one_line(text: str) -> None:
    line = one_line(text, 80)
    assert len(line) <= 80
    assert line.isprintable()


@given(
    secret=st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"]), min_size=8),
    before=st.text(max_size=10),
)
def test_redaction_takes_every_form_of_a_secret(secret: str, before: str) -> None:
    from urllib.parse import quote

    for form in (secret, quote(secret, safe="")):
        assert form not in redact(f"{before} {form} x", [secret]).replace("***", "")


@pytest.mark.parametrize(
    "text",
    ["Incorrect key sk-abcdef123456", "Authorization: Bearer abc.def-ghi", "http://u:p@h/v1"],
)
def test_redaction_of_what_looks_like_a_key(text: str) -> None:
    shown = redact(text, [])
    assert "***" in shown
    assert not any(part in shown for part in ("abcdef", "abc.def", "u:p"))
