"""`unabridged run` and its kin from outside: real processes, a real server, real exit codes."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from unabridged.agent.export import STREAM_SCHEMA
from unabridged.agent.providers.scripted import Script
from unabridged.agent.providers.scripted_server import ScriptedServer
from unabridged.cli import main

PNG = b"\x89PNG\r\n\x1a\n" + bytes(24)
FILES = {
    "pkg/__init__.py": b"",
    "pkg/a.py": b"def f():\n    return 1\n",
    "pkg/b.py": b"from .a import f\n",
    "README.md": b"# Sample\n",
}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def turn(*calls: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"calls": calls, **fields}


def finish(status: str = "done", summary: str = "All done.", **more: Any) -> dict[str, Any]:
    return turn(call("finish", status=status, summary=summary, **more))


READ = turn(call("read", path="pkg/a.py"), reasoning="Look first.")
EDIT = turn(call("edit", path="pkg/a.py", old="return 1", new="return 2"), reasoning="Change it.")
EDIT_B = call("edit", path="pkg/b.py", old="import f", new="import f  # noqa")


@dataclass(frozen=True)
class Done:
    """What a process gave."""

    code: int
    out: str
    err: str

    @property
    def result(self) -> dict[str, Any]:
        """Standard output of `--output json`: one document and nothing else."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Standard output of `--output stream-json`: every line is a JSON object."""
        return [json.loads(line) for line in self.out.splitlines()]


class Cli:
    """Runs the command line in a home of its own, over a small repository."""

    def __init__(self, folder: Path, serve: Callable[..., ScriptedServer]) -> None:
        self._serve = serve
        self.home = folder / "home"
        self.repo = folder / "repo"
        self.sessions = folder / "sessions"
        self.home.mkdir()
        for name, data in FILES.items():
            (self.repo / name).parent.mkdir(parents=True, exist_ok=True)
            (self.repo / name).write_bytes(data)
        subprocess.run(["git", "init", "-q"], cwd=self.repo, check=True)
        subprocess.run(["git", "add", "."], cwd=self.repo, check=True)
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "XDG_CONFIG_HOME": str(self.home / "config"),
            "XDG_DATA_HOME": str(self.home / "data"),
            "XDG_CACHE_HOME": str(self.home / "cache"),
            "UNABRIDGED_BASE_URL": "http://127.0.0.1:9/v1",
        }
        self.server: ScriptedServer | None = None

    def serve(
        self, *turns: dict[str, Any], key: str | None = None, **script: Any
    ) -> ScriptedServer:
        """Serve these turns; later commands talk to them."""
        document = {"order": "history", "turns": turns, **script}
        self.server = self._serve(Script.model_validate(document), key=key)
        self.env["UNABRIDGED_BASE_URL"] = self.server.url
        return self.server

    def command(self, *words: str) -> list[str]:
        running = words and words[0] in ("run", "approve", "deny", "answer")
        where = ["--sessions-dir", str(self.sessions)] if running else []
        place = ["--repo", str(self.repo)] if running and "--repo" not in words else []
        return [sys.executable, "-m", "unabridged", *words[:1], *where, *place, *words[1:]]

    def __call__(
        self, *words: str, stdin: bytes = b"", cwd: Path | None = None, **options: Any
    ) -> Done:
        done = subprocess.run(
            self.command(*words), input=stdin, capture_output=True, env=self.env, check=False,
            cwd=cwd or self.home, timeout=60, **options,
        )  # fmt: skip
        err = done.stderr.decode()
        assert "Traceback" not in err, err
        return Done(done.returncode, done.stdout.decode(), err)

    def run(self, *words: str, **options: Any) -> Done:
        return self("run", *words, **options)

    def refused(self, *words: str) -> str:
        """Run what cannot work: exit 2, one line of error, no session, nothing changed."""
        return self.check_refused(self(*words))

    def check_refused(self, done: Done) -> str:
        assert done.code == 2, done.err
        assert done.out == ""
        assert done.err.startswith("unabridged")
        assert done.err.count("\n") == 1, done.err
        assert not list(self.sessions.glob("*")) if self.sessions.is_dir() else True
        assert not list(self.home.rglob("*.jsonl"))
        assert self.untouched
        return done.err

    @property
    def untouched(self) -> bool:
        return all((self.repo / name).read_bytes() == data for name, data in FILES.items())

    @property
    def log(self) -> Path:
        (path,) = self.sessions.glob("*.jsonl")
        return path

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_bytes().splitlines()]

    @property
    def kept_result(self) -> dict[str, Any]:
        """The result beside the log."""
        return json.loads(self.log.with_suffix(".result.json").read_bytes())


