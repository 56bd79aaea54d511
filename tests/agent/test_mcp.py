"""MCP servers as real processes: used after a look, decided call by call, and never the end."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from unabridged.agent.config import ConfigError, Flags, McpSection, load_config
from unabridged.agent.events import Checkpoint, Decision, Effects, SystemMessage, ToolResult
from unabridged.agent.mcp import Hub
from unabridged.agent.policy import Rule
from unabridged.tools.base import ToolError
from unabridged.tools.mcp import Mcp, McpArguments

SERVERS = Path(__file__).with_name("mcp_servers.py")


def server(mode: str, *words: object, **more: Any) -> McpSection:
    command = (sys.executable, str(SERVERS), mode, *map(str, words))
    return McpSection.model_validate({"command": command, **more})


def look(action: str, server: str = "letters", **more: Any) -> tuple[str, dict[str, Any]]:
    return "mcp", {"action": action, "server": server, **more}


def shout(text: str) -> tuple[str, dict[str, Any]]:
    return look("call", tool="shout", arguments={"text": text})


FINISH = [("finish", {"status": "done", "summary": "x"})]
ALLOWED = (Rule(decision="allow", command=("mcp", "letters", "*")),)


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Any]:
    hubs: list[Hub] = []

    def make(**servers: McpSection) -> Hub:
        hubs.append(Hub(servers, tmp_path))
        return hubs[-1]

    yield make
    for one in hubs:
        await one.close()


# --- use -----------------------------------------------------------------------------------------


async def test_a_session_looks_selects_calls_and_the_tool_list_never_changes(bench: Any) -> None:
    session = await bench.play(
        [[look("list")], [look("show", tool="shout")], [shout("hello")], FINISH],
        mcp={"letters": server("good")},
        rules=ALLOWED,
    )
    listed, shown, called = bench.of(session, ToolResult)[:3]
    assert "shout: Make it loud." in listed.text
    assert "More about it" not in listed.text
    assert '"text"' in shown.text
    assert "More about it." in shown.text
    assert called.text == "HELLO"
    assert bench.code(session) == 0
    assert len({request.tools for request in bench.requests(session)}) == 1, "the prefix holds"
    (system,) = bench.of(session, SystemMessage)
    (declared,) = [one for one in system.tools if one["function"]["name"] == "mcp"]
    assert "Servers: letters." in declared["function"]["description"]
    assert "shout" not in json.dumps(declared)


async def test_every_call_is_asked_about_unless_a_rule_knows_it(bench: Any) -> None:
    session = await bench.play(
        [[look("list")], [shout("x")], FINISH], mcp={"letters": server("good")}, on_ask="stop"
    )
    assert bench.code(session) == 3
    (pending,) = session.pending
    assert "mcp letters shout" in pending.preview
    assert '"text": "x"' in pending.preview
    assert "what it does cannot be seen" in pending.reason
    assert [r.error for r in bench.of(session, ToolResult)] == [False], "to look asks nobody"


async def test_effects_that_the_settings_declare_are_decided_too(bench: Any) -> None:
    section = server("good", effects={"shout": ["network"], "*": ["write"]})
    denied = (*ALLOWED, Rule.model_validate({"decision": "deny", "effect": "network"}))
    session = await bench.play([[shout("x")], FINISH], mcp={"letters": section}, rules=denied)
    assert [one.kind.value for one in bench.of(session, Effects)[0].effects] == ["execute", "network"]  # fmt: skip
    assert bench.of(session, Decision)[0].decision == "deny"
    assert Hub({"letters": section}, Path()).declared("letters", "other")[0].value == "write"


async def test_what_a_server_changed_in_the_repository_is_found(bench: Any) -> None:
    touch = look("call", tool="touch", arguments={"path": "by_server.txt"})
    session = await bench.play([[touch], FINISH], mcp={"letters": server("good")}, rules=ALLOWED)
    (result, *_) = bench.of(session, ToolResult)
    assert result.changed == ("by_server.txt",)
    assert bench.of(session, Checkpoint)
    assert bench.read("by_server.txt") == b"by a server\n"


async def test_errors_long_results_and_the_environment(
    hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNABRIDGED_API_KEY", "sk-secret")
    monkeypatch.setenv("MY_TOKEN", "t-1")
    servers = hub(letters=server("good", env={"TOKEN": "$MY_TOKEN"}))
    assert {offer.name for offer in await servers.offers("letters")} >= {"shout", "fail"}
    failed = await servers.call("letters", "fail", {})
    assert failed.error
    assert "fail" in failed.text
    assert (await servers.call("letters", "nothing", {})).error
    assert len((await servers.call("letters", "much", {"lines": 9000})).text) > 80_000
    given = json.loads((await servers.call("letters", "environment", {})).text)
    assert (given["cwd"], given["token"]) == (str(tmp_path), "t-1")
    assert "UNABRIDGED_API_KEY" not in given["names"]
    answers = await asyncio.gather(*(servers.call("letters", "shout", {"text": f"a{n}"}) for n in range(20)))  # fmt: skip
    assert [answer.text for answer in answers] == [f"A{n}" for n in range(20)]


def test_wrong_calls_say_what_to_do(tmp_path: Path) -> None:
    tool = Mcp(Hub({"letters": server("good")}, tmp_path))
    for arguments, said in (
        ({"action": "list", "server": "x"}, "Servers: letters."),
        ({"action": "call", "server": "letters"}, "list the server's tools first"),
    ):
        with pytest.raises(ToolError, match=said):
            tool.effects(McpArguments.model_validate(arguments), None)  # pyright: ignore[reportArgumentType]


# --- streamable HTTP ------------------------------------------------------------------------------


@pytest.fixture
def http_server() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, str(SERVERS), "http", str(port)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}/mcp"
    for _ in range(600):
        try:
            httpx.get(url)
            break
        except httpx.TransportError:
            time.sleep(0.1)
    yield url
    process.kill()
    process.wait()


async def test_streamable_http(hub: Any, http_server: str) -> None:
    servers = hub(letters=McpSection(url=http_server, timeout=30))
    assert (await servers.call("letters", "shout", {"text": "over http"})).text == "OVER HTTP"
    assert servers.reached("letters") in http_server


async def test_a_web_server_that_is_not_there(hub: Any) -> None:
    servers = hub(letters=McpSection(url="http://127.0.0.1:9/mcp"))
    with pytest.raises(ToolError, match="letters has failed: "):
        await servers.offers("letters")


# --- servers that misbehave -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("hang", "did not answer within 3 s and was ended"),
        ("deaf", "did not answer within 3 s and was ended"),
        ("crash", "its last words: Segmentation fault, as it were"),
        ("long_line", "sent a line of over 8 MiB"),
        ("flood", "sent over 32 MiB without an answer"),
        ("garbage", "sent over 10,000 lines that are no messages"),
    ],
)
async def test_a_server_that_misbehaves_is_an_error_of_the_call(
    hub: Any, tmp_path: Path, mode: str, said: str
) -> None:
    mark, good = tmp_path / "pid", server("good")
    seconds = 3 if mode in ("hang", "deaf") else 60
    servers = hub(bad=server(mode, mark, timeout=seconds), letters=good)
    await servers.offers("bad")
    own = psutil.Process()
    before = own.memory_info().rss
    with pytest.raises(ToolError, match=said):
        await servers.call("bad", "go", {})
    assert own.memory_info().rss - before < 64 << 20, "the flood stayed outside"
    gone(int(mark.read_text()))
    # The session goes on, with other servers and with this one, started anew.
    assert (await servers.call("letters", "shout", {"text": "still"})).text == "STILL"
    await servers.offers("bad")
    assert psutil.pid_exists(int(mark.read_text()))
    await servers.close()
    gone(int(mark.read_text()))


def gone(pid: int) -> None:
    for _ in range(100):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.05)
    pytest.fail(f"process {pid} was left running")


async def test_calls_that_run_beside_one_that_hangs_are_told(hub: Any, tmp_path: Path) -> None:
    servers = hub(bad=server("hang", tmp_path / "pid", timeout=3))
    outcomes = await asyncio.gather(
        *(servers.call("bad", "go", {}) for _ in range(3)), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [ToolError] * 3


def test_no_server_outlives_the_harness(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    code = (
        "import asyncio, os, sys\n"
        "from pathlib import Path\n"
        "from unabridged.agent.config import McpSection\n"
        "from unabridged.agent.mcp import Hub\n"
        "async def main():\n"
        "    section = McpSection(command=tuple(sys.argv[1:]))\n"
        "    await Hub({'bad': section}, Path()).offers('bad')\n"
        "    os._exit(7)\n"
        "asyncio.run(main())\n"
    )
    words = [sys.executable, "-c", code, *server("hang", mark).command]
    assert subprocess.run(words, check=False, timeout=120).returncode == 7
    gone(int(mark.read_text()))


async def test_a_session_outlives_a_server_that_crashes(bench: Any, tmp_path: Path) -> None:
    go = look("call", "bad", tool="go", arguments={})
    session = await bench.play(
        [[go], [shout("on")], FINISH],
        mcp={"bad": server("crash", tmp_path / "pid"), "letters": server("good")},
        rules=(*ALLOWED, Rule(decision="allow", command=("mcp", "bad", "go"))),
    )
    first, second = bench.of(session, ToolResult)[:2]
    assert (first.error, second.text) == (True, "ON")
    assert "bad has failed" in first.text
    assert bench.code(session) == 0


async def test_c44_cancel_ends_a_start_that_hangs_within_a_second(hub: Any, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    servers = hub(bad=server("hang_at_start", mark))
    asking = asyncio.ensure_future(servers.offers("bad"))
    while not mark.exists() or not mark.read_text():
        await asyncio.sleep(0.05)
    began = time.monotonic()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert time.monotonic() - began < 2
    gone(int(mark.read_text()))


@pytest.mark.parametrize(
    ("command", "said"), [(("no-such-program-here",), "No such file"), ((sys.executable, "-c", "0"), "failed")]
)  # fmt: skip
async def test_a_server_that_cannot_start(hub: Any, command: Sequence[str], said: str) -> None:
    with pytest.raises(ToolError, match=said):
        await hub(bad=McpSection(command=tuple(command))).offers("bad")


async def test_a_missing_variable_is_named(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    with pytest.raises(ToolError, match="letters needs NOT_SET in the environment"):
        await hub(letters=server("good", env={"TOKEN": "$NOT_SET"})).offers("letters")


# --- settings -------------------------------------------------------------------------------------


def test_servers_come_from_the_user_and_from_a_trusted_project(tmp_path: Path) -> None:
    mine, theirs = tmp_path / "config.toml", tmp_path / "project.toml"
    mine.write_text('[mcp.a]\ncommand = ["mine"]\nenv = { X = "$X" }\n')
    theirs.write_text('[mcp.a]\ncommand = ["theirs"]\n[mcp.b]\nurl = "https://x.example/mcp"\n')
    untrusted = load_config(Flags(), user=mine, env={})
    assert list(untrusted.mcp) == ["a"]
    config = load_config(Flags(), user=mine, project=theirs, env={})
    assert config.mcp["a"].command == ("mine",), "the user's server of a name comes first"
    assert config.origin["mcp.b"] == str(theirs)
    theirs.write_text('[mcp.b]\nurl = "https://x.example/mcp"\nheaders = { K = "$KEY" }\n')
    with pytest.raises(ConfigError, match=r"mcp\.b.*which a project cannot"):
        load_config(Flags(), user=mine, project=theirs, env={})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[mcp.a]\n", "give `command` or `url`"),
        ('[mcp.a]\ncommand = ["x"]\nurl = "https://x"\n', "give `command` or `url`"),
        ('[mcp.a]\nurl = "ftp://x"\n', "is no address"),
        ('[mcp.a]\ncommand = ["x"]\ntimeuot = 3\n', "unknown key `mcp.a.timeuot`, did you mean `timeout`"),
        ('[mcp.a]\ncommand = ["x"]\n[mcp.a.effects]\ngo = ["fly"]\n', "mcp.a.effects.go"),
    ],
)  # fmt: skip
def test_wrong_settings_of_a_server_are_one_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(Flags(), user=tmp_path / "config.toml", env={})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_session_without_servers_imports_no_sdk() -> None:
    code = (
        "import sys, unabridged; unabridged.Session\n"
        "print(sorted({'mcp', 'acp', 'argcomplete', 'tomlkit'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
