"""Where a command runs: words to values, and paths to effects."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ...agent.effects import Effect, EffectKind
from ..base import Facts, Location, ToolError, path_effects
from .folders import Reach, effects_below, is_folder

EVERYTHING = Reach()
THROUGH_LINKS = Reach(follow=True)

_DEVICES = frozenset(
    {
        "/dev/null", "/dev/zero", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/tty",
        "/dev/fd/0", "/dev/fd/1", "/dev/fd/2", "/dev/random", "/dev/urandom", "/dev/full",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Field:
    """One word after expansion, as the program will see it."""

    text: str | None
    """The exact value; None when it cannot be known."""
    source: str
    """As written, for a person."""
    head: str = ""
    """What an unknown value certainly starts with."""
    several: bool = False
    """An unknown value may turn out to be no word, or several."""
    channel: bool = False
    """The name of a pipe to a command of the same line, from `<(...)` or `>(...)`."""
    number: bool = False
    """An unknown number of digits."""
    below: str | None = None
    """An unknown value that names a regular file below this folder (`{}` of `find -type f`)."""


@dataclass(frozen=True)
class Site:
    """The root, and the folder that relative paths start from."""

    root: Path
    cwd: Path | None
    """None when it cannot be known."""
    moved: tuple[Path, ...] = ()
    """Paths made by earlier commands of the line that may since lead somewhere else."""
    trust_disk: bool = True
    """Whether the disk is as it will be when this command runs: nothing of the line changes it."""
    trees: dict[tuple[Path, Reach], tuple[Effect, ...]] = field(
        default_factory=dict[tuple[Path, Reach], tuple[Effect, ...]], compare=False, repr=False
    )
    """Folders looked through already."""
    distrust: dict[Path, str | None] = field(
        default_factory=dict[Path, "str | None"], compare=False, repr=False
    )
    """Folders in which it is known whether git may run programs."""

    def locate(self, text: str) -> Location | None:
        """The real place of a path as the command sees it; None when it cannot be known."""
        if not text or (self.cwd is None and not text.startswith("/")):
            return None
        joined = os.path.join(self.cwd or "/", text)  # noqa: PTH118 - `..` must stay as written
        try:
            where = Facts(root=self.root).locate(joined)
        except (ToolError, OSError, ValueError):
            return None
        if not where.name.isprintable() and any("\ud800" <= c <= "\udfff" for c in where.name):
            return None  # bytes that are not text: no rule can name them
        lexical = Path(os.path.normpath(joined))
        if any(p == q or p in q.parents for p in self.moved for q in (lexical, where.path)):
            return None
        return where

    def inside(self, text: str) -> bool:
        """Whether a path certainly lies inside the root."""
        where = self.locate(text)
        return where is not None and where.inside

    # ---- effects of a word that names a path -----------------------------------------------

    def read(self, word: Field) -> tuple[Effect, ...]:
        """The content of a file is read (`-` and devices are not files)."""
        if word.channel or word.text == "-" or word.text in _DEVICES:
            return ()
        if word.below is not None:
            return self.tree(Field(word.below, word.source))
        return self._effects(EffectKind.READ, word)

    def look(self, word: Field) -> tuple[Effect, ...]:
        """A name, a listing or a date is read, no content."""
        if word.channel or word.text in _DEVICES:
            return ()
        text = word.text if word.below is None else word.below
        where = self.locate(text) if text is not None else None
        if where is None:
            return unknown(EffectKind.READ, word.source)
        effects = (Effect(kind=EffectKind.READ, path=where.name),)
        if not where.inside:
            effects += (Effect(kind=EffectKind.OUTSIDE_ROOT, path=where.name),)
        return effects

    def write(self, word: Field) -> tuple[Effect, ...]:
        """A file is created or changed."""
        if word.channel or word.text in _DEVICES:
            return ()
        if word.text is not None and word.text.startswith(("/dev/tcp/", "/dev/udp/")):
            return (Effect(kind=EffectKind.NETWORK, target=word.text),)
        return self._effects(EffectKind.WRITE, word)

    def delete(self, word: Field) -> tuple[Effect, ...]:
        """A file or folder is removed."""
        return self._effects(EffectKind.DELETE, word, follow=False)

    def _effects(self, kind: EffectKind, word: Field, *, follow: bool = True) -> tuple[Effect, ...]:
        text = word.text if word.below is None else word.below
        where = self.locate(text) if text is not None else None
        if where is not None and not follow and text is not None and self.cwd is not None:
            # The name itself is removed, not what it leads to: resolve its folder only.
            parent, _, base = text.rstrip("/").rpartition("/")
            folder = self.locate(parent or ("/" if text.startswith("/") else "."))
            if base not in ("", ".", "..") and folder is not None:
                path = folder.path / base
                inside = self.root in path.parents
                name = path.relative_to(self.root).as_posix() if inside else path.as_posix()
                where = Location(path, name, inside)
        if where is None:
            return unknown(kind, word.source)
        effects = path_effects(kind, where)
        if kind is not EffectKind.READ and is_folder(where.path):
            effects = (effects[0].model_copy(update={"below": True}), *effects[1:])
        if kind is not EffectKind.READ and ".git" in where.name.split("/"):
            first = effects[0].model_copy(update={"detail": "part of git's own files"})
            effects = (first, *effects[1:])
        return effects

    def tree(self, word: Field, reach: Reach = EVERYTHING) -> tuple[Effect, ...]:
        """Every file below a folder is read, as far as a program reaches."""
        if word.channel or word.text == "-" or word.text in _DEVICES:
            return ()
        text = word.text if word.below is None else word.below
        where = self.locate(text) if text is not None else None
        if where is None:
            return unknown(EffectKind.READ, word.source)
        key = (where.path, reach)
        if key not in self.trees:
            below = effects_below(where.path, self.root, reach, self.locate) if where.inside else ()
            whole, *more = path_effects(EffectKind.READ, where)
            whole = whole.model_copy(update={"below": is_folder(where.path)})
            self.trees[key] = (whole, *more, *below)
        return self.trees[key]


def unknown(kind: EffectKind, source: str) -> tuple[Effect, ...]:
    """An effect on a path that cannot be known."""
    detail = f"which path `{source[:80]}` names cannot be known"
    return (
        Effect(kind=kind, detail=detail),
        Effect(kind=EffectKind.OUTSIDE_ROOT, detail=detail),
    )


PathUse = Callable[[Site, Field], tuple[Effect, ...]]
"""What is done to a path: `Site.read`, `Site.write`, ..."""
