"""The corpora of command lines under the default rules."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from unabridged.agent.policy import decide
from unabridged.tools.bash.classify import classify

HERE = Path(__file__).parent


def _lines(name: str) -> list[str]:
    text = (HERE / name).read_bytes().decode()
    return [line for line in text.split("\n") if line and not line.startswith("#")]


def _command(line: str) -> str:
    return json.loads(line) if line.startswith('"') else line


ADVERSARIAL = [_command(line) for line in _lines("adversarial.txt")]
HOSTILE = [_command(line) for line in _lines("hostile.txt")]
EVERYDAY = [line.partition(" ") for line in _lines("everyday.txt")]
READ_ONLY = [_command(rest) for mark, _, rest in EVERYDAY if mark == "read"]
OTHER = [_command(rest) for mark, _, rest in EVERYDAY if mark == "other"]


def test_the_corpora_are_large_and_have_no_duplicates() -> None:
    assert len(set(ADVERSARIAL)) == len(ADVERSARIAL) >= 400
    assert len(set(READ_ONLY)) == len(READ_ONLY) >= 150
    assert len(set(OTHER)) == len(OTHER)
    assert len(READ_ONLY) + len(OTHER) == len(EVERYDAY) >= 300


@pytest.mark.parametrize("command", ADVERSARIAL)
def test_adversarial(command: str, allowed: Callable[[str], bool]) -> None:
    assert not allowed(command)


@pytest.mark.parametrize("command", [*ADVERSARIAL, *HOSTILE])
def test_adversarial_in_a_hostile_repository(command: str, hostile: Path) -> None:
    assert decide(classify(command, root=hostile)).verdict != "allow"


def test_everyday_reading_passes(allowed: Callable[[str], bool]) -> None:
    asked = [command for command in READ_ONLY if not allowed(command)]
    assert len(asked) <= 0.05 * len(READ_ONLY), asked


@pytest.mark.parametrize("command", OTHER)
def test_everyday_work_asks(command: str, allowed: Callable[[str], bool]) -> None:
    assert not allowed(command)
