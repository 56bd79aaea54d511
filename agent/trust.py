"""Trust: what a repository may tell the harness, bound to a path and to content.

An untrusted repository is packed as data: its AGENTS.md is no instruction and its settings are
not read. Trust is given by the user for a canonical path and for the content of each item; an
item that changed since is untrusted again.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from ..tools.base import digest
from .config import ConfigError, config_folder, project_file

INSTRUCTIONS = "AGENTS.md"
SETTINGS = ".unabridged/config.toml"


@dataclass(frozen=True)
class Trusted:
    """What of a repository counts."""

    instructions: str | None = None
    """The root's AGENTS.md."""
    settings: Path | None = None
    changed: tuple[str, ...] = ()
    """Items that were trusted once and changed since."""
    untrusted: tuple[str, ...] = ()
    """Items that were never trusted."""


def items(root: Path) -> dict[str, bytes]:
    """The items of a repository that trust is about, with their content."""
    found: dict[str, bytes] = {}
    for name, path in ((INSTRUCTIONS, root / INSTRUCTIONS), (SETTINGS, project_file(root))):
        # A link could point anywhere and change without a trace in the repository.
        if path.is_file() and not path.is_symlink():
            found[name] = path.read_bytes()
    return found


def examine(root: Path, *, all_of_it: bool = False, store: Path | None = None) -> Trusted:
    """What of the repository counts; `all_of_it` trusts it for this run (`--trust`)."""
    known = _read(store).get(str(root.resolve()), {})
    instructions: str | None = None
    settings: Path | None = None
    changed: list[str] = []
    untrusted: list[str] = []
    for name, data in items(root).items():
        if not all_of_it and known.get(name) != digest(data):
            (changed if name in known else untrusted).append(name)
        elif name == INSTRUCTIONS:
            instructions = data.decode("utf-8", "backslashreplace")
        else:
            settings = project_file(root)
    return Trusted(instructions, settings, tuple(changed), tuple(untrusted))


def grant(root: Path, *, store: Path | None = None) -> tuple[str, ...]:
    """Trust the repository as it is now; returns the names of its items."""
    table = _read(store)
    found = items(root)
    table[str(root.resolve())] = {name: digest(data) for name, data in found.items()}
    _write(table, store)
    return tuple(found)


def revoke(root: Path, *, store: Path | None = None) -> bool:
    """Forget the trust; whether there was any."""
    table = _read(store)
    known = table.pop(str(root.resolve()), None)
    if known is not None:
        _write(table, store)
    return known is not None


def _path(store: Path | None) -> Path:
    return store if store is not None else config_folder() / "trust.json"


def _read(store: Path | None) -> dict[str, dict[str, str]]:
    path = _path(store)
    try:
        table: dict[str, dict[str, str]] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): move it away.") from error
    return table


def _write(table: dict[str, dict[str, str]], store: Path | None) -> None:
    path = _path(store)
    fresh = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_bytes(json.dumps(table, indent=1, sort_keys=True).encode("utf-8") + b"\n")
        os.replace(fresh, path)  # noqa: PTH105 - the atomic one, by its name
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}.") from error
