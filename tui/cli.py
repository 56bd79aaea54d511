"""`unabridged` without a command: the TUI."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

DESCRIPTION = """\
Open a repository and work in it with Kimi K3. What is loaded, and at what price, is shown before
anything is sent; every effect is asked about before it happens.
"""


def parser() -> argparse.ArgumentParser:
    """The options of the TUI."""
    found = argparse.ArgumentParser(prog="unabridged", description=DESCRIPTION, allow_abbrev=False)
    found.add_argument("path", nargs="?", type=Path, metavar="PATH",
                       help="the repository (default: the one around here)")  # fmt: skip
    found.add_argument("--repo", type=Path, metavar="PATH", help="the same")
    found.add_argument("--resume", metavar="ID", help="go on with a session; `last` is the latest")
    found.add_argument("--model", metavar="NAME", help="the endpoint's name for the model")
    found.add_argument("--base-url", metavar="URL", help="an OpenAI-compatible endpoint, up to /v1")
    found.add_argument("--effort", choices=("low", "high", "max"), help="how much K3 thinks")
    found.add_argument("--window", type=int, metavar="TOKENS", help="context window")
    found.add_argument("--script", type=Path, metavar="FILE", help="play a scripted model instead")
    found.add_argument("--allow", action="append", default=[], metavar="RULE",
                       help="allow EFFECT[:PATHS] or execute:WORDS; may be repeated")  # fmt: skip
    found.add_argument("--mode", choices=("ask", "read-only"), default="ask",
                       help="read-only: what would ask is denied")  # fmt: skip
    found.add_argument("--sandbox", choices=("auto", "required", "off"), default="auto",
                       help="bubblewrap around commands")  # fmt: skip
    found.add_argument("--sessions-dir", type=Path, metavar="PATH", help="where sessions are kept")
    found.add_argument("--theme", metavar="NAME", default="", help="colours; /theme lists them")
    return found


def main(words: Sequence[str]) -> int:
    """Open the TUI; exit 2 where there is no terminal for it."""
    args = parser().parse_args(words)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        sys.stderr.write(
            'unabridged: no terminal here. Without one, use `unabridged run "TASK"`; '
            "`unabridged --help` lists the commands.\n"
        )
        return 2
    from ..agent.config import ConfigError, Flags
    from ..agent.run_cli import allow_rules, find_repo, sessions_folder
    from .app import UnabridgedApp
    from .desk import Start

    try:
        start = Start(
            root=find_repo(args.path or args.repo),
            sessions=sessions_folder(args),
            flags=Flags(base_url=args.base_url, model=args.model, effort=args.effort,
                        window=args.window),
            script=args.script,
            mode=args.mode,
            sandbox=args.sandbox,
            rules=allow_rules(args.allow),
            resume=args.resume,
        )  # fmt: skip
    except ConfigError as error:
        sys.stderr.write(f"unabridged: {error}\n")
        return 2
    app = UnabridgedApp(start, theme=args.theme)
    app.run()
    if (session := app.last_session) is not None:
        with suppress(OSError):  # the terminal may be gone
            sys.stdout.write(f"Session {session}. Go on with `unabridged --resume {session}`.\n")
            sys.stdout.flush()
    return app.ended_from_outside or app.return_code or 0
