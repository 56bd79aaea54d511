"""What was measured, as JSON, a table for each experiment, and plots."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from .experiments import EXPERIMENTS, Experiment
from .training import Result

_T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Student's t at 97.5 % for so many values."""
SETTLED = 50
"""The last steps, over which an excess is averaged."""

Runs = Mapping[str, Sequence[Result]]
"""For each arm of an experiment, one result a seed."""


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and half the width of its 95 % interval (Student's t; 0 for a single value)."""
    count = len(values)
    half = _T[min(count, 10)] * stdev(values) / math.sqrt(count) if count > 1 else 0.0
    return fmean(values), half


def measures(results: Sequence[Result]) -> dict[str, tuple[float, float]]:
    """What an arm came to, by the name of the measure."""
    found = {"recall": interval([result.recall for result in results])}
    chains = [result.chain for result in results if result.chain is not None]
    if chains:
        found["chain"] = interval(chains)
    excesses = [fmean(result.excess[-SETTLED:]) for result in results if result.excess]
    if excesses and max(excesses) > 0:
        found["excess"] = interval(excesses)
    return found


_HEADS = {
    "recall": "answers right",
    "chain": "nats a letter above the least",
    "excess": "busiest expert above its share",
}


def table(runs: Runs) -> str:
    """Markdown: a line for each arm, mean and 95 % interval over seeds."""
    rows = {arm: measures(results) for arm, results in runs.items()}
    kinds = [kind for kind in _HEADS if any(kind in row for row in rows.values())]
    lines = [
        "| | " + " | ".join(_HEADS[kind] for kind in kinds) + " |",
        "|---|" + "---|" * len(kinds),
    ]
    for arm, row in rows.items():
        cells = [_cell(kind, *row[kind]) if kind in row else "" for kind in kinds]
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(kind: str, mean: float, half: float) -> str:
    if kind == "chain":
        return f"{mean:.3f} ± {half:.3f}"
    return f"{100 * mean:.1f} ± {100 * half:.1f} %"


def plot(name: str, experiment: Experiment, runs: Runs, path: Path) -> None:
    """An SVG: each seed a dot, each arm's mean with its interval; for balance, excess by step.

    Of letters the loss is shown where there are any: on answers such models are all good.
    """
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = name  # the same figures give the same file
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7.2, 0.9 + 0.42 * len(runs)), layout="constrained")
    if name == "balance":
        figure.set_size_inches(7.2, 3.2)
        for arm, results in runs.items():
            steps = zip(*(result.excess for result in results), strict=True)
            axes.plot([100 * fmean(step) for step in steps], label=arm, linewidth=1.2)
        axes.set(xlabel="step", ylabel="busiest expert above its share, %", ylim=(0, None))
        axes.legend(frameon=False)
    else:
        of_letters = all(
            result.chain is not None for results in runs.values() for result in results
        )
        for row, results in enumerate(runs.values()):
            dots = [result.chain if of_letters else 100 * result.recall for result in results]
            known = [dot for dot in dots if dot is not None]
            mean, half = interval(known)
            axes.errorbar(mean, row, xerr=half, fmt="s", color="black", capsize=3, markersize=4)
            axes.plot(known, [row] * len(known), "o", color="tab:blue", alpha=0.5, zorder=0)
        axes.set_yticks(range(len(runs)), list(runs))
        axes.invert_yaxis()
        if of_letters:
            axes.set(xlabel="nats a letter above the least", xlim=(0, None))
        else:
            axes.set(xlabel="answers right, %", xlim=(0, 102))
    axes.set_title(experiment.title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def save(folder: Path, name: str, runs: Runs, seconds: float) -> None:
    """Keep an experiment's results: `NAME.json` and `NAME.svg`."""
    document: dict[str, Any] = {
        "experiment": name,
        "seconds": round(seconds),
        "arms": {
            arm: [
                {
                    "recall": round(result.recall, 5),
                    "chain": None if result.chain is None else round(result.chain, 5),
                    "excess": [round(value, 4) for value in result.excess],
                }
                for result in results
            ]
            for arm, results in runs.items()
        },
    }
    (folder / f"{name}.json").write_bytes(json.dumps(document).encode() + b"\n")
    plot(name, EXPERIMENTS[name], runs, folder / f"{name}.svg")


def load(path: Path) -> Runs:
    """The results that `save` kept."""
    document = json.loads(path.read_bytes())
    return {
        arm: [Result(**result) for result in results] for arm, results in document["arms"].items()
    }
