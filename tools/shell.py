"""`shell`: run a command of the model, in the foreground or as a background job."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from ..agent.effects import Effect, EffectKind
from .base import Arguments, Context, Facts, Result, Tool, ToolError
from .bash.env import HARDENED_ENV, SHELL
from .output import Output, free_path
from .process import Job, Outcome, Processes, StartError
from .sandbox import Grant

TIMEOUT = 120
"""Seconds for a command in the foreground that asks for no other limit."""
LONGEST = 3600
EARLY = 0.5
"""Seconds within which a background job that fails at once is reported as such."""
LONGEST_COMMAND = 120_000
"""Bytes; the kernel takes no longer word."""


class ShellArguments(Arguments):
    """A command to run, or a background job to look at or stop."""

    command: str = Field(default="", description="The bash command; runs at the repository root.")
    writes: bool = Field(
        default=False,
        description="It creates, changes or deletes files of the repository (builds included).",
    )
    network: bool = Field(default=False, description="It needs the network.")
    timeout_seconds: int | None = Field(
        default=None,
        ge=1,
        le=LONGEST,
        description=f"Stop it after this time (default {TIMEOUT}; none for a background job). "
        "With `output`: wait this long for the job to end.",
    )
    background: bool = Field(
        default=False, description="Return at once and leave it running as a job."
    )
    action: Literal["run", "jobs", "output", "stop"] = Field(
        default="run",
        description="run the command; list your jobs; new output of a job; stop a job.",
    )
    job: str = Field(default="", description="Id of the job, for `output` and `stop`.")

    @model_validator(mode="after")
    def _coherent(self) -> ShellArguments:
        if self.action == "run" and not self.command.strip():
            raise ValueError("`command` is empty")
        if self.action != "run" and self.command:
            raise ValueError(f"action `{self.action}` takes no `command`")
        if self.action in ("output", "stop") and not self.job:
            raise ValueError(f"action `{self.action}` needs `job`")
        return self


class Shell(Tool[ShellArguments]):
    """Run a command in bash."""

    name = "shell"
    description = (
        "Run a bash command at the repository root, without a terminal and without input. Gives "
        "the exit code and the output, standard error included; the middle of a long output is "
        "cut and the whole kept in a file. Each call is a new shell. When the command ends, "
        "processes it left behind are ended: use `background` for servers. In the sandbox the "
        "repository is read-only without `writes`, there is no network without `network`, and "
        "/tmp is private. Ask only for what the command needs."
    )
    arguments = ShellArguments

    def __init__(
        self,
        processes: Processes | None = None,
        *,
        owner: str = "main",
        keep_env: Collection[str] = (),
    ) -> None:
        self.processes = processes if processes is not None else Processes()
        self.owner = owner
        self.keep_env = frozenset(keep_env)
        """Variables that commands may see although their names look like secrets."""

    def effects(self, args: ShellArguments, facts: Facts) -> tuple[Effect, ...]:
        """What the command does by its structure, and what the call asks the sandbox for."""
        if args.action != "run":
            return ()
        if "\0" in args.command:
            raise ToolError("The command contains a NUL byte; no shell takes that.")
        if len(args.command.encode("utf-8", "surrogatepass")) > LONGEST_COMMAND:
            raise ToolError(
                f"The command is longer than {LONGEST_COMMAND} bytes. Write it to a file and run that."
            )
        from .bash.classify import classify  # with its grammar, so only when a command is there

        effects = classify(args.command, root=facts.root)
        if args.writes:
            detail = "the call asks to change files of the repository"
            effects += (Effect(kind=EffectKind.WRITE, detail=detail),)
        if args.network and not any(e.kind is EffectKind.NETWORK for e in effects):
            effects += (Effect(kind=EffectKind.NETWORK, detail="the call asks for the network"),)
        return effects

    def preview(self, args: ShellArguments, facts: Facts) -> str:
        """The command, what it asks for, and what of git's it would lose."""
        if args.action != "run":
            return ""
        asked = [name for name in ("writes", "network", "background") if getattr(args, name)]
        lines = [args.command, f"# {', '.join(asked)}" if asked else ""]
        effects = self.effects(args, facts)
        if any(effect.kind is EffectKind.GIT_DESTRUCTIVE for effect in effects):
            from .losses import losses

            lines.append(losses(effects, facts.root))
        return "\n".join(filter(None, lines))

    async def run(self, args: ShellArguments, context: Context) -> Result:
        """Run the command to its end, or start, list, show or stop a job."""
        match args.action:
            case "run":
                return await self._run(args, context)
            case "jobs":
                return Result(self._list())
            case "output":
                job = self._job(args.job)
                await asyncio.wait([job.running.done], timeout=args.timeout_seconds or 0)
                return self._report(job)
            case "stop":
                job = self._job(args.job)
                job.running.stop()
                await asyncio.wait([job.running.done])
                return self._report(job)

    async def _run(self, args: ShellArguments, context: Context) -> Result:
        grant = Grant.of(context.granted)
        output = Output(free_path(context.files, context.call_id))
        try:
            running = self.processes.start(
                [*_shell(), args.command],
                root=context.facts.root,
                env=environment(os.environ, secrets=grant.secret, keep=self.keep_env),
                output=output,
                grant=grant,
                progress=_ignore if args.background else context.progress,
                whole_tree=args.background,
            )
        except StartError as error:
            raise ToolError(str(error)) from error
        if args.background:
            job = self.processes.background(self.owner, args.command, running)
            return await self._watch(job, args.timeout_seconds)
        try:
            outcome = await running.wait(args.timeout_seconds or TIMEOUT)
            shown = output.excerpt()
            hints = _hints(shown, outcome, grant, confined=self.processes.sandbox.active)
            text = "\n".join([_ending(outcome), *_notes(outcome), shown or "(no output)", *hints])
            return Result(
                text=text,
                error=outcome.exit_code is None and outcome.signal is None,
                exit_code=_exit_code(outcome),
                data=_data(outcome, output, self.processes.sandbox.active),
            )
        finally:
            output.close()

    async def _watch(self, job: Job, limit: int | None) -> Result:
        """Report a new job; one that fails at once is reported as ended."""
        if limit is not None:
            timer = asyncio.get_running_loop().call_later(limit, job.running.stop, "timeout")
            job.running.done.add_done_callback(lambda _done: timer.cancel())
        await asyncio.wait([job.running.done], timeout=EARLY)
        return self._report(job)

    def _job(self, name: str) -> Job:
        job = self.processes.jobs.get(name)
        if job is None or job.owner != self.owner:
            raise ToolError(f"There is no job {name!r}.\n{self._list()}")
        return job

    def _list(self) -> str:
        mine = [job for job in self.processes.jobs.values() if job.owner == self.owner]
        lines = [f"{job.id}: {_state(job)}: {job.command}" for job in mine]
        return "\n".join(lines) or "There are no jobs."

    def _report(self, job: Job) -> Result:
        """The state of a job and what it printed since its owner last looked."""
        output, outcome = job.running.output, job.outcome
        shown = output.excerpt(job.shown)
        job.shown = output.kept
        notes = [] if outcome is None else _notes(outcome)
        return Result(
            "\n".join([f"{job.id}: {_state(job)}", *notes, shown or "(no new output)"]),
            exit_code=None if outcome is None else _exit_code(outcome),
            data={"job": job.id, "command": job.command, "running": outcome is None},
        )


