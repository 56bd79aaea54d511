"""A session from a few words: what the SDK and editors open; the settings say the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from ..tools.sandbox import Mode as SandboxMode
from .config import LOCAL, Config, Flags, McpSection, data_folder, load_config, without_secrets
from .connect import connect, pricing, scripted, with_model
from .context.errors import Stop, never
from .context.selection import Options
from .context_options import cache_folder, counter, mentioned
from .core import OnAsk
from .counting import counting
from .events import RunStarted, SessionStarted
from .policy import Mode, Rule
from .providers.base import Provider
from .session import Session, Settings
from .store import SUFFIX, find, read
from .trust import examine


def sessions_folder() -> Path:
    """Where sessions are kept."""
    return data_folder() / "sessions"


@dataclass(frozen=True)
class Opening:
    """What is said of a session; None and nothing leave it to the settings."""

    root: Path
    sessions: Path = field(default_factory=sessions_folder)
    flags: Flags = field(default_factory=Flags)
    script: Path | None = None
    """A scripted model, instead of the one of the settings."""
    mode: Mode = "ask"
    on_ask: OnAsk = "wait"
    sandbox: SandboxMode = "auto"
    rules: Sequence[Rule] = ()
    trust: bool = False
    """Follow the repository's AGENTS.md and settings, whether or not they are trusted."""
    context: Options = field(default_factory=Options)
    cache: Path | None = field(default_factory=cache_folder)
    mcp: Mapping[str, McpSection] = field(default_factory=dict[str, McpSection])
    """Servers of tools, besides those of the settings."""

    def create(self, task: str = "", stop: Stop = never) -> Session:
        """A new session. Files that the `task` names are loaded whole, if they can be. Blocking.

        Raises ConfigError, and what `Session.create` raises.
        """
        trusted = examine(self.root, all_of_it=self.trust)
        config = load_config(self.flags, project=trusted.settings)
        if self.script is None:
            config = with_model(config)
        settings = self._settings(config, trusted.instructions)
        named = [*self.context.named, *mentioned(task, self.root)]
        settings = replace(settings, context=replace(self.context, named=named))
        return Session.create(self.root, self._provider(config), settings, self.sessions, stop=stop)

    def resume(self, name: str) -> Session:
        """A session again, by its id, the start of one, or `last`. Blocking.

        Model, endpoint, effort and rules are those of its last run where nothing else is said.
        Raises ConfigError, and what `Session.resume` raises.
        """
        path = find(self.sessions, name)
        events = read(path)
        first = next((e for e in events if isinstance(e, SessionStarted)), None)
        run = next((e for e in reversed(events) if isinstance(e, RunStarted)), None)
        root = Path(first.repo) if first is not None else self.root
        trusted = examine(root, all_of_it=self.trust)
        flags, rules = self.flags, tuple(self.rules)
        if run is not None:
            flags = replace(
                flags,
                base_url=flags.base_url or endpoint_of(run),
                model=flags.model or run.model,
                effort=flags.effort or run.effort or None,
            )
            rules = (*(Rule.model_validate(rule) for rule in run.rules), *rules)
        config = load_config(flags, project=trusted.settings)
        settings = replace(self._settings(config, trusted.instructions), session_rules=rules)
        if run is not None and self.mode == "ask":
            settings = replace(settings, mode=cast("Mode", run.mode))
        return Session.resume(
            path.name.removesuffix(SUFFIX), self._provider(config), settings, self.sessions,
            repo=root,
        )  # fmt: skip

    def _settings(self, config: Config, instructions: str | None) -> Settings:
        return Settings(
            model=config.model,
            effort=config.effort,
            mode=self.mode,
            on_ask=self.on_ask,
            rules=config.rules,
            session_rules=self.rules,
            limits=config.limits,
            # With a person there, the price of the load is the person's to judge.
            load_limit=None if self.on_ask == "wait" else max(config.load_limit, config.limits.cost or 0),
            price=pricing(config),
            instructions=instructions,
            sandbox=self.sandbox,
            context=self.context,
            preload=config.preload,
            counter=counter(config.vocabulary),
            counting=counting(config) if self.script is None else None,
            cache=self.cache,
            mcp={**config.mcp, **self.mcp},
            subagents=True,
        )  # fmt: skip

    def _provider(self, config: Config) -> Provider:
        if self.script is not None:
            return scripted(self.script, self.flags.window)
        return connect(config)


def endpoint_of(run: RunStarted) -> str | None:
    """The base URL of a run, which is logged without credentials, where the settings' is another."""
    if run.endpoint.startswith(LOCAL):
        return run.endpoint
    if "://" not in run.endpoint or without_secrets(load_config(Flags()).base_url) == run.endpoint:
        return None
    return run.endpoint
