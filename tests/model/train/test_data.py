"""Sessions to train on are what the harness sends, solved with nothing that was not visible."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from unabridged.agent.policy import parse_allow
from unabridged.agent.providers.scripted import ScriptedCall, ScriptedProvider, Turn
from unabridged.agent.session import Session, Settings
from unabridged.evals.tasks.families import make_task
from unabridged.evals.tasks.oracle import next_reply
from unabridged.evals.tasks.task import FAMILIES, TESTS
from unabridged.model.chat.render import render
from unabridged.model.chat.tokenizer import Tokenizer
from unabridged.model.nano import profile as nano
from unabridged.model.train import data
from unabridged.model.train.packing import Shown, sample_of_session
from unabridged.tools.shell import Shell


async def made(family: str, seed: int, folder: Path, shell: Shell) -> dict[str, Any]:
    task = make_task(family, seed, "train", "small")  # pyright: ignore[reportArgumentType]
    return await data.session_of(task, folder, shell)


@pytest.fixture
def shell() -> Any:
    tests = data.Tests()
    yield tests
    tests.close()


@pytest.mark.parametrize("family", FAMILIES)
async def test_the_oracle_writes_only_what_it_saw(
    family: str, tmp_path: Path, shell: Shell
) -> None:
    """Every identifier, path and number of a call stood in the conversation before."""
    for seed in range(5):
        session = await made(family, seed, tmp_path, shell)
        seen = ""
        for message in session["messages"]:
            for call in message.get("tool_calls", ()):
                if call["function"]["name"] in ("search", "edit", "ask_user", "propose_plan"):
                    given = json.loads(call["function"]["arguments"])
                    words = re.findall(r"\w+", " ".join(_texts(given)))
                    assert [w for w in words if w not in seen and w not in _OWN] == []
            seen += json.dumps(message, ensure_ascii=False)


_OWN = frozenset(
    {"Which", "default", "of", "do", "you", "mean", "Rename", "to", "Call", "instead", "Add", "and"}
    | {"its", "calls", "Set"}
)
"""Words of the oracle's plans and questions."""


def _texts(given: dict[str, Any]) -> list[str]:
    """Arguments that are copies."""
    return [
        text
        for key, value in given.items()
        if key not in ("context", "commands", "replace_all")
        for text in (value if isinstance(value, list) else [value])
    ]


@pytest.mark.parametrize("family", ["rename", "fix"])
async def test_the_fast_tests_are_the_real_ones(family: str, tmp_path: Path, shell: Shell) -> None:
    """The same session through the real `shell`, byte for byte but for the time it took."""
    fast = await made(family, 3, tmp_path, shell)
    slow = await made(family, 3, tmp_path, Shell())

    def plain(session: dict[str, Any]) -> str:
        return re.sub(
            r"in \d+\.\d+s", "in 0.000s", re.sub(r"call_\w+", "call", json.dumps(session))
        )

    assert plain(fast) == plain(slow)


async def test_a_session_in_a_git_repository_is_the_same(tmp_path: Path, shell: Shell) -> None:
    """Training repositories have no git, those in use do: the model sees no difference."""
    import subprocess

    task = make_task("rename", 2, "train", "small")
    record = await data.session_of(task, tmp_path, shell)
    repo = tmp_path / "with-git"
    data.write_files(repo, task.files)
    for words in (["init", "-q"], ["add", "."],
                  ["-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "One"]):  # fmt: skip
        subprocess.run(["git", *words], cwd=repo, check=True)

    def policy(asked: Any) -> Turn:
        reply = next_reply(task.goal, asked.messages)
        return Turn(reasoning=reply.reasoning,
                    calls=tuple(ScriptedCall(name=n, arguments=a) for n, a in reply.calls))  # fmt: skip

    settings = Settings(nano.MODEL, session_rules=tuple(map(parse_allow, data.ALLOWED)))
    provider = ScriptedProvider(policy, window=nano.WINDOW)
    async with Session.create(repo, provider, settings, tmp_path / "logs") as session:
        async for _ in session.start(task.words):
            pass
        messages = [json.loads(message) for message in session.core.view.request()]
    assert task.words == next(m["content"] for m in messages if m["content"] == task.words)
    sent = [m["content"] for m in messages][: len(record["messages"])]
    assert [re.sub(r"in \d+\.\d+s", "", t) for t in sent] == [
        re.sub(r"in \d+\.\d+s", "", m["content"]) for m in record["messages"]
    ]


def test_a_record_is_what_render_takes(tmp_path: Path) -> None:
    out = tmp_path / "part.jsonl"
    arguments = ["--count", "6", "--first", "30", "--split", "test", "--out", str(out)]
    assert data.main(arguments) == 0
    records = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert [record["seed"] for record in records] == list(range(30, 36))
    for record in records:
        assert record["split"] == "test"
        assert record["effort"] is None
        assert record["messages"][-1]["role"] == "assistant"
        segments = render(
            record["messages"], tools=record["tools"], effort=record["effort"],
            thinking=record["thinking"], generation_prefix=False,
        )  # fmt: skip
        assert sum(len(s.text) for s in segments if s.generated) > 400
        assert 200 < record["pack_tokens"] < 3000


def test_several_processes_give_the_same_sessions_in_the_same_order() -> None:
    order = data.Order("train", "small", 0, 27)

    def plain(session: dict[str, Any]) -> str:
        return re.sub(r"in \d+\.\d+s", "", json.dumps(session))

    assert list(map(plain, data.sessions(order, 2))) == list(map(plain, data.sessions(order)))


def test_slips_are_named_by_the_harness_and_put_right() -> None:
    """A session with a slip ends as one without; the slip itself is marked, not to be learnt."""
    found: dict[str, int] = {}
    for session in data.sessions(data.Order("train", "small", 20_000, 24, slips=1.0)):
        for place in session["slips"]:
            messages = session["messages"]
            calls = messages[place]["tool_calls"]
            results = [m["content"] for m in messages[place + 1 : place + 1 + len(calls)]]
            wrong = [t for t in results if not t.startswith(("Replaced", "1 matching", "2 match"))]
            assert len(wrong) == 1, results
            assert "Again" in messages[place + 1 + len(calls)]["reasoning_content"]
            tool = calls[0]["function"]["name"]
            found[tool] = found.get(tool, 0) + 1
    assert found["search"] > 2
    assert found["edit"] > 2
    assert not any(s["slips"] for s in data.sessions(data.Order("train", "small", 20_000, 3)))


@pytest.mark.parametrize("shown", ["all", "bare", "words"])
def test_a_slip_is_read_and_not_learnt(shown: Shown, tokenizer: Tokenizer) -> None:
    order = data.Order("train", "small", 20_000, 6, slips=1.0)
    session = next(s for s in data.sessions(order) if s["slips"])
    learnt = sample_of_session(session, tokenizer, shown=shown)
    everything = sample_of_session({**session, "slips": []}, tokenizer, shown=shown)
    assert learnt.tokens == everything.tokens
    left_out = [t for t, a, b in zip(learnt.tokens, learnt.weights, everything.weights, strict=True)
                if a != b]  # fmt: skip
    assert len(everything.exact) - len(learnt.exact) >= 1
    (message,) = [session["messages"][place] for place in session["slips"]]
    text = tokenizer.decode(left_out)
    assert text.startswith(message["reasoning_content"])
    assert text.endswith("<|close|>message<|sep|><|end_of_msg|>")
    assert text.count('call tool="') == len(message["tool_calls"])


def test_tests_are_run_with_the_command_that_is_allowed() -> None:
    assert f"execute:{TESTS}" in data.ALLOWED
