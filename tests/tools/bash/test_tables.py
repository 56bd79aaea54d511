"""The examples beside each row of the tables hold."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from unabridged.agent.effects import EffectKind
from unabridged.tools.bash import builtins, changing, git, network, reading, wrappers
from unabridged.tools.bash.classify import classify
from unabridged.tools.bash.usage import Row


def _examples() -> Iterator[tuple[str, bool, str]]:
    """What is named, whether its own execute is understood, and the command."""
    for row in (*reading.ROWS, *git.READS):
        yield from ((row.names, True, command) for command in row.yes)
        yield from ((row.names, False, command) for command in row.no)
    for name, (yes, no) in wrappers.EXAMPLES.items():
        yield from ((name, True, command) for command in yes)
        yield from ((name, False, command) for command in no)
    for name in ("TEST", "PRINTF", "COMMAND", "DECLARE", "SET", "UNSET", "CD"):
        yield from ((name, True, c) for c in getattr(builtins, f"{name}_YES"))
        yield from ((name, False, c) for c in getattr(builtins, f"{name}_NO"))
    yield from (("git", True, command) for command in git.YES)
    yield from (("git", False, command) for command in git.NO)
    yield from (("network", False, command) for command in network.EXAMPLES)


@pytest.mark.parametrize(("row", "passes", "command"), list(_examples()))
def test_example_of_a_reader(
    row: str, passes: bool, command: str, allowed: Callable[[str], bool]
) -> None:
    assert allowed(command) is passes, row


def _changing() -> Iterator[tuple[str, bool]]:
    for row in changing.ROWS:
        yield from ((command, True) for command in row.yes)
        yield from ((command, False) for command in row.no)
    for name in ("COPY", "LINK", "DD"):
        yield from ((command, True) for command in getattr(changing, f"{name}_YES"))
        yield from ((command, False) for command in getattr(changing, f"{name}_NO"))


@pytest.mark.parametrize(("command", "clear"), list(_changing()))
def test_example_of_a_changer(command: str, clear: bool, repo: Path) -> None:
    """Clear: it is understood, changes something, and stays inside the root."""
    effects = classify(command, root=repo)
    kinds = {effect.kind for effect in effects}
    inside = EffectKind.OUTSIDE_ROOT not in kinds
    understood = all(e.understood for e in effects if e.kind is EffectKind.EXECUTE)
    assert (inside and understood) is clear
    if clear:
        assert kinds & {EffectKind.WRITE, EffectKind.DELETE}


def test_every_row_has_examples_of_both_kinds() -> None:
    for row in (*reading.ROWS, *changing.ROWS, *git.READS):
        assert row.no, row.names
        assert row.yes or row.names == "printenv", row.names


def test_no_name_is_in_two_rows() -> None:
    names = [n for row in (*reading.ROWS, *changing.ROWS) for n in row.names.split()]
    assert len(names) == len(set(names))
    assert not set(names) & set(wrappers.HANDLERS)


_NO_GNU_HELP = {
    "echo",
    "true",
    "expr",
    "exit",
    "shift",
    "type",
    "sleep",
    "ps",
    "jq",
    "file",
    "shasum",
}


@pytest.mark.parametrize(
    ("row", "program"),
    [
        (row, name)
        for row in (*reading.ROWS, *changing.ROWS)
        for name in row.names.split()
        if shutil.which(name) and not _NO_GNU_HELP & set(row.names.split())
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_listed_options_take_values_as_the_program_does(row: Row, program: str) -> None:
    """Where GNU's help shows `-x, --long=VALUE`, the row must know that -x takes a value."""
    text = subprocess.run(
        [program, "--help"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    ).stdout
    for line in text.splitlines():
        found = re.match(r"\s+(-\w), (--[\w-]+)=[A-Z]", line)
        if found:
            for option in found.groups():
                assert row.specs.get(option, "text") not in ("", "?"), option
        elif found := re.match(r"\s+(-\w), (--[\w-]+)(?:\s{2,}|$)", line):
            for option in found.groups():
                assert row.specs.get(option, "") in ("", "?"), option
