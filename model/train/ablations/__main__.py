"""`python -m unabridged.model.train.ablations [NAME ...] --out DIR`: run experiments."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

from . import report
from .experiments import EXPERIMENTS
from .training import Result


def main() -> None:
    parser = argparse.ArgumentParser(prog="ablations", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(EXPERIMENTS))
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="for JSON and plots")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="runs of each arm")
    parser.add_argument("--threads", type=int, metavar="N", help="of the CPU")
    args = parser.parse_args()
    names = args.names or list(EXPERIMENTS)
    if unknown := [name for name in names if name not in EXPERIMENTS]:
        parser.error(f"no experiment {unknown[0]!r}; there are {', '.join(EXPERIMENTS)}")
    if args.seeds < 1:
        parser.error("--seeds must be at least 1")
    if args.threads:
        torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    for name in names:
        experiment = EXPERIMENTS[name]
        began = time.perf_counter()
        runs: dict[str, list[Result]] = {arm: [] for arm in experiment.arms}
        for seed in range(args.seeds):
            for arm, run in experiment.arms.items():
                result = run(seed)
                runs[arm].append(result)
        report.save(args.out, name, runs, time.perf_counter() - began)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
