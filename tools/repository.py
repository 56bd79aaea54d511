"""Git, run so that nothing of the repository's choice runs with it.

A repository's own settings can name programs: hooks, monitors, filters, diff drivers, signers,
transports. None of them is started here, whoever wrote them. What settings the repository has is
asked of git itself, and those that name programs are overridden for the command that follows.
"""

from __future__ import annotations

import os
import re
import selectors
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ..agent.context.git import HARMLESS
from .base import ToolError
from .bash.gitrepo import common_dir_of, git_dir_of

if TYPE_CHECKING:
    from git.cmd import Git

STOP_GRACE = 0.5
"""Seconds between SIGTERM, on which git removes its locks, and SIGKILL."""
_POLL = 0.05
_CHUNK = 1 << 16

_SETTINGS = HARMLESS | {
    "color.ui": "false",
    "commit.gpgSign": "false",
    "commit.status": "false",  # else the message's template looks into submodules
    "commit.verbose": "false",
    "core.askPass": "false",
    "diff.autoRefreshIndex": "false",
    "diff.ignoreSubmodules": "dirty",
    "diff.orderFile": os.devnull,
    "diff.submodule": "short",
    "gc.auto": "0",
    "log.mailmap": "false",
    "maintenance.auto": "false",
    "status.submoduleSummary": "false",
}

_ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "none",  # a partial clone fetches what it lacks; no transport may start
    "GIT_ASKPASS": "false",
    "GIT_CONFIG_PARAMETERS": "",
    "GIT_EDITOR": "false",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "SSH_ASKPASS": "false",
}

_OVERRIDES: tuple[tuple[re.Pattern[str], Mapping[str, str]], ...] = (
    (
        re.compile(r"(filter\..+)\.(?:clean|smudge|process|required)", re.DOTALL),
        {"clean": "", "smudge": "", "process": "", "required": "false"},
    ),
    (re.compile(r"(hook\..+)\.[^.]+", re.DOTALL), {"enabled": "false"}),
    (re.compile(r"(submodule\..+)\.ignore", re.DOTALL), {"ignore": "dirty"}),
)
"""Settings with names of the repository's choice, and what replaces them."""


@dataclass(frozen=True)
class Done:
    """How a git command ended."""

    code: int
    error: str
    """What it said on standard error."""


