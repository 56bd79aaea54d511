"""What a command may touch: bubblewrap on Linux, else nothing, and said so.

Inside the sandbox the system is read-only. The repository is writable only when the granted effects
include a write there; `/tmp` and the caches are private; keys and credential files of the home
folder are hidden unless reading secrets was granted; there is no network unless granted; other
processes cannot be seen. Sockets of the system (`/run`: Docker, D-Bus, agents) are hidden, because
they lead out of any sandbox.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..agent.effects import Effect, EffectKind

Mode = Literal["auto", "required", "off"]

PROBE_SECONDS = 10.0

_SSH = ("ssh", "scp", "sftp", "rsync", "git")
_CREDENTIALS: dict[str, tuple[str, ...]] = {
    ".ssh": _SSH,
    ".gnupg": ("gpg", "gpg2", "git"),
    ".git-credentials": ("git",),
    ".config/git/credentials": ("git",),
    ".netrc": ("git", "curl", "ftp"),
    ".config/gh": ("gh", "git"),
    ".aws": ("aws", "terraform", "sam", "cdk"),
    ".azure": ("az", "terraform"),
    ".config/gcloud": ("gcloud", "gsutil", "bq", "terraform"),
    ".kube": ("kubectl", "helm", "k9s", "kustomize"),
    ".docker": ("docker", "docker-compose", "podman"),
    ".cargo/credentials": ("cargo",),
    ".cargo/credentials.toml": ("cargo",),
    ".pypirc": ("twine", "flit", "hatch"),
    ".pgpass": ("psql", "pg_dump", "pg_restore"),
    ".vault-token": ("vault",),
    ".password-store": ("pass",),
    ".local/share/keyrings": (),
}
"""Of the home folder: what holds secrets and nothing a build needs, and the programs whose own
credentials these are: whoever grants `git push` means it to work."""

_DEVICES = ("nvidia*", "dri", "kfd")
"""Accelerators: the work on this repository may need them, and they lead to no file."""

_RUN = (
    "/run/systemd/resolve",
    "/run/current-system",
    "/run/opengl-driver",
    "/run/nvidia-persistenced",
)
"""Of `/run`: names of hosts, and the programs and drivers of NixOS."""

_PROC = ("sys", "sysrq-trigger", "fs", "mtrr", "acpi", "asound", "scsi")
"""Of `/proc`: what root could change the system with, also without any capability."""

_ROOT_KEEPS = (
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
)
"""Capabilities left to root: those about ownership, so that a repository of another user works."""


class SandboxError(Exception):
    """The sandbox is required and cannot be had; one line for a person."""


@dataclass(frozen=True)
class Grant:
    """What a command may do beyond reading and writing to its private folders."""

    write: bool = False
    """Change the repository."""
    network: bool = False
    secret: bool = False
    """See the secrets of the environment."""
    credentials: tuple[str, ...] = ()
    """See these of the home folder."""
    outside: tuple[Path, ...] = ()
    """Change these paths outside the repository."""

    @classmethod
    def of(cls, effects: Iterable[Effect]) -> Grant:
        """The grant that allows exactly these effects."""
        write = network = secret = False
        credentials: set[str] = set()
        outside: set[Path] = set()
        for effect in effects:
            path = Path(effect.path) if effect.path is not None else None
            match effect.kind:
                case EffectKind.WRITE | EffectKind.DELETE:
                    if path is not None and path.is_absolute():
                        outside.add(_nearest(path, effect.kind))
                    else:
                        write = True
                case EffectKind.GIT_DESTRUCTIVE:
                    write = True
                case EffectKind.NETWORK:
                    network = True
                case EffectKind.SECRET:
                    secret = secret or path is None
                    credentials |= _holding(path)
                case EffectKind.EXECUTE if effect.command:
                    program = Path(effect.command[0]).name
                    credentials |= {name for name, own in _CREDENTIALS.items() if program in own}
                case _:
                    pass
        return cls(write, network, secret, tuple(sorted(credentials)), tuple(sorted(outside)))


NOTHING = Grant()
"""What a command may do when nothing was granted."""


def _nearest(path: Path, kind: EffectKind) -> Path:
    """What has to be writable to write or delete `path`: an existing file, or its folder."""
    if kind is EffectKind.DELETE:
        path = path.parent
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _holding(secret: Path | None) -> set[str]:
    """The credentials of the home folder that a secret path means; None: any of them."""
    if secret is None:
        return set(_CREDENTIALS)
    home = _home()
    return {
        name
        for name in _CREDENTIALS
        if (own := home / name) == secret or own in secret.parents or secret in own.parents
    }


def _home() -> Path:
    return Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home() raises where there is none


class Scratch:
    """Private folders of a session's commands, shared by its sandboxes, deleted at its end.

    A lock marks the folder as in use; what a killed harness left is removed by the next one.
    """

    _PREFIX = "unabridged-scratch-"

    def __init__(self) -> None:
        base = Path(tempfile.gettempdir())
        self._sweep(base)
        self.path = Path(tempfile.mkdtemp(prefix=self._PREFIX, dir=base))
        self._lock = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def folder(self, name: str) -> Path:
        """A private folder, made when first asked for."""
        path = self.path / name
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def close(self) -> None:
        """Delete everything."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)

    @classmethod
    def _sweep(cls, base: Path) -> None:
        for path in base.glob(f"{cls._PREFIX}*"):
            with contextlib.suppress(OSError):
                if path.lstat().st_uid != os.getuid():
                    continue
                lock = os.open(path / "lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
                finally:
                    os.close(lock)


_Kind = Literal["bind", "ro-bind", "dev-bind", "dev", "proc", "tmpfs", "hide"]


@dataclass(frozen=True)
class Mount:
    """One thing at one place of the sandbox."""

    path: Path
    kind: _Kind
    source: Path | None = None

    def options(self) -> list[str]:
        """As bubblewrap takes it."""
        source, path = str(self.source or self.path), str(self.path)
        match self.kind:
            case "bind" | "ro-bind" | "dev-bind":
                return [f"--{self.kind}", source, path]
            case "dev" | "proc" | "tmpfs":
                return [f"--{self.kind}", path]
            case "hide":
                return ["--tmpfs", path] if self.path.is_dir() else ["--ro-bind", os.devnull, path]


@dataclass(frozen=True)
class Sandbox:
    """How commands are confined; `program` is None where they are not, and `reason` says why."""

    program: str | None
    reason: str = ""
    protected: tuple[Path, ...] = ()
    """Never writable, also where a writable folder holds them: sessions, settings."""
    hidden: tuple[Path, ...] = ()
    """Not even readable: the harness's own credentials."""

    @classmethod
    def detect(
        cls, mode: Mode = "auto", *, protected: Sequence[Path] = (), hidden: Sequence[Path] = ()
    ) -> Sandbox:
        """The sandbox this machine offers. Runs bubblewrap once, some milliseconds.

        Raises SandboxError in mode `required` where there is none.
        """
        program, reason = (None, "switched off") if mode == "off" else _bubblewrap()
        if mode == "required" and program is None:
            raise SandboxError(
                f"A sandbox is required, but {reason}. Nothing was run; use `--sandbox auto` to run "
                "commands without one where there is none."
            )
        return cls(program, reason, tuple(protected), tuple(hidden))

    @property
    def active(self) -> bool:
        """Whether commands are confined."""
        return self.program is not None

    def describe(self) -> str:
        """The state, one line for a person."""
        if self.program is None:
            return f"sandbox off: {self.reason}; commands run with all your rights"
        return (
            "sandbox on (bubblewrap): system read-only, repository writable only for a granted "
            "write, private /tmp and caches, home credentials hidden, no network unless granted"
        )

    def command(
        self, argv: Sequence[str], *, root: Path, grant: Grant, scratch: Scratch
    ) -> list[str]:
        """The command line that runs `argv` confined; `argv` itself where there is no sandbox."""
        if self.program is None:
            return list(argv)
        options = [
            "--die-with-parent", "--new-session",
            "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
            *([] if grant.network else ["--unshare-net"]),
            "--cap-drop", "ALL",
        ]  # fmt: skip
        if os.getuid() == 0:
            for capability in _ROOT_KEEPS:
                options += ["--cap-add", capability]
        for mount in self._mounts(root, grant, scratch):
            options += mount.options()
        return [self.program, *options, "--chdir", str(root), "--", *argv]

    def _mounts(self, root: Path, grant: Grant, scratch: Scratch) -> list[Mount]:
        """In the order they are made: outer folders first, so that inner ones stay in force."""
        home = _home()
        mounts = {mount.path: mount for mount in _system(home, scratch)}

        def add(path: Path, kind: _Kind) -> None:
            real = Path(os.path.realpath(path))
            if real.exists():
                mounts[real] = Mount(real, kind)

        # What a private folder covers and is needed all the same: this Python, the environment.
        covered = [path for path, mount in mounts.items() if mount.kind in ("tmpfs", "bind")]
        for needed in _needed():
            if any(path in needed.parents for path in covered):
                add(needed, "ro-bind")
        for name in _CREDENTIALS.keys() - set(grant.credentials):
            add(home / name, "hide")
        add(root, "bind" if grant.write else "ro-bind")
        for path in grant.outside:
            # Never a folder that holds the home folder or the repository; private ones stay so.
            too_much = any(path in (each, *each.parents) for each in (home, root))
            closed = (*covered, *self.protected, *self.hidden)
            if not too_much and not any(each in (path, *path.parents) for each in closed):
                add(path, "bind")
        for path in self.protected:
            add(path, "ro-bind")
        for path in self.hidden:
            add(path, "hide")
        return sorted(mounts.values(), key=lambda mount: len(mount.path.parts))


def _system(home: Path, scratch: Scratch) -> list[Mount]:
    """The sandbox before anything is said about this repository."""
    private = {"/tmp": "tmp", "/var/tmp": "var-tmp", str(home / ".cache"): "cache"}  # noqa: S108
    mounts = [
        Mount(Path("/"), "ro-bind"),
        Mount(Path("/dev"), "dev"),
        Mount(Path("/proc"), "proc"),
        Mount(Path("/run"), "tmpfs"),
    ]
    for place, name in private.items():
        if (path := Path(os.path.realpath(place))).is_dir():
            mounts.append(Mount(path, "bind", scratch.folder(name)))
    for pattern in _DEVICES:
        mounts += [Mount(path, "dev-bind") for path in Path("/dev").glob(pattern)]
    kept = [Path("/run", name) for name in _RUN] + [Path("/proc", name) for name in _PROC]
    return mounts + [Mount(path, "ro-bind") for path in kept if path.exists()]


def _needed() -> list[Path]:
    """Folders without which nothing runs: this Python with the supervisor, active environments."""
    folders = [sys.prefix, sys.base_prefix, sys.executable, str(Path(__file__).parent)]
    folders += [os.environ[name] for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if name in os.environ]
    return [Path(os.path.realpath(folder)) for folder in folders]


@functools.cache
def _bubblewrap() -> tuple[str | None, str]:
    """(program, "") when it works here, else (None, why not)."""
    if sys.platform != "linux":
        return None, "it exists on Linux only"
    program = shutil.which("bwrap")
    if program is None:
        return None, "bubblewrap is not installed (for example: apt install bubblewrap)"
    trial = [
        program, "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/run",
        "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", "--cap-drop", "ALL",
        "--die-with-parent", "--new-session", "--", "/bin/sh", "-c", ":",
    ]  # fmt: skip
    try:
        done = subprocess.run(
            trial, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"{program} does not run here: {error}"
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        why = lines[-1] if lines else f"it exits {done.returncode}"
        return None, f"{program} does not work here: {why}"
    return program, ""
