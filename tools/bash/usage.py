"""What a program does with its words: rows of a table, and how a row reads a command.

A row lists the options that are understood and nothing else. An option that is not listed, an
abbreviation of one, or a word that may turn out to be an option makes the command not
understood: a row can be too narrow, never too wide.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ...agent.effects import Effect, EffectKind
from .folders import Reach
from .site import Field, Site


@dataclass(frozen=True)
class Parsed:
    """A command's words, told apart by its row."""

    options: tuple[tuple[str, Field | None], ...] = ()
    """Options in order, with their values."""
    operands: tuple[Field, ...] = ()
    late: tuple[Field, ...] = ()
    """Option values after the first operand: a program that stops at operands takes them as such."""
    doubts: tuple[str, ...] = ()
    leading: str | None = None
    """The first word of all: options before a verb may change what the verb is."""
    before_dashes: int | None = None
    """How many operands stand before `--`; None without it."""

    def has(self, names: str) -> bool:
        """Whether any of these options is given."""
        return any(option in names.split() for option, _ in self.options)

    def values(self, names: str) -> list[Field]:
        """The values given to any of these options."""
        return [v for option, v in self.options if option in names.split() and v is not None]


@dataclass(frozen=True)
class Meaning:
    """What a command does, apart from its redirections."""

    effects: tuple[Effect, ...] = ()
    doubts: tuple[str, ...] = ()
    """Why it is not understood; empty when `effects` and `runs` say everything."""
    runs: tuple[tuple[Field, ...], ...] = ()
    """Commands it starts, as words."""
    scripts: tuple[str, ...] = ()
    """Shell source it runs."""
    words: tuple[Field, ...] | None = None
    """The command in its plain form, where that differs: `git -C x log` is `git log`."""
    assignments: tuple[tuple[str, str | None], ...] = ()
    """Variables it sets for what it runs."""
    alters_shell: bool = False
    """It changes what later commands of the line mean."""
    moved: tuple[Field, ...] = ()
    """Paths it makes that may lead somewhere else: links, and what is moved or copied."""


Check = Callable[[Parsed], str | None]
"""Why the words are not understood after all; None when they are."""


@dataclass(frozen=True)
class Row:
    """One program, or several with the same options.

    `options`: `-l` takes no value, `-n:` takes one, `--color?` may have one after `=`, `-o:write`
    takes a path that is written (also `:read`, `:look`, `:tree`), `-#` is `-20`.
    `operands`: what is done to each operand; the last word with `*` repeats. `text` is nothing.
    """

    names: str
    options: str = ""
    operands: str = "text*"
    unless: str = ""
    """Options that take the place of the first operand (`grep -e`)."""
    empty: str = ""
    """The path used when there are no operands (`ls` is `ls .`)."""
    inert: bool = False
    """No option of the program does more than its operands say, known or not."""
    stops: bool = False
    """Options end at the first operand."""
    check: Check | None = None
    also: Callable[[Parsed, Site], Iterable[Effect]] | None = None
    follows: str = ""
    """Options with which a `tree` is read through links."""
    only: str = ""
    """Options whose values are the names a `tree` is limited to."""
    deep: str = ""
    """Options with which `read` operands are trees, and no operand is the folder itself."""
    moves: bool = False
    """The last operand may afterwards lead somewhere else."""
    yes: tuple[str, ...] = ()
    """Examples that are understood."""
    no: tuple[str, ...] = ()
    """Examples that are not, or that do more than read inside the root."""

    @cached_property
    def specs(self) -> dict[str, str]:
        """Option -> "" (no value), "?" (optional), or the use of its value."""
        specs: dict[str, str] = {}
        for token in self.options.split():
            found = re.fullmatch(r"(-[#\w?@+.]|--[\w-]+?)(?:(\?)|:(\w*))?", token)
            if found is None:
                raise ValueError(f"row {self.names}: option {token!r}")
            name, optional, use = found.groups()
            specs[name] = "?" if optional else "" if use is None else (use or "text")
        return specs

    def means(self, words: Sequence[Field], site: Site) -> Meaning:
        """The meaning of the words after the program's name."""
        parsed = parse_words(words, self.specs, inert=self.inert, stops=self.stops)
        doubts = list(parsed.doubts)
        effects: list[Effect] = []
        for option, value in parsed.options:
            use = self.specs.get(option, "text")
            if value is not None and use not in ("", "?", "text"):
                effects.extend(self._use(use, value, parsed, site))
        uses = self.operands.split()
        if self.unless and parsed.has(self.unless):
            uses = uses[1:]
        operands = parsed.operands
        if self.deep and parsed.has(self.deep) and len(operands) == len(uses) - 1:
            operands = (*operands, Field(".", "."))
        if not operands and self.empty:
            operands = (Field(self.empty, self.empty),)
        touched: set[str] = set()
        for index, operand in enumerate(operands):
            use = uses[min(index, len(uses) - 1)] if uses else "none"
            if use == "none" or (index >= len(uses) and not use.endswith("*")):
                doubts.append("more operands than expected")
                break
            touched.add(use.rstrip("*"))
            effects.extend(self._use(use.rstrip("*"), operand, parsed, site))
        if touched - {"text"}:
            for value in parsed.late:
                if value.text is not None and not value.text.isdigit():
                    found = site.read(value)
                    if any(e.kind is not EffectKind.READ for e in found):
                        effects.extend(found)
        if self.check is not None and not doubts and (reason := self.check(parsed)):
            doubts.append(reason)
        if self.also is not None:
            effects.extend(self.also(parsed, site))
        moved = operands[-1:] if self.moves else ()
        return Meaning(tuple(effects), tuple(doubts), moved=moved)

    def tree(self, word: Field, parsed: Parsed, site: Site) -> tuple[Effect, ...]:
        """Every file below an operand is read, as the options say."""
        only = [v.text if v.text is not None else "*" for v in parsed.values(self.only)]
        names = [base_pattern(pattern) for pattern in only if not pattern.startswith("!")]
        return site.tree(
            word,
            Reach(
                follow=self.follows == "*" or parsed.has(self.follows),
                only=tuple(names),
            ),
        )

    def _use(self, use: str, word: Field, parsed: Parsed, site: Site) -> tuple[Effect, ...]:
        if use == "read" and self.deep and parsed.has(self.deep):
            use = "tree"
        match use:
            case "text":
                return ()
            case "read":
                return site.read(word)
            case "look":
                return site.look(word)
            case "tree":
                return self.tree(word, parsed, site)
            case "write":
                return site.write(word)
            case "change":
                return (*site.read(word), *site.write(word))
            case "delete":
                return site.delete(word)
            case other:
                raise ValueError(f"row {self.names}: use {other!r}")


