"""A whole run on a sample repository, offline, with a scripted stand-in for the model.

    python examples/demo.py [--into FOLDER]

Everything but the model is real: the repository, the process of `unabridged run`, the HTTP
requests, the rules, the sandbox, the edits, the tests. Exits with 0 only if all of it worked.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from unabridged.agent.providers.scripted import load_script
from unabridged.agent.providers.scripted_server import ScriptedServer, serving_in_thread

HERE = Path(__file__).parent
TASK = "Discounts are off by a cent here and there: the tests in tests/ say how. Fix shop/, not the tests."
CHECK = ["python3", "-m", "unittest", "-q"]
ALLOWED = ["write:shop/*.py", f"execute:{' '.join(CHECK)}"]


def main() -> int:
    """Run the demo; returns the exit code."""
    parser = argparse.ArgumentParser(description="A whole run on a sample repository, offline.")
    parser.add_argument(
        "--into", type=Path, metavar="FOLDER", help="a new folder to work in and to keep"
    )
    options = parser.parse_args()
    with folder(options.into) as place, serving_in_thread(load_script(HERE / "demo.toml")) as model:
        return demonstrate(place, model, kept=options.into is not None)


@contextmanager
def folder(wanted: Path | None) -> Iterator[Path]:
    """The folder asked for, made now, or one that is removed at the end."""
    if wanted is None:
        with tempfile.TemporaryDirectory(prefix="unabridged-demo-") as made:
            yield Path(made).resolve()
    else:
        try:
            wanted.mkdir(parents=True)
        except OSError as error:
            sys.exit(f"demo: {wanted}: {error.strerror}: give a folder that does not exist yet.")
        yield wanted.resolve()


class Ran(NamedTuple):
    """What came of a run: exit codes of the sample's tests and of the harness, and the change."""

    before: int
    code: int
    diff: str
    after: int


def work(
    repo: Path, env: dict[str, str], task: str, allowed: Sequence[str], sessions: Path, heading: str
) -> Ran:
    """Show a sample, let the harness carry out a task in it, show the change and the tests."""
    title("The sample repository, before")
    before = run_tests(repo, env)
    say(f"$ {' '.join(CHECK)}\n{last_lines(before.stderr)}")

    title(heading)
    words = ["unabridged", "run", task, *(w for rule in allowed for w in ("--allow", rule))]
    say("$ " + " ".join(f'"{word}"' if " " in word else word for word in words) + "\n")
    command = [sys.executable, "-m", *words, "--sessions-dir", str(sessions)]
    code = subprocess.run(
        command, cwd=repo, env=env, stderr=subprocess.STDOUT, check=False
    ).returncode

    title("The change")
    diff = subprocess.run(["git", "--no-pager", "diff"], cwd=repo, check=False,
                          capture_output=True, text=True)  # fmt: skip
    say(diff.stdout.strip())
    title("The sample's tests, run by this demo and not by the model")
    after = run_tests(repo, env)
    say(f"$ {' '.join(CHECK)}\n{last_lines(after.stderr)}")
    return Ran(before.returncode, code, diff.stdout, after.returncode)


def demonstrate(place: Path, model: ScriptedServer, *, kept: bool) -> int:
    """The demo in a folder, with a model that is served."""
    repo = make_repository("sample", place / "sample")
    env = environment(place, model.url)
    title("The small K3 is still in training, so the model here is a scripted stand-in")
    say(
        f"It is served over HTTP at {model.url} and plays examples/demo.toml.\n"
        "Everything else is real: the repository, the requests, the rules, the edits, the tests."
    )
    ran = work(repo, env, TASK, ALLOWED, place / "sessions", "The harness at work")
    problems = failures(ran.code, ran.before, ran.after, ran.diff, model, place)
    if problems:
        title("THE DEMO FAILED")
        say("\n".join(problems))
        return 1
    title("It worked")
    if kept:
        say(f"The repository, and in sessions/ the log with every word, are in {place}.")
    else:
        say(
            "To keep the repository and the log with every word: python examples/demo.py --into DIR"
        )
    say(
        "\nNow with a real Kimi K3, on a repository of yours:\n\n"
        "  export UNABRIDGED_API_KEY=...      # a key of platform.moonshot.ai, or of a gateway\n"
        '  .venv/bin/unabridged run "your task" --repo ~/src/project\n\n'
        "or with a server of your own:\n\n"
        '  .venv/bin/unabridged run "your task" --base-url http://127.0.0.1:8000/v1 --model kimi-k3'
    )
    return 0


def make_repository(sample: str, repo: Path) -> Path:
    """A sample of this folder as a git repository with one commit."""
    shutil.copytree(HERE / sample, repo, ignore=shutil.ignore_patterns("__pycache__"))
    identity = ["-c", "user.name=Sample", "-c", "user.email=sample@example.com"]
    for words in (
        ["init", "-q"],
        ["add", "."],
        [*identity, "commit", "-q", "-m", f"Add the {sample}"],
    ):
        subprocess.run(["git", *words], cwd=repo, check=True)
    return repo


def environment(place: Path, url: str) -> dict[str, str]:
    """An environment in which no settings, keys or sessions of the user count."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("UNABRIDGED_")}
    home = place / "home"
    home.mkdir()
    return {
        **kept,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / "config"),
        "XDG_DATA_HOME": str(home / "data"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "UNABRIDGED_BASE_URL": url,
    }


def run_tests(repo: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the sample's tests."""
    return subprocess.run(CHECK, cwd=repo, env=env, capture_output=True, text=True, check=False)


def failures(
    code: int, before: int, after: int, diff: str, model: ScriptedServer, place: Path
) -> list[str]:
    """What did not go as it should have."""
    results = list((place / "sessions").glob("*.result.json"))
    result = json.loads(results[0].read_bytes()) if results else {}
    checks = {
        "the sample's tests did not fail before the change": before != 0,
        f"the harness ended with exit code {code}": code == 0,
        "the result does not say that the tests verified it": result.get("verified") is True,
        "the sample's tests still fail": after == 0,
        "nothing was changed in shop/": "+++ b/shop/" in diff,
        "the tests were changed": "+++ b/tests/" not in diff,
        f"the stand-in could not answer: {model.failures}": not model.failures,
    }
    return [f"- {problem}" for problem, fine in checks.items() if not fine]


def last_lines(text: str, count: int = 12) -> str:
    """The end of an output."""
    return "\n".join(text.strip().splitlines()[-count:])


def title(text: str) -> None:
    say(f"\n=== {text} ===\n")


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
