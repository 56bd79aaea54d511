"""How much of the prefix survives from commit to commit, and how many bytes are sent again.

    python benchmarks/prefix.py CLONE [CLONE …] [--commits 200] [--window 1048576]

For each of the last first-parent commits of each clone, the repository is loaded as a session
would load it (`agent.context.load` with one cache that lives through all commits), and its
messages are compared with those of the commit before. The same bytes are then put in three other
orders, framed alike and without a cache: by path, by change count of the last 100 commits (least
first, as repomix does), and longest unchanged first. Two loads that say the same, because a commit
touches nothing that is loaded, do not count.

The clones are not changed: commits are checked out in a temporary work tree.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median

from unabridged.agent.context.history import read_history
from unabridged.agent.context.load import load
from unabridged.agent.context.pack import frame
from unabridged.agent.context.plan import Budget, Level
from unabridged.agent.context.selection import Options, Part, select
from unabridged.agent.context.tokens import Counts, Estimate


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("clones", nargs="+", type=Path)
    parser.add_argument("--commits", type=int, default=200)
    parser.add_argument("--window", type=int, default=1_048_576)
    options = parser.parse_args(arguments)
    for clone in options.clones:
        report(clone, options.commits, options.window)
    return 0


@dataclass
class Series:
    """One way to order, over all commits."""

    shares: list[float] = field(default_factory=list)
    sent: int = 0
    """Bytes behind the common prefix, summed."""
    last: bytes = b""
    rebuilds: int = 0

    def add(self, now: bytes, counts: bool) -> None:
        if self.last and counts:
            same = common(self.last, now)
            self.shares.append(same / len(self.last))
            self.sent += len(now) - same
        self.last = now


def common(a: bytes, b: bytes) -> int:
    """Length of the common prefix."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def report(clone: Path, commits: int, window: int) -> None:
    shas = git(clone, "rev-list", "--first-parent", f"-n{commits + 1}", "HEAD").split()[::-1]
    ways = ["unabridged", "by path", "least changed first", "longest unchanged first"]
    series = {way: Series() for way in ways}
    overhead: list[float] = []
    with tempfile.TemporaryDirectory() as temporary:
        tree, cache = Path(temporary, "tree"), Path(temporary, "cache")
        git(clone, "worktree", "add", "--detach", "-q", str(tree), shas[0])
        try:
            previous: dict[str, str] = {}
            for sha in shas:
                git(tree, "checkout", "-q", "--detach", sha)
                parts = plain(tree, window)
                now = {part.name: part.digest for part in parts}
                counts = now != previous
                previous = now
                messages = load(tree, window=window, cache=cache).segments
                packed = "".join(message.text for message in messages).encode()
                series["unabridged"].rebuilds += not packed.startswith(series["unabridged"].last)
                series["unabridged"].add(packed, counts)
                for way, ordered in orders(tree, parts).items():
                    whole = "".join(frame(part.name, part.data) for part in ordered).encode()
                    series[way].add(whole, counts)
                overhead.append(len(packed) / len(series["by path"].last) - 1)
        finally:
            git(clone, "worktree", "remove", "--force", str(tree))
    by_path = series["by path"].sent
    steps = len(series["by path"].shares)
    print(
        f"\n{clone.name}: {steps} changes in {len(shas) - 1} commits, {len(previous)} files whole"
    )
    print(
        f"rebuilds {series['unabridged'].rebuilds - 1}, size over a plain pack {mean(overhead):.1%}"
    )
    print("| order | mean share kept | median | bytes sent again, MB | ratio to path order |")
    print("|---|---|---|---|---|")
    for way, one in series.items():
        print(
            f"| {way} | {mean(one.shares):.1%} | {median(one.shares):.1%} "
            f"| {one.sent / 1e6:.1f} | {one.sent / by_path:.3f} |",
            flush=True,
        )


def plain(tree: Path, window: int) -> list[Part]:
    """What is loaded whole, by path."""
    budget = Budget(int(window * 0.7), int(window * 0.6))
    counts = Counts(None, Estimate())
    parts = select(tree, Options(), budget, counts).parts.values()
    return sorted((p for p in parts if p.level is Level.WHOLE), key=lambda part: part.name)


def orders(tree: Path, parts: list[Part]) -> dict[str, list[Part]]:
    log = git(tree, "log", "-n100", "--format=", "--name-only", "--no-renames", "-z")
    changes = Counter(log.split("\0"))
    oldest = {
        name: at for at, name in enumerate(read_history(tree).oldest_first(p.name for p in parts))
    }
    return {
        "by path": parts,
        "least changed first": sorted(parts, key=lambda part: (changes[part.name], part.name)),
        "longest unchanged first": sorted(parts, key=lambda part: oldest[part.name]),
    }


def git(folder: Path, *arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
