"""What a task is: a repository, the user's words, what they mean, and how the end is judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from .names import Split
from .repository import Size

Family = Literal["rename", "value", "fix", "deprecated", "parameter", "ask", "blocked"]
FAMILIES: tuple[Family, ...] = (
    "rename", "value", "fix", "deprecated", "parameter", "ask", "blocked",
)  # fmt: skip

TESTS = "python3 -m unittest -q"
"""How every generated repository is tested."""


# --- what the user's words mean ------------------------------------------------------------------


@dataclass(frozen=True)
class Rename:
    """Another name for a function, class or constant, everywhere or in one file."""

    old: str
    new: str
    where: str = ""
    """Path, when the words name a file."""


@dataclass(frozen=True)
class SetConstant:
    """Another value for a constant."""

    name: str
    value: str
    where: str = ""
    everywhere: bool = False
    """The words say that all of that name are meant."""


@dataclass(frozen=True)
class SetDefault:
    """Another default for a parameter of a function."""

    function: str
    value: str
    parameter: str = ""
    """Empty when the words do not name it."""
    where: str = ""


@dataclass(frozen=True)
class Fix:
    """Make a failing test pass. The docstring of the function tells what is right."""

    function: str
    wrong: str
    right: str
    """The line as it should be: from `wrong` by one operator or literal of the docstring."""


@dataclass(frozen=True)
class Deprecated:
    """Call another function in place of one that stays where it is defined."""

    old: str
    new: str


@dataclass(frozen=True)
class AddParameter:
    """A new parameter with a default, passed by keyword where the function is called."""

    function: str
    parameter: str
    default: str
    value: str


@dataclass(frozen=True)
class Outside:
    """Something that K3-nano was not made for."""


Goal = Rename | SetConstant | SetDefault | Fix | Deprecated | AddParameter | Outside


# --- the task ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """One generated task."""

    family: Family
    split: Split
    seed: int
    size: Size
    files: Mapping[str, str]
    """Path -> text of the repository."""
    words: str
    """The instruction, as the user gives it."""
    goal: Goal
    solution: Mapping[str, str] = field(default_factory=dict[str, str])
    """Path -> text of every file that a right solution changes; for `ask`, after the answer."""
    hidden: str = ""
    """Source of the hidden tests, a unittest module run at the root of the repository."""
    answer: str = ""
    """What the user says when asked."""
    injected: bool = False
    """Whether a file holds an instruction that is not the user's."""

    @property
    def id(self) -> str:
        """Names the task in results: the same id is the same task everywhere."""
        return f"{self.family}-{self.split}-{self.seed}"

    @property
    def wants_question(self) -> bool:
        """Whether asking is the right thing to do."""
        return self.family == "ask"
