"""Packing a whole repository, side by side with other packers, against what it must cost at least.

    python benchmarks/pack.py TREE [TREE …] --vocabulary tiktoken.model [--bin FOLDER …] [--runs 3]
        [--only NAME …]

Each command packs the tree into a file, in its own process, in rounds; the median of CPU time
(children included), wall time and peak memory is printed. Peers are run if they are found on PATH
or in a `--bin` folder. The floors read every UTF-8 file that git lists and write it: B counts
nothing, C counts exactly, on one thread, with the same vocabulary.

`unabridged cold` starts with an empty cache, `warm` with the one that a run before has filled. The
window is set so large that everything fits. Tokens are counted here, of each output, afterwards.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

WINDOW = 200_000_000


@dataclass(frozen=True)
class Run:
    cpu: float
    wall: float
    rss: int
    """Peak of one process, bytes."""


@dataclass(frozen=True)
class Packer:
    name: str
    command: Callable[[Path, Path], list[str]]
    """From tree and output file."""
    to_stdout: bool = False
    cold: bool = False
    """Empty the cache before each run."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("trees", nargs="+", type=Path)
    parser.add_argument("--vocabulary", type=Path, required=True)
    parser.add_argument("--bin", action="append", default=[], help="folder with peers' programs")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", action="append", default=[], help="start of a packer's name")
    options = parser.parse_args(arguments)
    os.environ["PATH"] = os.pathsep.join([*options.bin, os.environ["PATH"]])
    for tree in options.trees:
        report(tree.resolve(), options.vocabulary.resolve(), options.runs, tuple(options.only))
    return 0


def packers(vocabulary: Path) -> list[Packer]:
    def ours(tree: Path, _: Path) -> list[str]:
        words = f"-m unabridged context pack --window {WINDOW} --vocabulary".split()
        return [sys.executable, *words, str(vocabulary), str(tree)]

    def floor(*extra: str) -> Callable[[Path, Path], list[str]]:
        return lambda tree, out: [sys.executable, "-c", FLOOR, str(tree), str(out), *extra]

    found = [
        Packer("floor B (no counting)", floor()),
        Packer("floor C (exact count)", floor(str(vocabulary))),
        Packer("unabridged cold", ours, to_stdout=True, cold=True),
        Packer("unabridged warm", ours, to_stdout=True),
    ]
    peers = [
        Packer("files-to-prompt", lambda tree, out: ["files-to-prompt", str(tree), "-o", str(out)]),
        Packer("gitingest", lambda tree, out: ["gitingest", str(tree), "-o", str(out)]),
        Packer(
            "code2prompt --tokens",
            lambda tree, out: [
                "code2prompt",
                "--path",
                str(tree),
                "--output",
                str(out),
                "--tokens",
            ],
        ),
        Packer("repomix", lambda tree, out: ["repomix", str(tree), "-o", str(out)]),
    ]
    return found + [peer for peer in peers if shutil.which(peer.name.split()[0])]


FLOOR = """
import subprocess, sys
tree, out, *vocabulary = sys.argv[1:]
names = subprocess.run(["git", "ls-files", "-z"], cwd=tree, capture_output=True).stdout.split(b"\\0")
if vocabulary:
    from unabridged.model.chat.tokenizer import Tokenizer
    count = Tokenizer.from_file(vocabulary[0]).count
tokens, parts = 0, []
for name in names[:-1]:
    try:
        with open(tree.encode() + b"/" + name, "rb") as file:
            text = file.read().decode()
    except (UnicodeDecodeError, OSError):
        continue
    parts.append(text)
    if vocabulary:
        tokens += count(text)
with open(out, "w") as file:
    file.write("".join(parts))
"""


def report(tree: Path, vocabulary: Path, runs: int, only: tuple[str, ...]) -> None:
    every = packers(vocabulary)
    # Floor C is what the others are compared with.
    known = [p for p in every if not only or p.name.startswith((*only, "floor C"))]
    results: dict[str, list[Run]] = {packer.name: [] for packer in known}
    sizes: dict[str, tuple[int, int]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for _ in range(runs):
            for packer in known:
                out = Path(temporary, "out")
                cache = Path(temporary, "cache")
                if packer.cold:
                    shutil.rmtree(cache, ignore_errors=True)
                results[packer.name].append(measure(packer, tree, out, cache))
                out.replace(Path(temporary, f"kept {packer.name}"))
        # Only now: a child's peak memory is never below what its parent had when it forked.
        for packer in known:
            kept = Path(temporary, f"kept {packer.name}")
            sizes[packer.name] = (kept.stat().st_size, count(kept, vocabulary))
    base = results["floor C (exact count)"]
    cpu_base, wall_base = median(r.cpu for r in base), median(r.wall for r in base)
    print(f"\n{tree.name}")
    print(
        "| packer | MB | M tokens | cpu s | wall s | peak MB | cpu to C | wall to C | peak - 1.5 x size |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for packer in known:
        cpu, wall = (
            median(getattr(r, what) for r in results[packer.name]) for what in ("cpu", "wall")
        )
        rss = median(r.rss for r in results[packer.name])
        size, tokens = sizes[packer.name]
        print(
            f"| {packer.name} | {size / 1e6:.2f} | {tokens / 1e6:.3f} | {cpu:.2f} | {wall:.2f} "
            f"| {rss / 1e6:.0f} | {cpu / cpu_base:.2f} | {wall / wall_base:.2f} "
            f"| {(rss - 1.5 * size) / 1e6:.0f} MB |",
            flush=True,
        )


def count(file: Path, vocabulary: Path) -> int:
    """Tokens of a file, in a process of its own."""
    code = (
        "import sys; from unabridged.model.chat.tokenizer import Tokenizer; "
        "text = open(sys.argv[2], 'rb').read().decode('utf-8', 'replace'); "
        "print(Tokenizer.from_file(sys.argv[1]).count(text))"
    )
    command = [sys.executable, "-c", code, str(vocabulary), str(file)]
    return int(subprocess.run(command, check=True, capture_output=True).stdout)


def measure(packer: Packer, tree: Path, out: Path, cache: Path) -> Run:
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    with (out if packer.to_stdout else Path(os.devnull)).open("wb") as stdout:
        started = time.perf_counter()
        process = subprocess.Popen(
            packer.command(tree, out),
            cwd=tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.DEVNULL,
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{packer.name} ended with {process.returncode} on {tree}")
    return Run(
        usage.ru_utime + usage.ru_stime,
        wall,
        usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
    )


if __name__ == "__main__":
    sys.exit(main())
