"""Names, exports without secrets, HTML that needs nothing else, and what sessions cost."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unabridged.agent.events import AssistantMessage, SessionNamed, ToolResult, Usage, UserMessage
from unabridged.agent.export_html import html
from unabridged.agent.providers.scripted import ScriptedCall, Turn
from unabridged.agent.redact import Redactor
from unabridged.agent.store import Store, StoreError, find, read
from unabridged.cli import main

FINISH = [("finish", {"status": "done", "summary": "x"})]
SECRETS = {
    "GitHub token": "ghp_" + "a1B2" * 9,
    "AWS key id": "AKIAABCDEFGHIJKLMNOP",
    "API key": "sk-proj-" + "x1" * 12,
    "Slack token": "xoxb-1234567890-abcdef",
    "Google key": "AIza" + "b" * 35,
    "npm token": "npm_" + "c" * 36,
    "JSON web token": "eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSMeKKF",
    "private key": "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----",
}


@pytest.fixture
def run(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    for kind in ("CONFIG", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("UNABRIDGED_API_KEY", "a-key-without-any-form")

    def command(*words: str) -> tuple[int, str, str]:
        try:
            code = main([*words, "--sessions-dir", str(bench.sessions)])
        except SystemExit as error:
            code = int(error.code or 0)
        out, err = capfd.readouterr()
        return code, out, err

    return command


# --- redaction -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "secret"), SECRETS.items())
def test_secrets_are_known_by_their_form(kind: str, secret: str) -> None:
    redactor = Redactor()
    assert redactor.text(f"a {secret} b") == f"a [redacted: {kind}] b"
    assert redactor.text(f'{{"key": "{secret}"}}') == f'{{"key": "[redacted: {kind}]"}}'
    assert redactor.count == 2


def test_what_is_around_a_password_stays() -> None:
    text = Redactor().text
    assert text("git clone https://me:hunter22@example.com/x") == (
        "git clone https://me:[redacted: password]@example.com/x"
    )
    assert text("Authorization: Bearer abcdefgh12345") == (
        "Authorization: Bearer [redacted: authorization]"
    )


@pytest.mark.parametrize(
    "text",
    ["sk-learn", "task-runner-with-a-long-name", "http://host:8080/a@b", "AKIA", "ghp_short",
     "Authorization: Bearer $TOKEN", "def eyJ(): pass", "https://docs.example.com/a:b"],
)  # fmt: skip
def test_code_that_only_looks_like_a_secret_stays(text: str) -> None:
    assert Redactor().text(text) == text


@given(st.text(), st.sampled_from(sorted(SECRETS.values())), st.text())
def test_no_secret_survives_whatever_is_around_it(before: str, secret: str, after: str) -> None:
    redacted = Redactor([secret]).text(f"{before} {secret} {after}")
    assert secret not in redacted


def test_every_field_of_an_event_is_looked_at() -> None:
    token = SECRETS["GitHub token"]
    message = AssistantMessage(
        step=1, reasoning=f"use {token}", reasoning_details=({"a": [token]},)
    )
    result = ToolResult(call_id="1", text=token, diff=f"+{token}", data={"x": {"y": token}})
    redactor = Redactor()
    for event in (message, result):
        assert token not in redactor.event(event).model_dump_json()
    assert redactor.count == 5
    clean = AssistantMessage(step=1, reasoning="nothing here")
    assert redactor.event(clean) is clean


@pytest.mark.parametrize("form", ["markdown", "html", "atif", "jsonl", "stream-json"])
async def test_exports_are_redacted_and_the_log_is_not(bench: Any, run: Any, form: str) -> None:
    token = SECRETS["GitHub token"]
    session = await bench.play(
        [Turn(reasoning=f"The token is {token}.", calls=(ScriptedCall(name="finish", arguments=FINISH[0][1]),))],
        "My key: a-key-without-any-form",
    )  # fmt: skip
    code, out, err = run("sessions", "export", session.id, "--format", form)
    assert code == 0
    assert token not in out
    assert "a-key-without-any-form" not in out
    assert "The token is [redacted: GitHub token]." in out
    assert "2 secrets were redacted" in err
    code, out, err = run("sessions", "export", session.id, "--format", form, "--no-redact")
    assert token in out
    assert err == ""
    assert token in find(bench.sessions, session.id).read_text()


# --- HTML ----------------------------------------------------------------------------------------


class Page(HTMLParser):
    """What a browser would find: balanced tags, visible text, and nothing from outside."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.visible = ""
        self.outside: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            assert not name.startswith("on"), "no scripts"
            if name in ("src", "href") and not (value or "").startswith(("#", "data:")):
                self.outside.append(str(value))
        if tag not in ("meta", "br", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.visible += data


async def test_a_page_holds_the_whole_reasoning_and_the_diffs(bench: Any) -> None:
    thought = "First </div><script>alert(1)</script> & then\n" + "more thought " * 2000
    edit = ("edit", {"path": "a.py", "old": "return 1", "new": "return 2"})
    session = await bench.play(
        [Turn(reasoning=thought, calls=(ScriptedCall(name=edit[0], arguments=edit[1]),)), FINISH],
        allow=["write"],
    )  # fmt: skip
    page = Page(html(session.id, session.events))
    assert thought in page.visible
    assert "-    return 1" in page.visible
    assert "+    return 2" in page.visible
    assert page.outside == []
    assert not page.tags & {"script", "link", "iframe", "object"}


@given(st.text(), st.text(), st.text())
def test_no_text_can_break_out_of_the_page(reasoning: str, result: str, words: str) -> None:
    events = [
        UserMessage.model_validate({"parts": [{"text": words}, {"url": f'data:,"{words}'}]}),
        AssistantMessage(step=1, reasoning=reasoning),
        ToolResult(call_id="1", text=result, diff=f"@@\n+{result}\n-{words}"),
        SessionNamed(name=words),
    ]
    page = Page(html("s", events))
    assert "script" not in page.tags
    cleaned = reasoning.replace("\r\n", "\n").replace("\r", "\n")
    assert cleaned in page.visible.replace("\r\n", "\n").replace("\r", "\n")


# --- names and cost -------------------------------------------------------------------------------


async def test_a_name_is_in_the_log_in_lists_and_in_exports(bench: Any, run: Any) -> None:
    session = await bench.play([FINISH])
    before = find(bench.sessions, session.id).read_bytes()
    assert run("sessions", "rename", session.id, "  The  big\nrename ")[0] == 0
    assert find(bench.sessions, session.id).read_bytes().startswith(before), "only appended"
    assert "The big rename" in run("sessions", "list")[1]
    assert "name     The big rename" in run("sessions", "show", "last")[1]
    assert (
        "<title>The big rename</title>" in run("sessions", "export", "last", "--format", "html")[1]
    )
    resumed = await bench.play_on([FINISH, FINISH], "More")
    assert bench.code(resumed) == 0
    run("sessions", "rename", session.id, "")
    assert "Do it" in run("sessions", "list")[1]


async def test_a_session_in_use_is_not_renamed(bench: Any, run: Any) -> None:
    session = bench.create([FINISH])
    code, _, err = run("sessions", "rename", session.id, "x")
    assert (code, err.count("\n")) == (2, 1)
    assert "in use by another process" in err
    with pytest.raises(StoreError, match="in use"):
        Store.open(bench.sessions, session.id)


def usage(prompt: int, cached: int, out: int) -> Any:
    return {"prompt": prompt, "cached": cached, "completion": out}


async def test_cost_adds_up_what_the_logs_say(bench: Any, run: Any, tmp_path: Path) -> None:
    calls = (ScriptedCall(name="finish", arguments=FINISH[0][1]),)
    turn = Turn.model_validate({"calls": calls, "usage": usage(1_000_000, 600_000, 10_000)})
    for _ in range(2):
        await bench.play([turn])
    code, out, _ = run("cost", "--json")
    total = json.loads(out)["total"]
    assert code == 0
    assert (total["sessions"], total["steps"], total["prompt"]) == (2, 2, 2_000_000)
    assert total["usd"] == pytest.approx(2 * (0.4 * 3 + 0.6 * 0.3 + 0.01 * 15))
    assert total["incomplete"] == []
    for by in ("model", "repo", "day", "session"):
        rows = json.loads(run("cost", "--by", by, "--json")[1])["rows"]
        assert sum(row["usd"] for row in rows) == pytest.approx(total["usd"])
        assert len(rows) == (2 if by == "session" else 1)
    assert re.search(r"3\.06 +2 +2 +2,000,000 +60% +20,000 +kimi-k3", run("cost")[1])
    assert "No sessions." in run("cost", "--since", "2999-01-01")[2]
    assert "No sessions." in run("cost", "--repo", str(tmp_path))[2]
    assert run("cost", "--since", "yesterday")[0] == 2


async def test_a_model_without_a_price_is_said_and_not_counted_as_free(
    bench: Any, run: Any
) -> None:
    await bench.play([FINISH], model="some-model")
    _, out, err = run("cost")
    assert ">=0.00" in out
    assert "No price, or no usage, for some of: some-model." in err
    (event,) = [e for e in read(find(bench.sessions, "last")) if isinstance(e, AssistantMessage)]
    assert isinstance(event.usage, Usage)
