"""What the benchmarks of whole programs share: run one, and say what it cost."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median


@dataclass(frozen=True)
class Cost:
    """Of one run of a program."""

    wall: float
    """Seconds."""
    cpu: float
    """Seconds, of it and of the children that it waited for."""
    rss: float
    """Peak of its largest process, MB."""
    code: int


def run(command: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path) -> Cost:
    """Run a program without input; what it prints goes to `log`."""
    program = shutil.which(command[0], path=env.get("PATH"))
    if program is None:
        raise FileNotFoundError(f"{command[0]} is not on PATH")
    here = Path.cwd()
    with log.open("wb") as file:
        os.chdir(cwd)
        try:
            began = time.perf_counter()
            pid = os.posix_spawn(
                program,
                list(command),
                env,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, file.fileno(), 1),
                    (os.POSIX_SPAWN_DUP2, file.fileno(), 2),
                ],
            )
        finally:
            os.chdir(here)
        _, status, usage = os.wait4(pid, 0)
    wall = time.perf_counter() - began
    kib = usage.ru_maxrss / 1024 if os.uname().sysname == "Darwin" else usage.ru_maxrss
    cpu = usage.ru_utime + usage.ru_stime
    return Cost(wall, cpu, kib / 1024, os.waitstatus_to_exitcode(status))


def spread(values: Sequence[float], digits: int) -> str:
    """Median and range."""
    middle, low, high = median(values), min(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"
