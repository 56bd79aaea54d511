"""`unabridged evals`: measure an agent on suites of tasks, and report."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..agent.run_cli import positive

if TYPE_CHECKING:
    from .runner import Result
    from .spec import TaskSpec

USAGE = 2
FAULTS = 1
INTERRUPTED = 130


def add_parser(commands: Any, name: str = "evals", line: str = "measure an agent") -> None:
    """Define the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=line, description=line[0].upper() + line[1:] + ".", allow_abbrev=False
    )
    kinds = parser.add_subparsers(dest="evals_command", required=True, metavar="COMMAND")
    _add_run(kinds)
    _add_gate(kinds)
    _add_report(kinds)
    _add_export(kinds)
    _add_import(kinds)
    # report-and-export


def _add_run(kinds: Any) -> None:
    run: argparse.ArgumentParser = kinds.add_parser(
        "run",
        help="run a suite",
        description="Run a suite: each task in a fresh repository, judged by hidden tests "
        "afterwards. Exits with 0 when every trial has a result, 1 when some had a fault of the "
        "infrastructure (which is no failure of the agent), 2 for what cannot be run.",
        allow_abbrev=False,
    )
    run.add_argument("--suite", default="nano", metavar="NAME|PATH",
                     help="nano, real, ask, safety, refactor, recall, trace, marathon, or a folder "
                     "of tasks in Harbor's format (default: nano)")  # fmt: skip
    run.add_argument("--agent", default="unabridged", metavar="AGENT",
                     help="unabridged: this harness (default); scripted:NAME: it with a scripted "
                     "model, such as scripted:oracle; command:LINE: another program; solution: "
                     "each task's own solve.sh")  # fmt: skip
    run.add_argument("--k", type=positive, default=1, metavar="N", help="trials of each task")
    run.add_argument(
        "--limit", type=positive, metavar="N", help="only the first N tasks, a fair mix"
    )
    run.add_argument("--tenth", action="store_true", help="a fixed tenth, some of every family")
    run.add_argument(
        "--seed", type=int, default=0, metavar="S", help="which tasks of the suite's kind"
    )
    run.add_argument("--out", type=Path, required=True, metavar="DIR",
                     help="where tasks, trials and the report go")  # fmt: skip
    run.add_argument("--resume", action="store_true",
                     help="go on with the run in DIR: what has a result is not run again")  # fmt: skip
    run.add_argument("--output", choices=("text", "json"), default="text",
                     help="json: the report as one document")  # fmt: skip
    run.add_argument("--json", action="store_const", const="json", dest="output",
                     help="the same as --output json")  # fmt: skip
    run.add_argument("--executor", default="process", metavar="WHERE",
                     help="inline, process (default), ray or ray:ADDRESS")  # fmt: skip
    run.add_argument("--jobs", type=positive, default=1, metavar="N", help="trials at a time")
    run.add_argument("--no-sandbox", action="store_true",
                     help="without bubblewrap around the agent; the results say so")  # fmt: skip
    run.add_argument("--quarantine", type=Path, metavar="FILE",
                     help="leave out the tasks that `evals gate` found unstable")  # fmt: skip
    arms = run.add_argument_group("arms")
    arms.add_argument("--trace", default="full", metavar="ARM",
                      help="which reasoning the model gets back: full (default), none, last-1, "
                      "last-3, summary, foreign")  # fmt: skip
    arms.add_argument("--isolated", action="store_true",
                      help="each step of a chain by itself, on the solution of those before")  # fmt: skip
    arms.add_argument("--kill-at", type=int, action="append", default=[], metavar="STEP",
                      help="kill the agent in this step of a chain, from 0, and resume it")  # fmt: skip
    arms.add_argument("--instructions", type=Path, metavar="FILE",
                      help="an AGENTS.md of the user's, in the system message")  # fmt: skip
    _model_options(run)
    run.set_defaults(run=_guarded(_run))


def _add_gate(kinds: Any) -> None:
    gate: argparse.ArgumentParser = kinds.add_parser(
        "gate",
        help="look for unstable tasks",
        description="Run the oracle and the idle agent several times over a suite. A task that the "
        "oracle does not always solve, or that doing nothing ever solves, is put in quarantine: "
        "DIR/quarantine.json. Exits with 1 when there is one.",
        allow_abbrev=False,
    )
    gate.add_argument("--suite", required=True, metavar="NAME|PATH", help="which tasks")
    gate.add_argument("--k", type=positive, default=3, metavar="N", help="trials (default: 3)")
    gate.add_argument("--limit", type=positive, metavar="N", help="only the first N tasks")
    gate.add_argument("--tenth", action="store_true", help="a fixed tenth")
    gate.add_argument("--seed", type=int, default=0, metavar="S", help="which tasks")
    gate.add_argument("--out", type=Path, required=True, metavar="DIR", help="where results go")
    gate.add_argument("--executor", default="process", metavar="WHERE", help="as for run")
    gate.add_argument("--jobs", type=positive, default=1, metavar="N", help="trials at a time")
    gate.add_argument("--no-sandbox", action="store_true", help="as for run")
    gate.set_defaults(run=_guarded(_gate))