@pytest.fixture
def cli(tmp_path: Path, serve_script: Callable[..., ScriptedServer]) -> Cli:
    return Cli(tmp_path, serve_script)


Inside = Callable[..., Done]


@pytest.fixture
def inside(cli: Cli, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Inside:
    """Runs the command line in this process, where a process of its own shows nothing more."""
    monkeypatch.chdir(cli.home)
    monkeypatch.delenv("UNABRIDGED_API_KEY", raising=False)
    monkeypatch.delenv("MOONSHOT_API_KEY", raising=False)

    def run(*words: str) -> Done:
        for name, value in cli.env.items():
            monkeypatch.setenv(name, value)
        try:
            code = main(cli.command(*words)[3:])
        except SystemExit as error:
            code = int(error.code or 0)
        out, err = capfd.readouterr()
        return Done(code, out, err)

    return run


# --- how a run ends -----------------------------------------------------------------------------


def test_done(cli: Cli) -> None:
    check = "grep -q 'return 2' pkg/a.py"
    cli.serve(READ, EDIT, turn(call("shell", command=check)), finish(verified=[check]))
    done = cli.run("Make f return 2", "--allow", "write:pkg/a.py", "--allow", "execute", "--json")
    assert done.code == 0, done.err
    assert done.err == ""
    assert (cli.repo / "pkg/a.py").read_bytes() == b"def f():\n    return 2\n"
    result = done.result
    assert result == cli.kept_result
    assert (result["exit_code"], result["exit_name"], result["status"]) == (0, "done", "done")
    assert result["summary"] == "All done."
    assert result["files_changed"] == [
        {"path": "pkg/a.py", "change": "modified", "added": 1, "removed": 1}
    ]
    assert result["verified"] is True
    assert result["verification"] == [{"command": check, "exit_code": 0}]
    assert result["steps"] == 4
    tokens = result["tokens"]
    assert tokens["prompt"] == tokens["cached"] + tokens["uncached"]
    assert min(tokens.values()) > 0
    assert result["cost_usd"] > 0
    assert 0 < result["seconds"] < 60
    assert result["session"] == cli.log.stem
    assert (result["model"], result["endpoint"]) == ("kimi-k3", cli.env["UNABRIDGED_BASE_URL"])
    assert cli.log.stat().st_mode & 0o077 == 0


def test_c59_each_request_says_what_was_cached_and_what_it_cost(cli: Cli) -> None:
    usage = {"prompt": 12_000, "cached": 11_000, "completion": 50}
    cli.serve({**turn(call("read", path="a.py")), "usage": usage}, {**finish(), "usage": usage})
    done = cli.run("Go")
    assert done.err.count("11,000 tokens cached, 1,000 not, 50 out, 0.0") == 2
    tokens = cli.kept_result["tokens"]
    assert (tokens["cached"], tokens["uncached"], tokens["completion"]) == (22_000, 2_000, 100)
    assert cli.kept_result["cost_usd"] > 0


def test_c70_a_repository_is_the_same_by_any_path(cli: Cli, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(cli.repo)
    cli.serve(finish("partial"), finish())
    assert cli.run("Go", "--repo", str(link)).code == 8
    assert cli.events[0]["repo"] == str(cli.repo.resolve())
    assert cli.run("--resume", "last", "--repo", str(cli.repo), "Go on.").code == 0


def test_text_output_has_the_result_on_stdout_and_the_way_on_stderr(cli: Cli) -> None:
    cli.serve(READ, EDIT, finish())
    done = cli.run("Make f return 2", "--allow", "write")
    assert done.code == 0
    assert "All done." in done.out
    assert "modified pkg/a.py +1 -1" in done.out
    assert "done (0)" in done.out
    assert cli.log.stem in done.out
    assert "read pkg/a.py" in done.err
    assert "+    return 2" in done.err


def test_needs_approval(cli: Cli) -> None:
    cli.serve(EDIT, finish())
    done = cli.run("Make f return 2", "--json")
    assert (done.code, done.result["exit_name"]) == (3, "needs_approval")
    (pending,) = done.result["pending"]
    assert pending["tool"] == "edit"
    assert [(e["kind"], e["path"]) for e in pending["effects"]] == [("write", "pkg/a.py")]
    assert "+    return 2" in pending["preview"]
    assert cli.untouched


def test_needs_answer(cli: Cli) -> None:
    server = cli.serve(
        turn(call("ask_user", question="Which f?", choices=["a", "b"])), finish(), order="history"
    )
    done = cli.run("Rename f")
    assert done.code == 4
    assert "Which f?" in done.out
    assert "unabridged answer" in done.out
    assert cli.kept_result["questions"][0]["choices"] == ["a", "b"]
    answered = cli("answer", "last", "the one in a")
    assert answered.code == 0, answered.err
    assert "the one in a" in server.requests[-1].body.decode()


def test_budget(cli: Cli) -> None:
    cli.serve(READ, finish())
    done = cli.run("Look", "--max-steps", "1", "--json")
    assert (done.code, done.result["exit_name"], done.result["steps"]) == (5, "budget", 1)
    assert len(cli.server.requests) == 1 if cli.server else False
    assert cli.run("--resume", "last", "--max-steps", "9").code == 0


def test_stuck(cli: Cli, inside: Inside) -> None:
    cli.serve(READ, end="repeat")
    done = inside("run", "Look", "--json")
    assert (done.code, done.result["exit_name"]) == (6, "stuck")
    assert done.result["steps"] < 12


def test_provider_failed_by_thinking_only(cli: Cli) -> None:
    cli.serve({"reasoning": "Hm."}, {"reasoning": "Hm again."})
    done = cli.run("Look", "--json")
    assert (done.code, done.result["exit_name"]) == (7, "provider")


@pytest.mark.parametrize(
    ("turns", "why"),
    [
        ([{"content": "I think it is fine."}], "without calling finish"),
        ([finish("partial")], "partial"),
        ([finish("blocked")], "blocked"),
        ([turn(call("shell", command="false")), finish(verified=["false"])], "false"),
        ([finish(verified=["true"])], "never run"),
    ],
    ids=["no finish", "partial", "blocked", "failing", "unverified"],
)
def test_not_finished(cli: Cli, inside: Inside, turns: Sequence[dict[str, Any]], why: str) -> None:
    cli.serve(*turns)
    done = inside("run", "Look", "--allow", "execute:false", "--json")
    assert (done.code, done.result["exit_name"]) == (8, "unfinished")
    assert why in done.result["reason"]


def test_denied_for_want_of_a_person_ends_with_3(cli: Cli, inside: Inside) -> None:
    cli.serve(EDIT, finish("done", "Said no."))
    done = inside("run", "Make f return 2", "--on-ask", "deny", "--json")
    assert (done.code, done.result["status"]) == (3, "done")
    assert cli.untouched


def test_read_only_denies_and_goes_on(cli: Cli, inside: Inside) -> None:
    server = cli.serve(EDIT, finish("blocked", "May not."))
    assert inside("run", "Make f return 2", "--mode", "read-only").code == 8
    assert "read-only" in server.requests[1].json["messages"][-1]["content"]
    assert cli.untouched


# --- signals ------------------------------------------------------------------------------------

STALL = {"reasoning": "x" * 400, "faults": [{"kind": "stall", "after": 4}]}
SLEEP = turn(call("shell", command="sleep 60"))
SLOW = {"reasoning": "Slowly. " * 500, "wire": {"delay": 0.05}}


@pytest.fixture
def started(cli: Cli) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a command and read its stream-JSON until an event of a type."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(until: str, *words: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            cli.command("run", "Go", "--allow", "execute", "--output", "stream-json", *words),
            env=cli.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        processes.append(process)
        assert process.stdout is not None
        while line := process.stdout.readline():
            if json.loads(line)["type"] == until:
                return process
        raise AssertionError(process.communicate())

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("number", "code", "reply", "until"),
    [
        (signal.SIGINT, 130, STALL, "request_sent"),
        (signal.SIGTERM, 143, SLOW, "request_sent"),
        (signal.SIGHUP, 129, SLEEP, "tool_started"),
        (signal.SIGINT, 130, SLEEP, "tool_started"),
        (signal.SIGTERM, 143, SLEEP, "tool_started"),
    ],
    ids=["INT stall", "TERM stream", "HUP shell", "INT shell", "TERM shell"],
)
def test_a_signal_stops_it_within_a_second(
    cli: Cli,
    started: Callable[..., subprocess.Popen[bytes]],
    number: signal.Signals,
    code: int,
    reply: dict[str, Any],
    until: str,
) -> None:
    cli.serve(reply, finish())
    process = started(until)
    time.sleep(0.3)
    children = psutil.Process(process.pid).children(recursive=True)
    assert bool(children) is (reply is SLEEP)
    sent = time.time()
    process.send_signal(number)
    out, err = process.communicate(timeout=10)
    assert process.returncode == code
    assert err.decode().count("Traceback") == 0
    last = [json.loads(line) for line in out.splitlines()][-1]
    assert (last["type"], last["exit_code"]) == ("result", code)
    assert cli.kept_result == {k: v for k, v in last.items() if k != "type"}
    ended = cli.events[-1]
    assert (ended["type"], ended["exit_code"]) == ("run_ended", code)
    assert datetime.fromisoformat(ended["at"]).timestamp() - sent < 1.0
    assert any(event["type"] == "interruption" for event in cli.events)
    _, alive = psutil.wait_procs(children, timeout=2)
    assert alive == []


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
)
def test_a_signal_while_the_repository_loads_gives_a_result(
    cli: Cli, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    slow = tmp_path / "bin/git"
    slow.parent.mkdir()
    slow.write_bytes(f"#!/bin/sh\necho > {tmp_path}/loading\nexec sleep 65\n".encode())
    slow.chmod(0o755)
    env = {**cli.env, "PATH": f"{slow.parent}:{cli.env['PATH']}"}
    process = subprocess.Popen(
        cli.command("run", "Go", "--json"), env=env, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    until = time.monotonic() + 20
    while not (tmp_path / "loading").exists() and time.monotonic() < until:
        time.sleep(0.02)
    children = psutil.Process(process.pid).children(recursive=True)
    sent = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=10)
    assert time.monotonic() - sent < 2
    assert process.returncode == code
    assert json.loads(out)["exit_code"] == code
    assert err.decode() == "unabridged: stopped before the run began\n"
    assert not list(cli.sessions.glob("*"))
    _, alive = psutil.wait_procs(children, timeout=2)
    assert alive == []


def test_what_streamed_before_a_signal_is_kept_and_the_session_goes_on(
    cli: Cli, started: Callable[..., subprocess.Popen[bytes]]
) -> None:
    server = cli.serve(SLOW, finish())
    process = started("request_sent")
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=10)
    interruption = next(e for e in cli.events if e["type"] == "interruption")
    assert interruption["reasoning"].startswith("Slowly.")
    cli.serve(finish())
    assert cli.run("--resume", "last", "--base-url", cli.env["UNABRIDGED_BASE_URL"]).code == 0
    assert server.requests


