"""`unabridged acp`: what an editor starts."""

from __future__ import annotations

import argparse
import asyncio
import os
import stat
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .config import ConfigError, Flags

MISSING = "the Agent Client Protocol needs its SDK: `pip install 'unabridged[acp]'`"

PIPES = "an editor starts this and speaks over pipes, and here are none: see docs/acp.md."


def add_parser(commands: Any, name: str, line: str) -> None:
    """Define the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=line,
        description="Serve an editor over the Agent Client Protocol, on standard input and output. "
        "Editors start this themselves; see docs/acp.md.",
        allow_abbrev=False,
    )
    parser.add_argument("--model", metavar="NAME", help="the endpoint's name for the model")
    parser.add_argument(
        "--base-url", metavar="URL", help="an OpenAI-compatible endpoint, up to /v1"
    )
    parser.add_argument("--effort", choices=("low", "high", "max"), help="how much K3 thinks")
    parser.add_argument("--script", type=Path, metavar="FILE",
                        help="play a scripted model instead (docs/scripts.md)")  # fmt: skip
    parser.add_argument("--allow", action="append", default=[], metavar="RULE",
                        help="allow EFFECT[:PATHS] or execute:WORDS; may be repeated")  # fmt: skip
    parser.add_argument("--mode", choices=("ask", "read-only"), default="ask",
                        help="what sessions begin with")  # fmt: skip
    parser.add_argument("--sandbox", choices=("auto", "required", "off"), default="auto",
                        help="bubblewrap around commands")  # fmt: skip
    parser.add_argument("--sessions-dir", type=Path, metavar="PATH", help="where sessions are kept")
    parser.set_defaults(run=acp_command)


def acp_command(args: argparse.Namespace) -> int:
    """Serve until the editor goes."""
    from .run_cli import allow_rules, sessions_folder

    try:
        if find_spec("acp") is None:
            raise ConfigError(MISSING)
        if not all(_is_pipe(stream.fileno()) for stream in (sys.stdin, sys.stdout)):
            raise ConfigError(PIPES)
        from .acp import serve
        from .opening import Opening

        opening = Opening(
            root=Path.cwd(),  # each session names its own
            sessions=sessions_folder(args),
            flags=Flags(base_url=args.base_url, model=args.model, effort=args.effort),
            script=args.script,
            mode=args.mode,
            sandbox=args.sandbox,
            rules=allow_rules(args.allow),
        )
    except ConfigError as error:
        print(f"unabridged: {error}", file=sys.stderr)
        return 2
    asyncio.run(serve(opening))
    return 0


def _is_pipe(descriptor: int) -> bool:
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