def _add_report(kinds: Any) -> None:
    report: argparse.ArgumentParser = kinds.add_parser(
        "report",
        help="write the report of a run",
        description="Write DIR/report.md, DIR/report.json and DIR/report.html, a page of its own "
        "with plots and every trajectory with its whole reasoning.",
        allow_abbrev=False,
    )
    report.add_argument("dir", type=Path, metavar="DIR", help="the --out of a run")
    report.add_argument("--compare", type=Path, metavar="DIR2",
                        help="another run over the same tasks, as the second arm")  # fmt: skip
    report.add_argument("--output", choices=("text", "json"), default="text", help="what to print")
    report.set_defaults(run=_guarded(_report))


def _add_export(kinds: Any) -> None:
    export: argparse.ArgumentParser = kinds.add_parser(
        "export",
        help="trajectories and predictions in common formats",
        description="Write ATIF trajectories of all trials, or SWE-bench predictions.",
        allow_abbrev=False,
    )
    export.add_argument("dir", type=Path, metavar="DIR", help="the --out of a run")
    export.add_argument("--format", choices=("atif", "swebench"), required=True)
    export.add_argument("--into", type=Path, required=True, metavar="PATH",
                        help="a folder for atif, a .jsonl file for swebench")  # fmt: skip
    export.set_defaults(run=_guarded(_export))


def _add_import(kinds: Any) -> None:
    load: argparse.ArgumentParser = kinds.add_parser(
        "import",
        help="write other benchmarks as tasks",
        description="Write the tasks of an installed package as folders in Harbor's format, for "
        "`run --suite FOLDER`.",
        allow_abbrev=False,
    )
    load.add_argument("benchmark", choices=("humaneval", "harness-bench"))
    load.add_argument("--into", type=Path, required=True, metavar="FOLDER")
    load.set_defaults(run=_guarded(_import))


def _model_options(parser: argparse.ArgumentParser) -> None:
    model = parser.add_argument_group("model of the agent")
    model.add_argument("--model-folder", type=Path, metavar="DIR",
                       help="a K3-nano checkpoint (default: the one that is shipped)")  # fmt: skip
    model.add_argument("--base-url", metavar="URL", help="an endpoint instead, up to /v1")
    model.add_argument("--model", metavar="NAME", help="the endpoint's name for the model")
    model.add_argument("--effort", choices=("low", "high", "max"), help="how much it thinks")
    model.add_argument("--window", type=positive, metavar="TOKENS", help="context window")


def _guarded(command: Any) -> Any:
    """What cannot be done is one line and exit 2."""

    def run(args: argparse.Namespace) -> int:
        from .agents import AgentError
        from .executors import LostError
        from .runner import RunError
        from .spec import SpecError

        try:
            return command(args)
        except (AgentError, RunError, SpecError) as error:
            print(f"unabridged evals: {error}", file=sys.stderr)
            return USAGE
        except (LostError, OSError) as error:
            print(f"unabridged evals: {error}", file=sys.stderr)
            return FAULTS
        except KeyboardInterrupt:
            print("unabridged evals: stopped; go on with --resume", file=sys.stderr)
            return INTERRUPTED

    return run


# --- run -----------------------------------------------------------------------------------------


