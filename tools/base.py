"""What a tool is: an arguments model, the effects of a call, a preview, and `run`.

A tool never decides whether it may act. The loop asks it for the effects of a call, has them
decided, asks again just before running (so that an approval holds only while the world is as it
was), and then calls `run`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from ..agent.context.secrets import holds_git_credentials, is_git_settings, is_secret
from ..agent.effects import Effect, EffectKind

ABSENT = "absent"
"""Stands in `Facts.seen` and `Effect.before` for a file that does not exist."""


class Arguments(BaseModel):
    """Base of every tool's arguments: unknown fields are errors, nothing is coerced."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


A = TypeVar("A", bound=Arguments)


class ToolError(Exception):
    """The call cannot be carried out; the text goes to the model and says what to do."""


@dataclass(frozen=True)
class Location:
    """A path as the tools and the policy see it."""

    path: Path
    """Absolute, with every symlink of the existing part resolved."""
    name: str
    """Relative to the root with `/` when inside it, else absolute: what effects carry."""
    inside: bool
    """Whether the real path lies inside the root."""


@dataclass(frozen=True)
class Facts:
    """What a tool may know about the world when it works out effects."""

    root: Path
    """Canonical root of the repository."""
    seen: Mapping[str, str] = field(default_factory=dict[str, str])
    """File name (as in `Location.name`) -> SHA-256 of the bytes the model was last shown."""

    def locate(self, path: str) -> Location:
        """Resolve a path given by the model: relative to the root, symlinks followed.

        Raises ToolError for a path that cannot name a file (empty, NUL byte, symlink loop).
        """
        if not path or "\0" in path:
            raise ToolError(f"{path!r} is not a path: give a path relative to the repository root.")
        try:
            real = Path(os.path.realpath(self.root / path, strict=False))
        except OSError as error:
            raise ToolError(f"{path}: {error.strerror or error}.") from error
        inside = real == self.root or self.root in real.parents
        name = real.relative_to(self.root).as_posix() if inside else real.as_posix()
        return Location(real, name, inside)


def path_effects(
    kind: EffectKind, where: Location, *, before: str | None = None
) -> tuple[Effect, ...]:
    """`kind` on a path, with `outside_root` and `secret` where they apply."""
    effects = [Effect(kind=kind, path=where.name, before=before)]
    if not where.inside:
        effects.append(Effect(kind=EffectKind.OUTSIDE_ROOT, path=where.name))
    in_settings = is_git_settings(where.name) and holds_git_credentials(where.path)
    if is_secret(where.name) or in_settings:
        effects.append(Effect(kind=EffectKind.SECRET, path=where.name))
    return tuple(effects)


def digest(data: bytes) -> str:
    """SHA-256 of a file's bytes, as `Facts.seen` and `Effect.before` hold it."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Image:
    """An image for the model."""

    mime: str
    """`image/png`, `image/jpeg` or `image/webp`."""
    data: bytes


@dataclass(frozen=True)
class Result:
    """What a call gave: `text` for the model, the rest for the log, the screen and the checks."""

    text: str
    error: bool = False
    images: tuple[Image, ...] = ()
    seen: Mapping[str, str] = field(default_factory=dict[str, str])
    """Files whose whole current content the model now knows: name -> digest, ABSENT if deleted."""
    diff: str = ""
    """Unified diff of what was written, computed from the bytes on disk."""
    changed: tuple[str, ...] = ()
    """Names of files written, created or deleted."""
    exit_code: int | None = None
    """Of a command that ran to its end."""
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """More for the log (JSON values): output file, duration, what was killed."""


@dataclass
class Context:
    """What a running call may use."""

    facts: Facts
    call_id: str
    files: Path
    """Folder of this session for whole outputs; exists."""
    progress: Callable[[str], None] = lambda _text: None
    """Live output for front ends; never part of the result."""
    answer: str = ""
    """The user's answer, for a call that asked for one."""
    granted: tuple[Effect, ...] = ()
    """The effects that were decided on: what the call is held to where it can be."""
    readable: Callable[[str], bool] = lambda _path: True
    """Whether a file or folder (as in `Location.name`) that a call comes upon may be shown."""


class Tool(Generic[A]):
    """Base of every tool. Subclasses set the class attributes and override the methods."""

    name: str
    description: str
    arguments: type[A]

    def effects(self, args: A, facts: Facts) -> tuple[Effect, ...]:
        """What the call would do. Pure but for looking at the file system.

        Raises ToolError when the call cannot be carried out at all.
        """
        raise NotImplementedError

    def preview(self, args: A, facts: Facts) -> str:
        """What to show a person who is asked: the exact diff or command. Empty if nothing."""
        return ""

    async def run(self, args: A, context: Context) -> Result:
        """Carry the call out. Cancelled by asyncio cancellation; must leave nothing half-done."""
        raise NotImplementedError

    def schema(self) -> dict[str, Any]:
        """JSON Schema of the arguments, as sent to the model."""
        return _schema_of(self.arguments)


@cache
def _schema_of(arguments: type[Arguments]) -> dict[str, Any]:
    """Made once for each model: pydantic takes milliseconds."""
    schema = arguments.model_json_schema()
    return plain_schema(schema, schema.get("$defs", {}))


def plain_schema(schema: dict[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    """Reduce pydantic's JSON Schema to the subset that K3 endpoints accept.

    No `title`, no `$ref`; `Optional[X]` is `X` (the field is simply not required); no null defaults.
    """
    if "$ref" in schema:
        plain = plain_schema(shared[schema["$ref"].removeprefix("#/$defs/")], shared)
        return {key: value for key, value in plain.items() if key != "description"}
    plain = {k: v for k, v in schema.items() if k not in {"title", "description", "$defs"}}
    if "description" in schema and "properties" not in schema:
        plain["description"] = schema["description"]
    options = [option for option in plain.pop("anyOf", []) if option.get("type") != "null"]
    if options:
        if len(options) != 1:
            raise TypeError(f"union types do not travel in a tool schema: {schema}")
        plain = {**options[0], **plain}
    if plain.get("default", ...) is None:
        del plain["default"]
    if "properties" in plain:
        plain["properties"] = {k: plain_schema(v, shared) for k, v in plain["properties"].items()}
    if "items" in plain:
        plain["items"] = plain_schema(plain["items"], shared)
    return plain
