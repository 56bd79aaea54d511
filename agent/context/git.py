"""Git as a source of facts only: no hook, filter, pager, prompt or lock of the repository runs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_SETTINGS = {
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.pager": "cat",
    "core.quotePath": "false",
    "core.untrackedCache": "false",
    "credential.helper": "",
    "diff.external": "",
    "log.showSignature": "false",
    "protocol.allow": "never",
    "submodule.recurse": "false",
}


def environment() -> dict[str, str]:
    """The caller's environment without its git variables, and with ours.

    Settings given this way win over those of the repository, which is not trusted.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    settings = {"GIT_CONFIG_COUNT": str(len(_SETTINGS))}
    for number, (key, value) in enumerate(_SETTINGS.items()):
        settings[f"GIT_CONFIG_KEY_{number}"] = key
        settings[f"GIT_CONFIG_VALUE_{number}"] = value
    return {
        **kept,
        **settings,
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_PAGER": "cat",
        "LC_ALL": "C",
    }


def start(root: Path, *arguments: str) -> subprocess.Popen[bytes] | None:
    """Start a git command in `root` with its output on a pipe; None when git is not installed."""
    try:
        return subprocess.Popen(
            ["git", *arguments],
            cwd=root,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return None


def output(root: Path, *arguments: str) -> bytes | None:
    """What a git command prints; None when it fails or git is not installed."""
    process = start(root, *arguments)
    if process is None:
        return None
    data, _ = process.communicate()
    return data if process.returncode == 0 else None
