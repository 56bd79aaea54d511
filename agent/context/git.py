"""Git as a source of facts only: no hook, filter, pager, prompt or lock of the repository runs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .errors import Stop, check, never

HARMLESS = {
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.pager": "cat",
    "core.quotePath": "false",
    "core.untrackedCache": "false",
    "credential.helper": "",
    "log.showSignature": "false",
    "submodule.recurse": "false",
}
"""Settings with which git, used for facts, runs no program of the repository's choice."""

_SETTINGS = HARMLESS | {"diff.external": "", "protocol.allow": "never"}


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


def outputs(root: Path, *commands: Sequence[str], stop: Stop = never) -> list[bytes | None]:
    """What some git commands print, run side by side in `root`.

    None for one that fails, and for all when git is not installed. Raises Cancelled.
    """
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            processes.append(  # noqa: PERF401 - those started before a failure must be killed
                subprocess.Popen(
                    ["git", *command],
                    cwd=root,
                    env=environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
            )
        return [_finish(process, stop) for process in processes]
    except OSError:
        return [None for _ in commands]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _finish(process: subprocess.Popen[bytes], stop: Stop) -> bytes | None:
    while True:
        try:
            data, _ = process.communicate(timeout=0.1)
        except subprocess.TimeoutExpired:
            check(stop)
        else:
            return data if process.returncode == 0 else None


def ignored(root: Path, names: Sequence[str]) -> frozenset[str]:
    """Those of the names that git ignores, its own folder included; none without git."""
    own = {name for name in names if name == ".git" or name.startswith(".git/")}
    asked = [name for name in names if name not in own]
    if not asked:
        return frozenset(own)
    try:
        done = subprocess.run(
            ["git", "check-ignore", "-z", "--stdin"],
            cwd=root,
            env=environment(),
            input=b"".join(os.fsencode(name) + b"\0" for name in asked),
            capture_output=True,
            check=False,
        )
    except OSError:
        return frozenset(own)
    return frozenset(own | {os.fsdecode(name) for name in done.stdout.split(b"\0") if name})
