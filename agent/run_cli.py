"""`unabridged run`, `approve`, `deny`, `answer`: the command line of headless runs."""

from __future__ import annotations

import argparse
import asyncio
import base64
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from .config import (
    Config,
    ConfigError,
    Flags,
    data_folder,
    load_config,
    load_rules,
)
from .context_options import (
    add_options,
    cache_folder,
    counter,
    given,
    mentioned,
    read_options,
)
from .events import ImagePart, Part, RunStarted, SessionStarted, TextPart
from .policy import Mode, Rule, parse_allow
from .signals import Stopped, held, stoppable

if TYPE_CHECKING:
    from .core import OnAsk
    from .headless import Output
    from .session import Session, Settings

USAGE = 2
MAX_IMAGE = 20 << 20
EXIT_CODES = """\
exit codes:
  0 done            1 internal error     2 usage or settings   3 needs approval
  4 needs answer    5 budget             6 stuck               7 provider failed
  8 not finished    129, 130, 143        stopped by HUP, INT, TERM
"""


def add_parser(commands: Any, name: str, line: str) -> None:
    """Define one of the four commands."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=line,
        description=line[0].upper() + line[1:] + ".",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if name == "run":
        parser.add_argument("task", nargs="?", metavar="TASK",
                            help="the task; `-` reads it from standard input, @FILE from a file")  # fmt: skip
        parser.add_argument("--resume", metavar="ID",
                            help="go on with a session; `last` is the repository's latest")  # fmt: skip
        parser.add_argument("--handover", metavar="ID",
                            help="go on afresh, with the words, plan, scope and questions of a "
                            "session whose window is full")  # fmt: skip
        parser.add_argument("--image", action="append", type=Path, default=[], metavar="FILE",
                            help="a PNG, JPEG or WebP image for the model; may be repeated")  # fmt: skip
        parser.add_argument("--trust", action="store_true",
                            help="trust the repository's AGENTS.md and settings for this run")  # fmt: skip
        add_options(parser)
        parser.set_defaults(run=_guarded(run_command))
    else:
        parser.add_argument("session", metavar="SESSION",
                            help="id of a session, the start of one, or `last`: the repository's "
                            "latest")  # fmt: skip
        parser.add_argument("--no-resume", action="store_true", help="only record it")
        if name == "answer":
            parser.add_argument("text", metavar="TEXT", help="the answer")
        else:
            parser.add_argument("--only", metavar="N",
                                help="only this pending call: its number, from 1, or its id")  # fmt: skip
        if name == "approve":
            parser.add_argument("--always", action="store_true",
                                help="from now on too: show the rules, ask, and add them to your "
                                "settings")  # fmt: skip
            parser.add_argument("--yes", action="store_true", help="with --always: do not ask")
        if name == "deny":
            parser.add_argument(
                "--reason", default="", metavar="TEXT", help="why; the model is told"
            )
        parser.set_defaults(run=_guarded(decide_command), command=name)
    parser.add_argument("--repo", type=Path, metavar="PATH",
                        help="the repository (default: the one around here)")  # fmt: skip
    _model_options(parser)
    _policy_options(parser)
    _output_options(parser)


def _model_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    group.add_argument("--model", metavar="NAME", help="the endpoint's name for the model")
    group.add_argument("--base-url", metavar="URL", help="an OpenAI-compatible endpoint, up to /v1")
    group.add_argument("--effort", choices=("low", "high", "max"), help="how much K3 thinks")
    group.add_argument("--window", type=positive, metavar="TOKENS", help="context window")
    group.add_argument("--script", type=Path, metavar="FILE",
                       help="play a scripted model instead (docs/scripts.md)")  # fmt: skip


def _policy_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what may happen")
    group.add_argument(
        "--allow", action="append", default=[], metavar="RULE",
        help="allow EFFECT[:PATHS] or execute:WORDS (a last * takes the rest), or the rules of "
        "@FILE.toml; may be repeated",
    )  # fmt: skip
    group.add_argument("--mode", choices=("ask", "read-only"),
                       help="read-only: what would ask is denied")  # fmt: skip
    group.add_argument("--on-ask", choices=("stop", "deny"),
                       help="when a call would ask: stop and exit 3 (default), or deny and go on")  # fmt: skip
    group.add_argument("--sandbox", choices=("auto", "required", "off"), default="auto",
                       help="bubblewrap around commands: where present (default), always, never")  # fmt: skip
    group.add_argument("--max-steps", type=positive, metavar="N", help="requests to the model")
    group.add_argument("--max-tokens", type=positive, metavar="N", help="tokens in and out, in all")
    group.add_argument("--max-cost", type=_amount, metavar="USD", help="US dollars")
    group.add_argument("--max-minutes", type=_amount, metavar="N", help="minutes of this run")


def _output_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--output", choices=("text", "json", "stream-json"), default="text",
                       help="json: the result; stream-json: every event, reasoning whole")  # fmt: skip
    group.add_argument("--json", action="store_const", const="json", dest="output",
                       help="the same as --output json")  # fmt: skip
    group.add_argument(
        "--trace", type=Path, metavar="FILE", help="also write the stream-JSON there"
    )
    group.add_argument("--quiet", action="store_true", help="nothing on standard error on the way")
    group.add_argument("--sessions-dir", type=Path, metavar="PATH", help="where sessions are kept")


def positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return value


def _amount(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0")
    return value


def _guarded(command: Any) -> Any:
    """Settings and usage problems are one line and exit 2; storage problems one line and exit 1."""

    def run(args: argparse.Namespace) -> int:
        from ..tools.sandbox import SandboxError
        from .context.errors import ContextError
        from .session import SessionError
        from .store import SessionInUseError, StoreError, UnknownSessionError
        from .view import ReplayError

        try:
            with stoppable():
                return command(args)
        except (
            ConfigError, ContextError, SandboxError, SessionError, SessionInUseError,
            UnknownSessionError,
        ) as error:  # fmt: skip
            print(f"unabridged: {error}", file=sys.stderr)
            return USAGE
        except (StoreError, ReplayError) as error:
            from .headless import report_failure

            return report_failure(str(error), args.output)
        except Stopped as stop:
            from .headless import report_failure

            return report_failure("stopped before the run began", args.output, stop.code)

    return run


# --- run -----------------------------------------------------------------------------------------


def run_command(args: argparse.Namespace) -> int:
    """`unabridged run`."""
    words = read_words(args.task, args.image)
    folder = sessions_folder(args)
    if args.resume is not None and args.handover is not None:
        raise ConfigError("--resume goes on with a session, --handover starts another: give one.")
    if args.resume is not None:
        return _go_on(args, folder, args.resume, words)
    if args.handover is not None:
        return _hand_over(args, folder, args.handover, words)
    if words is None:
        raise ConfigError("no task: give it as an argument, `-` for standard input, or @FILE.")
    root = find_repo(args.repo)
    from .trust import examine

    trusted = examine(root, all_of_it=args.trust)
    for name in trusted.changed:
        _note(args, f"{name} changed since it was trusted and is not followed: `unabridged trust`.")
    config = _with_model(args, load_config(_flags(args), project=trusted.settings))
    settings = _settings(args, config, instructions=trusted.instructions)
    text = " ".join(part.text for part in words if isinstance(part, TextPart))
    named = [*settings.context.named, *mentioned(text, root)]
    settings = replace(settings, context=replace(settings.context, named=named))
    provider = _provider(args, config)
    output = _output(args)

    session = _create(root, provider, settings, folder)
    return asyncio.run(_drive(session, words, output))


def _create(*place: Any, **options: Any) -> Session:
    """A new session; of one that a signal stops while it loads, nothing is left."""
    from .session import Session

    session: Session | None = None
    try:
        with held() as stop:
            session = Session.create(*place, stop=stop, **options)
    except Stopped:
        if session is not None:
            session.core.store.discard()
        raise
    return session


def _go_on(
    args: argparse.Namespace, folder: Path, name: str, words: tuple[Part, ...] | None
) -> int:
    from .session import Session

    if given(args):
        raise ConfigError(
            f"{given(args)[0]} says what is loaded, and this session has its repository already: "
            "start a new one, or use --handover."
        )
    name = _session_id(args, folder, name)
    config, settings = _resumed(args, folder, name)
    provider = _provider(args, config)
    output = _output(args)
    repo = find_repo(args.repo)
    session = Session.resume(name, provider, settings, folder, repo=repo)
    return asyncio.run(_drive(session, words, output))


def _hand_over(
    args: argparse.Namespace, folder: Path, name: str, words: tuple[Part, ...] | None
) -> int:
    from .handover import instructions, left_behind
    from .session import options_of
    from .store import Store

    name = _session_id(args, folder, name)
    config, settings = _resumed(args, folder, name)
    with Store.open(folder, name) as store:
        events = store.events
        settings = replace(settings, instructions=instructions(events))
        if not given(args):
            settings = replace(settings, context=options_of(events) or settings.context)
        provider = _provider(args, config)
        output = _output(args)
        root = next((Path(e.repo) for e in events if isinstance(e, SessionStarted)), None)
        root = root or find_repo(args.repo)
        session = _create(root, provider, settings, folder, continues=events)
    _note(args, f"session {session.id} goes on from {name}, and leaves behind:")
    for line in left_behind(events):
        _note(args, line)
    return asyncio.run(_drive(session, words, output))


def decide_command(args: argparse.Namespace) -> int:
    """`unabridged approve|deny|answer`: record, then resume in the foreground."""
    from .session import Session

    folder = sessions_folder(args)
    name = _session_id(args, folder, args.session)
    config, settings = _resumed(args, folder, name)
    provider = _provider(args, config) if not args.no_resume else _no_provider()
    output = _output(args)
    session = Session.resume(name, provider, settings, folder)
    try:
        if args.command == "answer":
            session.answer(args.text)
        else:
            chosen = _choose(session.pending, args.only)
            if getattr(args, "always", False) and not _always(session, chosen, yes=args.yes):
                print("unabridged: nothing was stored or approved.", file=sys.stderr)
                session.core.store.close()
                return 0
            act = session.approve if args.command == "approve" else session.deny
            for call_id in chosen:
                act(call_id, getattr(args, "reason", ""))
    except BaseException:
        session.core.store.close()
        raise
    if args.no_resume:
        session.core.store.close()
        return 0
    return asyncio.run(_drive(session, None, output))


def _always(session: Session, chosen: Sequence[str], *, yes: bool) -> bool:
    """Show the rules that allow these calls, and store them when the user agrees.

    Raises SessionError where no rule can allow a call, before anything is stored.
    """
    from .headless import printable
    from .remember import as_toml, asked, remember, rules_for
    from .session import SessionError

    core = session.core
    rules: list[Rule] = []
    for item in session.pending:
        if item.call_id not in chosen:
            continue
        wanted = asked(item.effects, core.rules, core.state.scope)
        found = rules_for(wanted)
        if found is None:
            raise SessionError(
                f"no rule can always allow {item.call_id} ({item.reason}): what loses git's work, "
                "secrets, and commands or paths that are only known when they run are asked each "
                "time. Approve it without --always, or `unabridged policy explain` it."
            )
        rules += [rule for rule in found if rule not in rules]
    print(printable("\n".join(map(as_toml, rules))), file=sys.stderr, end="")
    if not yes:
        if not sys.stdin.isatty():
            raise SessionError("give --yes to store these rules without being asked.")
        print("Add this to your settings? [y/N] ", file=sys.stderr, end="", flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            return False
    path = remember(rules)
    print(f"unabridged: stored in {path}.", file=sys.stderr)
    core.rules = (*core.rules, *rules)
    return True


def _choose(pending: Sequence[Any], only: str | None) -> list[str]:
    from .session import SessionError

    if not pending:
        raise SessionError("nothing waits for approval in this session.")
    ids = [item.call_id for item in pending]
    if only is None:
        return ids
    if only.isdecimal() and 1 <= int(only) <= len(ids):
        return [ids[int(only) - 1]]
    if only in ids:
        return [only]
    listed = ", ".join(f"{number} ({one})" for number, one in enumerate(ids, 1))
    raise SessionError(f"--only {only}: no such pending call; there are {listed}.")


def _session_id(args: argparse.Namespace, folder: Path, name: str) -> str:
    """The id of a session that is named by its start, or as the repository's last one."""
    from .store import SUFFIX, UnknownSessionError, find

    if name != "last":
        return find(folder, name).name.removesuffix(SUFFIX)
    from .index import entries

    root = str(find_repo(args.repo).resolve())
    found = next((e for e in entries(folder) if e.repo == root), None) if folder.is_dir() else None
    if found is None:
        raise UnknownSessionError(f"no session of {root} in {folder}.")
    return found.session


