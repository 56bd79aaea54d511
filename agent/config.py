"""Settings: flag, environment, project, user, default, in this order, each with its origin.

The user's file is `config.toml` in the platform's configuration folder. A project's file is
`.unabridged/config.toml`; it is read only when trusted and can only narrow: rules that ask or
deny, and lower limits. Unknown keys are errors with file and line.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from .budget import Limits
from .effects import EffectKind
from .policy import Rule

DEFAULT_BASE_URL = "https://api.moonshot.ai/v1"
DEFAULT_MODEL = "kimi-k3"
LOCAL = "local:"
"""What a base URL begins with that is the folder of a checkpoint on this machine, run in this
process; nothing more stands for the K3-nano that is shipped."""
SETTINGS_VERSION = 1
"""Raised when an older reader could misread a newer file, which then says `version = 2`."""
Effort = Literal["low", "high", "max"]
Preloading = Literal["auto", "off"]
Counting = Literal["auto", "endpoint", "off"]
M = TypeVar("M", bound=BaseModel)


class ConfigError(Exception):
    """Settings that cannot be used; the text is one line with file, line and what to do."""


class Section(BaseModel):
    """Base of the tables of a settings file."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class ModelSection(Section):
    """`[model]`: which model, where."""

    base_url: str | None = None
    name: str | None = None
    effort: Effort | None = None
    window: int | None = Field(default=None, ge=4096)
    dialect: str | None = None
    vocabulary: Path | None = None
    """The model's `tiktoken.model`, to count tokens exactly."""
    preload: Preloading = "auto"
    """Whether the repository goes ahead to an endpoint that keeps states, or never."""
    count: Counting = "auto"
    """Whether the endpoint counts a repository's tokens: on one's own network, anywhere, or never."""


class PriceSection(Section):
    """`[money.prices."MODEL"]`: US dollars for a million tokens."""

    input: float = Field(ge=0)
    cached: float = Field(ge=0)
    output: float = Field(ge=0)


class MoneySection(Section):
    """`[money]`."""

    load_limit: float = Field(default=1.0, ge=0)
    """US dollars that a headless first load may cost, cold."""
    prices: dict[str, PriceSection] = {}


class LimitsSection(Section):
    """`[limits]`: as `--max-steps` and so on."""

    steps: int | None = Field(default=None, ge=1)
    tokens: int | None = Field(default=None, ge=1)
    cost: float | None = Field(default=None, ge=0)
    minutes: float | None = Field(default=None, gt=0)


class McpSection(Section):
    """`[mcp.NAME]`: a server of tools, started by a command or reached at a URL."""

    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    """Variables for the command, besides the usual few; `$NAME` takes one from the environment."""
    url: str | None = None
    headers: dict[str, str] = {}
    """For the URL; a last `$NAME` is taken from the environment."""
    timeout: float = Field(default=60.0, gt=0)
    """Seconds for one call."""
    expands: ClassVar[bool] = True
    """Whether `$NAME` stands for a variable."""
    effects: dict[str, tuple[EffectKind, ...]] = {}
    """Tool, or `*` for the others -> effects it has besides being called."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if bool(self.command) is bool(self.url):
            raise ValueError("give `command` or `url`, one of them")
        if self.url and not _is_endpoint(self.url):
            raise ValueError(f"{self.url!r} is no address of a server")
        return self


class UserFile(Section):
    """The user's `config.toml`."""

    version: int = SETTINGS_VERSION
    model: ModelSection = ModelSection()
    money: MoneySection = MoneySection()
    limits: LimitsSection = LimitsSection()
    mcp: dict[str, McpSection] = {}
    rule: tuple[Rule, ...] = ()


class ProjectFile(Section):
    """A project's `.unabridged/config.toml`: what may narrow."""

    version: int = SETTINGS_VERSION
    limits: LimitsSection = LimitsSection()
    mcp: dict[str, McpSection] = {}
    """Servers that the project brings along; the user's of the same name come first."""
    rule: tuple[Rule, ...] = ()


@dataclass(frozen=True)
class Config:
    """The settings that count, and where each came from."""

    base_url: str = DEFAULT_BASE_URL
    model: str = DEFAULT_MODEL
    effort: Effort = "max"
    window: int | None = None
    dialect: str | None = None
    vocabulary: Path | None = None
    preload: Preloading = "auto"
    count: Counting = "auto"
    load_limit: float = 1.0
    prices: Mapping[str, PriceSection] = field(default_factory=dict[str, PriceSection])
    limits: Limits = field(default_factory=Limits)
    rules: tuple[Rule, ...] = ()
    mcp: Mapping[str, McpSection] = field(default_factory=dict[str, McpSection])
    origin: Mapping[str, str] = field(default_factory=dict[str, str])
    """Setting, as `model.name` -> `flag`, `environment NAME`, the file, or `default`."""


