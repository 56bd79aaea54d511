"""`unabridged acp` driven by the protocol's own client, over the pipes of a real process."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import acp
import pytest
from acp import schema as wire
from acp.exceptions import RequestError

FILES = {
    "a.py": "def f():\n    return 1\n",
    "b.py": "from a import f\n\nprint(f())\n",
}
RENAMED = {
    "a.py": "def answer():\n    return 1\n",
    "b.py": "from a import answer\n\nprint(answer())\n",
}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def turn(*calls: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"calls": calls, **fields}


PLAN = turn(
    call("propose_plan", plan="Rename f in a.py.\nFollow it in b.py.", paths=["a.py", "b.py"]),
    reasoning="Two files: a plan first.",
)
EDITS = turn(
    call("edit", path="a.py", old="def f", new="def answer"),
    call("edit", path="b.py", old="f", new="answer", replace_all=False),
    reasoning="Now both.",
)
SECOND = turn(call("write", path="b.py", content=RENAMED["b.py"]))
CHECK = turn(call("shell", command=f"{sys.executable} b.py"), content="Let me run it.")
FINISH = turn(call("finish", status="done", summary="Renamed."))


class Editor:
    """An editor that keeps what it is shown and answers as it was told."""

    def __init__(self, choose: Callable[[wire.ToolCallUpdate, list[str]], str | None]) -> None:
        self.choose = choose
        self.updates: list[Any] = []
        self.asked: list[tuple[wire.ToolCallUpdate, list[wire.PermissionOption]]] = []
        self.came = asyncio.Event()

    async def request_permission(
        self, session_id: str, tool_call: Any, options: list[wire.PermissionOption], **_more: Any
    ) -> wire.RequestPermissionResponse:
        self.asked.append((tool_call, options))
        self.came.set()
        option = self.choose(tool_call, [one.option_id for one in options])
        if option == "wait":
            await asyncio.Event().wait()
        outcome = (
            wire.DeniedOutcome(outcome="cancelled")
            if option is None
            else wire.AllowedOutcome(outcome="selected", option_id=option)
        )
        return wire.RequestPermissionResponse(outcome=outcome)

    async def session_update(self, session_id: str, update: Any, **_more: Any) -> None:
        self.updates.append(update)
        self.came.set()

    def of(self, kind: str) -> list[Any]:
        return [one for one in self.updates if one.session_update == kind]

    def text(self, kind: str) -> str:
        return "".join(one.content.text for one in self.of(kind))

    def statuses(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for one in self.updates:
            if one.session_update in ("tool_call", "tool_call_update") and one.status:
                found.setdefault(one.tool_call_id, []).append(one.status)
        return found

    def on_connect(self, conn: Any) -> None:
        pass


class Bench:
    def __init__(self, folder: Path) -> None:
        self.repo, self.folder = folder / "repo", folder
        self.repo.mkdir()
        for name, text in FILES.items():
            (self.repo / name).write_text(text)
        subprocess.run(["git", "init", "-q"], cwd=self.repo, check=True)
        subprocess.run(["git", "add", "."], cwd=self.repo, check=True)
        self.env = {
            "PATH": os.environ["PATH"], "HOME": str(folder),
            **{f"XDG_{kind}_HOME": str(folder / kind) for kind in ("CONFIG", "DATA", "CACHE")},
        }  # fmt: skip

    @asynccontextmanager
    async def editor(
        self,
        *turns: Any,
        choose: Callable[..., str | None] = lambda *_: "once",
        words: Sequence[str] = (),
    ) -> AsyncIterator[tuple[Editor, Any]]:
        script = self.folder / "script.json"
        script.write_text(json.dumps({"order": "history", "turns": turns}))
        model = ["--script", str(script)] if turns else []
        editor = Editor(choose)
        async with acp.spawn_agent_process(
            cast("Any", editor), sys.executable, "-m", "unabridged", "acp", *model, *words,
            "--sessions-dir", str(self.folder / "sessions"), env=self.env, cwd=self.folder,
            use_unstable_protocol=True,
        ) as (agent, process):  # fmt: skip
            hello = await agent.initialize(protocol_version=acp.PROTOCOL_VERSION)
            assert hello.agent_capabilities is not None
            assert hello.agent_capabilities.load_session
            yield editor, agent
        assert process.returncode in (0, None, -15), process.returncode

    @property
    def files(self) -> dict[str, str]:
        return {name: (self.repo / name).read_text() for name in FILES}

    @property
    def log(self) -> list[dict[str, Any]]:
        (path,) = (self.folder / "sessions").glob("*.jsonl")
        return [json.loads(line) for line in path.read_bytes().splitlines()]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def say(text: str) -> list[Any]:
    return [acp.text_block(text)]


async def test_an_editor_drives_a_whole_refactoring_with_approvals(bench: Bench) -> None:
    async with bench.editor(PLAN, EDITS, SECOND, CHECK, FINISH) as (editor, agent):
        new = await agent.new_session(cwd=str(bench.repo), mcp_servers=[])
        assert new.modes.current_mode_id == "ask"
        assert bench.files == FILES
        done = await agent.prompt(session_id=new.session_id, prompt=say("Rename f to answer"))
        assert done.stop_reason == "end_turn"
    assert bench.files == RENAMED
    titles = [asked.title for asked, _ in editor.asked]
    assert titles == ["propose_plan", f"shell {sys.executable} b.py"], (
        "within the plan nothing asks"
    )
    plans = [[entry.status for entry in plan.entries] for plan in editor.of("plan")]
    assert plans == [["pending"] * 2, ["in_progress"] * 2, ["completed"] * 2]
    assert editor.of("plan")[0].entries[1].content == "Follow it in b.py."
    assert editor.text("agent_thought_chunk") == "Two files: a plan first.Now both."
    assert editor.text("agent_message_chunk") == "Let me run it."
    shown = [content for one in editor.of("tool_call") for content in one.content or () if content.type == "diff"]  # fmt: skip
    assert (shown[0].path, shown[0].old_text, shown[0].new_text) == (
        str(bench.repo / "a.py"), FILES["a.py"], RENAMED["a.py"],
    )  # fmt: skip
    assert shown[-1].new_text == RENAMED["b.py"]
    ends = {name: said[-1] for name, said in editor.statuses().items()}
    assert sorted(ends.values()) == ["completed"] * 5 + ["failed"], "one edit was ambiguous"
    assert all(one.locations[0].path.startswith("/") for one in editor.of("tool_call") if one.locations)  # fmt: skip
    usage = editor.of("usage_update")[-1]
    assert 0 < usage.used < usage.size
    assert bench.log[-1]["type"] == "run_ended"
    assert [event.get("by", "user") for event in bench.log if event["type"] == "approval"] == ["user"] * 2  # fmt: skip


async def test_no_approval_no_effect(bench: Bench) -> None:
    edit = turn(call("edit", path="a.py", old="def f", new="def g"))
    async with bench.editor(edit, FINISH, choose=lambda *_: "no") as (editor, agent):
        new = await agent.new_session(cwd=str(bench.repo), mcp_servers=[])
        await agent.prompt(session_id=new.session_id, prompt=say("Rename"))
    (asked, options), = editor.asked  # fmt: skip
    assert [one.kind for one in options] == ["allow_once", "allow_always", "reject_once"]
    (diff,) = [one for one in asked.content or () if one.type == "diff"]
    assert diff.new_text == FILES["a.py"].replace("def f", "def g")
    assert bench.files == FILES
    assert "The user said no" in next(e["text"] for e in bench.log if e["type"] == "tool_result")


async def test_allowing_for_the_session_asks_once(bench: Bench) -> None:
    edits = [turn(call("edit", path="a.py", old=f"return {n}", new=f"return {n + 1}")) for n in (1, 2)]  # fmt: skip
    async with bench.editor(*edits, FINISH, choose=lambda *_: "always") as (editor, agent):
        new = await agent.new_session(cwd=str(bench.repo), mcp_servers=[])
        await agent.prompt(session_id=new.session_id, prompt=say("Count"))
    assert len(editor.asked) == 1
    assert "return 3" in bench.files["a.py"]


@pytest.mark.parametrize("answer", ["wait", None])
async def test_cancel_while_it_asks_ends_the_turn_at_once(bench: Bench, answer: str | None) -> None:
    edit = turn(call("edit", path="a.py", old="def f", new="def g"))
    async with bench.editor(edit, FINISH, choose=lambda *_: answer) as (editor, agent):
        new = await agent.new_session(cwd=str(bench.repo), mcp_servers=[])
        turning = asyncio.ensure_future(
            agent.prompt(session_id=new.session_id, prompt=say("Rename"))
        )
        while not editor.asked:
            editor.came.clear()
            await editor.came.wait()
        began = time.monotonic()
        if answer == "wait":
            await agent.cancel(session_id=new.session_id)
        assert (await turning).stop_reason == "cancelled"
        assert time.monotonic() - began < 5
        # The session is whole: it goes on with other words.
        assert (await agent.prompt(session_id=new.session_id, prompt=say("Stop"))).stop_reason == "end_turn"  # fmt: skip
    assert bench.files == FILES


async def test_a_command_that_runs_is_cancelled(bench: Bench) -> None:
    async with bench.editor(turn(call("shell", command="sleep 60")), FINISH) as (editor, agent):
        new = await agent.new_session(cwd=str(bench.repo), mcp_servers=[])
        turning = asyncio.ensure_future(agent.prompt(session_id=new.session_id, prompt=say("Wait")))
        while not any("in_progress" in said for said in editor.statuses().values()):
            editor.came.clear()
            await editor.came.wait()
        await agent.cancel(session_id=new.session_id)
        assert (await asyncio.wait_for(turning, 10)).stop_reason == "cancelled"


async def test_the_next_prompt_answers_a_question(bench: Bench) -> None:
    ask = turn(call("ask_user", question="Which name?", choices=["g", "h"]))
    async with bench.editor(ask, FINISH) as (editor, agent):
        new = await agent.new_session(cwd=str(bench.repo), mcp_servers=[])
        done = await agent.prompt(session_id=new.session_id, prompt=say("Rename it"))
        assert done.stop_reason == "end_turn"
        assert editor.text("agent_message_chunk") == "Which name?\n- g\n- h"
        await agent.prompt(session_id=new.session_id, prompt=say("h, please"))
    assert [e["text"] for e in bench.log if e["type"] == "answer"] == ["h, please"]
    assert bench.log[-1]["name"] == "done"
    assert len([e for e in bench.log if e["type"] == "run_started"]) == 1, "one run all along"


async def test_read_only_takes_hold_at_once(bench: Bench) -> None:
    edit = turn(call("edit", path="a.py", old="def f", new="def g"))
    async with bench.editor(edit, FINISH) as (editor, agent):
        new = await agent.new_session(cwd=str(bench.repo), mcp_servers=[])
        await agent.set_session_mode(session_id=new.session_id, mode_id="read-only")
        await agent.prompt(session_id=new.session_id, prompt=say("Rename"))
        with pytest.raises(RequestError, match="choose of ask, read-only"):
            await agent.set_session_mode(session_id=new.session_id, mode_id="yolo")
    assert editor.asked == []
    assert bench.files == FILES


async def test_sessions_are_listed_loaded_with_their_history_and_gone_on_with(bench: Bench) -> None:
    turns = (PLAN, EDITS, SECOND, FINISH, turn(content="It was f."), FINISH)
    async with bench.editor(*turns) as (_, agent):
        new = await agent.new_session(cwd=str(bench.repo), mcp_servers=[])
        await agent.prompt(session_id=new.session_id, prompt=say("Rename f to answer"))
    async with bench.editor(*turns) as (editor, agent):
        (listed,) = (await agent.list_sessions(cwd=str(bench.repo))).sessions
        assert (listed.session_id, listed.title) == (new.session_id, "Rename f to answer")
        assert (await agent.list_sessions(cwd=str(bench.folder))).sessions == []
        with pytest.raises(RequestError, match="works in"):
            await agent.load_session(cwd=str(bench.folder), session_id=new.session_id, mcp_servers=[])  # fmt: skip
        await agent.load_session(cwd=str(bench.repo), session_id=new.session_id, mcp_servers=[])
        assert editor.text("user_message_chunk") == "Rename f to answer"
        assert editor.text("agent_thought_chunk") == "Two files: a plan first.Now both."
        assert {said[-1] for said in editor.statuses().values()} == {"completed", "failed"}
        before = len(editor.updates)
        await agent.prompt(session_id=new.session_id, prompt=say("What was it called?"))
        assert [u.content.text for u in editor.updates[before:] if u.session_update == "agent_message_chunk"] == ["It was f."]  # fmt: skip
    async with bench.editor(*turns) as (editor, agent):
        resumed = await agent.resume_session(session_id=new.session_id, cwd=str(bench.repo))
        assert resumed.modes.current_mode_id == "ask"
        assert editor.updates == []


async def test_two_editors_never_share_a_session(bench: Bench) -> None:
    async with bench.editor(FINISH) as (_, agent):
        new = await agent.new_session(cwd=str(bench.repo), mcp_servers=[])
        async with bench.editor(FINISH) as (_, other):
            with pytest.raises(RequestError, match="in use by another process"):
                await other.load_session(cwd=str(bench.repo), session_id=new.session_id, mcp_servers=[])  # fmt: skip


async def test_what_cannot_be_is_a_plain_error_and_the_agent_lives_on(bench: Bench) -> None:
    bench.env["UNABRIDGED_BASE_URL"] = "https://api.moonshot.ai/v1"
    async with bench.editor() as (_, agent):
        with pytest.raises(RequestError, match="no key for") as refused:
            await agent.new_session(cwd=str(bench.repo), mcp_servers=[])
        assert refused.value.code == -32000
        with pytest.raises(RequestError, match="no such folder"):
            await agent.new_session(cwd="somewhere", mcp_servers=[])
        with pytest.raises(RequestError, match="load it first"):
            await agent.prompt(session_id="x", prompt=say("Hello"))
        with pytest.raises(RequestError, match="no session"):
            await agent.load_session(cwd=str(bench.repo), session_id="x", mcp_servers=[])


async def test_mcp_servers_of_the_editor_are_used_and_asked_about(bench: Bench) -> None:
    servers = Path(__file__).with_name("mcp_servers.py")
    stdio = wire.McpServerStdio(
        name="letters", command=sys.executable, args=[str(servers), "good"],
        env=[wire.EnvVariable(name="TOKEN", value="pa$word")],
    )  # fmt: skip
    use = turn(call("mcp", action="call", server="letters", tool="environment", arguments={}))
    async with bench.editor(use, FINISH) as (editor, agent):
        new = await agent.new_session(cwd=str(bench.repo), mcp_servers=[stdio])
        await agent.prompt(session_id=new.session_id, prompt=say("Which token?"))
    assert [asked.title for asked, _ in editor.asked] == ["mcp call letters environment"]
    result = next(event for event in bench.log if event["type"] == "tool_result")
    assert json.loads(result["text"])["token"] == "pa$word"


async def test_files_and_images_of_the_editor_reach_the_model(bench: Bench) -> None:
    prompt = [
        acp.text_block("Look:"),
        acp.resource_link_block("a.py", (bench.repo / "a.py").as_uri()),
        acp.resource_block(acp.embedded_text_resource((bench.repo / "b.py").as_uri(), "unsaved")),
        acp.image_block("aGk=", "image/png"),
    ]
    async with bench.editor(FINISH) as (_, agent):
        new = await agent.new_session(cwd=str(bench.repo), mcp_servers=[])
        for wrong in ([acp.image_block("aGk=", "image/gif")], [acp.text_block(" ")]):
            with pytest.raises(RequestError):
                await agent.prompt(session_id=new.session_id, prompt=wrong)
        await agent.prompt(session_id=new.session_id, prompt=prompt)
    (said,) = [event for event in bench.log if event["type"] == "user_message"]
    assert said["parts"] == [
        {"text": "Look:"},
        {"text": "a.py"},
        {"text": "b.py, as it is in the editor:\n\nunsaved"},
        {"url": "data:image/png;base64,aGk="},
    ]


def test_without_an_editor_it_says_so(bench: Bench) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "unabridged", "acp"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, env=bench.env, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert "an editor starts this" in done.stderr
    assert done.stderr.count("\n") == 1


RECORDED = [
    # The messages of the protocol's documentation: initialize, session/new, session/prompt.
    {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": 1,
        "clientCapabilities": {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": True},
        "clientInfo": {"name": "my-client", "title": "My Client", "version": "1.0.0"}}},
    {"jsonrpc": "2.0", "id": 1, "method": "session/new", "params": {"cwd": "REPO", "mcpServers": []}},
    {"jsonrpc": "2.0", "id": 2, "method": "session/prompt", "params": {
        "sessionId": "SESSION", "prompt": [{"type": "text", "text": "Can you analyze this code?"}]}},
]  # fmt: skip


def test_an_exchange_in_the_words_of_the_protocol(bench: Bench) -> None:
    script = bench.folder / "script.json"
    script.write_text(json.dumps({"turns": [{"content": "I can."}]}))
    process = subprocess.Popen(
        [sys.executable, "-m", "unabridged", "acp", "--script", str(script),
         "--sessions-dir", str(bench.folder / "sessions")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=bench.env, cwd=bench.folder,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    session, said = "", ""
    for message in RECORDED:
        line = json.dumps(message).replace("REPO", str(bench.repo)).replace("SESSION", session)
        process.stdin.write(line.encode() + b"\n")
        process.stdin.flush()
        while True:
            answer = json.loads(process.stdout.readline())
            if answer.get("id") == message["id"]:
                break
            assert answer["method"] == "session/update"
            if answer["params"]["update"]["sessionUpdate"] == "agent_message_chunk":
                said += answer["params"]["update"]["content"]["text"]
        if message["method"] == "initialize":
            assert answer["result"]["protocolVersion"] == 1
            assert answer["result"]["agentInfo"]["name"] == "unabridged"
        session = answer["result"].get("sessionId", session)
    assert answer["result"]["stopReason"] == "end_turn"  # pyright: ignore[reportPossiblyUnboundVariable]
    assert said == "I can."
    process.stdin.close()
    assert process.wait(30) == 0