def _resumed(args: argparse.Namespace, folder: Path, name: str) -> tuple[Config, Settings]:
    """Settings of a session that goes on: flags first, then what its log says, then the usual."""
    from .opening import endpoint_of
    from .session import SessionError
    from .store import find, read
    from .trust import examine

    events = read(find(folder, name))
    first = next((e for e in events if isinstance(e, SessionStarted)), None)
    run = next((e for e in reversed(events) if isinstance(e, RunStarted)), None)
    root = Path(first.repo) if first is not None else Path()
    if first is not None and args.repo is not None and find_repo(args.repo) != root:
        raise SessionError(f"session {name} works in {root}, not in {args.repo}: leave --repo out.")
    flags = _flags(args)
    if run is not None:
        flags = replace(
            flags,
            base_url=flags.base_url or endpoint_of(run),
            model=flags.model or run.model,
            effort=flags.effort or run.effort or None,
            steps=flags.steps or cast("int | None", run.limits.get("steps")),
            tokens=flags.tokens or cast("int | None", run.limits.get("tokens")),
            cost=flags.cost if flags.cost is not None else run.limits.get("cost"),
            minutes=flags.minutes or run.limits.get("minutes"),
        )
    trusted = examine(root, all_of_it=getattr(args, "trust", False)) if root.is_dir() else None
    config = load_config(flags, project=trusted.settings if trusted is not None else None)
    kept = tuple(Rule.model_validate(rule) for rule in run.rules) if run is not None else ()
    settings = _settings(args, config, run=run, kept=kept)
    return config, settings


