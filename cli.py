"""The command line. Each sub-command's code is imported when it is used, and not before."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from . import __version__

COMMANDS = {
    "run": ("carry out a task without anybody present", "agent.run_cli"),
    "approve": ("approve what a session waits for, and go on", "agent.run_cli"),
    "deny": ("deny what a session waits for, and go on", "agent.run_cli"),
    "answer": ("answer a session's question, and go on", "agent.run_cli"),
    "undo": ("put back what a session changed", "agent.undo_cli"),
    "sessions": ("list, show, search, name, export, fork or remove", "agent.sessions_cli"),
    "cost": ("add up what sessions used, and its price", "agent.cost_cli"),
    "context": ("show what of a repository is loaded, and at what price", "agent.context_cli"),
    "policy": ("explain what a command would do and what decides it", "agent.policy_cli"),
    "evals": ("measure an agent on a suite of tasks", "evals.cli"),
    "serve": ("serve a model over HTTP, with vLLM or the embedded engine", "model.serve_cli"),
    "model": ("audit a K3 configuration, run a checkpoint", "model.cli"),
    "state": ("list, check and prune stored sequence states", "model.state_cli"),
    "acp": ("serve an editor over the Agent Client Protocol", "agent.acp_cli"),
    "config": ("list, get, set and check settings", "agent.config_cli"),
    "auth": ("keep, show the place of, or forget an endpoint's key", "agent.auth_cli"),
    "doctor": ("check this machine and say what to do", "agent.doctor_cli"),
    "completion": ("print the completion script of a shell", "agent.completion_cli"),
    "trust": ("trust a repository's AGENTS.md and settings as they are now", "agent.trust_cli"),
}
"""Name -> help and the module whose `add_parser(subparsers, name)` defines it."""

DESCRIPTION = "An agentic coding harness for Kimi K3 that never abridges and asks before it acts."


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    if "_ARGCOMPLETE" in os.environ:
        from .agent.completion_cli import complete

        complete(build_parser)
    words = list(sys.argv[1:] if argv is None else argv)
    if words == ["--version"]:
        print(f"unabridged {__version__}")
        return 0
    if opens_tui(words):
        from .tui.cli import main as open_tui

        return open_tui(words)
    parser = build_parser(words[0] if words else "")
    args = parser.parse_args(words)
    if getattr(args, "run", None) is None:
        parser.print_help()
        return 0
    try:
        code: int = args.run(args)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone; there is nobody to tell.
        sys.stderr.close()
        return 0
    except Exception as error:  # noqa: BLE001 - no traceback reaches a user
        print(f"unabridged: internal error: {_where(error)}. Please report it.", file=sys.stderr)
        return 1
    return code


def opens_tui(words: Sequence[str]) -> bool:
    """Whether a command line names no command: nothing, a folder, or options of the TUI."""
    if not words:
        return True
    first = words[0]
    if first in COMMANDS or first in ("-h", "--help", "--version"):
        return False
    return first.startswith("-") or "/" in first or Path(first).is_dir()


def _where(error: BaseException) -> str:
    """An error of ours in one line, with the place it comes from."""
    import traceback

    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({last.filename}, line {last.lineno})"


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line that says what to do; sub-parsers are of its kind."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and exit 2."""
        self.exit(2, f"{self.prog}: {message}; see `{self.prog} --help`.\n")

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride] - it is overloaded
        self, args: Any = None, namespace: Any = None
    ) -> Any:
        """Parse; an unknown option is the error of the command it was given to."""
        known, rest = super().parse_known_args(args, namespace)
        if rest:
            unknown = rest[0].partition("=")[0]
            close = get_close_matches(unknown, self._option_string_actions, 1)
            what = "unknown option" if unknown.startswith("-") else "one argument too many:"
            hint = f" (did you mean {close[0]}?)" if close else ""
            self.error(f"{what} {unknown}{hint}")
        return known, rest


def build_parser(wanted: str) -> Parser:
    """The parser, whole for the wanted command and a line for each other one."""
    parser = Parser(prog="unabridged", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"unabridged {__version__}")
    if wanted not in COMMANDS and wanted and not wanted.startswith("-"):
        close = get_close_matches(wanted, COMMANDS, 1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        parser.error(f"no command {wanted!r}{hint}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, (line, module) in COMMANDS.items():
        if name == wanted:
            import_module(f".{module}", __package__).add_parser(commands, name, line)
        else:
            commands.add_parser(name, help=line, add_help=False)
    return parser
