"""`Session`: start, events, approve, answer, cancel, result. The only door to the loop."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, cast

from .. import __version__
from ..tools.base import Context, ToolError
from ..tools.base import Result as ToolOutcome
from ..tools.mcp import Mcp
from ..tools.process import Processes
from ..tools.registry import default_tools
from ..tools.sandbox import Mode as SandboxMode
from ..tools.sandbox import Sandbox
from ..tools.shell import Shell, ShellArguments
from ..tools.task import Task
from .budget import Limits, Price
from .calibration import learn, read_scale
from .calls import AnyTool, BadCall, missing_exceptions, understand
from .changes import changed_files
from .config import McpSection, Preloading, config_folder
from .context.errors import Stop, never
from .context.load import Counter, Load, Options, load
from .core import Core, OnAsk, ended
from .counting import WORTH, EndpointCounter, counted
from .credentials import key_file
from .effects import Effect, EffectKind
from .events import (
    Answer,
    AnyEvent,
    Approval,
    AssistantMessage,
    Call,
    Error,
    Interruption,
    PackSegment,
    Part,
    Question,
    RepositoryLoaded,
    RequestSent,
    RunEnded,
    RunStarted,
    ScopeGranted,
    SessionStarted,
    SystemMessage,
    TextPart,
    ToolResult,
    UserMessage,
)
from .exits import Exit
from .handover import carried_over, session_of
from .loop import Loop
from .mcp import Hub
from .policy import Mode, Rule, decide
from .prefix import Meter, read_prefix
from .profile import profile_of
from .prompt import system_text
from .providers.base import Delta, Provider
from .result import OpenQuestion, PendingCall, Result, build_result
from .scope import Scope, joined
from .settle import Settler
from .state import FIRST_BYTES_PER_TOKEN, State
from .store import Store, StoreError, new_session_id
from .subagent import FOLDER, SessionSubagents, spent_before
from .undo import Undo
from .view import View
from .watch import Watch

INTERRUPTED = (
    "Interrupted: the harness stopped before the result of this call was recorded. Outcome "
    "unknown: it may have run, in part or whole. Look before you repeat it."
)
MOVED_ON = "Not run: the user gave new instructions instead."


class SessionError(Exception):
    """The session cannot do that; the text is one line for a person."""


@dataclass(frozen=True)
class Settings:
    """How a session works. Nothing here comes from the repository."""

    model: str
    effort: str = "max"
    mode: Mode = "ask"
    on_ask: OnAsk = "wait"
    rules: Sequence[Rule] = ()
    """Rules of the user's settings."""
    session_rules: Sequence[Rule] = ()
    """Rules given for this session only; recorded in its log, so that a resumed run keeps them."""
    limits: Limits = field(default_factory=Limits)
    load_limit: float | None = None
    """US dollars that the first request may cost, nothing of it cached."""
    price: Price = lambda _usage: None
    instructions: str | None = None
    """AGENTS.md of a trusted repository."""
    sandbox: SandboxMode = "auto"
    """Around commands."""
    context: Options = field(default_factory=Options)
    """What is loaded of the repository."""
    preload: Preloading = "auto"
    """Whether it goes ahead to an endpoint that keeps states."""
    rebuild: bool = False
    """Load it anew instead of appending differences to what the last session loaded."""
    counter: Counter | None = None
    """Counts the model's tokens exactly; None: they are estimated."""
    counting: EndpointCounter | None = None
    """Counts the total instead, by the endpoint; None: it is not asked."""
    cache: Path | None = None
    """Where a repository's base is kept between sessions; None: each session loads anew."""
    tools: Sequence[AnyTool] | None = None
    """Instead of the default tools."""
    subagents: bool = False
    """Whether the model has the tool `task`."""
    is_subagent: bool = False
    """It answers another session, and starts no subagents."""
    mcp: Mapping[str, McpSection] = field(default_factory=dict[str, McpSection])
    """Servers of tools, by name."""


@dataclass(frozen=True)
class Pending:
    """A call that waits for a person."""

    call_id: str
    tool: str
    arguments: dict[str, Any]
    effects: tuple[Effect, ...]
    reason: str
    preview: str
    """The exact diff or command."""


