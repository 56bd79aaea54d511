"""How the shell tool must run a command for the classifier's answers to hold."""

from __future__ import annotations

SHELL = ("bash", "--noprofile", "--norc", "-c")
"""Non-interactive bash: no start-up files, no history expansion, no alias expansion."""

_GIT_CONFIG = {
    "core.fsmonitor": "false",  # else `git status` runs a program of the repository's choice
    "core.pager": "cat",
    "diff.autoRefreshIndex": "false",  # else `git diff` writes the index and runs its hook
    "diff.submodule": "short",  # else `git diff` runs git inside submodules
    "log.showSignature": "false",  # else `git log` runs gpg.program
    "safe.bareRepository": "explicit",  # a folder that looks like a bare repository is not one
    "status.submoduleSummary": "false",
}

HARDENED_ENV: dict[str, str] = {
    # The shell itself.
    "BASH_ENV": "",
    "ENV": "",
    "CDPATH": "",  # `cd src` goes to ./src and nowhere else
    "GLOBIGNORE": "",
    # Programs that would start another one, or a configuration file that makes them.
    "PAGER": "cat",
    "MANPAGER": "cat",
    "LESSOPEN": "",
    "RIPGREP_CONFIG_PATH": "",
    # Git.
    "GIT_PAGER": "cat",
    "GIT_OPTIONAL_LOCKS": "0",  # `git status` leaves the index alone
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_CONFIG_COUNT": str(len(_GIT_CONFIG)),
    **{f"GIT_CONFIG_KEY_{i}": key for i, key in enumerate(_GIT_CONFIG)},
    **{f"GIT_CONFIG_VALUE_{i}": value for i, value in enumerate(_GIT_CONFIG.values())},
}
"""Environment that a command must run with. The classifier relies on it: without it, programs
that only read (`git status`, `rg`, `cd`) would follow settings that the command does not show."""