def _settings(
    args: argparse.Namespace,
    config: Config,
    *,
    instructions: str | None = None,
    run: RunStarted | None = None,
    kept: tuple[Rule, ...] = (),
) -> Settings:
    from .connect import pricing
    from .counting import counting
    from .events import Usage
    from .session import Settings

    price = pricing(config)
    if config.limits.cost is not None and price(Usage(prompt=1, cached=0, completion=1)) is None:
        raise ConfigError(
            f"a cost limit needs a price, and {config.model!r} has none: give it in "
            "`[money.prices]` of your settings, or leave the limit out."
        )
    mode: Mode = args.mode or (cast("Mode", run.mode) if run is not None else "ask")
    on_ask: OnAsk = args.on_ask or (cast("OnAsk", run.on_ask) if run is not None else "stop")
    return Settings(
        model=config.model,
        effort=config.effort,
        mode=mode,
        on_ask="stop" if on_ask == "wait" else on_ask,
        rules=config.rules,
        session_rules=(*kept, *allow_rules(args.allow)),
        limits=config.limits,
        load_limit=max(config.load_limit, config.limits.cost or 0.0),
        price=price,
        instructions=instructions,
        sandbox=args.sandbox,
        context=read_options(args),
        counter=counter(getattr(args, "vocabulary", None) or config.vocabulary),
        counting=counting(config) if getattr(args, "script", None) is None else None,
        preload=config.preload,
        rebuild=getattr(args, "rebuild", False),
        cache=cache_folder(),
        mcp=config.mcp,
        subagents=True,
    )


