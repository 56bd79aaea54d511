"""`unabridged evals run`: measure an agent on a suite of tasks."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..agent.run_cli import positive

if TYPE_CHECKING:
    from .agents import Agent
    from .spec import Outcome

AGENTS = ("unabridged", "oracle", "noop")
USAGE = 2


def add_parser(commands: Any, name: str = "evals", line: str = "measure an agent") -> None:
    """Define the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=line, description=line[0].upper() + line[1:] + ".", allow_abbrev=False
    )
    kinds = parser.add_subparsers(dest="evals_command", required=True, metavar="COMMAND")
    run: argparse.ArgumentParser = kinds.add_parser(
        "run",
        help="run a suite; goes on where an earlier run was stopped",
        description="Run a suite: each task in a fresh repository by `unabridged run`, judged by "
        "hidden tests afterwards. The same --out goes on where an earlier run was stopped.",
        allow_abbrev=False,
    )
    run.add_argument("--suite", default="nano", metavar="NAME", help="which tasks (default: nano)")
    run.add_argument("--agent", choices=AGENTS, default="unabridged",
                     help="this harness (default); oracle solves all, noop solves nothing")  # fmt: skip
    run.add_argument(
        "--limit", type=positive, metavar="N", help="only the first N tasks, a fair mix"
    )
    run.add_argument(
        "--seed", type=int, default=0, metavar="S", help="which tasks of the suite's kind"
    )
    run.add_argument("--out", type=Path, required=True, metavar="DIR",
                     help="where outcomes, logs and the report go")  # fmt: skip
    run.add_argument("--json", action="store_true", help="print the report as one JSON document")
    run.add_argument("--workers", type=positive, default=1, metavar="N", help="tasks at a time")
    run.add_argument("--no-sandbox", action="store_true",
                     help="without bubblewrap around the agent; the report says so")  # fmt: skip
    model = run.add_argument_group("model of the agent")
    model.add_argument("--model-folder", type=Path, metavar="DIR",
                       help="a K3-nano checkpoint (default: the one that is shipped)")  # fmt: skip
    model.add_argument("--base-url", metavar="URL", help="an endpoint instead, up to /v1")
    model.add_argument("--model", metavar="NAME", help="the endpoint's name for the model")
    run.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from .agents import AgentError
    from .report import lines, report
    from .runner import Run, RunError, run_tasks
    from .sandbox import available
    from .spec import suite

    try:
        tasks = suite(args.suite, seed=args.seed, limit=args.limit)
        if not args.no_sandbox and not available():
            raise RunError(
                "there is no bubblewrap to confine the agent: install it (for example: apt install "
                "bubblewrap), or give --no-sandbox"
            )
        settings = {
            "suite": args.suite,
            "seed": args.seed,
            "agent": args.agent,
            **_model_of(args),
            "sandbox": "none" if args.no_sandbox else "bubblewrap",
        }
        run = Run(args.out, settings, sandbox=not args.no_sandbox)
        run.open()
        with _agent(args) as agent:
            outcomes = run_tasks(
                run, tasks, agent, workers=args.workers, told=_progress(len(tasks))
            )
    except (AgentError, RunError, ValueError) as error:
        print(f"unabridged evals: {error}", file=sys.stderr)
        return USAGE
    document = report({**settings, **_about()}, outcomes)
    text = json.dumps(document, indent=2)
    (args.out / "report.json").write_bytes(text.encode() + b"\n")
    print(text if args.json else "\n".join(lines(document)))
    return 0


def _model_of(args: argparse.Namespace) -> dict[str, Any]:
    """What the outcomes depend on, besides the tasks."""
    if args.agent != "unabridged":
        if args.model_folder or args.base_url or args.model:
            raise ValueError(f"the agent {args.agent} brings its own model: leave the options out")
        return {"model": args.agent}
    if args.base_url is not None:
        if args.model_folder is not None:
            raise ValueError("--model-folder and --base-url exclude each other")
        return {"model": args.model or "the endpoint's default", "endpoint": args.base_url}
    folder = args.model_folder or _shipped()
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise ValueError(f"{folder}: there are no weights (*.safetensors) in this folder")
    import hashlib

    digest = hashlib.sha256()
    for path in weights:
        digest.update(path.read_bytes())
    return {"model": "k3-nano", "weights_sha256": digest.hexdigest()}


def _shipped() -> Path:
    return Path(__file__).resolve().parents[1] / "model" / "nano"


@contextmanager
def _agent(args: argparse.Namespace) -> Generator[Agent]:
    """The agent, with what it needs while it is used."""
    from .agents import endpoint, noop, oracle, served

    if args.agent != "unabridged":
        yield {"oracle": oracle, "noop": noop}[args.agent]
    elif args.base_url is not None:
        yield endpoint(
            ["--base-url", args.base_url, *(["--model", args.model] if args.model else [])]
        )
    else:
        with served(args.model_folder or _shipped(), args.out / "server.log") as agent:
            yield agent


def _about() -> dict[str, str]:
    """When, and of which state of the code."""
    import subprocess
    from datetime import UTC, datetime

    from .. import __version__

    root = Path(__file__).resolve().parents[1]
    asked = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False
    )
    commit = asked.stdout.strip() if asked.returncode == 0 else ""
    date = datetime.now(UTC).date().isoformat()
    return {"version": __version__, "commit": commit, "date": date}


def _progress(total: int) -> Any:
    """One line a trial on standard error."""
    count = 0

    def told(outcome: Outcome) -> None:
        nonlocal count
        count += 1
        end = "solved" if outcome.success else f"not solved: {'; '.join(outcome.problems)}"
        print(f"{count:>4}/{total} {outcome.id}: {end} ({outcome.seconds:.1f} s)", file=sys.stderr)

    return told