# --- output -------------------------------------------------------------------------------------


def test_stream_json_is_versioned_whole_and_ends_with_the_result(cli: Cli, tmp_path: Path) -> None:
    reasoning = "Long \u2028thought \x00 \x1b[31m \U0001f600 " * 400 + "the end"
    cli.serve({**READ, "reasoning": reasoning, "content": "Reading."}, EDIT, finish())
    trace = tmp_path / "trace.jsonl"
    done = cli.run(
        "Make f return 2", "--allow", "write", "--output", "stream-json", "--trace", str(trace)
    )
    assert (done.code, done.err) == (0, "")
    head, *events, result = done.lines
    session = cli.log.stem
    assert head == {"type": "stream", "schema_version": STREAM_SCHEMA, "session": session}
    assert events == cli.events
    assert [event["seq"] for event in events] == list(range(len(events)))
    said = next(event for event in events if event["type"] == "assistant_message")
    assert said["reasoning"] == reasoning
    assert result.pop("type") == "result"
    assert result == cli.kept_result
    assert trace.read_text() == done.out


def test_trace_goes_with_any_output(cli: Cli, inside: Inside, tmp_path: Path) -> None:
    cli.serve(finish())
    trace = tmp_path / "trace.jsonl"
    assert inside("run", "Look", "--trace", str(trace), "--json").result["exit_code"] == 0
    lines = [json.loads(line) for line in trace.read_bytes().splitlines()]
    assert (lines[0]["type"], lines[-1]["type"]) == ("stream", "result")