@dataclass(frozen=True)
class Flags:
    """What the command line says; None where it says nothing."""

    base_url: str | None = None
    model: str | None = None
    effort: str | None = None
    window: int | None = None
    steps: int | None = None
    tokens: int | None = None
    cost: float | None = None
    minutes: float | None = None


def config_folder() -> Path:
    """The user's configuration folder."""
    from platformdirs import user_config_path

    return user_config_path("unabridged")


def data_folder() -> Path:
    """The user's data folder: sessions live below it."""
    from platformdirs import user_data_path

    return user_data_path("unabridged")


def user_file() -> Path:
    """Where the user's settings are."""
    return config_folder() / "config.toml"


def project_file(root: Path) -> Path:
    """Where a project keeps its settings."""
    return root / ".unabridged" / "config.toml"


def load_config(
    flags: Flags,
    *,
    user: Path | None = None,
    project: Path | None = None,
    env: Mapping[str, str] = os.environ,
) -> Config:
    """Put the layers together. `project` is given only when it is trusted.

    Raises ConfigError naming file and line.
    """
    user = user if user is not None else user_file()
    mine = read_settings(user, UserFile)
    theirs = read_settings(project, ProjectFile) if project is not None else ProjectFile()
    origin: dict[str, str] = {}

    def pick(key: str, *layers: tuple[Any, str]) -> Any:
        for value, source in layers:
            if value is not None:
                origin[key] = source
                return value
        return None

    def narrowest(key: str, project_says: float | None, own: float | None) -> float | None:
        if project_says is None or (own is not None and own <= project_says):
            return own
        origin[key] = str(project)
        return project_says

    def variable(name: str) -> tuple[str | None, str]:
        return env.get(name) or None, f"environment {name}"

    origin |= {f"mcp.{name}": str(project) for name in theirs.mcp}
    origin |= {f"mcp.{name}": str(user) for name in mine.mcp}
    base_url = pick(
        "model.base_url",
        (flags.base_url, "flag"),
        variable("UNABRIDGED_BASE_URL"),
        (mine.model.base_url, str(user)),
        (DEFAULT_BASE_URL, "default"),
    )
    if not _is_endpoint(base_url):
        raise ConfigError(
            f"{without_secrets(base_url)!r} ({origin['model.base_url']}) is no endpoint: give the address up to /v1, "
            "like http://127.0.0.1:8000/v1, or local:FOLDER for a checkpoint on this machine."
        )
    effort = pick(
        "model.effort",
        (flags.effort, "flag"),
        variable("UNABRIDGED_EFFORT"),
        (mine.model.effort, str(user)),
        ("max", "default"),
    )
    if effort not in ("low", "high", "max"):
        raise ConfigError(f"effort {effort!r} ({origin['model.effort']}): choose low, high or max.")
    return Config(
        base_url=base_url,
        model=pick(
            "model.name",
            (flags.model, "flag"),
            variable("UNABRIDGED_MODEL"),
            (mine.model.name, str(user)),
            (DEFAULT_MODEL, "default"),
        ),
        effort=effort,
        window=pick("model.window", (flags.window, "flag"), (mine.model.window, str(user))),
        dialect=pick("model.dialect", (mine.model.dialect, str(user))),
        vocabulary=_beside(user, pick("model.vocabulary", (mine.model.vocabulary, str(user)))),
        preload=pick(
            "model.preload",
            (mine.model.preload if "preload" in mine.model.model_fields_set else None, str(user)),
            (mine.model.preload, "default"),
        ),
        count=pick(
            "model.count",
            (mine.model.count if "count" in mine.model.model_fields_set else None, str(user)),
            (mine.model.count, "default"),
        ),
        load_limit=pick(
            "money.load_limit",
            (mine.money.load_limit if "load_limit" in mine.money.model_fields_set else None, str(user)),
            (mine.money.load_limit, "default"),
        ),
        prices=mine.money.prices,
        limits=Limits.model_validate(
            {
                key: narrowest(
                    f"limits.{key}",
                    getattr(theirs.limits, key),
                    pick(
                        f"limits.{key}",
                        (getattr(flags, key), "flag"),
                        (getattr(mine.limits, key), str(user)),
                    ),
                )
                for key in Limits.model_fields
            }
        ),
        mcp={**_without_secrets_of_the_user(theirs.mcp, project), **mine.mcp},
        rules=(*_owned(mine.rule, user), *_narrowing(theirs.rule, project)),
        origin=origin,
    )  # fmt: skip


def _is_endpoint(url: str) -> bool:
    if url.startswith(LOCAL):
        return True
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def without_secrets(url: str) -> str:
    """A base URL, well-formed or not, without its user, password, query and last slash."""
    return re.sub(r"^(\w+://)?[^/@]*@", r"\1", url.partition("?")[0]).rstrip("/")