def _run(args: argparse.Namespace) -> int:
    from .gateway import TRACES
    from .runner import Run, RunError
    from .spec import SpecError
    from .suites import load

    if args.trace not in TRACES:
        raise SpecError(f"there is no arm {args.trace!r}: choose of {', '.join(TRACES)}")
    isolation = _isolation(args)
    agent = _agent_of(args)
    model = _model_of(args)
    agent["endpoint"] = model.get("weights_sha256") or model.get("endpoint")
    if args.kill_at and isolation == "none":
        raise RunError("--kill-at needs the sandbox: only there is the agent a process of its own")
    settings = {
        "suite": args.suite, "part": "tenth" if args.tenth else "whole", "seed": args.seed,
        "k": args.k, "agent": agent["name"], **model, "trace": args.trace,
        "effort": agent["effort"], "window": agent["window"], "isolation": isolation,
        "isolated_steps": args.isolated, "kill_at": args.kill_at, "limit": args.limit,
        "instructions": agent["instructions"],
    }  # fmt: skip
    tasks = load(args.suite, args.out / "tasks", seed=args.seed, limit=args.limit,
                 part=settings["part"])  # fmt: skip
    left_out = _quarantined(args.quarantine)
    tasks = [task for task in tasks if task.name not in left_out]
    needing = [task for task in tasks if task.settings.get("isolation") == "required"]
    if needing and isolation == "none":
        raise RunError(
            f"{needing[0].suite} is not run without isolation: its tasks tempt an agent to do harm"
        )
    Run(args.out, settings).open(resume=args.resume)
    with _reachable(args, agent) as reached:
        results = _all(args, tasks, reached, isolation)
    return _told(args, settings, results, left_out)


def _all(
    args: argparse.Namespace, tasks: list[TaskSpec], agent: Mapping[str, Any], isolation: str
) -> list[Result]:
    from .executors import executor
    from .runner import run_trials, trials_of

    trials = trials_of(
        tasks, agent, args.out, isolation=isolation, k=args.k, seed=args.seed,
        isolated_steps=args.isolated, kill_at=tuple(args.kill_at),
    )  # fmt: skip
    workers = executor(args.executor, args.jobs)
    try:
        return run_trials(trials, workers, Progress(trials).told)
    finally:
        workers.close()


def _told(
    args: argparse.Namespace, settings: Mapping[str, Any], results: list[Result], left_out: set[str]
) -> int:
    from .report import document, lines

    found = document({**settings, **_about(), "quarantined": sorted(left_out)}, results)
    text = json.dumps(found, indent=2)
    (args.out / "report.json").write_text(text + "\n")
    print(text if args.output == "json" else "\n".join(lines(found)))
    return FAULTS if found["faults"] else 0


def _isolation(args: argparse.Namespace) -> str:
    """What is around the agent. Without a bubblewrap the trials run, and are marked."""
    from .sandbox import available

    if args.no_sandbox:
        return "none"
    if available():
        return "bubblewrap"
    print(
        "unabridged evals: there is no bubblewrap that works here (for example: apt install "
        "bubblewrap), so the agent is not isolated; the results say so",
        file=sys.stderr,
    )
    return "none"


def _agent_of(args: argparse.Namespace) -> dict[str, Any]:
    """The agent as a trial knows it, but for the model's address."""
    from .policies import POLICIES
    from .spec import SpecError

    name = f"scripted:{args.agent}" if args.agent in POLICIES else args.agent
    kind, _, rest = name.partition(":")
    alone = kind in ("unabridged", "solution")
    if not (alone or (kind in ("scripted", "command") and rest)):
        raise SpecError(
            f"there is no agent {args.agent!r}: unabridged, scripted:NAME, command:LINE or solution"
        )
    if kind == "scripted" and rest not in POLICIES:
        raise SpecError(f"there is no policy {rest!r}: choose of {', '.join(POLICIES)}")
    if kind == "scripted" and (args.model_folder or args.base_url or args.model):
        raise SpecError(f"the agent {name} brings its own model: leave the options out")
    instructions = args.instructions.read_text("utf-8") if args.instructions else None
    return {"name": name, "model": args.model, "effort": args.effort, "window": args.window,
            "trace": args.trace, "instructions": instructions}  # fmt: skip


def _model_of(args: argparse.Namespace) -> dict[str, Any]:
    """What the results depend on, besides the tasks."""
    from .spec import SpecError

    if args.agent != "unabridged":
        return {"model": args.model or args.agent, "endpoint": args.base_url}
    if args.base_url is not None:
        if args.model_folder is not None:
            raise SpecError("--model-folder and --base-url exclude each other")
        return {"model": args.model or "kimi-k3", "endpoint": args.base_url}
    folder = args.model_folder or _shipped()
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise SpecError(f"{folder}: there are no weights (*.safetensors) in this folder")
    import hashlib

    digest = hashlib.sha256()
    for path in weights:
        digest.update(path.read_bytes())
    return {"model": "k3-nano", "weights_sha256": digest.hexdigest()}


def _shipped() -> Path:
    return Path(__file__).resolve().parents[1] / "model" / "nano"


