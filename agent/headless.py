"""`unabridged run` and its kin: one task, no person, an honest exit code."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from dataclasses import dataclass
from typing import IO, Literal

from .budget import Spent
from .core import ended
from .events import (
    AnyEvent,
    Approval,
    AssistantMessage,
    Decision,
    Error,
    FilesChanged,
    LogRepaired,
    Part,
    PrefixChanged,
    Preload,
    RequestSent,
    ScopeGranted,
    ToolCall,
    ToolResult,
    Usage,
    WindowFilling,
    to_line,
)
from .exits import Exit
from .export import stream_head, stream_json
from .providers.base import Delta, Notice, Waiting
from .result import Result, build_result
from .session import Session
from .signals import SIGNALS
from .store import StoreError
from .undo import OUTSIDE

Format = Literal["text", "json", "stream-json"]


@dataclass(frozen=True)
class Output:
    """Where a run reports to."""

    format: Format = "text"
    trace: IO[bytes] | None = None
    """Also write the stream-JSON there; closed at the end."""
    quiet: bool = False


async def run_headless(
    session: Session, words: str | tuple[Part, ...] | None, output: Output
) -> int:
    """Run to the end, report, write the result; returns the exit code."""
    loop = asyncio.get_running_loop()
    handled = [n for n in SIGNALS if signal.getsignal(n) != signal.SIG_IGN]  # nohup stays nohup
    for number in handled:
        loop.add_signal_handler(number, session.cancel, SIGNALS[number])
    with Reporter(session, output) as reporter:
        try:
            async for item in session.start(words):
                reporter.show(item)
            result = session.result()
            write_result(session, result)
        except (StoreError, OSError) as error:
            # The disk does not take it, so the result goes to standard output only.
            result = session.result(failure=str(error))
            reporter.fail(result)
        else:
            reporter.finish(result)
        finally:
            for number in handled:
                loop.remove_signal_handler(number)
    return int(Exit.INTERNAL) if reporter.incomplete else result.exit_code


def write_result(session: Session, result: Result) -> None:
    """Beside the log, atomically; nothing of it, nor an older one, is left where that fails."""
    path = session.core.store.path.with_suffix(".result.json")
    fresh = path.with_suffix(".new")
    try:
        fresh.touch(mode=0o600)
        fresh.write_bytes(result_json(result) + b"\n")
        os.replace(fresh, path)  # noqa: PTH105 - the atomic one, by its name
    except OSError:
        fresh.unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        raise


def report_failure(
    reason: str,
    format: Format,  # noqa: A002 - the name of the option
    code: Exit = Exit.INTERNAL,
) -> int:
    """A run that could not begin: one line, and the result where it is read."""
    print(f"unabridged: {reason}", file=sys.stderr)
    result = build_result(
        session="", events=(), ended=ended(code, reason), spent=Spent(), files_changed=(),
        seconds=0.0,
    )  # fmt: skip
    if format == "json":
        _to_stdout(result_json(result) + b"\n")
    elif format == "stream-json":
        _to_stdout(stream_head("") + result_line(result))
    return result.exit_code


def result_line(result: Result) -> bytes:
    """The last line of the stream-JSON."""
    document = {"type": "result", **result.model_dump()}
    return json.dumps(document).encode("ascii") + b"\n"


def result_json(result: Result) -> bytes:
    """The result as one JSON document."""
    return json.dumps(result.model_dump(), indent=2).encode("ascii")


class Reporter:
    """Shows a run in the chosen format. Standard output holds the result, standard error the way.

    A reader that goes away or a disk that is full does not stop the run.
    """

    def __init__(self, session: Session, output: Output) -> None:
        self.incomplete = False
        """Whether something could not be written that somebody still wants."""
        self._output = output
        self._session = session
        self._lost: set[IO[bytes]] = set()
        self._names: dict[str, str] = {}

    def __enter__(self) -> Reporter:
        if self._streams:
            for line in stream_json(self._session.id, self._session.events):
                self._line(line)
        if self._output.format == "text":
            self._say(self._session.sandbox)
            loaded = self._session.loaded
            if loaded is not None and loaded.note:
                self._say(f"repository: {loaded.tokens:,} tokens, {loaded.note}")
        return self

    def __exit__(self, *_error: object) -> None:
        if self._output.trace is not None:
            with contextlib.suppress(OSError):  # what it could not take was reported
                self._output.trace.close()

    @property
    def _streams(self) -> bool:
        """Whether anybody wants the events as they are."""
        return self._output.trace is not None or self._output.format == "stream-json"

    def _line(self, line: bytes) -> None:
        if self._output.trace is not None:
            self._write(self._output.trace, line)
        if self._output.format == "stream-json":
            self._write(sys.stdout.buffer, line)

    def _write(self, file: IO[bytes], data: bytes) -> None:
        if file in self._lost:
            return
        try:
            file.write(data)
            file.flush()
        except OSError as error:
            self._lost.add(file)
            _silence(file)
            if not isinstance(error, BrokenPipeError):
                self.incomplete = True
                name = "standard output" if file is sys.stdout.buffer else file.name
                self._warn(f"{name}: {error.strerror}; what follows is not written there.")

    def show(self, item: AnyEvent | Delta) -> None:
        """One event or delta."""
        if isinstance(item, Waiting | Notice):
            self._say(_status(item))
            return
        if not hasattr(item, "seq"):
            return  # what streams is shown whole when it is an event
        if self._streams:
            self._line(to_line(item))  # pyright: ignore[reportArgumentType] - an event has `seq`
        if self._output.format == "text" and not self._output.quiet:
            self._tell(item)
        elif isinstance(item, ToolResult) and (paths := item.data.get(OUTSIDE)):
            self._warn(f"changed what nobody agreed to: {printable(', '.join(map(str, paths)))}")

    def finish(self, result: Result) -> None:
        """The end of the run."""
        self._line(result_line(result))
        if self._output.format == "json":
            self._write(sys.stdout.buffer, result_json(result) + b"\n")
        elif self._output.format == "text":
            self._write(sys.stdout.buffer, summary(result).encode("utf-8", "backslashreplace"))

    def fail(self, result: Result) -> None:
        """The end of a run that could not be kept: its result is on standard output only."""
        self._warn(result.reason)
        self._line(result_line(result))
        if self._output.format != "stream-json":
            self._write(sys.stdout.buffer, result_json(result) + b"\n")

    def _say(self, text: str) -> None:
        if not self._output.quiet:
            self._write(
                sys.stderr.buffer, f"{printable(text)}\n".encode("utf-8", "backslashreplace")
            )

    def _warn(self, text: str) -> None:
        with contextlib.suppress(OSError):
            print(f"unabridged: {text}", file=sys.stderr, flush=True)

    def _usage(self, usage: Usage | None) -> str:
        """C59: what one request took, and what of it was cached."""
        if usage is None:
            return "  the endpoint did not report its usage"
        cost = self._session.settings.price(usage)
        price = "" if cost is None else f", {cost:.4f} USD"
        return (
            f"  {usage.cached:,} tokens cached, {usage.prompt - usage.cached:,} not, "
            f"{usage.completion:,} out{price}"
        )

    def _tell(self, event: object) -> None:
        """A few lines of an event, for a person who watches."""
        match event:
            case RequestSent():
                self._say(f"step {event.step}: {event.estimated_tokens:,} tokens to the model")
            case AssistantMessage():
                if event.content.strip():
                    self._say(event.content.strip())
                self._say(self._usage(event.usage))
            case Preload(problem=""):
                self._say(self._usage(event.usage))
            case PrefixChanged():
                start = event.block if event.block[-1].isdigit() else f"the {event.block}"
                self._say(
                    f"prefix: {start} is not as in {event.since}: from there on nothing is cached"
                )
            case WindowFilling():
                share = event.tokens / event.window
                self._say(f"the context window is {share:.0%} full: {event.tokens:,} tokens")
            case FilesChanged():
                names = sorted({*event.files, *event.left})
                more = f" and {len(names) - 5} more" if len(names) > 5 else ""
                self._say(f"changed by others, the model is told: {', '.join(names[:5])}{more}")
            case ToolCall():
                self._names[event.call_id] = event.name
                about = next(
                    (
                        str(v)
                        for k, v in event.arguments.items()
                        if k in ("command", "path", "pattern", "action")
                    ),
                    "",
                )
                self._say(f"  {event.name} {about}")
            case Decision(decision="ask" | "deny" | "plan_first"):
                self._say(f"    {event.decision}: {event.reason}")
            case Approval():
                self._say(f"    {'approved' if event.approved else 'denied'} by {event.by}")
            case ScopeGranted():
                self._say(f"    plan approved by {event.by}")
            case ToolResult():
                first = event.text.strip().splitlines()[:1]
                if event.error:
                    self._say(
                        f"    {self._names.get(event.call_id, 'call')} failed: {first[0] if first else ''}"
                    )
                elif event.exit_code is not None:
                    self._say(f"    exit {event.exit_code}")
                if event.diff:
                    self._say(event.diff.rstrip())
                if paths := event.data.get(OUTSIDE):
                    self._say(f"    changed what nobody agreed to: {', '.join(map(str, paths))}")
            case Error():
                self._say(f"error: {event.message}")
            case LogRepaired():
                self._say(f"the log had a torn end: {event.lost_bytes} bytes were cut and kept")
            case _:
                pass


def _status(item: Waiting | Notice) -> str:
    if isinstance(item, Notice):
        return item.text
    return (
        f"{item.reason}; trying again in {item.seconds:.0f} s "
        f"(attempt {item.attempt} of {item.attempts})"
    )


def printable(text: str) -> str:
    """Text of a model or tool, made safe for a terminal: control characters are shown, not sent."""
    return "".join(c if c in "\n\t" or c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def _to_stdout(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _silence(file: IO[bytes]) -> None:
    """Let what is still buffered go nowhere, so that the exit does not fail on it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, file.fileno())
    os.close(nowhere)


