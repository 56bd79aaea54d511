"""Runs unit tests in forks of one Python that has everything imported already.

Reads a repository's folder and a file for the output from standard input, one line each; runs
`python3 -m unittest -q` there; writes the exit code. Standard library only: it is run by path.
"""

from __future__ import annotations

import os
import sys
import unittest


def main() -> int:
    """Serve until standard input ends."""
    while folder := sys.stdin.readline().rstrip("\n"):
        out = sys.stdin.readline().rstrip("\n")
        child = os.fork()
        if child == 0:
            run(folder, out)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()
    return 0


def run(folder: str, out: str) -> None:
    """The tests of a folder, in this process, which ends with their exit code."""
    file = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = True
    unittest.main(module=None, argv=["python3 -m unittest", "-q"])


if __name__ == "__main__":
    sys.exit(main())