@dataclass
class _Gathered:
    options: list[tuple[str, Field | None]] = field(
        default_factory=list[tuple[str, "Field | None"]]
    )
    operands: list[Field] = field(default_factory=list[Field])
    late: list[Field] = field(default_factory=list[Field])
    doubts: list[str] = field(default_factory=list[str])
    before_dashes: int | None = None


def parse_words(
    words: Sequence[Field], specs: dict[str, str], *, inert: bool = False, stops: bool = False
) -> Parsed:
    """Tell options from operands. `--` ends options, and with `stops` the first operand does."""
    got = _Gathered()
    position = 0

    def following(option: str) -> Field | None:
        nonlocal position
        if position >= len(words):
            got.doubts.append(f"`{option}` without its value")
            return None
        value = words[position]
        position += 1
        if value.several:
            got.doubts.append(f"the value of `{option}` may be several words")
        if got.operands:
            got.late.append(value)
        return value

    while position < len(words):
        if stops and got.operands:
            got.operands.extend(words[position:])
            break
        word = words[position]
        position += 1
        text = word.text
        if text == "--":
            got.before_dashes = len(got.operands)
            got.operands.extend(words[position:])
            break
        if text is None:
            if inert or word.channel or word.number or word.below is not None:
                got.operands.append(word)
            elif word.head.startswith("--") and "=" in word.head and not word.several:
                name, _, value = word.head.partition("=")
                if specs.get(name, "") == "":
                    got.doubts.append(f"option `{name}`")
                got.options.append((name, Field(None, word.source, head=value)))
            elif word.head and not word.head.startswith("-"):
                got.operands.append(word)
            else:
                got.doubts.append(f"`{word.source[:80]}` may turn out to be an option")
                got.operands.append(word)
        elif not text.startswith("-") or text == "-":
            got.operands.append(word)
        elif text.startswith("--"):
            name, equals, value = text.partition("=")
            use = specs.get(name)
            if use is None and inert:
                continue
            if use is None or (equals and use == ""):
                got.doubts.append(f"option `{name}`")
                got.options.append((name, Field(value, word.source) if equals else None))
            elif equals:
                got.options.append((name, Field(value, word.source)))
            elif use in ("", "?"):
                got.options.append((name, None))
            else:
                got.options.append((name, following(name)))
        elif "-#" in specs and text[1:].isdigit():
            got.options.append(("-#", None))
        else:
            _short(text, word, specs, got, following, inert)
    leading = words[0].text if words else None
    return Parsed(
        tuple(got.options),
        tuple(got.operands),
        tuple(got.late),
        tuple(got.doubts),
        leading,
        got.before_dashes,
    )


def _short(
    text: str,
    word: Field,
    specs: dict[str, str],
    got: _Gathered,
    following: Callable[[str], Field | None],
    inert: bool,
) -> None:
    """A group of one-letter options such as `-la` or `-n20`."""
    for index in range(1, len(text)):
        option = f"-{text[index]}"
        use = specs.get(option)
        if use is None:
            if not inert:
                got.doubts.append(f"option `{option}`")
                got.options.append((option, None))
            return
        if use == "":
            got.options.append((option, None))
            continue
        rest = text[index + 1 :]
        if use == "?":
            got.options.append((option, Field(rest, word.source) if rest else None))
        else:
            got.options.append((option, Field(rest, word.source) if rest else following(option)))
        return


def base_pattern(pattern: str) -> str:
    """The file names a path pattern can match, or `*` where it is not a plain one."""
    base = pattern.rpartition("/")[2]
    return base if re.fullmatch(r"[\w.*?-]+", base) and base != "**" else "*"


def meaning(effects: Iterable[Effect] = (), doubts: Iterable[str] = ()) -> Meaning:
    """A meaning of effects and doubts alone."""
    return Meaning(tuple(effects), tuple(doubts))


def not_understood(reason: str, effects: Iterable[Effect] = ()) -> Meaning:
    """A command that may do more than its effects say."""
    return Meaning(tuple(effects), (reason,))
