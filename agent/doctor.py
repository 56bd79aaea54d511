"""What this machine has for the work, and what to do about what is missing.

Each check looks at one thing and says what it found; none changes anything, none sends anything.
"""

from __future__ import annotations

import locale
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .. import __version__

LEAST_GIT = (2, 31)
"""The first with `GIT_CONFIG_COUNT`, by which git runs nothing that a repository asks for."""
LEAST_FREE = 1 << 30
"""Bytes of disk below which a long session may not be kept."""
SMALLEST = (80, 24)
PROGRAM_SECONDS = 10

Status = Literal["ok", "note", "fault"]


@dataclass(frozen=True)
class Check:
    """What was found on one point; a note is for what is better to have, a fault stops the work."""

    name: str
    status: Status
    found: str
    advice: str = ""
    """What to do; empty where nothing is to be done."""


def examine(root: Path) -> Iterator[Check]:
    """All checks of this machine, for work on the repository at `root`."""
    yield from versions()
    yield from terminal()
    yield from programs()
    yield from sandbox()
    yield from settings(root)
    yield from keyring()
    yield from disk()


def versions() -> Iterator[Check]:
    """Unabridged, Python, the system."""
    yield Check("unabridged", "ok", f"{__version__}, in {Path(__file__).resolve().parents[1]}")
    yield Check("python", "ok", f"{platform.python_version()}, {sys.executable}")
    system = platform.system()
    if system in ("Linux", "Darwin"):
        yield Check("system", "ok", platform.platform(terse=True))
    else:
        yield Check("system", "fault", f"{system} is not supported",
                    "use Linux or macOS; on Windows, WSL 2 is Linux")  # fmt: skip