def environment(
    env: Mapping[str, str], *, secrets: bool, keep: Collection[str] = ()
) -> dict[str, str]:
    """What a command sees: no prompts, pagers or colours; secrets only when granted or kept.

    The harness's own keys (`UNABRIDGED_*`, `MOONSHOT_*`) are never passed on.
    """
    passed = {
        name: value for name, value in env.items() if name in keep or not _held_back(name, secrets)
    }
    return passed | _NOBODY_TYPES | HARDENED_ENV


_OWN_VARIABLE = re.compile(r"(?i)UNABRIDGED_|MOONSHOT_")
_SECRET_VARIABLE = re.compile(
    r"(?i)(^|_)(API_?KEY|ACCESS_?KEY|SECRET|TOKEN|PASSWORD|PASSWD|PASSPHRASE|PRIVATE_?KEY|"
    r"CREDENTIALS?|PGPASSWORD)($|_)"
)


@cache
def _held_back(name: str, secrets: bool) -> bool:
    if _OWN_VARIABLE.match(name):
        return True
    return not secrets and _SECRET_VARIABLE.search(name) is not None


_NOBODY_TYPES = {
    "TERM": "dumb",
    "NO_COLOR": "1",
    "GIT_EDITOR": "false",
    "EDITOR": "false",
    "VISUAL": "false",
    "SSH_ASKPASS": "false",
    "GIT_ASKPASS": "false",
    "GIT_SSH_COMMAND": "ssh -oBatchMode=yes",
    "DEBIAN_FRONTEND": "noninteractive",
    "PIP_NO_INPUT": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}
