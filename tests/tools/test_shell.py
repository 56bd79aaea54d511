"""The shell tool: what the model is told, and jobs (C41-C44)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from unabridged.tools.base import Context, Facts, Result, ToolError
from unabridged.tools.process import Processes
from unabridged.tools.sandbox import Sandbox
from unabridged.tools.shell import Shell, ShellArguments, environment


class Bench:
    """A shell over a repository, with the effects of each call granted."""

    def __init__(self, tmp_path: Path, mode: Any = "required") -> None:
        self.root = tmp_path / "repo"
        self.files = tmp_path / "files"
        self.root.mkdir()
        self.files.mkdir()
        self.shell = Shell(Processes(Sandbox.detect(mode)))
        self.shown: list[str] = []
        self.call_id = "call:0"

    async def __call__(self, command: str = "", shell: Shell | None = None, **rest: Any) -> Result:
        shell = shell or self.shell
        args = ShellArguments(command=command, **rest)
        facts = Facts(self.root)
        granted = shell.effects(args, facts)
        context = Context(facts, self.call_id, self.files, self.shown.append, granted=granted)
        return await shell.run(args, context)


@pytest.fixture
async def bench(bubblewrap: None, tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    yield made
    await made.shell.processes.close()


@pytest.fixture
async def bare(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path, "off")
    yield made
    await made.shell.processes.close()


# --- one command ---------------------------------------------------------------------------------


async def test_exit_code_then_output(bench: Bench) -> None:
    result = await bench("echo out; echo err >&2; exit 3")
    assert (result.text, result.exit_code, result.error) == ("exit code 3\nout\nerr\n", 3, False)
    assert (await bench("true")).text == "exit code 0\n(no output)"
    assert "".join(bench.shown) == "out\nerr\n"


async def test_it_runs_in_the_root_without_start_up_files(bare: Bench, tmp_path: Path) -> None:
    (tmp_path / "rc").write_text("echo sourced")
    os.environ["BASH_ENV"] = str(tmp_path / "rc")
    try:
        result = await bare("pwd -P")
    finally:
        del os.environ["BASH_ENV"]
    assert result.text == f"exit code 0\n{bare.root}\n"


async def test_signal_and_timeout(bench: Bench) -> None:
    result = await bench("kill -ABRT $$")
    assert (result.text.splitlines()[0], result.exit_code) == (
        "ended by SIGABRT", 128 + signal.SIGABRT,
    )  # fmt: skip
    result = await bench("echo begun; sleep 60", timeout_seconds=1)
    assert result.text == "stopped: still running after 1 s\nbegun\n"
    assert result.exit_code is None
    assert result.data["stopped"] == "timeout"


async def test_c42_leftovers_are_told(bench: Bench) -> None:
    result = await bench("sleep 61.5 & echo done")
    first, note, rest = result.text.split("\n", 2)
    assert (first, rest) == ("exit code 0", "done\n")
    assert note.startswith("[processes it left behind were ended: ")
    assert "sleep 61.5" in note
    assert len(result.data["left"]) == 1


async def test_the_whole_of_a_long_output_is_in_a_file(bench: Bench) -> None:
    bench.call_id = "../../etc/functions.shell:0"
    first = await bench("seq 20000")
    second = await bench("seq 20001")
    paths = [Path(result.data["output"]) for result in (first, second)]
    assert paths[0] != paths[1], "ids may repeat"
    assert all(path.parent == bench.files for path in paths)
    assert paths[0].read_bytes().endswith(b"19999\n20000\n")
    assert str(paths[0]) in first.text


async def test_c44_cancelling_the_call_ends_the_command(bench: Bench) -> None:
    call = asyncio.create_task(bench("echo begun; trap '' TERM; sleep 60; sleep 60"))
    while not bench.shown:
        await asyncio.sleep(0.01)
    began = asyncio.get_running_loop().time()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert asyncio.get_running_loop().time() - began < 1
    assert (await bench("echo next")).text.endswith("next\n")


# --- what it may do ------------------------------------------------------------------------------


async def test_a_command_is_held_to_its_effects(bench: Bench) -> None:
    write = 'python3 -c \'open("made", "w")\''
    result = await bench(write)
    assert "call again with `writes`" in result.text
    assert not (bench.root / "made").exists()
    result = await bench(write, writes=True)
    assert result.exit_code == 0
    assert (bench.root / "made").exists()


async def test_a_missing_network_is_explained(bench: Bench) -> None:
    lookup = "python3 -c 'import socket; socket.getaddrinfo(\"example.com\", 80)'"
    assert "call again with `network`" in (await bench(lookup)).text


def test_effects_of_what_the_call_asks_for(bench: Bench) -> None:
    facts = Facts(bench.root)

    def kinds(**arguments: Any) -> list[tuple[str, str | None]]:
        found = bench.shell.effects(ShellArguments(**arguments), facts)
        return [(effect.kind.value, effect.path) for effect in found]

    plain = kinds(command="make")
    assert plain == [("execute", None)]
    assert kinds(command="make", writes=True) == [*plain, ("write", None)]
    assert kinds(command="make", network=True) == [*plain, ("network", None)]
    assert kinds(action="jobs") == kinds(action="stop", job="job-1") == []


def test_the_preview_is_the_command_and_what_it_asks_for(bench: Bench) -> None:
    facts = Facts(bench.root)
    args = ShellArguments(command="make\nmake test", writes=True, background=True)
    assert bench.shell.preview(args, facts) == "make\nmake test\n# writes, background"
    assert bench.shell.preview(ShellArguments(command="ls"), facts) == "ls"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "`command` is empty"),
        ({"command": " \n"}, "`command` is empty"),
        ({"action": "output"}, "needs `job`"),
        ({"action": "stop", "job": "job-1", "command": "x"}, "takes no `command`"),
        ({"command": "x", "timeout_seconds": 0}, "greater than or equal to 1"),
        ({"command": "x", "timeout_seconds": 3601}, "less than or equal to 3600"),
        ({"command": "x", "shell": True}, "not permitted"),
    ],
)
def test_arguments_that_make_no_sense(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        ShellArguments.model_validate(arguments)


def test_what_no_shell_takes_is_refused_with_advice(bench: Bench) -> None:
    facts = Facts(bench.root)
    with pytest.raises(ToolError, match="NUL byte"):
        bench.shell.effects(ShellArguments(command="echo \0"), facts)
    with pytest.raises(ToolError, match="Write it to a file"):
        bench.shell.effects(ShellArguments(command="#" * 130_000), facts)


async def test_the_longest_command_runs(bench: Bench) -> None:
    result = await bench("echo end; # " + "é" * 59_900)
    assert result.text == "exit code 0\nend\n"


# --- environment ---------------------------------------------------------------------------------


def test_secrets_of_the_environment_stay_here() -> None:
    env = {
        "PATH": "/bin", "MOONSHOT_API_KEY": "1", "UNABRIDGED_API_KEY": "2", "GITHUB_TOKEN": "3",
        "AWS_SECRET_ACCESS_KEY": "4", "DB_PASSWORD": "5", "TOKENIZERS_PARALLELISM": "yes",
        "KEYBOARD": "us", "NPM_TOKEN": "6",
    }  # fmt: skip
    plain = environment(env, secrets=False, keep=("NPM_TOKEN",))
    assert {name for name in env if name in plain} == {
        "PATH", "TOKENIZERS_PARALLELISM", "KEYBOARD", "NPM_TOKEN",
    }  # fmt: skip
    granted = environment(env, secrets=True)
    assert set(env) - set(granted) == {"MOONSHOT_API_KEY", "UNABRIDGED_API_KEY"}
    assert plain["GIT_TERMINAL_PROMPT"] == "0"


async def test_nothing_waits_for_somebody_to_type(bare: Bench) -> None:
    for command in ("git init -q && git commit --allow-empty", "read -r x", "cat", "python3 -i"):
        result = await bare(command, timeout_seconds=10)
        assert result.data.get("stopped") is None, command


# --- jobs ----------------------------------------------------------------------------------------


async def test_c41_a_job_is_listed_read_and_stopped(bench: Bench) -> None:
    result = await bench("echo up; while ! test -e /tmp/go; do sleep 0.02; done; echo went; sleep 60",
                         background=True)  # fmt: skip
    assert result.text == "job-1: running\nup\n"
    assert (await bench(action="jobs")).text.startswith("job-1: running: echo up;")
    assert (await bench(action="output", job="job-1")).text == "job-1: running\n(no new output)"
    await bench("touch /tmp/go")
    shown = ""
    while "went" not in shown:
        shown = (await bench(action="output", job="job-1")).text
        await asyncio.sleep(0.02)
    assert shown == "job-1: running\nwent\n"
    assert (await bench(action="stop", job="job-1")).text == "job-1: stopped\n(no new output)"
    assert (await bench(action="jobs")).text.startswith("job-1: stopped: echo up;")


async def test_a_job_that_fails_at_once_says_so(bench: Bench) -> None:
    result = await bench("echo no such server; exit 2", background=True)
    assert result.text == "job-1: exit code 2\nno such server\n"
    assert result.exit_code == 2


async def test_output_can_wait_for_the_end_of_a_job(bench: Bench) -> None:
    await bench("sleep 0.8; echo built", background=True)
    result = await bench(action="output", job="job-1", timeout_seconds=20)
    assert result.text == "job-1: exit code 0\nbuilt\n"


async def test_a_job_lasts_as_long_as_what_it_started(bench: Bench) -> None:
    result = await bench("(sleep 0.9; echo child) &", background=True)
    assert result.text.startswith("job-1: running")
    result = await bench(action="output", job="job-1", timeout_seconds=20)
    assert result.text == "job-1: exit code 0\nchild\n"


async def test_a_job_can_have_a_time_limit(bench: Bench) -> None:
    await bench("sleep 60", background=True, timeout_seconds=1)
    result = await bench(action="output", job="job-1", timeout_seconds=20)
    assert result.text.startswith("job-1: stopped: still running after 1 s")


async def test_c41_jobs_belong_to_their_owner(bench: Bench) -> None:
    await bench("sleep 60", background=True)
    child = Shell(bench.shell.processes, owner="child")
    assert (await bench(shell=child, action="jobs")).text == "There are no jobs."
    with pytest.raises(ToolError, match="no job 'job-1'"):
        await bench(shell=child, action="stop", job="job-1")
    with pytest.raises(ToolError, match="job-1: running"):
        await bench(action="output", job="job-7")
    assert [(job.owner, job.id) for job in bench.shell.processes.live_jobs()] == [("main", "job-1")]


async def test_c43_jobs_that_closing_killed_are_named(bench: Bench) -> None:
    await bench("sleep 60", background=True)
    killed = await bench.shell.processes.close()
    assert [job.command for job in killed] == ["sleep 60"]