@dataclass(frozen=True)
class Repository:
    """The repository around a folder."""

    root: Path
    """Where commands run; names are relative to it."""
    top: Path
    """Of its work tree."""
    git_dir: Path
    common: Path
    """Where its history and settings are: those of a linked work tree lie with the main one's."""

    @classmethod
    def around(cls, root: Path) -> Repository:
        """Find it. Raises ToolError when there is none, or git is not installed."""
        _program(root)
        for top in (root, *root.parents):
            if not os.path.lexists(top / ".git"):
                continue
            found = git_dir_of(top)
            if found is None:
                raise ToolError(f"{top / '.git'} cannot be read.")
            if not (found / "HEAD").exists():
                continue  # git passes over it as well
            own = Path(os.path.realpath(found))
            return cls(root, top, own, Path(os.path.realpath(common_dir_of(own))))
        raise ToolError(f"{root} is not in a git repository.")

    @property
    def strays(self) -> bool:
        """Whether `.git` leads to a history that is not of this work tree.

        The data of a linked work tree name the work tree that they are of.
        """
        if self.git_dir == self.common:
            return self.top not in self.common.parents
        if self.git_dir.parent != self.common / "worktrees":
            return True
        try:
            back = (self.git_dir / "gitdir").read_bytes().decode(errors="surrogateescape").strip()
        except OSError:
            return True
        return os.path.realpath(self.git_dir / back) != os.path.realpath(self.top / ".git")

    @property
    def limit(self) -> tuple[str, ...]:
        """The pathspec that keeps a command inside the root."""
        return () if self.root == self.top else (".",)

    def settings(self) -> dict[str, str]:
        """Settings that count here but for ours; keys as git writes them."""
        return {key: value for scope, key, value in self._settings() if scope != "command"}

    @property
    def hooks(self) -> Path:
        """The folder of its hooks."""
        chosen = self.settings().get("core.hookspath")
        if chosen is None:
            return self.common / "hooks"
        return self.top / Path(chosen).expanduser()

    def output(self, *words: str, limit: float | None = None) -> bytes:
        """What a command prints. Raises ToolError with git's own words when it fails.

        `limit`: seconds it may take; then ToolError as well.
        """
        data = bytearray()
        until = None if limit is None else time.monotonic() + limit
        done = self.run(words, data.extend, stop=lambda: until is not None
                        and time.monotonic() > until)  # fmt: skip
        if done.code:
            if until is not None and time.monotonic() > until:
                raise ToolError(f"git {words[0]} took too long. Narrow it down with `paths`.")
            raise ToolError(done.error or f"git {words[0]} ended with exit code {done.code}.")
        return bytes(data)

    def run(
        self,
        words: Sequence[str],
        take: Callable[[bytes], object],
        *,
        stop: Callable[[], bool] = lambda: False,
    ) -> Done:
        """Run a command; `take` gets what it prints. Ended early when `stop` says so."""
        return self._run(words, take, stop, self._overrides())

    def _overrides(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for scope, key, _ in self._settings():
            for pattern, instead in _OVERRIDES if scope in ("local", "worktree") else ():
                if match := pattern.fullmatch(key):
                    found |= {f"{match[1]}.{name}": value for name, value in instead.items()}
        return found

    def _settings(self) -> list[tuple[str, str, str]]:
        """(scope, key, value) of every setting, as git reads them."""
        data = bytearray()
        done = self._run(
            ("config", "--list", "--show-scope", "--includes", "-z"), data.extend, lambda: False, {}
        )
        if done.code:
            raise ToolError(done.error or "git cannot read its settings.")
        fields = data.decode(errors="surrogateescape").split("\0")
        found: list[tuple[str, str, str]] = []
        for scope, entry in zip(fields[::2], fields[1::2], strict=False):
            key, _, value = entry.partition("\n")
            found.append((scope, key, value))
        return found

    def _run(
        self,
        words: Sequence[str],
        take: Callable[[bytes], object],
        stop: Callable[[], bool],
        overrides: Mapping[str, str],
    ) -> Done:
        command = [_program(self.root), *words]
        held = _git(self.root).execute(
            command, as_process=True, env=self._environment(overrides), start_new_session=True
        )
        # `held` ends the process when it is forgotten.
        process = cast("subprocess.Popen[bytes]", held.proc)  # pyright: ignore[reportUnknownMemberType] - no type there
        whole = False
        try:
            error, whole = _drain(process, take, stop)
        finally:
            if not whole:
                _stop(process)
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        return Done(process.wait(), error.decode(errors="replace").strip())

    def _environment(self, overrides: Mapping[str, str]) -> dict[str, str]:
        """Settings given this way win over all others."""
        settings = {**_SETTINGS, **overrides}
        numbered: dict[str, str] = {"GIT_CONFIG_COUNT": str(len(settings))}
        for number, (key, value) in enumerate(settings.items()):
            numbered[f"GIT_CONFIG_KEY_{number}"] = key
            numbered[f"GIT_CONFIG_VALUE_{number}"] = value
        where = {
            "GIT_DIR": str(self.git_dir),
            "GIT_WORK_TREE": str(self.top),
            "GIT_INDEX_FILE": str(self.git_dir / "index"),
        }
        return {**_ENVIRONMENT, **numbered, **where}


def _program(root: Path) -> str:
    """Full path of git; one that lies in the repository is not trusted to be it."""
    found = shutil.which("git")
    if found is None or root in Path(os.path.realpath(found)).parents:
        raise ToolError("git is not installed: there is no `git` on PATH.")
    return found


def _git(root: Path) -> Git:
    try:
        from git.cmd import Git
    except ImportError as error:  # it tries git out on import
        raise ToolError(f"git cannot be used: {str(error).strip().splitlines()[0]}") from error
    return Git(str(root))


def _drain(
    process: subprocess.Popen[bytes], take: Callable[[bytes], object], stop: Callable[[], bool]
) -> tuple[bytes, bool]:
    """Hand over standard output as it comes; (standard error, whether all was read)."""
    assert process.stdout is not None
    assert process.stderr is not None
    error = bytearray()
    with selectors.DefaultSelector() as waiting:
        waiting.register(process.stdout, selectors.EVENT_READ, take)
        waiting.register(process.stderr, selectors.EVENT_READ, error.extend)
        while waiting.get_map():
            if stop():
                return bytes(error), False
            for key, _ in waiting.select(_POLL):
                if data := os.read(key.fd, _CHUNK):
                    key.data(data)
                else:
                    waiting.unregister(key.fileobj)
    return bytes(error), True


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