class Session:
    """One session over one repository.

    Use as an async context manager::

        async with Session.create(repo, provider, settings, sessions_dir) as session:
            async for item in session.start("Rename f to g"):
                ...
            print(session.ended)
    """

    def __init__(self, root: Path, store: Store, provider: Provider, settings: Settings) -> None:
        sandbox = Sandbox.detect(
            settings.sandbox,
            protected=[store.path.parent, config_folder()],
            hidden=[key_file()],
        )
        self.processes = Processes(sandbox)
        self.mcp = Hub(settings.mcp, root)
        tools = settings.tools if settings.tools is not None else default_tools(self.processes)
        if settings.subagents:
            tools = (*tools, Task(SessionSubagents(self)))
        if settings.mcp:
            tools = (*tools, Mcp(self.mcp))
        self.profile = profile_of(settings.model)
        declared = {one["function"]["name"] for one in self.profile.declare(tools)}
        options = options_of(store.events) or what_to_load(settings)
        earlier = read_prefix(settings.cache, root)
        self.settings = settings
        self.provider = provider
        self.loaded: Load | None = None
        self.ended: RunEnded | None = None
        self.jobs_killed: tuple[str, ...] = ()
        """Background commands that were stopped because the run ended."""
        self._began = time.monotonic()
        self._queue: asyncio.Queue[AnyEvent | Delta | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._cancelled: Exit | None = None
        self._own_commands = 0
        self.core = Core(
            root=root,
            store=store,
            view=View(store.events),
            state=State(settings.price, store.events),
            undo=Undo(root, store.files),
            watch=Watch(root, options, store.files / "told", store.events),
            meter=Meter(store.events, earlier),
            cache=settings.cache,
            tools={tool.name: tool for tool in tools if tool.name in declared},
            emit=self._queue.put_nowait,
            rules=(*settings.rules, *settings.session_rules),
            mode=settings.mode,
            on_ask=settings.on_ask,
            limits=settings.limits,
            load_limit=settings.load_limit,
            preload=settings.preload == "auto",
            longest_reply=self.profile.longest_reply,
            children=spent_before(store.files / FOLDER, settings.price),
            confined=sandbox.active,
        )

    @classmethod
    def open(
        cls,
        repo: str | Path = ".",
        *,
        resume: str | None = None,
        model: str | None = None,
        base_url: str | None = None,
        effort: Literal["low", "high", "max"] | None = None,
        window: int | None = None,
        script: str | Path | None = None,
        allow: Sequence[str] = (),
        mode: Mode = "ask",
        on_ask: OnAsk = "wait",
        sandbox: SandboxMode = "auto",
        trust: bool = False,
        max_steps: int | None = None,
        max_tokens: int | None = None,
        max_cost: float | None = None,
        max_minutes: float | None = None,
        sessions_dir: str | Path | None = None,
    ) -> Session:
        """A session over a repository, with the user's settings and what is said here.

        `resume` is the id of one to go on with. `allow` takes rules as `--allow` does, `script` a
        scripted model. `on_ask`: `wait` for `approve`, `deny` and `answer`; `stop` the run; or
        `deny` and go on. The repository is loaded here, so this blocks; nothing is sent.

        Raises ConfigError, ContextError, StoreError, SessionError: one line for a person each.
        """
        from .config import Flags
        from .opening import Opening, sessions_folder
        from .run_cli import allow_rules, find_repo

        opening = Opening(
            root=find_repo(Path(repo).expanduser()),
            sessions=sessions_folder() if sessions_dir is None else Path(sessions_dir),
            flags=Flags(
                base_url=base_url, model=model, effort=effort, window=window, steps=max_steps,
                tokens=max_tokens, cost=max_cost, minutes=max_minutes,
            ),
            script=None if script is None else Path(script),
            mode=mode,
            on_ask=on_ask,
            sandbox=sandbox,
            rules=allow_rules(allow),
            trust=trust,
        )  # fmt: skip
        return opening.create() if resume is None else opening.resume(resume)

    @classmethod
    def create(
        cls,
        repo: Path,
        provider: Provider,
        settings: Settings,
        sessions_dir: Path,
        *,
        session_id: str | None = None,
        continues: Sequence[AnyEvent] = (),
        loaded: Load | None = None,
        stop: Stop = never,
    ) -> Session:
        """A new session. `stop` is asked now and then while the repository loads.

        `loaded` is what `load_repository` gave, where that was done before (it blocks).

        With the log of a session that it `continues`, it takes over what `handover` says and is
        started without words, or with new ones.

        Raises ContextError when the repository cannot be loaded as asked, StoreError when the log
        cannot be written, Cancelled when `stop` says so.
        """
        root = repo.resolve()
        loaded = loaded or load_repository(root, provider.window, settings, stop)
        store = Store.create(sessions_dir, session_id or new_session_id())
        try:
            session = cls(root, store, provider, settings)
            session._open(loaded, continues)
        except BaseException:
            store.discard()
            raise
        return session

    @classmethod
    def resume(
        cls,
        session_id: str,
        provider: Provider,
        settings: Settings,
        sessions_dir: Path,
        *,
        repo: Path | None = None,
    ) -> Session:
        """Go on with a session from its log (an id, the start of one, or `last`).

        A torn tail of the log was cut and is reported as a `log_repaired` event. `repo` counts
        only where the log lost its first event. Raises StoreError or ReplayError when the log
        cannot be continued honestly.
        """
        store = Store.open(sessions_dir, session_id)
        try:
            first = next((e for e in store.events if isinstance(e, SessionStarted)), None)
            root = Path(first.repo) if first is not None else repo
            if root is None:
                raise SessionError(f"session {store.session} lost its start: give --repo.")
            if not root.is_dir():
                raise SessionError(f"{root}: the repository of this session is gone.")
            session = cls(root.resolve(), store, provider, settings)
            if not any(isinstance(event, RepositoryLoaded) for event in store.events):
                session._open(load_repository(root.resolve(), provider.window, settings))
        except BaseException:
            store.close()
            raise
        return session

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    @property
    def id(self) -> str:
        """The session's id."""
        return self.core.store.session

    @property
    def sandbox(self) -> str:
        """What holds commands, one line for a person."""
        return self.processes.sandbox.describe()

    @property
    def events(self) -> Sequence[AnyEvent]:
        """The whole log."""
        return self.core.store.events

    # --- running -----------------------------------------------------------------------------

    async def start(
        self, words: str | Sequence[Part] | None = None
    ) -> AsyncGenerator[AnyEvent | Delta]:
        """Run until the turn ends; yields every event as it is logged, and what streams.

        `words` are the user's; without them the session goes on from where its log stands.
        """
        if self._task is not None:
            raise SessionError("the session is already running.")
        self.ended, self._cancelled, self.jobs_killed = None, None, ()
        self._queue = asyncio.Queue()
        self.core.emit = self._queue.put_nowait
        self._task = asyncio.create_task(self._run(words))
        self._task.add_done_callback(lambda _task: self._queue.put_nowait(None))
        try:
            while (item := await self._queue.get()) is not None:
                yield item
            await self._task
        finally:
            if not self._task.done():
                self.cancel()
                await asyncio.wait({self._task})
            self._task = None
            if self.settings.on_ask != "wait":
                await self._end_jobs()

    async def run(
        self,
        words: str | Sequence[Part] | None = None,
        *,
        decide: Callable[[Pending], bool] | None = None,
        reply: Callable[[Question], str] | None = None,
    ) -> Result:
        """Run until the turn ends; returns what it gave.

        `decide` is asked about each call that needs a person, `reply` about each question. Where
        there is none, a run that waits for a person is stopped, and can be gone on with.
        """
        async for _ in self.start(words):
            if self.core.on_ask != "wait":
                continue
            for call in self.pending:
                if decide is None:
                    self.cancel(Exit.NEEDS_APPROVAL)
                elif decide(call):
                    self.approve(call.call_id)
                else:
                    self.deny(call.call_id)
            for question in self.questions:
                if reply is None:
                    self.cancel(Exit.NEEDS_ANSWER)
                else:
                    self.answer(reply(question))
        return self.result()

    async def _run(self, words: str | Sequence[Part] | None) -> None:
        try:
            await self._begin(words)
            loop = Loop(self.core, self.provider, Settler(self.core))
            self.ended = await loop.run()
            self._learn()
        except asyncio.CancelledError:
            if not isinstance(self.events[-1], Interruption):
                self.core.append(Interruption(during="tools"))
            code = self._cancelled or Exit.INTERRUPTED
            waits = code in (Exit.NEEDS_APPROVAL, Exit.NEEDS_ANSWER)
            why = "it waits for a person" if waits else "stopped by the user"
            self.ended = self.core.append(ended(code, why), sync=True)
        except (StoreError, SessionError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever went wrong, the log ends honestly
            self.ended = self._broken(error)

    def _learn(self) -> None:
        """Compare the estimate of the repository with what the first request reported."""
        core = self.core
        loaded = next((e for e in self.events if isinstance(e, RepositoryLoaded)), None)
        sent = next((e for e in self.events if isinstance(e, RequestSent)), None)
        reply = next((e for e in self.events if isinstance(e, AssistantMessage)), None)
        run = core.state.run
        if loaded is None or sent is None or reply is None or reply.usage is None or run is None:
            return
        if sent.seq < run.seq:
            return  # an earlier run has learned from it
        others = (sent.size - core.view.packed + len(core.view.tools)) / FIRST_BYTES_PER_TOKEN
        if loaded.estimated > 4 * others:
            learn(core.cache, run.model, loaded.estimated, reply.usage.prompt - int(others))

    async def _end_jobs(self) -> None:
        """Leave no command running, and remember which were."""
        self.jobs_killed += tuple(job.command for job in await self.processes.close())

    def _open(self, loaded: Load, continues: Sequence[AnyEvent] = ()) -> None:
        """The first events: who, what the model is told, the repository. Adds what is missing.

        A log that was cut within them is completed; segments it already has stay as they are.
        """
        core, settings = self.core, self.settings
        self.loaded = loaded
        if not any(isinstance(event, SessionStarted) for event in self.events):
            core.append(
                SessionStarted(
                    session=self.id,
                    repo=str(core.root),
                    version=__version__,
                    model=settings.model,
                    endpoint=self.provider.endpoint,
                    continues=session_of(continues),
                )
            )
        if not any(isinstance(event, SystemMessage) for event in self.events):
            core.append(
                SystemMessage(
                    text=system_text(settings.instructions, self.profile.system),
                    tools=tuple(self.profile.declare(tuple(core.tools.values()))),
                )
            )
        there = {event.text for event in self.events if isinstance(event, PackSegment)}
        for segment in loaded.segments:
            if segment.text not in there:
                core.append(PackSegment(text=segment.text, files=segment.files))
        core.append(
            RepositoryLoaded(
                files=loaded.files,
                tokens=loaded.tokens,
                exact=loaded.exact,
                counted=loaded.note,
                estimated=0 if loaded.exact else sum(one.tokens for one in loaded.segments),
                options=stated(what_to_load(settings)),
                outlined=dict(loaded.outlined),
                skipped=dict(loaded.skipped),
            )
        )
        core.watch.trust(loaded)
        for event in carried_over(continues) if continues else ():
            core.append(event)

    async def _begin(self, words: str | Sequence[Part] | None) -> None:
        """The first events of a run; calls that a stopped run left open get their one result."""
        core, settings = self.core, self.settings
        if words is None and not any(isinstance(event, UserMessage) for event in self.events):
            raise SessionError(f"session {self.id} has no task yet: give one.")
        if core.state.reply is not None:
            for exception in missing_exceptions(core.state.reply, self.events):
                core.append(exception)
        open_calls, waiting = core.view.open_calls, self._waiting()
        limits = cast("dict[str, float]", settings.limits.model_dump(exclude_none=True))
        core.append(
            RunStarted(
                model=settings.model,
                endpoint=self.provider.endpoint,
                effort=settings.effort if self.profile.effort is None else self.profile.effort,
                mode=settings.mode,
                on_ask=settings.on_ask,
                window=self.provider.window,
                rules=tuple(
                    rule.model_dump(mode="json", exclude_defaults=True)
                    for rule in settings.session_rules
                ),
                limits=limits,
            )
        )
        for call in open_calls:
            if words is not None and waiting:
                core.append(ToolResult(call_id=call.id, text=MOVED_ON, error=True))
            elif not waiting:
                core.append(ToolResult(call_id=call.id, text=INTERRUPTED, error=True))
        if words is None:
            return
        parts = as_parts(words)
        try:
            if not core.view.open_calls:
                await core.notice(self.provider.window)
        finally:  # whatever stops the run here, what the user said is kept
            core.append(UserMessage(parts=parts), sync=True)

    def _waiting(self) -> bool:
        """Whether the open calls wait for a person, or for the run that acts on what one said.

        However the last run ended: where a call waits, none of its step has begun.
        """
        state = self.core.state
        open_ids = {call.id for call in self.core.view.open_calls}
        asks = {i for i, decision in state.decisions.items() if decision.decision == "ask"}
        return bool(open_ids & (asks | state.asked)) and not open_ids & state.started

    def _broken(self, error: Exception) -> RunEnded:
        """An error of ours: logged with its trace, reported as one line."""
        message = f"{type(error).__name__}: {error}"
        trace = "".join(traceback.format_exception(error))
        self.core.append(Error(kind="internal", message=message, trace=trace))
        return self.core.append(ended(Exit.INTERNAL, f"internal error: {message}"), sync=True)

    def result(self, failure: str | None = None) -> Result:
        """What the last run gave; `failure` is why its end could not be logged."""
        end = self.ended if failure is None else ended(Exit.INTERNAL, failure)
        if end is None:
            raise SessionError("the session has not run yet.")
        return build_result(
            session=self.id,
            events=self.events,
            ended=end,
            spent=self.core.spent,
            files_changed=changed_files(self.core.root, self.events, self.core.undo.read),
            seconds=time.monotonic() - self._began,
            pending=tuple(
                PendingCall(
                    call_id=item.call_id,
                    tool=item.tool,
                    effects=item.effects,
                    reason=item.reason,
                    preview=item.preview,
                )
                for item in self.pending
            ),
            questions=tuple(
                OpenQuestion(call_id=q.call_id, text=q.text, choices=q.choices)
                for q in self.questions
            ),
            jobs_killed=self.jobs_killed,
            sandbox=self.sandbox,
        )

    # --- what a person can do -----------------------------------------------------------------

    @property
    def pending(self) -> tuple[Pending, ...]:
        """Calls that wait for an approval, in order."""
        core, found = self.core, list[Pending]()
        for call in core.view.open_calls:
            decision = core.state.decisions.get(call.id)
            if decision is None or decision.decision != "ask" or call.id in core.state.approvals:
                continue
            known = core.state.calls[call.id]
            found.append(
                Pending(
                    call_id=call.id,
                    tool=call.name,
                    arguments=known.arguments,
                    effects=core.state.effects.get(call.id, ()),
                    reason=decision.reason,
                    preview=self._preview(call),
                )
            )
        return tuple(found)

    @property
    def questions(self) -> tuple[Question, ...]:
        """Questions of the model that have no answer yet."""
        state = self.core.state
        open_ids = {call.id for call in self.core.view.open_calls}
        return tuple(
            event
            for event in self.events
            if isinstance(event, Question)
            and event.call_id in open_ids & state.asked - state.answers.keys()
            and state.reply is not None
            and event.seq > state.reply.seq
        )

    def _preview(self, call: Call) -> str:
        try:
            tool, args = understand(call, self.core.tools)
            return tool.preview(args, self.core.facts)
        except (BadCall, ToolError) as error:
            return str(error)

    def approve(
        self, call_id: str | None = None, reason: str = "", *, scope: Scope | None = None
    ) -> tuple[str, ...]:
        """Let pending calls run: one, or all. Returns their ids.

        `scope` takes the place of the one that a pending plan proposes.
        """
        return self._decide(call_id, True, reason, scope)

    def deny(self, call_id: str | None = None, reason: str = "") -> tuple[str, ...]:
        """Refuse pending calls; the model is told why. Returns their ids."""
        return self._decide(call_id, False, reason)

    def _decide(
        self, call_id: str | None, approved: bool, reason: str, scope: Scope | None = None
    ) -> tuple[str, ...]:
        chosen = [p.call_id for p in self.pending if call_id in (None, p.call_id)]
        if not chosen:
            what = "nothing" if call_id is None else f"no call {call_id!r}"
            raise SessionError(f"{what} waits for approval in session {self.id}.")
        for one in chosen:
            said = Approval(call_id=one, approved=approved, reason=reason, scope=scope)
            self.core.append(said, sync=True)
        self.core.woken.set()
        return tuple(chosen)

    def widen(self, scope: Scope) -> None:
        """Add to what the user agreed to for this task; pending calls within it pass."""
        self.core.append(ScopeGranted(scope=joined(self.core.state.scope, scope)), sync=True)
        self.core.woken.set()

    def allow(self, rules: Sequence[Rule]) -> None:
        """Add rules for the rest of this session; pending calls that they allow pass."""
        self.core.rules = (*self.core.rules, *rules)
        self.settings = replace(self.settings, session_rules=(*self.settings.session_rules, *rules))
        self.core.woken.set()

    def set_mode(self, mode: Mode) -> None:
        """From the next decision on: `ask` a person, or deny what would ask (`read-only`)."""
        self.core.mode = mode
        self.settings = replace(self.settings, mode=mode)

    def say(self, words: str | Sequence[Part]) -> None:
        """Words for the model while it works: told before the next request."""
        self.core.said.append(as_parts(words))

    def unsaid(self) -> tuple[Part, ...]:
        """Take back what was said and the model has not been told."""
        waiting = tuple(part for parts in self.core.said for part in parts)
        self.core.said.clear()
        return waiting

    async def shell(
        self, command: str, progress: Callable[[str], None] = lambda _text: None
    ) -> ToolOutcome:
        """Run a command as the user's own act: it is not asked about, and not told to the model.

        Raises SessionError where a rule denies it, ToolError where it cannot be run.
        """
        tool, args = Shell(self.processes, owner="user"), ShellArguments(command=command)
        effects = tool.effects(args, self.core.facts)
        decided = decide(effects, self.core.rules)
        if decided.verdict == "deny":
            raise SessionError(f"not run: {decided.reason}.")
        self._own_commands += 1
        context = Context(
            facts=self.core.facts,
            call_id=f"own-{self._own_commands}",
            files=self.core.store.files,
            progress=progress,
            granted=(*effects, Effect(kind=EffectKind.WRITE), Effect(kind=EffectKind.NETWORK)),
        )
        return await tool.run(args, context)

    def change(self, *, settings: Settings | None = None, provider: Provider | None = None) -> None:
        """Another effort, model or endpoint from the next run on.

        Raises SessionError while a run is under way. The provider before is the caller's to close.
        """
        if self._task is not None:
            raise SessionError("the model is at work: change it when it has stopped.")
        self.settings, self.provider = settings or self.settings, provider or self.provider

    def answer(self, text: str) -> None:
        """Answer the model's oldest open question."""
        questions = self.questions
        if not questions:
            raise SessionError(f"session {self.id} has no open question.")
        self.core.append(Answer(call_id=questions[0].call_id, text=text), sync=True)
        self.core.woken.set()

    def cancel(self, code: Exit = Exit.INTERRUPTED) -> None:
        """Stop the run within a second, wherever it is."""
        if self._task is not None and not self._task.done():
            self._cancelled = code
            # Soon, not now: a task cancelled before its first step ends without a word.
            self._task.get_loop().call_soon(self._task.cancel)

    async def close(self) -> None:
        """Stop what runs, let go of the log and of the model."""
        if self._task is not None and not self._task.done():
            self.cancel()
            await asyncio.wait({self._task})
        await self._end_jobs()
        await self.mcp.close()
        self.core.undo.close()
        self.core.store.close()
        await self.provider.close()


def as_parts(words: str | Sequence[Part]) -> tuple[Part, ...]:
    """Words as parts of a message."""
    return (TextPart(text=words),) if isinstance(words, str) else tuple(words)


def what_to_load(settings: Settings) -> Options:
    """What is asked for, without what a rule forbids the model to read unasked."""
    kept = [
        rule.path
        for rule in (*settings.rules, *settings.session_rules)
        if rule.decision != "allow" and rule.effect in (None, EffectKind.READ) and rule.path
    ]
    inside = [path for path in kept if not path.startswith("/")]
    return replace(settings.context, exclude=[*settings.context.exclude, *inside])


def load_repository(
    root: Path, window: int, settings: Settings, stop: Stop = never, *, keep: bool = True
) -> Load:
    """The repository as a new session is given it; to look only, without `keep`."""
    loaded = load(
        root,
        window=window,
        options=what_to_load(settings),
        rebuild=settings.rebuild,
        cache=settings.cache,
        scale=read_scale(settings.cache, settings.model),
        counter=settings.counter,
        keep=keep,
        stop=stop,
    )
    if settings.counting is None:
        return loaded
    return counted(loaded, settings.counting, settings.cache, min(WORTH, window // 2))


def options_of(events: Sequence[AnyEvent]) -> Options | None:
    """What a session loaded; None when it has not."""
    loaded = next((event for event in events if isinstance(event, RepositoryLoaded)), None)
    return None if loaded is None else Options(**loaded.options)


def stated(options: Options) -> dict[str, Any]:
    """Options as the log holds them: those that say something."""
    kept = ((field.name, getattr(options, field.name)) for field in fields(options))
    return {
        name: value if isinstance(value, bool) else list(value) for name, value in kept if value
    }