def summary(result: Result) -> str:
    """The end of a run in plain words."""
    lines = [printable(result.summary)] if result.summary else []
    for file in result.files_changed:
        counts = "" if file.added is None else f" +{file.added} -{file.removed}"
        lines.append(f"  {file.change} {printable(file.path)}{counts}")
    for check in result.verification:
        code = "never finished" if check.exit_code is None else f"exit {check.exit_code}"
        lines.append(f"  verified by `{printable(check.command)}`: {code}")
    lines += [f"  nobody agreed to this: {printable(c.path)}" for c in result.outside_scope]
    if result.outside_scope:
        first = min(change.step for change in result.outside_scope)
        lines.append(f"Look and undo with `unabridged undo {result.session} --step {first}`.")
    for call in result.pending:
        lines.append(f"needs approval [{call.call_id}] {call.tool}: {printable(call.reason)}")
        lines += [f"    {line}" for line in printable(call.preview).splitlines()]
    for question in result.questions:
        lines.append(f"question: {printable(question.text)}")
        lines += [f"  - {printable(choice)}" for choice in question.choices]
    if result.pending:
        lines.append(f"Approve with `unabridged approve {result.session}`, or `deny`.")
    if result.questions:
        lines.append(f"Answer with `unabridged answer {result.session} TEXT`.")
    cost = "unknown" if result.cost_usd is None else f"{result.cost_usd:.4f} USD"
    tokens = result.tokens
    lines.append(
        f"{result.exit_name} ({result.exit_code}): {printable(result.reason).rstrip('.')}. {result.steps} steps, "
        f"{tokens.prompt:,} tokens in ({tokens.cached:,} cached), {tokens.completion:,} out, "
        f"cost {cost}, {result.seconds:.1f} s. Session {result.session}"
    )
    return "\n".join(lines) + "\n"