def terminal() -> Iterator[Check]:
    """What the terminal interface needs; headless runs need none of it."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield Check("terminal", "note", "none here",
                    "the terminal interface needs one; `unabridged run` does not")  # fmt: skip
        return
    size, kind = shutil.get_terminal_size(), os.environ.get("TERM", "")
    encoding = (locale.getencoding() or "").upper()
    found = f"{kind or 'TERM is not set'}, {size.columns}x{size.lines}, {encoding}"
    if kind in ("", "dumb"):
        yield Check("terminal", "note", found, "set TERM, as to xterm-256color")
    elif encoding.replace("-", "") != "UTF8":
        yield Check("terminal", "note", found, "use a UTF-8 locale: `export LC_ALL=C.UTF-8`")
    elif size.columns < SMALLEST[0] or size.lines < SMALLEST[1]:
        yield Check("terminal", "note", found, "make it 80x24 or larger for the interface")
    else:
        yield Check("terminal", "ok", found)


def programs() -> Iterator[Check]:
    """git and ripgrep."""
    said = _first_line("git", "--version")
    numbers = re.search(r"(\d+)\.(\d+)", said or "")
    if said is None:
        yield Check("git", "fault", "not found", _install("git"))
    elif numbers is None or (int(numbers[1]), int(numbers[2])) < LEAST_GIT:
        least = ".".join(map(str, LEAST_GIT))
        yield Check("git", "fault", said, f"update it to {least} or later")
    else:
        yield Check("git", "ok", said)
    said = _first_line("rg", "--version")
    if said is None:
        yield Check("ripgrep", "note", "not found: searches run in Python, slower",
                    _install("ripgrep"))  # fmt: skip
    else:
        yield Check("ripgrep", "ok", said)


def sandbox() -> Iterator[Check]:
    """bubblewrap, tried and not only found."""
    from ..tools.sandbox import Sandbox

    if sys.platform != "linux":
        yield Check("sandbox", "note", "none: bubblewrap is Linux only",
                    "allowed commands run with all your rights; work in a container for more")  # fmt: skip
        return
    found = Sandbox.detect("auto")
    if found.active:
        yield Check("sandbox", "ok", "bubblewrap works")
    elif shutil.which("bwrap") is None:
        yield Check("sandbox", "note", "bubblewrap is not found: commands run with all your rights",
                    _install("bubblewrap"))  # fmt: skip
    else:
        yield Check("sandbox", "note", found.reason,
                    "until it works, allowed commands run with all your rights")  # fmt: skip


def settings(root: Path) -> Iterator[Check]:
    """The settings, the endpoint they name, and its key."""
    from .config import LOCAL, ConfigError, Flags, load_config, user_file, without_secrets
    from .connect import connect, with_model
    from .trust import examine as examine_trust

    try:
        trusted = examine_trust(root)
        config = load_config(Flags(), project=trusted.settings)
    except ConfigError as error:
        yield Check("settings", "fault", str(error), "correct it; `unabridged config check` tells")
        return
    where = user_file()
    yield Check(
        "settings", "ok", str(where) if where.exists() else f"defaults ({where} is not there)"
    )
    for name in (*trusted.changed, *trusted.untrusted):
        yield Check("trust", "note", f"{name} of this repository is not followed",
                    "read it, then `unabridged trust`")  # fmt: skip
    try:
        config = with_model(config)
        url = without_secrets(config.base_url)
        if config.base_url.startswith(LOCAL):
            yield _local_model(f"{url} ({config.model}), in this process", config.model)
            return
        connect(config)
    except ConfigError as error:
        yield Check("endpoint", "fault", str(error),
                    "`unabridged auth login`, or `unabridged config set model.base_url URL`")  # fmt: skip
    else:
        yield Check("endpoint", "ok", f"{url}, model {config.model}")


def _local_model(what: str, name: str) -> Check:
    from .profile import NANO, profile_of
    from .providers.embedded import MISSING, missing

    if missing():
        return Check("endpoint", "fault", f"{what}: {MISSING}",
                     "or, for Kimi K3, `unabridged auth login`, or `unabridged config set model.base_url URL`")  # fmt: skip
    if profile_of(name) is not NANO:
        return Check("endpoint", "ok", what)
    return Check("endpoint", "note", f"{what}: a small model for a few refactorings",
                 "for Kimi K3 `unabridged auth login`, or `unabridged config set model.base_url URL`")  # fmt: skip


def keyring() -> Iterator[Check]:
    """Where a key would be kept."""
    from .credentials import CredentialError, key_file, keyring_name

    try:
        name = keyring_name()
    except CredentialError as error:
        yield Check("keyring", "note", str(error).rstrip("."), "")
        return
    if name is None:
        yield Check("keyring", "note", f"none: keys are kept in {key_file()}, for your eyes only",
                    "nothing to do, or install a keyring service")  # fmt: skip
    else:
        yield Check("keyring", "ok", name)


def disk() -> Iterator[Check]:
    """Room for sessions and for the cache."""
    from .config import data_folder
    from .context_options import cache_folder

    for name, folder in (("sessions", data_folder() / "sessions"), ("cache", cache_folder())):
        there = next(path for path in (folder, *folder.parents) if path.exists())
        try:
            free = shutil.disk_usage(there).free
        except OSError as error:
            yield Check(name, "fault", f"{there}: {error.strerror}", "check the disk")
            continue
        found = f"{folder}, {free / (1 << 30):,.1f} GiB free"
        if not os.access(there, os.W_OK | os.X_OK):
            yield Check(name, "fault", f"{there} cannot be written", f"`chmod u+rwx {there}`")
        elif free < LEAST_FREE:
            yield Check(name, "note", found, "free some space: a session is kept whole")
        else:
            yield Check(name, "ok", found)


def _first_line(*command: str) -> str | None:
    """What a program says of itself; None where it is missing or does not run."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=PROGRAM_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace").partition("\n")[0].strip()


def _install(package: str) -> str:
    """How to install a package of the system, by the package manager that is here."""
    managers: dict[str, Callable[[str], str]] = {
        "apt-get": lambda name: f"sudo apt-get install {name}",
        "dnf": lambda name: f"sudo dnf install {name}",
        "pacman": lambda name: f"sudo pacman -S {name}",
        "zypper": lambda name: f"sudo zypper install {name}",
        "apk": lambda name: f"sudo apk add {name}",
        "brew": lambda name: f"brew install {name}",
    }
    found = next((how for program, how in managers.items() if shutil.which(program)), None)
    return f"`{found(package)}`" if found is not None else f"install {package}"