@contextmanager
def _reachable(args: argparse.Namespace, agent: dict[str, Any]) -> Generator[dict[str, Any]]:
    """The agent with the address of its model, while that is up."""
    from .agents import NANO, served

    if agent["name"] == "unabridged" and args.base_url is None:
        with served(args.model_folder or _shipped(), args.out / "server.log") as url:
            yield {**agent, "base_url": url, "model": NANO}
    elif args.base_url is not None:
        from ..agent.providers.dialects import choose_dialect

        # The key stays on this side of the gateway: a trial knows only the variable it is in.
        yield {**agent, "base_url": args.base_url, "dialect": choose_dialect(args.base_url).name,
               "key_variable": "UNABRIDGED_API_KEY"}  # fmt: skip
    else:
        yield agent


def _quarantined(path: Path | None) -> set[str]:
    if path is None:
        return set()
    from .spec import SpecError

    try:
        return {one["task"] for one in json.loads(path.read_bytes())["tasks"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpecError(f"{path}: no quarantine can be read: {error}") from error


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


class Progress:
    """One line a trial on standard error, with how long the rest may take."""

    def __init__(self, trials: Any) -> None:
        from .trial import result_of

        self._total = len(trials)
        self._before = sum(result_of(spec) is not None for spec in trials)
        self._count = 0
        self._began = time.monotonic()
        if self._before:
            print(f"{self._before} of {self._total} are there already", file=sys.stderr)

    def told(self, result: Result) -> None:
        """A trial has ended."""
        from .report import problems

        self._count += 1
        own = result["unabridged"]
        if result["exception_info"]:
            info = result["exception_info"]
            end = f"fault ({info['kind']}): {info['exception_message'].splitlines()[0][:160]}"
        else:
            end = (
                "solved" if own["reward"] == 1 else f"not solved: {'; '.join(problems(own))[:160]}"
            )
        left = self._total - self._before - self._count
        each = (time.monotonic() - self._began) / self._count
        rest = f", about {_duration(left * each)} left" if left else ""
        number = self._before + self._count
        print(
            f"{number:>4}/{self._total} {own['slug'] or result['trial_name']}: {end} "
            f"({own['seconds']:.1f} s{rest})",
            file=sys.stderr,
        )


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


# --- the others ----------------------------------------------------------------------------------


def _gate(args: argparse.Namespace) -> int:
    from .suites import load

    isolation = _isolation(args)
    part = "tenth" if args.tenth else "whole"
    tasks = load(args.suite, args.out / "tasks", seed=args.seed, limit=args.limit, part=part)
    args.isolated, args.kill_at = False, []
    bad: dict[str, list[str]] = {}
    for name, wanted in (("oracle", 1.0), ("noop", 0.0)):
        agent = {"name": f"scripted:{name}"}
        for result in _all(args, tasks, agent, isolation):
            own = result["unabridged"]
            if own["reward"] != wanted:
                reward = "a fault" if own["reward"] is None else f"reward {own['reward']:.0f}"
                bad.setdefault(result["task_name"], []).append(f"{name}: {reward}")
    document = {"suite": args.suite, "k": args.k, "checked": len(tasks),
                "tasks": [{"task": task, "why": why} for task, why in sorted(bad.items())]}  # fmt: skip
    (args.out / "quarantine.json").write_text(json.dumps(document, indent=2) + "\n")
    for one in document["tasks"]:
        print(f"{one['task']}: {'; '.join(one['why'])}")
    print(f"{len(tasks) - len(bad)} of {len(tasks)} tasks are stable over {args.k} trials")
    return FAULTS if bad else 0


def _report(args: argparse.Namespace) -> int:
    from .pages import write_pages
    from .report import compare, document, lines
    from .runner import results_in

    settings: dict[str, Any] = {}
    results = results_in(args.dir)
    settings = json.loads((args.dir / "run.json").read_bytes())
    found = document({**settings, **_about()}, results)
    if args.compare is not None:
        found["compared_with"] = str(args.compare)
        found["comparison"] = compare(results, results_in(args.compare))
    write_pages(args.dir, found, results)
    print(json.dumps(found, indent=2) if args.output == "json" else "\n".join(lines(found)))
    return 0


def _export(args: argparse.Namespace) -> int:
    from .adapters.export import atif_folder, swebench_file
    from .runner import results_in

    results = results_in(args.dir)
    count = (atif_folder if args.format == "atif" else swebench_file)(results, args.into)
    print(f"{count} written to {args.into}")
    return 0


def _import(args: argparse.Namespace) -> int:
    from .adapters.harness_bench import harness_bench
    from .adapters.humaneval import humaneval

    write = humaneval if args.benchmark == "humaneval" else harness_bench
    print(f"{write(args.into)} tasks written to {args.into}")
    return 0
