"""A shell command as data: what `parse` makes and `classify` walks."""

from __future__ import annotations

from dataclasses import dataclass


def words_of(text: str) -> frozenset[str]:
    """A set written as one line of words, as the tables here are."""
    return frozenset(text.split())


# ---- words ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Text:
    """Literal text. Unquoted text may hold glob characters, braces and a leading tilde."""

    value: str
    quoted: bool


@dataclass(frozen=True, slots=True)
class Variable:
    """`$name` or `${name}`."""

    name: str
    quoted: bool


@dataclass(frozen=True, slots=True)
class Derived:
    """Text made from a variable without running anything: `${name%.py}`, `${name:-x}`."""

    name: str
    quoted: bool


@dataclass(frozen=True, slots=True)
class Number:
    """A number that cannot be known: `$#`, `$?`, `${#name}`, `$((1 + 2))`."""

    quoted: bool


@dataclass(frozen=True, slots=True)
class Output:
    """`$(...)` or backticks."""

    body: Command
    quoted: bool


@dataclass(frozen=True, slots=True)
class Channel:
    """`<(...)` or `>(...)`: a file name that leads to a command."""

    body: Command


@dataclass(frozen=True, slots=True)
class Doubt:
    """An expansion that may run code or that is not modelled, with the commands seen in it."""

    reason: str
    inner: tuple[Command, ...]
    quoted: bool


Part = Text | Variable | Derived | Number | Output | Channel | Doubt


@dataclass(frozen=True, slots=True)
class Word:
    """One word of the source, before expansion."""

    parts: tuple[Part, ...]
    source: str


# ---- commands ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Assignment:
    """`name=value` or `name+=value` before a command or alone."""

    name: str
    value: Word
    append: bool


@dataclass(frozen=True, slots=True)
class Redirect:
    """`operator target`; for a here-document the target is its body."""

    operator: str
    target: Word


@dataclass(frozen=True, slots=True)
class Simple:
    """A simple command: assignments, words and redirections."""

    assignments: tuple[Assignment, ...]
    words: tuple[Word, ...]
    redirects: tuple[Redirect, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Condition:
    """`[[ ... ]]`, its words with operators and parentheses as plain text."""

    words: tuple[Word, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Sequence:
    """Commands one after the other."""

    items: tuple[Command, ...]


@dataclass(frozen=True, slots=True)
class AndOr:
    """`left && right` or `left || right`."""

    operator: str
    left: Command
    right: Command


@dataclass(frozen=True, slots=True)
class Pipeline:
    """`a | b | c`: each member in a subshell of its own."""

    members: tuple[Command, ...]


@dataclass(frozen=True, slots=True)
class Subshell:
    """`( ... )`, or a background job where `background` is set."""

    body: Command
    background: bool = False


@dataclass(frozen=True, slots=True)
class Not:
    """`! command`."""

    body: Command


@dataclass(frozen=True, slots=True)
class If:
    """Alternating conditions and bodies, then what happens when no condition holds."""

    branches: tuple[tuple[Command, Command], ...]
    otherwise: Command


@dataclass(frozen=True, slots=True)
class While:
    """`while` and `until` alike."""

    condition: Command
    body: Command


@dataclass(frozen=True, slots=True)
class For:
    """`for name in words`; `words` is None for the positional parameters."""

    name: str
    words: tuple[Word, ...] | None
    body: Command


@dataclass(frozen=True, slots=True)
class Case:
    """`case subject in`: patterns and the body of each branch."""

    subject: Word
    patterns: tuple[Word, ...]
    bodies: tuple[Command, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """`name() body`."""

    name: str
    body: Command


@dataclass(frozen=True, slots=True)
class Redirected:
    """A compound command with redirections."""

    body: Command
    redirects: tuple[Redirect, ...]


@dataclass(frozen=True, slots=True)
class Unknown:
    """Text that is not understood, with the commands seen in it."""

    source: str
    reason: str
    inner: tuple[Command, ...] = ()


Command = (
    Simple
    | Condition
    | Sequence
    | AndOr
    | Pipeline
    | Subshell
    | Not
    | If
    | While
    | For
    | Case
    | Function
    | Redirected
    | Unknown
)