def load_rules(path: Path) -> tuple[Rule, ...]:
    """`--allow @rules.toml`: a file of `[[rule]]` tables. Raises ConfigError."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file of rules.")

    class RulesFile(Section):
        rule: tuple[Rule, ...] = ()

    return _owned(read_settings(path, RulesFile).rule, path)


def _beside(file: Path, path: Path | None) -> Path | None:
    """A path of a settings file: `~` is the user's home, and it is relative to the file."""
    return None if path is None else file.parent / path.expanduser()


def _owned(rules: tuple[Rule, ...], path: Path) -> tuple[Rule, ...]:
    return tuple(rule.model_copy(update={"origin": str(path)}) for rule in rules)


def _narrowing(rules: tuple[Rule, ...], path: Path | None) -> tuple[Rule, ...]:
    if path is None:
        return ()
    for rule in rules:
        if rule.decision == "allow":
            raise ConfigError(
                f"{path}: a project can only narrow, and `{rule.describe()}` allows: put it in "
                "your own settings."
            )
    return _owned(rules, path)


def read_settings(path: Path, model: type[M]) -> M:
    """One file of settings; what `model` says where there is none. Raises ConfigError."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return model()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}.") from error
    try:
        text = data.decode("utf-8")
        table = tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}, line {line}: not UTF-8; save the file as UTF-8.") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {_with_line(str(error))}; fix it or move it away.") from error
    version = table.get("version", SETTINGS_VERSION)
    if isinstance(version, int) and version > SETTINGS_VERSION:
        raise ConfigError(
            f"{path}, line {line_of(text, ('version',))}: these settings are of a newer Unabridged "
            f"(version {version}, this one reads {SETTINGS_VERSION}): update, or move the file away."
        )
    try:
        return model.model_validate(table)
    except ValidationError as error:
        raise ConfigError(_explain(path, text, error, model)) from error


def _without_secrets_of_the_user(
    servers: Mapping[str, McpSection], path: Path | None
) -> Mapping[str, McpSection]:
    """A project's servers: none may take something from the user's environment."""
    for name, server in servers.items():
        if any("$" in value for value in (*server.env.values(), *server.headers.values())):
            raise ConfigError(
                f"{path}: `mcp.{name}` takes a variable of your environment, which a project "
                "cannot: put the server into your own settings."
            )
    return servers


def _with_line(message: str) -> str:
    found = re.search(r" \(at line (\d+), column \d+\)", message)
    if found is None:
        return message
    return f"line {found[1]}: {message[: found.start()]}"


def _explain(path: Path, text: str, error: ValidationError, model: type[BaseModel]) -> str:
    """One line for the first problem: file, line, key, what to do."""
    problem = error.errors(include_url=False, include_input=False)[0]
    loc = problem["loc"]
    where = f"{path}, line {line_of(text, loc)}"
    name = ".".join(str(part) for part in loc if not isinstance(part, int))
    if problem["type"] == "extra_forbidden":
        if model is ProjectFile and loc[0] in UserFile.model_fields:
            return f"{where}: a project can never set `{name}`; put it in your own settings."
        return f"{where}: unknown key `{name}`{_nearest(str(loc[-1]), loc, model)}."
    message = problem["msg"].removeprefix("Value error, ")
    return f"{where}: `{name}`: {message[:1].lower()}{message[1:]}."


def _nearest(key: str, loc: tuple[int | str, ...], model: type[BaseModel]) -> str:
    import difflib

    for part in loc[:-1]:
        if isinstance(part, int) or part not in model.model_fields:
            continue  # a place in a list, or a name of the user's own
        annotation = model.model_fields[part].annotation
        candidates = [annotation, *getattr(annotation, "__args__", ())]
        inner = [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]
        if not inner:
            return ""
        model = inner[0]
    close = difflib.get_close_matches(key, list(model.model_fields), 1)
    return f", did you mean `{close[0]}`?" if close else ""


def line_of(text: str, loc: tuple[int | str, ...]) -> int:
    """The line of a key in a TOML text, or of its table, counted from 1."""
    names = [str(part) for part in loc if not isinstance(part, int)]
    index = next((part for part in loc if isinstance(part, int)), 0)
    table: list[str] = []
    seen: dict[str, int] = {}
    best, best_depth = 1, 0
    for number, line in enumerate(text.splitlines(), 1):
        here: list[str] = []
        if header := re.match(r"\s*\[\[?\s*([^\]]+?)\s*\]\]?", line):
            table = [part.strip().strip("\"'") for part in header[1].split(".")]
            seen[header[1]] = seen.get(header[1], -1) + 1
            here = table
        elif key := re.match(r"\s*([\w.\"'-]+)\s*=", line):
            here = [*table, *(part.strip("\"'") for part in key[1].split("."))]
        if table and seen.get(".".join(table), 0) < index:
            continue
        depth = len(here)
        if depth > best_depth and here == names[:depth]:
            best, best_depth = number, depth
    return best