"""Nothing waits for somebody to type, and nothing draws."""


def _ignore(_text: str) -> None:
    pass


@cache
def _shell() -> tuple[str, ...]:
    """bash as the classifier assumes it; its answers hold for no other shell."""
    name, *options = SHELL
    found = shutil.which(name)
    if found is None:
        raise ToolError("There is no bash on PATH; no command can run.")
    return str(Path(found).absolute()), *options


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _exit_code(outcome: Outcome) -> int | None:
    """As a shell gives it; None when the command did not run to its own end."""
    if outcome.stopped is not None:
        return None
    return outcome.exit_code if outcome.signal is None else 128 + outcome.signal


def _ending(outcome: Outcome) -> str:
    """How it ended, in one line."""
    match outcome.stopped:
        case "timeout":
            return f"stopped: still running after {outcome.seconds:.0f} s"
        case "output limit":
            return "stopped: it printed more than 256 MiB"
        case "stopped" | "cancelled":
            return "stopped"
        case None:
            if outcome.signal is not None:
                return f"ended by {_signal_name(outcome.signal)}"
            if outcome.exit_code is not None:
                return f"exit code {outcome.exit_code}"
            return f"did not run: {outcome.error}"


def _state(job: Job) -> str:
    return "running" if job.outcome is None else _ending(job.outcome)


def _notes(outcome: Outcome) -> list[str]:
    """What a caller must know besides."""
    notes: list[str] = []
    if outcome.left:
        notes.append(f"[processes it left behind were ended: {'; '.join(outcome.left)}]")
    if outcome.unstoppable:
        notes.append(f"[processes that could not be ended: {'; '.join(outcome.unstoppable)}]")
    if outcome.error and (outcome.exit_code is not None or outcome.stopped):
        notes.append(f"[{outcome.error}]")
    return notes


_NO_NETWORK = (
    "could not resolve host", "name resolution", "network is unreachable", "getaddrinfo",
    "name or service not known", "no address associated", "nodename nor servname",
)  # fmt: skip


def _hints(shown: str, outcome: Outcome, grant: Grant, *, confined: bool) -> list[str]:
    """What to ask for when the sandbox was in the way."""
    if not confined or outcome.exit_code == 0:
        return []
    hints: list[str] = []
    low = shown.lower()
    if "read-only file system" in low:
        hints.append(
            "[The sandbox kept the command from changing files outside the repository.]"
            if grant.write
            else "[The sandbox kept the command from changing files. If it has to change the "
            "repository, call again with `writes`.]"
        )
    if not grant.network and any(sign in low for sign in _NO_NETWORK):
        hints.append("[There was no network. If the command needs it, call again with `network`.]")
    return hints


def _data(outcome: Outcome, output: Output, confined: bool) -> dict[str, Any]:
    data: dict[str, Any] = {"bytes": output.total, "sandbox": confined}
    if output.on_disk:
        data["output"] = str(output.path)
    if outcome.stopped is not None:
        data["stopped"] = outcome.stopped
    if outcome.left:
        data["left"] = list(outcome.left)
    return data
