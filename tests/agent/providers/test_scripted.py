"""Scripts: read, checked, played in process and over HTTP alike."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from unabridged.agent.providers.base import ProviderError
from unabridged.agent.providers.scripted import (
    Question,
    Script,
    ScriptedCall,
    ScriptedProvider,
    Turn,
    load_script,
)

FAKES = Path(__file__).resolve().parents[2] / "fakes"
USER = b'{"role":"user","content":"hi"}'
REPLY = b'{"role":"assistant","reasoning_content":"","content":"x"}'


def play(*turns: Any, **options: Any) -> ScriptedProvider:
    return ScriptedProvider(
        Script(turns=tuple(Turn.model_validate(turn) for turn in turns), **options)
    )


FAULTS = [
    {"kind": "status", "status": 503},
    {"kind": "status", "status": 429, "headers": {"Retry-After": "0"}},
    {"kind": "drop", "after": 3},
    {"kind": "cut", "after": 3},
    {"kind": "garbage", "after": 3},
    {"kind": "error", "after": 3},
    {"kind": "no_calls"},
    {"kind": "leak"},
]


@pytest.mark.parametrize("fault", [None, *FAULTS], ids=str)
async def test_in_process_and_over_http_give_the_same(bench: Any, fault: Any) -> None:
    turn = {
        "reasoning": "think " * 9,
        "content": "say " * 9,
        "calls": [{"name": "read", "arguments": {"path": "é"}}, {"name": "list"}],
        "wire": {"chunk": 5, "interleave": 3},
        "usage": {"prompt": 100, "cached": 60, "completion": 30, "reasoning": 9},
        "faults": [fault] if fault else [],
    }
    here = await bench.ask(play(turn))
    there = await bench.ask(bench.connect(await bench.serve([turn])))
    assert here.reply == there.reply
    assert here.shown == there.shown
    assert len(here.waits) == len(there.waits) == bool(fault)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ({"kind": "status", "status": 401}, "auth"),
        ({"kind": "status", "status": 429, "body": "insufficient balance"}, "quota"),
        ({"kind": "page"}, "not_found"),
        (
            {
                "kind": "status",
                "status": 400,
                "body": {"error": {"message": "maximum context length is 4096 tokens"}},
            },
            "context_overflow",
        ),
    ],
)
async def test_lasting_faults_in_process(bench: Any, fault: Any, kind: str) -> None:
    provider = play({"content": "x", "faults": [fault]})
    with pytest.raises(ProviderError) as raised:
        await bench.ask(provider)
    assert raised.value.kind == kind
    assert provider.window == (4096 if kind == "context_overflow" else 1_048_576)


async def test_in_process_gives_up_after_ten_attempts(bench: Any) -> None:
    provider = play({"content": "x", "faults": [{"kind": "drop"}] * 10})
    with pytest.raises(ProviderError, match="broke"):
        await bench.ask(provider)


async def test_sequence_moves_on_with_each_answer(bench: Any) -> None:
    provider = play({"content": "a"}, {"content": "b"})
    assert [(await bench.ask(provider)).reply.content for _ in "ab"] == ["a", "b"]
    with pytest.raises(ProviderError, match="2 turns, and this request asks for one more"):
        await bench.ask(provider)


async def test_history_finds_the_place_in_the_request(bench: Any) -> None:
    provider = play({"content": "a"}, {"content": "b"}, order="history")
    for _ in range(2):
        assert (await bench.ask(provider, USER, REPLY, USER)).reply.content == "b"
        assert (await bench.ask(provider)).reply.content == "a"


async def test_the_last_turn_can_repeat(bench: Any) -> None:
    provider = play({"content": "a"}, {"content": "b"}, end="repeat")
    said = [(await bench.ask(provider)).reply.content for _ in range(4)]
    assert said == ["a", "b", "b", "b"]


async def test_a_policy_is_a_script_too(bench: Any) -> None:
    def policy(question: Question) -> Turn | dict[str, Any]:
        if question.results():
            return Turn(content=f"got {question.results()['c1']}")
        return {"calls": [{"name": "read", "id": "c1", "arguments": {"n": question.turn}}]}

    result = b'{"role":"tool","tool_call_id":"c1","content":[{"type":"text","text":"42"}]}'
    provider = ScriptedProvider(policy)
    assert (await bench.ask(provider)).reply.calls[0].arguments == '{"n": 0}'
    assert (await bench.ask(provider, USER, REPLY, result)).reply.content == "got 42"
    served = bench.connect(await bench.serve(policy))
    assert (await bench.ask(served, USER, REPLY, result)).reply.content == "got 42"


async def test_expectations(bench: Any) -> None:
    tools = json.dumps([{"type": "function", "function": {"name": "read"}}]).encode()
    good = {
        "roles": ["user"],
        "messages": 1,
        "last": ["hi"],
        "anywhere": ["h"],
        "nowhere": ["bye"],
        "tools": ["read"],
        "body": {"model": "k", "max_completion_tokens": 1000},
    }
    server = await bench.serve([{"content": "x", "expect": good}])
    await bench.ask(bench.connect(server), tools=tools)
    assert server.failures == []
    for name, value in {
        "roles": ["tool"],
        "messages": 2,
        "last": ["no"],
        "anywhere": ["no"],
        "nowhere": ["hi"],
        "tools": ["list"],
        "body": {"model": "other"},
    }.items():
        turn = {"content": "x", "expect": {**good, name: value}}
        with pytest.raises(ProviderError, match="turn 0 expects another request"):
            await bench.ask(play(turn), tools=tools)
        server = await bench.serve([turn])
        with pytest.raises(ProviderError, match="turn 0 expects another request"):
            await bench.ask(bench.connect(server), tools=tools)
        assert len(server.failures) == 1


async def test_delays(bench: Any) -> None:
    turn = {"content": "abc", "wire": {"chunk": 1, "delay": 0.01, "first_delay": 0.02}}
    loop = asyncio.get_running_loop()
    for provider in (play(turn), bench.connect(await bench.serve([turn]))):
        began = loop.time()
        await bench.ask(provider)
        assert loop.time() - began >= 0.05


async def test_counts_of_tokens_follow_the_bytes(bench: Any) -> None:
    provider = play({"reasoning": "r" * 40, "content": "c" * 40}, {"content": "x"})
    long = b'{"role":"user","content":"' + b"y" * 4000 + b'"}'
    first = (await bench.ask(provider, long)).reply.usage
    second = (await bench.ask(provider, long, REPLY, USER)).reply.usage
    assert (first.cached, first.completion, first.reasoning) == (0, 21, 10)
    assert 1000 <= second.cached <= first.prompt < second.prompt


def test_playing_a_script_in_process_imports_no_http_client() -> None:
    code = (
        "import sys, unabridged.agent.providers.scripted\n"
        "print({'httpx', 'openai', 'torch', 'keyring'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# --- files ----------------------------------------------------------------------------------------


def test_json_and_toml_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(
        '{"turns": [{"content": "a", "calls": [{"name": "read", "arguments": {"n": 1}}],'
        ' "faults": [{"kind": "status", "status": 503}]}], "wire": {"chunk": 3}}'
    )
    (tmp_path / "s.toml").write_text(
        'wire.chunk = 3\n[[turns]]\ncontent = "a"\n[[turns.calls]]\nname = "read"\n'
        'arguments = {n = 1}\n[[turns.faults]]\nkind = "status"\nstatus = 503\n'
    )
    script = load_script(tmp_path / "s.json")
    assert script == load_script(tmp_path / "s.toml")
    assert script.turns[0].calls == (ScriptedCall(name="read", arguments={"n": 1}),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"turns": [{"contnt": "a"}]}', "turns.0.contnt"),
        ('{"turns": [{"faults": [{"kind": "nope"}]}]}', "turns.0.faults.0"),
        ('{"turns": [{"faults": [{"kind": "status"}]}]}', "turns.0.faults.0.status.status"),
        ('{"turns": [', "s.json"),
        ("[]", "s.json: script"),
    ],
)
def test_wrong_scripts_name_file_and_field(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "s.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=words) as raised:
        load_script(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("path", sorted((FAKES / "scripts").iterdir()), ids=lambda p: p.name)
def test_scripts_of_this_repository_load(path: Path) -> None:
    assert load_script(path).turns


# --- the server -------------------------------------------------------------------------------------


async def test_server_records_the_bytes(bench: Any, tmp_path: Path) -> None:
    server = await bench.serve([{"content": "x"}] * 2, record=tmp_path / "bodies")
    provider = bench.connect(server)
    await bench.ask(provider)
    await bench.ask(provider, USER, REPLY, USER)
    files = sorted((tmp_path / "bodies").iterdir())
    assert [file.name for file in files] == ["0001.json", "0002.json"]
    assert [file.read_bytes() for file in files] == [r.body for r in server.requests]


async def test_server_takes_requests_that_come_early(bench: Any) -> None:
    """A client may send its next request before the last reply has been settled here."""
    server = await bench.serve([{"content": "x"}] * 200)
    provider = bench.connect(server)
    for _ in range(200):
        assert (await bench.ask(provider)).waits == []


def test_server_from_a_thread(serve_script: Any) -> None:
    server = serve_script(Script(turns=(Turn(content="x"),)))
    body = json.dumps({"model": "m", "messages": []}).encode()
    request = urllib.request.Request(f"{server.url}/chat/completions", body)
    with urllib.request.urlopen(request) as response:
        assert json.load(response)["choices"][0]["message"]["content"] == "x"
    assert server.requests[0].body == body


def test_server_by_hand(tmp_path: Path) -> None:
    command = [sys.executable, FAKES / "server.py", FAKES / "scripts" / "hello.json"]
    with subprocess.Popen(
        [*command, "--port", "0", "--record", tmp_path], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            with urllib.request.urlopen(f"{url}/models") as response:
                assert json.load(response)["data"][0]["id"] == "kimi-k3"
            body = b'{"model":"kimi-k3","messages":[],"stream":true}'
            request = urllib.request.Request(f"{url}/chat/completions", body)
            with urllib.request.urlopen(request) as response:
                assert response.read().endswith(b"data: [DONE]\n\n")
            assert (tmp_path / "0001.json").read_bytes() == body
        finally:
            process.terminate()


def test_server_by_hand_with_a_wrong_script(tmp_path: Path) -> None:
    command = [sys.executable, str(FAKES / "server.py"), str(tmp_path / "none.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "none.json" in done.stderr
    assert done.stderr.count("\n") == 1
