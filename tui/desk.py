"""What the TUI works with: settings, a model, a load plan, a session. No drawing here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, cast

from ..agent.config import Config, ConfigError, Flags, load_config, without_secrets
from ..agent.connect import connect, pricing, scripted, with_model
from ..agent.context.errors import ContextError, Stop, never
from ..agent.context.load import Load, Options
from ..agent.context_options import cache_folder, counter
from ..agent.counting import counting
from ..agent.events import AnyEvent, RunStarted, SessionStarted, Usage, UserMessage
from ..agent.fork import fork
from ..agent.handover import instructions as kept_instructions
from ..agent.policy import Mode, Rule
from ..agent.providers.base import Provider
from ..agent.session import (
    Session,
    SessionError,
    Settings,
    load_repository,
    options_of,
    what_to_load,
)
from ..agent.store import StoreError, find, read
from ..agent.trust import Trusted, examine, grant
from ..agent.view import ReplayError
from ..tools.base import ToolError
from ..tools.sandbox import SandboxError

DEFAULT_WINDOW = 1_048_576
"""Of K3, as long as no model is there to say its own."""
TROUBLES = (
    ConfigError, ContextError, SandboxError, SessionError, StoreError, ReplayError, ToolError, OSError,
)  # fmt: skip
"""What can go wrong with a session for reasons that its text says."""
FRESH = 60.0
"""Seconds for which the load of a plan serves; an older one is made anew."""


@dataclass(frozen=True)
class Start:
    """What the command line says."""

    root: Path
    sessions: Path
    flags: Flags = field(default_factory=Flags)
    script: Path | None = None
    mode: Mode = "ask"
    sandbox: Literal["auto", "required", "off"] = "auto"
    rules: tuple[Rule, ...] = ()
    resume: str | None = None
    options: Options = field(default_factory=Options)
    cache: Path | None = field(default_factory=cache_folder)


@dataclass(frozen=True)
class _Plan:
    """A load that was shown and not yet sent."""

    loaded: Load
    asked: tuple[object, ...]
    made: float
    """Monotonic seconds."""


class Desk:
    """Everything of one working day in one repository."""

    def __init__(self, start: Start) -> None:
        self.start = start
        self.root = start.root
        self.flags = start.flags
        self.options = start.options
        self.rebuild = False
        self.config: Config | None = None
        self.provider: Provider | None = None
        self.problem = ""
        """Why there is no model, and what to do; empty where there is one."""
        self.stands_in = False
        """Whether K3-nano does the work because nothing else is set."""
        self.trusted = Trusted()
        self.loaded: Load | None = None
        self.session: Session | None = None
        self._plan: _Plan | None = None

    # --- the model -------------------------------------------------------------------------------

    def configure(self) -> None:
        """Read the settings; `problem` says what is wrong with them."""
        self.problem = ""
        try:
            self.trusted = examine(self.root)
            config = load_config(self.flags, project=self.trusted.settings)
            self.config = with_model(config) if self.start.script is None else config
        except (ConfigError, ContextError, OSError) as error:
            self.problem = str(error)
        else:
            self.stands_in = self.config is not config

    def connect(self) -> None:
        """Read the settings and find the model; `problem` says why there is none."""
        self.provider = None
        self.configure()
        if self.problem or self.config is None:
            return
        try:
            script = self.start.script
            self.provider = scripted(script) if script is not None else connect(self.config)
        except (ConfigError, OSError) as error:
            self.problem = str(error)

    async def choose(self, model: str | None, base_url: str | None, effort: str | None) -> None:
        """Another model, endpoint or effort from the next run on. Raises ConfigError."""
        flags = replace(
            self.flags,
            model=model or self.flags.model,
            base_url=base_url or self.flags.base_url,
            effort=effort or self.flags.effort,
        )
        config = with_model(load_config(flags, project=self.trusted.settings))
        old, same = self.provider, model is None and base_url is None
        provider = old if same or self.start.script is not None else connect(config)
        self.flags, self.config, self.problem = flags, config, ""
        if provider is not None:
            self.provider = provider
        if self.session is not None:
            current = self.session.settings
            settings = replace(current, model=config.model, effort=config.effort,
                               price=pricing(config))  # fmt: skip
            self.session.change(settings=settings, provider=provider)
        if old is not None and provider is not old:
            await old.close()

    @property
    def model(self) -> str:
        """The model's name."""
        return self.config.model if self.config is not None else ""

    @property
    def endpoint(self) -> str:
        """Where it is."""
        if self.provider is not None:
            return self.provider.endpoint
        return without_secrets(self.config.base_url) if self.config is not None else ""

    @property
    def window(self) -> int:
        """Tokens."""
        if self.provider is not None:
            return self.provider.window
        return (self.config.window if self.config is not None else None) or DEFAULT_WINDOW

    def settings(self) -> Settings:
        """The settings of a session."""
        config = self.config or Config()
        return Settings(
            model=config.model,
            effort=config.effort,
            mode=self.start.mode,
            on_ask="wait",
            rules=config.rules,
            session_rules=self.start.rules,
            limits=config.limits,
            price=pricing(config),
            instructions=self.trusted.instructions,
            sandbox=self.start.sandbox,
            context=self.options,
            preload=config.preload,
            rebuild=self.rebuild,
            cache=self.start.cache,
            mcp=config.mcp,
            subagents=True,
        )

    def trust(self) -> tuple[str, ...]:
        """Trust the repository's AGENTS.md and settings as they are now. Raises ConfigError."""
        names = grant(self.root)
        self.trusted = examine(self.root)
        self.config = with_model(load_config(self.flags, project=self.trusted.settings))
        return names

    # --- the load plan ---------------------------------------------------------------------------

    def plan(self, stop: Stop) -> Load:
        """What would be loaded; blocking. Raises ContextError, Cancelled."""
        window, settings = self.window, self.settings()
        loaded = self._load(window, settings, stop, keep=False)
        self._plan = _Plan(loaded, self._asked(window, settings), time.monotonic())
        return loaded

    def _asked(self, window: int, settings: Settings) -> tuple[object, ...]:
        """All that a load follows from, but the files."""
        vocabulary = self.config.vocabulary if self.config is not None else None
        return (self.root, window, what_to_load(settings), settings.rebuild, settings.cache,
                settings.model, vocabulary)  # fmt: skip

    def _planned(self, window: int, settings: Settings) -> Load:
        """The load of the plan, which becomes a session's, or one made now; blocking.

        What changed since the plan was made, the session tells as it does all later changes.
        """
        plan, self._plan = self._plan, None
        if (
            plan is None
            or plan.asked != self._asked(window, settings)
            or time.monotonic() - plan.made > FRESH
        ):
            return self._load(window, settings)
        plan.loaded.keep()
        return plan.loaded

    def _load(
        self, window: int, settings: Settings, stop: Stop = never, *, keep: bool = True
    ) -> Load:
        """The repository as a session is given it; blocking. Raises ConfigError too."""
        config = self.config or Config()
        settings = replace(
            settings,
            counter=counter(config.vocabulary),
            counting=counting(config) if self.start.script is None else None,
        )
        return load_repository(self.root, window, settings, stop, keep=keep)

    def price_of(self, tokens: int, cached: int = 0) -> float | None:
        """US dollars for a prompt."""
        return self.settings().price(Usage(prompt=tokens, cached=cached, completion=0))

    # --- the session -----------------------------------------------------------------------------

    async def open(self) -> Session:
        """The session, made now where there is none. Raises what `Session.create` does."""
        if self.session is None:
            if self.provider is None:
                raise ConfigError(self.problem)
            provider, settings = self.provider, self.settings()
            window = provider.window
            self.loaded = await asyncio.to_thread(self._planned, window, settings)
            self.session = Session.create(
                self.root, provider, settings, self.start.sessions, loaded=self.loaded
            )
        return self.session

    async def resume(self, name: str) -> Session:
        """Another session, from its log. Raises StoreError, SessionError, ConfigError."""
        events = await asyncio.to_thread(lambda: read(find(self.start.sessions, name)))
        run = next((e for e in reversed(events) if isinstance(e, RunStarted)), None)
        first = next((e for e in events if isinstance(e, SessionStarted)), None)
        await self.let_go()
        if first is not None and Path(first.repo).is_dir():
            self.root = Path(first.repo)
        if run is not None:
            remote = "://" in run.endpoint and self.start.script is None
            self.flags = replace(
                self.flags,
                model=self.start.flags.model or run.model,
                effort=self.start.flags.effort or run.effort or None,
                base_url=self.start.flags.base_url or (run.endpoint if remote else None),
            )
        self.connect()
        if self.provider is None:
            raise ConfigError(self.problem)
        kept = tuple(Rule.model_validate(rule) for rule in run.rules) if run is not None else ()
        settings = replace(self.settings(), session_rules=(*kept, *self.start.rules))
        if run is not None and self.start.mode == "ask":
            settings = replace(settings, mode=cast("Mode", run.mode))
        self.session = Session.resume(
            name, self.provider, settings, self.start.sessions, repo=self.root
        )
        return self.session

    async def fork(self, before: int | None = None) -> Session:
        """Go on in a copy of the session, up to the event `before`. Raises StoreError."""
        assert self.session is not None
        events = list(self.session.events)
        kept = events if before is None else _settled(events[:before])
        name = fork(self.start.sessions, self.session.id, kept)
        return await self.resume(name)

    async def hand_over(self) -> Session:
        """Go on in a fresh session with the words, plan and scope of this one."""
        assert self.session is not None
        events = list(self.session.events)
        options = options_of(events) or self.options
        settings = replace(self.settings(), instructions=kept_instructions(events), context=options)
        await self.let_go()
        self.connect()
        if self.provider is None:
            raise ConfigError(self.problem)
        loaded = await asyncio.to_thread(self._load, self.provider.window, settings)
        self.session = Session.create(
            self.root, self.provider, settings, self.start.sessions, continues=events, loaded=loaded
        )
        return self.session

    async def let_go(self) -> None:
        """Close the session, and with it the connection to the model."""
        session, provider = self.session, self.provider
        self.session = self.provider = self.loaded = None
        if session is not None:
            await session.close()
            if not any(isinstance(event, UserMessage) for event in session.events):
                session.core.store.discard()
        elif provider is not None:
            await provider.close()


def _settled(events: Sequence[AnyEvent]) -> list[AnyEvent]:
    """Without the start of the run that was to carry out the words left out."""
    kept = list(events)
    while kept and isinstance(kept[-1], RunStarted):
        kept.pop()
    return kept
