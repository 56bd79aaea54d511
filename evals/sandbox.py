"""A bubblewrap around an agent: it sees the system read-only, its own folder, and no tasks."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

HIDDEN = Path(__file__).parent
"""This package: it holds the generators, and so what the hidden tests will say."""


def available() -> bool:
    """Whether there is a bubblewrap."""
    return shutil.which("bwrap") is not None


def confined(
    command: Sequence[str],
    *,
    writable: Sequence[Path],
    network: bool,
    hidden: Sequence[Path] = (),
) -> list[str]:
    """The command line that runs `command` confined.

    Commands of the agent run in a sandbox of their own inside this one.

    Args:
        writable: folders that may be changed.
        network: whether there is one; an agent reaches its model over it.
        hidden: folders that look empty, but for what is writable in them.
    """
    words = [
        "bwrap", "--die-with-parent", "--new-session", "--unshare-pid", "--unshare-ipc",
        *([] if network else ["--unshare-net"]),
        "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc",
    ]  # fmt: skip
    for folder in hidden:
        words += ["--tmpfs", str(folder)]
    for folder in writable:
        words += ["--bind", str(folder), str(folder)]
    return [*words, "--", *command]
