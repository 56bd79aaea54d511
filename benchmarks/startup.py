"""How long it takes until a command line is there, side by side with other agents.

    python benchmarks/startup.py [--bin FOLDER …] [--runs 11]

Measures `--version` and `--help`, against `python -c pass` of the same interpreter. Install the
package (not in editable mode: its import hook costs every start 20 ms) and run this with the
interpreter of that environment; peers are run if they are found on PATH or in a `--bin` folder.
Rounds are interleaved, each in a new home; the first one, which fills caches, is not counted.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from timing import Cost, run, spread

PEERS = ("kimi-code", "kimi-cli", "vibe", "tau", "mini", "llm", "aider", "openhands")
"""Programs; `kimi-code` and `kimi-cli` are links to the two that are both called `kimi`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--bin", action="append", default=[], help="folder with peers' programs")
    parser.add_argument("--runs", type=int, default=11)
    options = parser.parse_args(arguments)
    own = Path(sys.executable).parent
    env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_COLOR": "1"}
    env["PATH"] = os.pathsep.join([str(own), *options.bin, os.environ["PATH"]])
    commands: dict[str, list[str]] = {"python -c pass": [sys.executable, "-c", "pass"]}
    for program in ("unabridged", *PEERS):
        for option in ("--version", "--help"):
            commands[f"{program} {option}"] = [program, option]
    costs = measure(commands, env, options.runs)
    floor = median(cost.wall for cost in costs["python -c pass"])
    cpu_floor = median(cost.cpu for cost in costs["python -c pass"])
    print("| command | wall ms, median (range) | ratio | CPU ratio | peak MB |")
    print("| --- | --- | --- | --- | --- |")
    for name, found in costs.items():
        if not found:
            continue
        ratio = median(cost.wall for cost in found) / floor
        cpu = median(cost.cpu for cost in found) / cpu_floor
        rss = max(cost.rss for cost in found)
        walls = spread([cost.wall * 1000 for cost in found], 1)
        print(f"| `{name}` | {walls} | {ratio:.1f} | {cpu:.1f} | {rss:.0f} |")
    return 0


def measure(
    commands: dict[str, list[str]], env: dict[str, str], runs: int
) -> dict[str, list[Cost]]:
    """The costs of each command, in rounds; one that is missing or fails has none."""
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        env = {**env, "HOME": place, "XDG_CONFIG_HOME": "", "XDG_DATA_HOME": ""}
        for number in range(runs + 1):
            for name, command in list(commands.items()):
                try:
                    cost = run(command, env=env, cwd=home, log=home / "log")
                except FileNotFoundError:
                    del commands[name]
                    continue
                if cost.code != 0:
                    print(f"{name}: exit code {cost.code}", file=sys.stderr)
                    del commands[name]
                elif number:
                    costs[name].append(cost)
    return costs


if __name__ == "__main__":
    sys.exit(main())
