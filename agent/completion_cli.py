"""`unabridged completion bash|zsh|fish`, and what the shell then asks of us at each TAB."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any, cast

HOW = """\
  bash: unabridged completion bash > ~/.local/share/bash-completion/completions/unabridged
  zsh:  unabridged completion zsh > ~/.zfunc/_unabridged   (a folder of your fpath)
  fish: unabridged completion fish > ~/.config/fish/completions/unabridged.fish
"""


def add_parser(commands: Any, name: str, line: str) -> None:
    """Define the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=line,
        description=line[0].upper() + line[1:] + ".",
        epilog=HOW,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    parser.set_defaults(run=_print)


def _print(args: argparse.Namespace) -> int:
    import argcomplete

    print(argcomplete.shellcode(["unabridged"], shell=args.shell))  # pyright: ignore[reportPrivateImportUsage] - its documented API
    return 0


def complete(build: Callable[[str], argparse.ArgumentParser]) -> None:
    """Answer the shell and exit. `build` gives the parser for a command."""
    import argcomplete

    line = os.environ.get("COMP_LINE", "")
    words = line[: int(os.environ.get("COMP_POINT", len(line)))].split(" ")
    wanted = words[1] if len(words) > 2 else ""
    try:
        parser = build(wanted)
    except SystemExit:
        return  # there is no such command
    _complete_sessions(parser)
    argcomplete.autocomplete(parser)


def _complete_sessions(parser: argparse.ArgumentParser) -> None:
    """Ids of sessions where one is asked for, in sub-commands too."""
    actions = cast("list[Any]", parser._actions)  # pyright: ignore[reportPrivateUsage] - argparse has no other way to them
    for action in actions:
        if hasattr(action.choices, "values"):  # sub-commands
            for one in set(action.choices.values()):
                _complete_sessions(one)
        elif action.dest in ("session", "resume", "handover"):
            action.completer = _sessions  # how argcomplete is told


def _sessions(prefix: str, parsed_args: argparse.Namespace, **_more: object) -> list[str]:
    from .config import data_folder
    from .store import SUFFIX

    folder = getattr(parsed_args, "sessions_dir", None) or data_folder() / "sessions"
    names = sorted(path.name.removesuffix(SUFFIX) for path in folder.glob(f"{prefix}*{SUFFIX}"))
    return ["last", *reversed(names)]
