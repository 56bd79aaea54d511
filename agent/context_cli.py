"""`unabridged context plan|pack|tree`: what of a repository is loaded, at what price, as what text."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .calibration import read_scale
from .context.load import ContextError, Left, Load, load
from .context.manifest import section
from .context.pack import quote
from .context_options import add_options, cache_folder, counter, read_options
from .guarded import guarded

if TYPE_CHECKING:
    from .config import Config

DEFAULT_WINDOW = 1_048_576
_PLAN_DEPTH = 2
_MOST_NAMES = 20


def add_parser(commands: Any, name: str, line: str) -> None:
    """Define the command."""
    context: argparse.ArgumentParser = commands.add_parser(
        name, help=line, description=line[0].upper() + line[1:] + "."
    )
    inner = context.add_subparsers(dest="context_command", required=True, metavar="COMMAND")
    for command, text, run in (
        ("plan", "show what would be loaded, what not and why, and the price", plan_command),
        ("pack", "write what would be sent to standard output", pack_command),
        ("tree", "show the tokens of every folder and file", tree_command),
    ):
        parser = inner.add_parser(command, help=text, description=text[0].upper() + text[1:] + ".")
        _options(parser)
        if run is plan_command:
            parser.add_argument("--count", action="store_true",
                                help="send the files to the endpoint, to be counted by it")  # fmt: skip
        parser.set_defaults(run=guarded(run, ContextError, ValueError))


def _options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("path", nargs="?", type=Path, metavar="PATH", help="the repository (default: here)")
    add("--repo", type=Path, metavar="PATH", help="the same")
    add("--json", action="store_true", help="print one JSON document")
    add("--window", type=int, metavar="N", help="context window in tokens (default: the model's)")
    add_options(parser)


def plan_command(args: argparse.Namespace) -> int:
    """Print the plan."""
    root, window, loaded = _load(args)
    price = _price(loaded)
    if args.json:
        print(json.dumps(document(root, window, loaded, price)))
    else:
        print("\n".join(plan_text(window, loaded, price)))
    return 0


def pack_command(args: argparse.Namespace) -> int:
    """Write the messages one after the other; as JSON, a list of them."""
    _, _, loaded = _load(args)
    if args.json:
        print(json.dumps([{"text": s.text, "files": s.files} for s in loaded.segments]))
        return 0
    out = sys.stdout.buffer
    for segment in loaded.segments:
        out.write(segment.text.encode())
    out.flush()
    return 0


def tree_command(args: argparse.Namespace) -> int:
    """Print every folder and file with its tokens."""
    _, _, loaded = _load(args)
    if args.json:
        print(json.dumps(dict(sorted(loaded.costs.items()))))
    else:
        print("\n".join(tree(loaded, depth=None)))
    return 0


def _load(args: argparse.Namespace) -> tuple[Path, int, Load]:
    given: Path | None = args.path or args.repo
    root = (given or _work_tree()).resolve()
    # Settings take as long to read as a small repository: only where they can matter.
    window = args.window or _config().window or DEFAULT_WINDOW
    vocabulary = args.vocabulary or _config().vocabulary
    cache = cache_folder()
    loaded = load(
        root,
        window=window,
        options=read_options(args),
        rebuild=args.rebuild,
        cache=cache,
        keep=False,
        scale=1.0 if vocabulary else read_scale(cache, _config().model),
        counter=counter(vocabulary),
    )
    if getattr(args, "count", False):
        loaded = _counted(loaded, cache)
    return root, window, loaded


def _counted(loaded: Load, cache: Path) -> Load:
    from .config import ConfigError
    from .counting import NO_CALL, counted, counting

    try:
        asks = counting(_config(), asked=True)
    except ConfigError as error:
        raise ContextError(str(error)) from error
    if asks is None:
        return replace(loaded, note=f"estimated: {NO_CALL}")
    return counted(loaded, asks, cache)


def _work_tree() -> Path:
    here = Path.cwd()
    return next((path for path in (here, *here.parents) if (path / ".git").exists()), here)


def _config() -> Config:
    from .config import ConfigError, Flags, load_config

    try:
        return load_config(Flags())
    except ConfigError as error:
        raise ContextError(str(error)) from error


class Price(NamedTuple):
    """US dollars for a first request."""

    model: str
    cold: float
    """When nothing of it is cached."""
    cached: float
    """When all of it is."""
    limit: float
    """`money.load_limit`."""


def _price(loaded: Load) -> Price | None:
    from .prices import rates

    config = _config()
    known = rates(config.model, config.prices)
    if known is None:
        return None
    cold, cached = (loaded.tokens * rate / 1e6 for rate in (known.input, known.cached))
    return Price(config.model, cold, cached, config.load_limit)


# --- what is printed ---------------------------------------------------------------------------


def document(root: Path, window: int, loaded: Load, price: Price | None) -> dict[str, Any]:
    """The plan as JSON."""
    return {
        "root": os.fsdecode(root),
        "window": window,
        "tokens": loaded.tokens,
        "exact": loaded.exact,
        "note": loaded.note,
        "share": round(loaded.tokens / window, 4),
        "files": loaded.files,
        "bytes": loaded.size,
        "price": price and price._asdict(),
        "segments": [
            {"tokens": one.tokens, "files": len(one.files), "stored": at < loaded.stored}
            for at, one in enumerate(loaded.segments)
        ],
        "outlined": [one._asdict() for one in loaded.outlined],
        "skipped": [one._asdict() for one in loaded.skipped],
        "folders": _folders(loaded),
    }


def plan_text(window: int, loaded: Load, price: Price | None) -> Iterator[str]:
    """The plan for a person, line by line."""
    yield from tree(loaded, _PLAN_DEPTH)
    yield ""
    about = "" if loaded.exact else "about "
    yield (
        f"Loaded    {loaded.files:,} files whole, {loaded.size:,} bytes; with the frame "
        f"{about}{loaded.tokens:,} tokens, {loaded.tokens / window:.0%} of {window:,}"
    )
    if loaded.note:
        yield f"          ({loaded.note})"
    elif not loaded.exact:
        yield "          (an estimate; --vocabulary FILE counts exactly)"
    if price:
        yield f"Price     ${price.cold:.2f} to send once, ${price.cached:.2f} when cached ({price.model})"
        if price.cold > price.limit:
            yield (
                f"          over money.load_limit of ${price.limit:.2f}: `run` stops before it sends "
                "anything, unless --max-cost is higher"
            )
    else:
        yield "Price     not known for this model"
    segments = f"Messages  {len(loaded.segments)}"
    yield segments + (f", the first {loaded.stored} as last time" if loaded.stored else "")
    yield from _left("Outlined", loaded.outlined)
    yield from _left("Left out", loaded.skipped)


def _left(title: str, entries: tuple[Left, ...]) -> list[str]:
    return section(f"{title}  {len(entries):,}", entries, _MOST_NAMES)


def tree(loaded: Load, depth: int | None) -> Iterator[str]:
    """Folders with the tokens of all files below, largest first, `depth` deep (None: and files)."""
    totals: dict[str, int] = defaultdict(int)
    children: dict[str, set[str]] = defaultdict(set)
    for name, tokens in loaded.costs.items():
        parts = name.split("/")
        totals["."] += tokens
        above = "."
        for at in range(1, len(parts) + 1):
            here = "/".join(parts[:at]) + ("/" if at < len(parts) else "")
            totals[here] += tokens
            children[above].add(here)
            above = here

    def lines(above: str, level: int) -> Iterator[str]:
        for here in sorted(children[above], key=lambda one: (-totals[one], one)):
            if depth is not None and (level > depth or not here.endswith("/")):
                continue
            label = here.rstrip("/").rpartition("/")[2] + ("/" if here.endswith("/") else "")
            yield f"{totals[here]:>11,}  {'  ' * level}{quote(label)[1:-1]}"
            yield from lines(here, level + 1)

    yield f"{totals['.']:>11,}  ."
    yield from lines(".", 1)


def _folders(loaded: Load) -> dict[str, int]:
    totals: dict[str, int] = defaultdict(int)
    for name, tokens in loaded.costs.items():
        parts = name.split("/")[:-1]
        for at in range(len(parts) + 1):
            totals["/".join(parts[:at]) or "."] += tokens
    return dict(sorted(totals.items()))