def test_control_characters_of_the_model_never_reach_the_terminal(cli: Cli) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202e\x9b31m\r"
    cli.serve(
        {**turn(call("shell", command=f"printf '{evil}'")), "content": f"hi {evil}"},
        turn(call("write", path="new\x1b[31m.txt", content=evil)),
        finish("done", f"sum {evil}"),
    )
    done = cli.run("Look", "--allow", "write", "--allow", "execute")
    for text in (done.out, done.err):
        assert "owned" in text or text is done.out
        assert not [c for c in text if c != "\n" and not c.isprintable() and c != "\t"]
    assert "sum \\x1b]0;owned" in done.out


def test_a_reader_that_leaves_does_not_stop_the_run(cli: Cli) -> None:
    cli.serve(READ, EDIT, finish())
    words = cli.command("run", "Go", "--allow", "write", "--output", "stream-json")
    process = subprocess.Popen(
        words, env=cli.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cli.home
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(30) == 0
    assert cli.kept_result["files_changed"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only: /dev/full")
def test_a_full_disk_under_the_output_is_said_and_is_no_success(cli: Cli) -> None:
    cli.serve(EDIT, finish())
    done = cli.run("Go", "--allow", "write", "--trace", "/dev/full", "--json")
    assert done.code == 1
    assert "/dev/full: No space left on device" in done.err
    assert done.result["exit_code"] == 0
    with Path("/dev/full").open("wb") as full:
        words = cli.command("run", "Go", "--json")
        process = subprocess.run(
            words, env=cli.env, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert process.returncode == 1
    assert process.stderr.startswith(b"unabridged: standard output: No space left on device")
    assert process.stderr.count(b"\n") == 1


# --- a person's word ----------------------------------------------------------------------------

TWO = turn(
    call("edit", path="pkg/a.py", old="return 1", new="return 2"),
    call("shell", command="python3 -c 'print(6 * 7)'"),
)


def test_approve_and_deny_by_number_and_by_id(cli: Cli, inside: Inside) -> None:
    server = cli.serve(TWO, finish())
    first = inside("run", "Go", "--json")
    assert first.code == 3
    ids = [pending["call_id"] for pending in first.result["pending"]]
    assert len(ids) == 2
    wrong = inside("approve", "last", "--only", "3", "--no-resume")
    assert wrong.code == 2
    assert ids[1] in wrong.err
    assert inside("approve", "last", "--only", "1", "--no-resume").code == 0
    assert cli.untouched
    assert len(server.requests) == 1
    again = inside("run", "--resume", "last", "--json")
    assert (again.code, [p["call_id"] for p in again.result["pending"]]) == (3, ids[1:])
    denied = inside("deny", cli.log.stem[:10], "--only", ids[1], "--reason", "not now", "--json")
    assert (denied.code, denied.result["exit_name"]) == (0, "done")
    assert (cli.repo / "pkg/a.py").read_bytes() == b"def f():\n    return 2\n"
    assert "not now" in server.requests[-1].body.decode()
    nothing = inside("approve", "last")
    assert nothing.code == 2
    assert "nothing waits" in nothing.err


def test_approve_all_and_go_on(cli: Cli) -> None:
    server = cli.serve(TWO, finish())
    assert cli.run("Go").code == 3
    done = cli("approve", "last")
    assert done.code == 0, done.err
    assert not cli.untouched
    assert "42" in server.requests[-1].json["messages"][-1]["content"]


def test_last_is_the_latest_of_the_repository_here(
    cli: Cli, inside: Inside, tmp_path: Path
) -> None:
    cli.serve(EDIT, finish())
    first = inside("run", "Go", "--json").result
    other = tmp_path / "other"
    other.mkdir()
    (other / "x.txt").write_text("x\n")
    assert inside("run", "Look", "--repo", str(other), "--allow", "write").code == 0
    elsewhere = inside("deny", "last", "--repo", str(other))
    assert elsewhere.code == 2
    assert inside("approve", "last").code == 0
    mismatch = inside("run", "--resume", first["session"], "--repo", str(other))
    assert mismatch.code == 2
    assert str(cli.repo) in mismatch.err


def test_new_words_on_resume_close_what_waited(cli: Cli, inside: Inside) -> None:
    server = cli.serve(EDIT, finish())
    assert inside("run", "Go").code == 3
    assert inside("run", "Leave it", "--resume", "last").code == 0
    messages = server.requests[-1].json["messages"]
    assert [m["role"] for m in messages[-2:]] == ["tool", "user"]
    assert cli.untouched


# --- what goes in -------------------------------------------------------------------------------


def last_words(server: ScriptedServer) -> Any:
    users = [m for m in server.requests[0].json["messages"] if m["role"] == "user"]
    return users[-1]["content"]


def test_task_from_standard_input(cli: Cli) -> None:
    server = cli.serve(finish())
    assert cli.run("-", stdin="Grüße\n".encode()).code == 0
    assert last_words(server) == "Grüße\n"


def test_task_from_a_file_with_an_image(cli: Cli, tmp_path: Path) -> None:
    server = cli.serve(finish())
    (tmp_path / "task.md").write_text("Do this\n")
    (tmp_path / "shot.png").write_bytes(PNG)
    done = cli.run(f"@{tmp_path}/task.md", "--image", str(tmp_path / "shot.png"))
    assert done.code == 0, done.err
    text, image = last_words(server)
    assert text == {"type": "text", "text": "Do this\n"}
    assert image["image_url"]["url"].startswith("data:image/png;base64,iVBORw0KGgo")


def test_rules_from_flags_and_from_a_file(cli: Cli, inside: Inside, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(
        '[[rule]]\ndecision = "allow"\neffect = "write"\npath = "pkg/*.py"\n'
        '[[rule]]\ndecision = "deny"\neffect = "write"\npath = "pkg/b.py"\n'
    )
    server = cli.serve(
        EDIT, turn(EDIT_B), turn(call("shell", command="python3 --version")), finish()
    )
    done = inside("run", "Go", "--allow", f"@{rules}", "--allow", "execute:python3 *", "--json")
    assert done.code == 0, done.result
    assert [f["path"] for f in done.result["files_changed"]] == ["pkg/a.py"]
    assert "Not allowed" in server.requests[2].json["messages"][-1]["content"]
    assert "Python 3" in server.requests[3].json["messages"][-1]["content"]


def test_trust(cli: Cli, inside: Inside) -> None:
    (cli.repo / "AGENTS.md").write_text("Always say please.\n")
    server = cli.serve(finish())

    def told() -> bool:
        return "Always say please." in server.requests[-1].json["messages"][0]["content"]

    assert inside("run", "Go").code == 0
    assert not told()
    assert inside("run", "Go", "--trust").code == 0
    assert told()
    assert inside("run", "Go").code == 0
    assert not told()
    granted = inside("trust", str(cli.repo))
    assert (granted.code, "AGENTS.md" in granted.out) == (0, True)
    assert inside("run", "Go").code == 0
    assert told()
    (cli.repo / "AGENTS.md").write_text("Always say please. Now!\n")
    changed = inside("run", "Go")
    assert "AGENTS.md changed" in changed.err
    assert not told()
    assert "no longer" in inside("trust", "--revoke", str(cli.repo)).out
    assert "was not" in inside("trust", "--revoke", str(cli.repo)).out


# --- keys ---------------------------------------------------------------------------------------

KEY = "sk-live-0123456789abcdef"


def leaks(cli: Cli, *texts: str, secrets: Sequence[str] = (KEY,)) -> list[str]:
    """Where a key can be found that should be nowhere."""
    kept = [p for folder in (cli.sessions, cli.home) for p in folder.rglob("*") if p.is_file()]
    found = [str(path) for path in kept for s in secrets if s.encode() in path.read_bytes()]
    found += [text for text in texts for s in secrets if s in text]
    bodies = [r.body for r in cli.server.requests] if cli.server else []
    return found + [body.decode() for body in bodies for s in secrets if s.encode() in body]


def test_the_key_is_sent_and_found_nowhere_else(cli: Cli, tmp_path: Path) -> None:
    look = turn(call("shell", command="env; printenv UNABRIDGED_API_KEY"))
    server = cli.serve(look, finish(), key=KEY)
    cli.env["UNABRIDGED_API_KEY"] = KEY
    trace = tmp_path / "trace.jsonl"
    done = cli.run("Go", "--allow", "secret", "--output", "stream-json", "--trace", str(trace))
    assert done.code == 0, done.err
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert leaks(cli, done.out, done.err, trace.read_text()) == []


def test_a_server_that_repeats_the_key_does_not_put_it_anywhere(cli: Cli) -> None:
    body = {"error": {"message": f"Incorrect API key provided: {KEY}", "type": "auth"}}
    cli.serve({"faults": [{"kind": "status", "status": 401, "body": body}]})
    cli.env["UNABRIDGED_API_KEY"] = KEY
    done = cli.run("Go", "--output", "stream-json")
    assert done.code == 7
    assert "UNABRIDGED_API_KEY" in done.out or "API key" in done.out
    assert leaks(cli, done.out, done.err) == []


def test_a_key_in_the_url_is_used_and_found_nowhere_else(cli: Cli) -> None:
    server = cli.serve(EDIT, finish())
    secrets = ("hunter2-secret", "q-secret-77")
    place = server.url.removeprefix("http://")
    cli.env["UNABRIDGED_BASE_URL"] = f"http://me:{secrets[0]}@{place}?api_key={secrets[1]}"
    done = cli.run("Go", "--output", "stream-json")
    assert done.code == 3, done.err
    # Going on uses the key of the settings again, though the log does not have it.
    again = cli("approve", "last")
    assert again.code == 0, again.err
    for request in server.requests:
        assert request.headers["authorization"].startswith("Basic ")
        assert request.path.endswith(f"?api_key={secrets[1]}")
    assert len(server.requests) == 2
    assert leaks(cli, done.out, done.err, again.out, again.err, secrets=secrets) == []


@pytest.mark.parametrize(
    "url", ["me:pw-secret@host/v1", "htp://me:pw-secret@host", "http://me:pw-secret@[x"]
)
def test_a_bad_url_is_shown_without_its_key(cli: Cli, inside: Inside, url: str) -> None:
    assert "pw-secret" not in (said := cli.check_refused(inside("run", "Go", "--base-url", url)))
    assert "/v1" in said


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["", "run", "approve", "deny", "answer", "trust"])
def test_help(inside: Inside, command: str) -> None:
    done = inside(*([command] if command else []), "--help")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"usage: unabridged {command}".rstrip())
    if command in ("run", "approve", "deny", "answer"):
        assert "exit codes:" in done.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rn", "x"], "did you mean run?"),
        (["run", "x", "--max-step", "3"], "did you mean --max-steps?"),
        (["run", "x", "--max-steps", "many"], "'many' is not a whole number from 1"),
        (["run", "x", "--max-steps", "0"], "not a whole number from 1"),
        (["run", "x", "--max-minutes", "nan"], "not a number from 0"),
        (["run", "x", "--effort", "huge"], "'low', 'high', 'max'"),
        (["run", "x", "y"], "too many"),
        (["run"], "no task"),
        (["run", " "], "the task is empty"),
        (["run", "@nowhere.md"], "nowhere.md: No such file"),
        (["run", "x", "--image", "nowhere.png"], "nowhere.png: No such file"),
        (["run", "x", "--allow", "fly"], "choose of read, write"),
        (["run", "x", "--allow", "execute:"], "nothing after the colon"),
        (["run", "x", "--allow", "@no.toml"], "no.toml: no such file"),
        (["run", "x", "--trace", "/no/folder/t"], "/no/folder/t: No such file"),
        (["run", "x", "--trace", "/"], "Is a directory"),
        (["run", "x", "--script", "no.json"], "no.json"),
        (["run", "x", "--repo", "/no/repo"], "/no/repo: no such folder"),
        (["run", "x", "--window", "10"], "too small"),
        (["run", "x", "--base-url", "foo"], "'foo' (flag) is no endpoint"),
        (["run", "x", "--base-url", "http://[1"], "is no endpoint"),
        (["run", "x", "--base-url", "http://h:99999999/v1"], "is no endpoint"),
        (["run", "x", "--base-url", "https://api.moonshot.ai/v1"], "set UNABRIDGED_API_KEY"),
        (["run", "x", "--model", "else", "--max-cost", "1"], "[money.prices]"),
        (["run", "--resume", "2020"], "no session '2020'"),
        (["approve", "last"], "no session of"),
        (["answer", "2020"], "TEXT"),
        (["approve"], "SESSION"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_usage_is_one_line_and_2(cli: Cli, inside: Inside, words: list[str], said: str) -> None:
    assert said in cli.check_refused(inside(*words))


def test_the_repository_is_a_file_or_empty(cli: Cli, inside: Inside, tmp_path: Path) -> None:
    said = cli.check_refused(inside("run", "x", "--repo", str(cli.repo / "README.md")))
    assert "not a folder" in said
    (tmp_path / "empty").mkdir()
    assert "no files" in cli.check_refused(inside("run", "x", "--repo", str(tmp_path / "empty")))


def test_without_git_or_a_git_repository_it_works(cli: Cli, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "a.txt").write_text("one\n")
    change = turn(call("edit", path="a.txt", old="one", new="two"))
    cli.serve(change, finish())
    words = ["x", "--repo", str(plain), "--allow", "write", "--json"]
    done = cli.run(*words)
    assert done.code == 0, done.err
    assert [f["path"] for f in done.result["files_changed"]] == ["a.txt"]
    (plain / "a.txt").write_text("one\n")
    cli.env["PATH"] = str(tmp_path)
    done = cli.run(*words)
    assert done.code == 0, done.err
    assert [f["path"] for f in done.result["files_changed"]] == ["a.txt"]


def test_broken_settings_name_file_and_line(cli: Cli, inside: Inside) -> None:
    settings = cli.home / "config/unabridged/config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text('[model]\nname = "kimi-k3"\nefort = "max"\n')
    said = cli.check_refused(inside("run", "x"))
    assert f"{settings}, line 3" in said
    assert "did you mean `effort`?" in said
    settings.write_text("[model]\nname = \n")
    assert "line 2" in cli.check_refused(inside("run", "x"))


def test_broken_trusted_project_settings_name_file_and_line(cli: Cli, inside: Inside) -> None:
    settings = cli.repo / ".unabridged/config.toml"
    settings.parent.mkdir()
    settings.write_text('[model]\nbase_url = "http://evil"\n')
    said = cli.check_refused(inside("run", "x", "--trust"))
    assert f"{settings}, line 1" in said
    assert "a project can never set" in said


def test_nothing_listens_there(cli: Cli) -> None:
    began = time.monotonic()
    done = cli.run("x", "--json")
    assert time.monotonic() - began < 10
    assert (done.code, done.result["exit_name"]) == (7, "provider")
    assert "nothing listens there" in done.result["reason"]
    assert done.result["endpoint"] == "http://127.0.0.1:9/v1"


def test_a_web_page_is_no_endpoint(cli: Cli, inside: Inside) -> None:
    cli.serve({"faults": [{"kind": "page"}]})
    done = inside("run", "x", "--json")
    assert done.code == 7
    assert "a web page" in done.result["reason"]
    assert len(cli.events) < 12


def test_an_unknown_model_is_said_with_those_there_are(cli: Cli, inside: Inside) -> None:
    cli.serve(finish(), model="kimi-k3")
    done = inside("run", "x", "--model", "kimi-k9", "--json")
    assert done.code == 7
    assert "has no model 'kimi-k9'" in done.result["reason"]
    assert "kimi-k3" in done.result["reason"]


@pytest.mark.parametrize("form", ["text", "json", "stream-json"])
def test_a_data_folder_that_cannot_be_written(cli: Cli, form: str) -> None:
    cli.sessions.write_text("a file is in the way\n")
    done = cli.run("x", "--output", form)
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert "--sessions-dir" in done.err
    if form == "json":
        assert (done.result["exit_code"], done.result["session"]) == (1, "")
    elif form == "stream-json":
        assert [line["type"] for line in done.lines] == ["stream", "result"]
    else:
        assert done.out == ""


def limited(size: int) -> Callable[[], None]:
    """No file may grow past `size` bytes: what a full disk is to the one who writes."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_a_disk_that_is_full_at_the_start_leaves_nothing(cli: Cli) -> None:
    cli.serve(finish())
    done = cli.run("x", preexec_fn=limited(2000))
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert not list(cli.sessions.glob("*.jsonl"))
    assert cli.server is not None
    assert cli.server.requests == []


@pytest.mark.parametrize("form", ["text", "json", "stream-json"])
def test_a_disk_that_fills_up_puts_the_result_on_standard_output_only(cli: Cli, form: str) -> None:
    cli.serve({**READ, "reasoning": "long " * 20_000}, EDIT, finish())
    done = cli.run("x", "--allow", "write", "--output", form, preexec_fn=limited(60_000))
    assert done.code == 1
    last = done.lines[-1] if form == "stream-json" else done.result
    assert (last["exit_code"], last["exit_name"]) == (1, "internal")
    assert str(cli.log) in last["reason"]
    assert f"unabridged: {last['reason']}" in done.err
    assert not cli.log.with_suffix(".result.json").exists()
    assert not list(cli.sessions.glob("*.new"))
    assert cli.events[-1]["type"] == "request_sent"  # whole lines, nothing half-written
    assert cli.untouched
    if form == "text":
        assert cli.run("--resume", "last", "--allow", "write").code == 0


def test_a_session_in_use_is_refused(
    cli: Cli, started: Callable[..., subprocess.Popen[bytes]]
) -> None:
    cli.serve(STALL)
    started("request_sent")
    before = cli.log.read_bytes()
    done = cli.run("--resume", cli.log.stem)
    assert done.code == 2
    assert "in use by another process" in done.err
    assert cli.log.read_bytes() == before


def test_a_damaged_log_is_not_continued(cli: Cli, inside: Inside) -> None:
    cli.serve(READ, finish())
    assert inside("run", "x").code == 0
    data = cli.log.read_bytes()
    cli.log.write_bytes(data.replace(b"Look first.", b"Look later."))
    done = inside("run", "more", "--resume", cli.log.stem, "--json")
    assert done.code == 1
    assert f"{cli.log}, line" in done.err
    assert done.result["exit_code"] == 1
    lines = data.splitlines(keepends=True)
    cli.log.write_bytes(b"".join([*lines[:3], *lines[4:]]))
    assert inside("run", "more", "--resume", cli.log.stem).code == 1


def test_a_torn_log_is_cut_said_and_continued(cli: Cli, inside: Inside) -> None:
    cli.serve(READ, finish())
    assert inside("run", "x").code == 0
    cli.log.write_bytes(cli.log.read_bytes() + b'{"type":"user_mess')
    done = inside("run", "more", "--resume", "last", "--output", "stream-json")
    assert any(line["type"] == "log_repaired" for line in done.lines)
