"""A bubblewrap around an agent or a verifier: it sees the system read-only and what is bound in.

The root is put together from nothing: the system's programs, the interpreter, this package without
its evals (they hold generators, and so what hidden tests will say), and what the caller names. No
home folder, no other trial, no task material, and by default no network.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
_SHOWN = ("__init__.py", "__main__.py", "cli.py", "py.typed", "agent", "model", "tools", "tui")
"""Of this package, what an agent may read: it is the harness itself."""
_DRIVER = ("__init__.py", "drive.py")
"""Of the evals, what runs inside."""
_SYSTEM = ("/usr", "/etc", "/opt", "/nix", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_TMP = "/tmp"  # noqa: S108 - a private one, inside


@functools.cache
def available() -> bool:
    """Whether there is a bubblewrap that works here."""
    if shutil.which("bwrap") is None:
        return False
    probe = confined(["true"], cwd="/")
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def confined(
    command: Sequence[str],
    *,
    cwd: str,
    writable: Mapping[str, Path] | None = None,
    readable: Mapping[str, Path] | None = None,
    env: Mapping[str, str] | None = None,
    network: bool = False,
    harness: bool = False,
) -> list[str]:
    """The command line that runs `command` confined; Linux only.

    Commands of the agent run in the harness's own sandbox inside this one.

    Args:
        cwd: where it starts, a path inside.
        writable: path inside -> folder that may be changed.
        readable: path inside -> file or folder that may be read.
        env: the whole environment, besides what every program needs.
        network: whether there is one.
        harness: whether the harness itself runs inside.
    """
    words = ["bwrap", "--die-with-parent", "--new-session", "--unshare-pid", "--unshare-ipc",
             "--unshare-uts", *([] if network else ["--unshare-net"]), "--clearenv"]  # fmt: skip
    for name in _SYSTEM:
        path = Path(name)
        if path.is_symlink():
            words += ["--symlink", str(path.readlink()), name]
        elif path.is_dir():
            words += ["--ro-bind", name, name]
    words += ["--dev", "/dev", "--proc", "/proc", "--tmpfs", _TMP, "--dir", "/home/agent"]
    for path in dict.fromkeys([sys.base_prefix, sys.prefix]):
        if not path.startswith("/usr"):
            words += ["--ro-bind", path, path]
    if harness:
        words += _package()
    for inside, path in (readable or {}).items():
        words += ["--ro-bind", str(path), inside]
    for inside, path in (writable or {}).items():
        words += ["--bind", str(path), inside]
    for name, value in {**environment(), **(env or {})}.items():
        words += ["--setenv", name, value]
    return [*words, "--chdir", cwd, "--", *command]


def environment() -> dict[str, str]:
    """What every program needs and nothing of the user's."""
    here = str(Path(sys.executable).parent)
    return {
        "PATH": os.pathsep.join([here, "/usr/local/bin", "/usr/bin", "/bin"]),
        "HOME": "/home/agent",
        "TMPDIR": _TMP,
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _package() -> list[str]:
    """The harness, without the evals but for what runs inside."""
    words: list[str] = []
    for name in _SHOWN:
        path = str(PACKAGE / name)
        if (PACKAGE / name).exists():
            words += ["--ro-bind", path, path]
    evals = PACKAGE / "evals"
    words += ["--tmpfs", str(evals)]
    for name in _DRIVER:
        words += ["--ro-bind", str(evals / name), str(evals / name)]
    return words
