"""Commands whose problems are one line for a person."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from .exits import Exit

Command = Callable[[argparse.Namespace], int]


def guarded(command: Command, *problems: type[Exception]) -> Command:
    """The command, with these problems as one line on standard error and the exit code of usage."""

    def run(args: argparse.Namespace) -> int:
        try:
            return command(args)
        except problems as error:
            sys.stderr.write(f"unabridged: {error}\n")
            return Exit.USAGE

    return run
