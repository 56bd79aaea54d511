"""A whole run on a sample repository, offline, on K3-nano.

    python examples/nano.py [--into FOLDER] [--base-url URL]

K3-nano is a small model of K3's architecture that is shipped with this program and runs in it.
Exits with 0 only if the refactoring was done and the sample's tests pass.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from demo import CHECK, environment, folder, make_repository, say, title, work

HERE = Path(__file__).parent
TASK = "Rename count_dry to thirsty_beds."
ALLOWED = ["write:*.py", f"execute:{' '.join(CHECK)}"]


def main() -> int:
    """Run the demo; returns the exit code."""
    parser = argparse.ArgumentParser(description="A whole run on a sample repository, on K3-nano.")
    parser.add_argument(
        "--into", type=Path, metavar="FOLDER", help="a new folder to work in and to keep"
    )
    parser.add_argument(
        "--base-url", default="local:", metavar="URL",
        help="local:FOLDER for another checkpoint, or an endpoint (default: what is shipped)",
    )  # fmt: skip
    options = parser.parse_args()
    with folder(options.into) as place:
        return demonstrate(place, options.base_url, kept=options.into is not None)


def demonstrate(place: Path, base_url: str, *, kept: bool) -> int:
    """The demo in a folder."""
    repo = make_repository("garden", place / "garden")
    env = environment(place, base_url)
    env["UNABRIDGED_MODEL"] = "k3-nano"
    heading = "K3-nano at work, in this process, without a network"
    ran = work(repo, env, TASK, ALLOWED, place / "sessions", heading)
    problems = failures(repo, ran.code, ran.before, ran.after, place)
    if problems:
        title("THE DEMO FAILED")
        say("\n".join(problems))
        return 1
    title("It worked")
    kept_in = f"The repository, and in sessions/ the log with every word, are in {place}."
    say(kept_in if kept else "To keep the repository and the log: --into DIR")
    say(
        "\nK3-nano knows a few refactorings and nothing else. For everything else, a real Kimi K3:\n\n"
        "  export UNABRIDGED_API_KEY=...      # a key of platform.moonshot.ai, or of a gateway\n"
        '  .venv/bin/unabridged run "your task" --repo ~/src/project'
    )
    return 0


def failures(repo: Path, code: int, before: int, after: int, place: Path) -> list[str]:
    """What did not go as it should have."""
    results = list((place / "sessions").glob("*.result.json"))
    result = json.loads(results[0].read_bytes()) if results else {}
    left = [path.name for path in repo.glob("*.py") if b"count_dry" in path.read_bytes()]
    changed = sorted(file["path"] for file in result.get("files_changed", ()))
    checks = {
        "the sample's tests failed before the change": before != 0,
        f"the harness ended with exit code {code}": code != 0,
        "the result does not say that the tests verified it": result.get("verified") is not True,
        "the sample's tests fail": after != 0,
        f"the old name is still in {', '.join(left)}": bool(left),
        f"other files than the four were changed: {', '.join(changed)}": not set(changed)
        <= {"beds.py", "rounds.py", "water.py", "test_beds.py"},
    }
    return [f"- {problem}" for problem, wrong in checks.items() if wrong]


if __name__ == "__main__":
    sys.exit(main())
