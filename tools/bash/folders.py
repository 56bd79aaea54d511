"""What a program that reads a whole folder would come upon: secrets, and links that lead away."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from ...agent.effects import Effect, EffectKind
from ..base import Location, holds_git_credentials, is_git_settings, is_secret


def exists(path: Path) -> bool:
    """Whether a path leads to something. Unlike `Path.exists` it never raises."""
    return os.path.exists(path)  # noqa: PTH110 - Path's raises for a name that is too long


def is_folder(path: Path) -> bool:
    """Whether a path leads to a folder. Unlike `Path.is_dir` it never raises."""
    return os.path.isdir(path)  # noqa: PTH112 - Path's raises for a name that is too long


MAX_ENTRIES = 50_000
"""Directory entries looked at; beyond that it cannot be known what a folder holds."""

_DEPENDENCIES = frozenset(
    {".git", "node_modules", ".venv", "venv", "site-packages", "__pycache__", ".tox", ".nox"}
)
"""Folders of other people's published files: what is named like a key there is no secret."""

_IGNORE_FILES = (".gitignore", ".ignore", ".rgignore")


@dataclass(frozen=True)
class Reach:
    """Which files below a folder a program reads."""

    follow: bool = False
    """Through links too."""
    hidden: bool = True
    """Names that start with a dot too."""
    only: tuple[str, ...] = ()
    """Only files of these names (patterns); empty: all."""

    def reads(self, name: str) -> bool:
        """Whether a file of this name is read."""
        return not self.only or _matches(name, self.only)


def effects_below(
    top: Path, root: Path, reach: Reach, locate: Callable[[str], Location | None]
) -> Iterator[Effect]:
    """Secrets below a folder, and where its links lead when they are followed."""
    budget = MAX_ENTRIES
    waiting = [top]
    seen = {top}
    shown = set[str]() if reach.hidden else _whitelisted(_parents(top, root))
    while waiting:
        folder = waiting.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue
        budget -= len(entries)
        if budget < 0:
            detail = "too many files below this folder to know whether secrets are among them"
            yield Effect(kind=EffectKind.SECRET, detail=detail)
            if reach.follow:
                yield Effect(kind=EffectKind.OUTSIDE_ROOT, detail="links may lead anywhere")
            return
        if not reach.hidden:
            shown |= _whitelisted([folder])
        for entry in entries:
            if not reach.hidden and entry.name.startswith(".") and not _matches(entry.name, shown):
                continue
            name = _printable(os.path.relpath(entry.path, root))
            if entry.is_symlink():
                if not reach.follow:
                    continue
                target = locate(entry.path)
                if target is None or not target.inside:
                    path = target.name if target else None
                    yield Effect(kind=EffectKind.OUTSIDE_ROOT, path=path, detail=f"link {name}")
                elif is_secret(target.name):
                    yield Effect(kind=EffectKind.SECRET, path=target.name)
                elif target.path not in seen and is_folder(target.path):
                    seen.add(target.path)
                    waiting.append(target.path)
            elif entry.is_dir(follow_symlinks=False):
                if entry.name not in _DEPENDENCIES:
                    waiting.append(Path(entry.path))
                elif entry.name == ".git" and reach.reads("config"):
                    yield from _settings(Path(entry.path), f"{name}/config")
            elif reach.reads(entry.name):
                if is_secret(name):
                    yield Effect(kind=EffectKind.SECRET, path=name)
                elif is_git_settings(name):
                    yield from _settings(folder, name)


def _settings(folder: Path, name: str) -> Iterator[Effect]:
    """Git's settings in a folder, where they hold credentials."""
    if holds_git_credentials(folder / Path(name).name):
        yield Effect(kind=EffectKind.SECRET, path=name)


def _parents(top: Path, root: Path) -> list[Path]:
    return [folder for folder in top.parents if folder == root or root in folder.parents]


def _whitelisted(folders: list[Path]) -> set[str]:
    """Names that ignore files except (`!name`): ripgrep then reads them although hidden."""
    names: set[str] = set()
    for folder in folders:
        for ignore_file in _IGNORE_FILES:
            try:
                text = (folder / ignore_file).read_bytes()[:65_536].decode(errors="replace")
            except OSError:
                continue
            lines = (line.strip().rstrip("/") for line in text.splitlines())
            names.update(line.rpartition("/")[2].lstrip("!") for line in lines if line[:1] == "!")
    return names


def _matches(name: str, patterns: tuple[str, ...] | set[str]) -> bool:
    return any(fnmatchcase(name.lower(), pattern.lower()) for pattern in patterns)


def _printable(name: str) -> str:
    """A file name as text: bytes that are none are replaced."""
    return os.fsencode(name).decode(errors="replace")