async def _drive(session: Session, words: tuple[Part, ...] | None, output: Output) -> int:
    from .headless import run_headless

    async with session:
        return await run_headless(session, words, output)


def _output(args: argparse.Namespace) -> Output:
    """Where to report to; the trace is opened, so that a session is made only if it can be."""
    from .headless import Output

    try:
        trace = args.trace.open("wb") if args.trace is not None else None
    except OSError as error:
        raise ConfigError(f"{args.trace}: {error.strerror}: the trace cannot go there.") from error
    return Output(format=args.output, trace=trace, quiet=args.quiet)


# --- pieces --------------------------------------------------------------------------------------


def read_words(task: str | None, images: Sequence[Path]) -> tuple[Part, ...] | None:
    """The user's words and images. Raises ConfigError for what cannot be read."""
    parts: list[Part] = []
    if task is not None:
        text = _task_text(task)
        if not text.strip():
            raise ConfigError("the task is empty.")
        parts.append(TextPart(text=text))
    parts += [read_image(path) for path in images]
    return tuple(parts) or None


def _task_text(task: str) -> str:
    if task != "-" and not task.startswith("@"):
        return task
    try:
        data = sys.stdin.buffer.read() if task == "-" else Path(task[1:]).read_bytes()
        return data.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{task[1:]}: {error.strerror}: the task cannot be read.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the task from {task} is not UTF-8.") from error


