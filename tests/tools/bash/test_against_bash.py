"""What bash really runs, for every command that passes, is what was classified.

Programs are stand-ins that only note their words. Commands are made by mutating everyday ones, so
that most of them are odd: cut quotes, stray operators, joined lines, comments in odd places. For
each that the default rules let pass, bash runs it: every command line it starts must be among the
classified ones, and nothing may change on disk.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from unabridged.agent.effects import EffectKind
from unabridged.agent.policy import decide
from unabridged.tools.bash.classify import classify

SEEDS = """
ls -la src
cat README.md src/a.py
echo a "b c" 'd e' $'f\\'g' h\\ i
grep -n 'def a' src/*.py | head -5
cat README.md && ls || echo none
for f in src/*.py; do wc -l "$f"; done
if test -f README.md; then cat README.md; else echo no; fi
cd src && ls; cat a.py
(cd src && ls) ; ls
{ ls; echo b; } | sort -u
x=src; ls "$x" $x ${x}
cat <<'EOF'\nhello $(ls)\nEOF\nls
cat <<EOF | sort\nhello "$(ls src)" \\$x\nEOF\necho done
cat <<-E\n\thi\n\tE\nls
case a in a|b) ls;; *) cat README.md;; esac
echo $(ls) "`cat README.md`" <(sort README.md)
ls # comment\ncat README.md # more\n# rest
ls \\\n -l \\\n src
echo {a,b}{1..3} {x} a{,b}
while false; do ls; done
[ -f README.md ] && [[ a == b* ]] || ls
ls 2>/dev/null >&2 </dev/null
! ls && echo $? $#
echo "${x:-y}" ${x%.py} "$((1 + 2))"
f=a.py; cat src/$f "src/$f"; f=b.py; cat src/$f
echo *.md [R]EADME.md ?EADME.md
cat README.md | { sort; ls; } | wc
ls & echo b
true && false || echo c
sed -n '1,3p;/a/d' README.md
git log --oneline -5
find . -name '*.py' -type f
""".strip().split("\n")

PIECES = [
    "'", '"', "\\", "`", "$", "(", ")", "{", "}", "[", "]", "<", ">", "|", "&", ";", "\n", " ", "#", "\t",
    "*", "?", "~", "!", "=", "\\\n", "$(", "$((", "))", "${", "<<", "<<<", "<(", ">(", "&&", "||", ";;",
    "2>", "2>&1", " # ", "; ", " & ", " rm README.md ", "$x", '"$x"', "$'", '$"', "a=", "x=1 ", " -n ",
    "EOF", "<<EOF\n", "\nEOF\n", " in ", "do ", " done", "if ", "then ", " fi", "esac", "time ", "! ", ",",
    "..", "/", "-", "--", "\u00e9", "\u00a0", "\\'", '\\"', "\\\\", "$\\\n", "!(a)", "@(a)", "/dev/null",
]  # fmt: skip
PROGRAMS = [
    "ls",
    "cat",
    "echo",
    "grep",
    "head",
    "wc",
    "sort",
    "sed",
    "git",
    "find",
    "rm",
    "printf",
    "test",
    "true",
    "false",
    "env",
    "xargs",
    "tail",
    "tr",
    "cut",
    "diff",
    "uniq",
    "awk",
    "bash",
    "sh",
    "python3",
    "touch",
    "tee",
    "mv",
    "cp",
    "make",
    "time",
    "pwd",
    "date",
    "a.py",
    "EOF",
    "E",
    "done",
    "hello",
    "hi",
    "b",
    "c",
    "x",
    "a",
]


def mutate(random_: random.Random) -> str:
    """An everyday command with a few pieces cut out, put in, or swapped with another command's."""
    text = random_.choice(SEEDS).replace("\\n", "\n") if random_.random() < 0.9 else ""
    for _ in range(random_.randint(0, 4)):
        place = random_.randint(0, len(text))
        match random_.randint(0, 3):
            case 0:
                text = text[:place] + text[place + random_.randint(1, 4) :]
            case 1 | 2:
                text = text[:place] + random_.choice(PIECES) + text[place:]
            case _:
                other = random_.choice(SEEDS).replace("\\n", "\n")
                cut = random_.randint(0, len(other))
                text = text[:place] + random_.choice([other[:cut], other[cut:]])
    return text


class Bench:
    """A folder, stand-in programs, and a bash that knows only those."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "repo"
        self.programs = folder / "programs"
        self.log = folder / "log"
        for name in ("README.md", "src/a.py", "src/b.py", "src/lib/c.py"):
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x\n")
        subprocess.run(["git", "init", "-q", self.root], check=True)
        self.programs.mkdir()
        for name in PROGRAMS:
            program = self.programs / name
            program.write_bytes(
                b'#!/bin/sh\n{ printf "%s\\0" "${0##*/}" "$@"; printf "\\n\\0"; } >> "$LOG/$$"\n'
            )
            program.chmod(0o755)
        setup = folder / "setup"
        setup.write_bytes(b"enable -n echo printf pwd true false kill test\nset +m\n")
        self.env = {"PATH": str(self.programs), "LOG": str(self.log), "BASH_ENV": str(setup),
                    "HOME": str(folder), "CDPATH": ""}  # fmt: skip
        self.before = self.state()

    def state(self) -> dict[str, bytes]:
        return {
            str(path): path.read_bytes() if path.is_file() else b""
            for path in self.root.rglob("*")
            if ".git" not in path.parts
        }

    def run(self, command: str) -> list[tuple[str, ...]]:
        """The word lists of the programs that bash started."""
        shutil.rmtree(self.log, ignore_errors=True)
        self.log.mkdir()
        shell = subprocess.Popen(
            ["/bin/bash", "--noprofile", "--norc", "-c", command],
            cwd=self.root,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            shell.wait(2)  # a loop may go on for ever; what it ran until then is compared
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
        text = b"".join(path.read_bytes() for path in self.log.iterdir())
        records = text.decode(errors="surrogateescape").split("\0\n\0")
        return [tuple(record.split("\0")) for record in records if record]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench").resolve())


def check(bench: Bench, command: str) -> bool:
    """Run a command that passes and compare; False when it does not pass."""
    effects = classify(command, root=bench.root)
    if decide(effects).verdict != "allow" or "\0" in command:
        return False
    executed = [effect.command for effect in effects if effect.kind is EffectKind.EXECUTE]
    for words in bench.run(command):
        # Words that cannot be known (of an `echo $x`) are not compared.
        assert words in executed or () in executed, (command, words, executed)
    assert bench.state() == bench.before, command
    return True


@pytest.mark.parametrize("seed", range(12))
def test_bash_runs_only_what_was_classified(seed: int, bench: Bench) -> None:
    random_ = random.Random(seed)
    passed = sum(check(bench, mutate(random_)) for _ in range(120))
    assert passed >= 10


if __name__ == "__main__":
    import sys
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        long_bench = Bench(Path(name).resolve())
        long_random = random.Random(os.urandom(8))
        count = 0
        for _ in range(int(sys.argv[1])):
            try:
                count += check(long_bench, mutate(long_random))
            except AssertionError as error:
                print(error)
        print(count, "passed and were compared")