def read_image(path: Path) -> ImagePart:
    """An image as a data URL. Raises ConfigError when it is none, or larger than 20 MB."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}: the image cannot be read.") from error
    if len(data) > MAX_IMAGE:
        raise ConfigError(f"{path}: {len(data):,} bytes; an image may have 20 MB.")
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        mime = "image/png"
    elif data.startswith(b"\xff\xd8\xff"):
        mime = "image/jpeg"
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        mime = "image/webp"
    else:
        raise ConfigError(f"{path}: neither PNG, JPEG nor WebP.")
    return ImagePart(url=f"data:{mime};base64,{base64.b64encode(data).decode('ascii')}")


def find_repo(path: Path | None) -> Path:
    """The root to work in: the folder given, else the git work tree around here, else here.

    Raises ConfigError when it is no folder.
    """
    if path is None:
        here = Path.cwd()
        return next((p for p in (here, *here.parents) if (p / ".git").exists()), here)
    if not path.exists():
        raise ConfigError(f"{path}: no such folder: give the repository with --repo.")
    if not path.is_dir():
        raise ConfigError(f"{path}: not a folder: give the repository's folder with --repo.")
    return path.resolve()


def allow_rules(texts: Sequence[str]) -> tuple[Rule, ...]:
    """`--allow` values as rules."""
    rules: list[Rule] = []
    for text in texts:
        if text.startswith("@"):
            rules += load_rules(Path(text[1:]))
            continue
        try:
            rules.append(parse_allow(text))
        except ValueError as error:
            raise ConfigError(_first_line(error)) from error
    return tuple(rules)


def _first_line(error: ValueError) -> str:
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        return error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
    return str(error)


def sessions_folder(args: argparse.Namespace) -> Path:
    """Where sessions are kept."""
    return args.sessions_dir if args.sessions_dir is not None else data_folder() / "sessions"


def _flags(args: argparse.Namespace) -> Flags:
    return Flags(
        base_url=args.base_url,
        model=args.model,
        effort=args.effort,
        window=args.window,
        steps=args.max_steps,
        tokens=args.max_tokens,
        cost=args.max_cost,
        minutes=args.max_minutes,
    )


def _with_model(args: argparse.Namespace, config: Config) -> Config:
    """The settings of a new session, on K3-nano where they say nothing of a model."""
    from .connect import NANO, with_model
    from .providers.embedded import missing

    if args.script is not None:
        return config
    chosen = with_model(config)
    if chosen is not config and not missing():  # else the error says all
        _note(args, NANO)
    return chosen


def _provider(args: argparse.Namespace, config: Config) -> Any:
    from .connect import connect, scripted

    return scripted(args.script, args.window) if args.script is not None else connect(config)


def _no_provider() -> Any:
    from .providers.scripted import Script, ScriptedProvider

    return ScriptedProvider(Script(), endpoint="none")


def _note(args: argparse.Namespace, text: str) -> None:
    if not args.quiet:
        print(f"unabridged: {text}", file=sys.stderr)
