"""`classify`: a shell command -> the effects it would have.

The walk is an abstract run of the command: it follows the folder and the variables as far as
they are certain, visits every branch, and forgets what a branch may have changed. Whatever is not
certain becomes an effect that asks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import cast

from ...agent.effects import Effect, EffectKind
from . import builtins, changing, wrappers
from .expand import Expanded, expand, expand_whole
from .folders import Reach, is_folder
from .git import git
from .network import network
from .parse import parse
from .reading import ROWS as READING
from .site import Field, Site, unknown
from .syntax import (
    AndOr,
    Assignment,
    Case,
    Command,
    Condition,
    For,
    Function,
    If,
    Not,
    Pipeline,
    Redirect,
    Redirected,
    Simple,
    Subshell,
    Unknown,
    While,
    Word,
    words_of,
)
from .syntax import (
    Sequence as Steps,
)
from .usage import Meaning, Row

MAX_STEPS = 300
"""Simple commands visited, loops unrolled; beyond that the command is not understood."""
MAX_VISITS = 1_500
"""The same for commands of every kind."""
MAX_LOOP_VALUES = 128
MAX_VALUE = 4_096
"""Characters of a variable's value that are followed."""
MAX_NESTED = 4
"""How deep commands inside commands (`bash -c`, `xargs`, `env`) are followed."""


def classify(command: str, *, root: Path, cwd: Path | None = None) -> tuple[Effect, ...]:
    """What a shell command would do, as effects. Never raises.

    Pure but for looking at the file system. `root` must be canonical; `cwd` is the folder the
    command starts in (default: the root). The answer holds for a command run by `env.SHELL`
    under `env.HARDENED_ENV`.
    """
    tree = parse(command)
    functions = frozenset(_function_names(tree))
    walk = _Walk(root, functions, trust_disk=True, altered=False)
    walk.start(tree, cwd or root)
    if walk.altered or any(_changes(effect) for effect in walk.effects):
        # What the line itself changes may be what its globs, folders and names rest on.
        walk = _Walk(root, functions, trust_disk=False, altered=walk.altered)
        walk.start(tree, cwd or root)
    return tuple(dict.fromkeys(walk.effects))


def _changes(effect: Effect) -> bool:
    return not (
        effect.kind in (EffectKind.READ, EffectKind.OUTSIDE_ROOT, EffectKind.SECRET)
        or (effect.kind is EffectKind.EXECUTE and effect.understood)
    )


@dataclass(frozen=True)
class _State:
    """What is certain at one point of the run."""

    cwd: Path | None
    """As the shell has it: links not resolved."""
    variables: Mapping[str, str | None] = field(default_factory=dict[str, str | None])


@dataclass(frozen=True)
class _End:
    """How a command can end: the state after success and after failure (None: never)."""

    ok: _State | None
    failed: _State | None

    @property
    def any(self) -> _State | None:
        return _merge(self.ok, self.failed)


def _merge(left: _State | None, right: _State | None) -> _State | None:
    """What is certain in both."""
    if left is None or right is None or left == right:
        return left if right is None else right
    variables = {
        name: value if right.variables[name] == value else None
        for name, value in left.variables.items()
        if name in right.variables
    }
    return _State(left.cwd if left.cwd == right.cwd else None, variables)


class _TooMuchError(Exception):
    """The command is larger than what is followed."""


class _Walk:
    """One run over a tree, gathering effects."""

    def __init__(
        self, root: Path, functions: frozenset[str], *, trust_disk: bool, altered: bool
    ) -> None:
        self.root = root
        self.trust_disk = trust_disk
        self.was_altered = altered
        self.altered = altered
        self.effects: list[Effect] = []
        self.moved: tuple[Path, ...] = ()
        self.functions = functions
        self.steps = 0
        self.visits = 0
        self.nested = 0
        self.trees: dict[tuple[Path, Reach], tuple[Effect, ...]] = {}
        self.distrust: dict[Path, str | None] = {}

    def start(self, tree: Command, cwd: Path) -> None:
        """Walk the whole line."""
        try:
            self.visit(tree, _State(cwd))
        except _TooMuchError:
            self.execute((), ("it has too many steps to follow",))

    def site(self, state: _State) -> Site:
        return Site(self.root, state.cwd, self.moved, self.trust_disk, self.trees, self.distrust)

    def execute(self, words: Sequence[Field], doubts: Iterable[str]) -> None:
        """Note that a command runs, and whether its other effects say everything."""
        reasons = list(dict.fromkeys(doubts))
        if self.was_altered:
            reasons.append("an earlier command may change what this one means")
        texts = tuple(word.text for word in words)
        known = tuple(text for text in texts if text is not None)
        self.effects.append(
            Effect(
                kind=EffectKind.EXECUTE,
                command=known if len(known) == len(texts) else (),
                understood=not reasons,
                detail="; ".join(reasons)[:300],
            )
        )

    # ---- structure -------------------------------------------------------------------------

    def visit(self, node: Command, state: _State | None) -> _End:
        """The effects of a command that starts in a state; None: it is never reached."""
        self.visits += 1
        if self.visits > MAX_VISITS:
            raise _TooMuchError
        if state is None:
            self.visit(node, _State(None))
            return _End(None, None)
        match node:
            case Simple():
                return self.simple(node, state)
            case Steps(items):
                end = _End(state, state)
                for item in items:
                    end = self.visit(item, end.any)
                return end
            case AndOr(operator, left, right):
                first = self.visit(left, state)
                if operator == "&&":
                    second = self.visit(right, first.ok)
                    return _End(second.ok, _merge(first.failed, second.failed))
                second = self.visit(right, first.failed)
                return _End(_merge(first.ok, second.ok), second.failed)
            case Not(body):
                end = self.visit(body, state)
                return _End(end.failed, end.ok)
            case Pipeline(members):
                for member in members:
                    self.visit(member, state)
                return _End(state, state)
            case Subshell(body, background):
                if background:
                    self.effects.append(Effect(kind=EffectKind.SPAWN, detail="in the background"))
                self.visit(body, state)
                return _End(state, state)
            case If(branches, otherwise):
                return self._if(branches, otherwise, state)
            case While(condition, body):
                return self._loop(state, lambda entry: self._while(condition, body, entry))
            case For():
                return self._for(node, state)
            case Case(subject, patterns, bodies):
                expanded = Expanded()
                for word in (subject, *patterns):
                    expand_whole(word, self.site(state), state.variables, expanded)
                self._aside(expanded, state)
                after: _State | None = state
                for body in bodies:
                    after = _merge(after, self.visit(body, state).any)
                return _End(after, after)
            case Function(name, body):
                self.execute((Field(name, name),), ("it defines a function",))
                self.visit(body, _State(None))
                return _End(state, state)
            case Redirected(body, redirects):
                expanded = Expanded()
                self._redirects(redirects, state, expanded)
                self._aside(expanded, state)
                return self.visit(body, state)
            case Condition(words):
                return self._condition(words, state)
            case Unknown(_, reason, inner):
                self.execute((), (reason,))
                for command in inner:
                    self.visit(command, _State(None))
                return _End(_State(None), _State(None))

    def _if(
        self, branches: tuple[tuple[Command, Command], ...], otherwise: Command, state: _State
    ) -> _End:
        current: _State | None = state
        after: _State | None = None
        for condition, body in branches:
            end = self.visit(condition, current)
            after = _merge(after, self.visit(body, end.ok).any)
            current = end.failed
        after = _merge(after, self.visit(otherwise, current).any)
        return _End(after, after)

    def _loop(self, state: _State, once: Callable[[_State], _State | None]) -> _End:
        """Run a body until the state before it is the same each time round."""
        entry = state
        for _ in range(3):
            after = _merge(entry, once(entry))
            if after == entry or after is None:
                return _End(entry, entry)
            entry = after
        entry = _State(None)
        once(entry)
        return _End(entry, entry)

    def _while(self, condition: Command, body: Command, entry: _State) -> _State | None:
        end = self.visit(condition, entry)
        return _merge(end.failed, self.visit(body, end.ok).any)

    def _for(self, node: For, state: _State) -> _End:
        expanded = Expanded()
        for word in node.words or ():
            expand(word, self.site(state), state.variables, expanded)
        self._aside(expanded, state)
        values: list[str | None] = [value.text for value in expanded.fields]
        if node.words is None or None in values or len(values) > MAX_LOOP_VALUES:
            values = [None]
        if not builtins.is_own(node.name):
            self.execute((Field(node.name, node.name),), (f"it sets {node.name}",))
            self.altered = True

        def once(entry: _State) -> _State | None:
            after: _State | None = None
            for value in values:
                start = replace(entry, variables={**entry.variables, node.name: value})
                after = _merge(after, self.visit(node.body, start).any)
            return after

        return self._loop(state, once)

    def _condition(self, words: tuple[Word, ...], state: _State) -> _End:
        expanded = Expanded()
        values = [expand_whole(w, self.site(state), state.variables, expanded) for w in words]
        self._aside(expanded, state)
        meaning = builtins.test(values, self.site(state), arithmetic=True)
        name = (Field("[[", "[["), *values, Field("]]", "]]"))
        self.execute(name, (*meaning.doubts, *expanded.doubts))
        self.effects.extend(meaning.effects)
        return _End(state, state)

    # ---- simple commands -------------------------------------------------------------------

    def simple(self, node: Simple, state: _State) -> _End:
        """A simple command: its words, assignments and redirections."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise _TooMuchError
        expanded = Expanded()
        site = self.site(state)
        values: list[tuple[str, Field]] = []
        so_far = dict(state.variables)
        for assignment in node.assignments:
            value = expand_whole(assignment.value, site, so_far, expanded)
            values.append((assignment.name, value))
            so_far[assignment.name] = None if assignment.append else value.text
        for word in node.words:
            expand(word, site, state.variables, expanded)
        words = list(expanded.fields)
        self._redirects(node.redirects, state, expanded)
        self._inside(expanded.commands, state)
        if not node.words:
            return self._assign(node.assignments, values, expanded, state)
        prefix: list[Field] = []
        for assignment, (name, value) in zip(node.assignments, values, strict=True):
            if assignment.append or not builtins.is_harmless(name, value.text):
                text = None if value.text is None else f"{name}={value.text}"
                prefix.append(Field(text, f"{name}={value.source}"))
        if prefix:
            names = ", ".join(p.source.partition("=")[0] for p in prefix)
            self.execute((Field("env", "env"), *prefix, *words), (f"it sets {names}",))
        return self.run(words, state, expanded.doubts, direct=True)

    def _assign(
        self,
        assignments: Sequence[Assignment],
        values: Sequence[tuple[str, Field]],
        expanded: Expanded,
        state: _State,
    ) -> _End:
        """Assignments alone: `x=1`, which lasts for the rest of the line."""
        variables = dict(state.variables)
        for assignment, (name, value) in zip(assignments, values, strict=True):
            text = None if value.text is None else f"{name}={value.text}"
            doubts = list(expanded.doubts)
            if not builtins.is_own(name) and not builtins.is_harmless(name, value.text):
                doubts.append(f"it sets {name} for later commands")
                self.altered = True
            self.execute((Field(text, f"{name}={value.source}"),), doubts)
            known = value.text is not None and len(value.text) <= MAX_VALUE
            variables[name] = value.text if known and not assignment.append else None
        if not assignments and expanded.doubts:
            self.execute((), expanded.doubts)
        after = replace(state, variables=variables)
        return _End(after, after)

    def _aside(self, expanded: Expanded, state: _State) -> None:
        """Expansions outside a simple command: what they run, and what is doubtful in them."""
        self._inside(expanded.commands, state)
        if expanded.doubts:
            self.execute((), expanded.doubts)

    def _inside(self, commands: Iterable[Command], state: _State) -> None:
        for command in commands:
            self.visit(command, state)

    def _redirects(self, redirects: Iterable[Redirect], state: _State, expanded: Expanded) -> None:
        site = self.site(state)
        for redirect in redirects:
            if redirect.operator in ("<<", "<<<"):
                expand_whole(redirect.target, site, state.variables, expanded)
                continue
            target = Expanded(doubts=expanded.doubts, commands=expanded.commands)
            expand(redirect.target, site, state.variables, target)
            if len(target.fields) == 1 and not target.fields[0].several:
                word = target.fields[0]
            else:
                word = Field(None, redirect.target.source)
            self.effects.extend(_redirected(redirect.operator, word, site))

    def run(
        self,
        words: Sequence[Field],
        state: _State,
        doubts: Sequence[str] = (),
        *,
        direct: bool = False,
    ) -> _End:
        """A command by its words; `direct`: in this shell, not through a wrapper."""
        ends = _End(state, state)
        if not words or words[0].text is None or words[0].several:
            self.execute(words, (*doubts, "which command this is cannot be known"))
            self.altered = True
            return ends
        name = _program(words[0].text, self.root)
        site = self.site(state)
        meaning = _meaning(name, words[1:], site, self.root)
        reasons = [*doubts, *meaning.doubts]
        if name in self.functions:
            reasons.append("a function of this name is defined in the line")
        if not direct and name in _IN_SHELL:
            reasons.append("a wrapper runs it in this shell")
            self.altered = True
        plain = meaning.words or (Field(name, words[0].source), *words[1:])
        self.execute(plain, reasons)
        if meaning.words and reasons and len(meaning.words) != len(words):
            # As written too, so that a rule for the plain form does not cover its options.
            self.execute((Field(name, words[0].source), *words[1:]), reasons)
        self.effects.extend(meaning.effects)
        if meaning.alters_shell or name in self.functions or (reasons and name in _BUILTIN):
            self.altered = True
            state = _State(None)
            ends = _End(state, state)
        self._nested(meaning, state)
        for word in meaning.moved:
            where = site.locate(word.text) if word.text is not None else None
            if where is not None and site.cwd is not None and word.text is not None:
                lexical = Path(os.path.normpath(site.cwd / word.text))
                self.moved = (*self.moved, where.path, lexical)
        if not direct:
            return ends
        if meaning.assignments:
            after = replace(state, variables={**state.variables, **dict(meaning.assignments)})
            return _End(after, after)
        match name:
            case "cd":
                return self._cd(words[1:], state)
            case "exit" | "return" | "exec" | "break" | "continue":
                return _End(None, None) if name in ("exit", "return") else ends
            case "false":
                return _End(None, state)
            case "true" | ":":
                return _End(state, None)
            case _:
                return ends

    def _nested(self, meaning: Meaning, state: _State) -> None:
        """What a wrapper runs."""
        if not meaning.runs and not meaning.scripts:
            return
        self.nested += 1
        try:
            for words in meaning.runs:
                self.visits += 1
                if self.nested > MAX_NESTED or self.visits > MAX_VISITS:
                    self.execute((), ("commands inside commands inside commands",))
                else:
                    self.run(words, state)
            for script in meaning.scripts:
                tree = parse(script)
                if self.nested > MAX_NESTED:
                    self.execute((), ("scripts inside scripts inside scripts",))
                else:
                    self.functions |= frozenset(_function_names(tree))
                    self.visit(tree, _State(state.cwd))
        finally:
            self.nested -= 1

    def _cd(self, words: Sequence[Field], state: _State) -> _End:
        """`cd`: where the shell is afterwards, if it succeeds and if it fails."""
        operands = [word for word in words if word.text not in ("-L", "-P", "-e", "--")]
        target = operands[0].text if len(operands) == 1 else None
        physical = any(word.text == "-P" for word in words)
        if target is None or not target or target == "-" or physical:
            return _End(_State(None, state.variables), state)
        if state.cwd is None and not target.startswith("/"):
            return _End(_State(None, state.variables), state)
        joined = os.path.join(state.cwd or "/", target)  # noqa: PTH118 - `..` must stay as written
        logical = Path(os.path.normpath(joined))
        where = self.site(state).locate(joined)
        if where is None or where.path != Path(os.path.realpath(logical)):
            return _End(_State(None, state.variables), state)
        there = replace(state, cwd=logical)
        certain = self.trust_disk and is_folder(where.path) and os.access(where.path, os.X_OK)
        return _End(there, None if certain else state)


def _function_names(tree: Command) -> Iterable[str]:
    """Names of all functions defined anywhere in a tree."""
    waiting: list[object] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Function):
            yield node.name
        if isinstance(node, tuple):
            waiting.extend(cast("tuple[object, ...]", node))
        elif is_dataclass(node):
            waiting.extend(getattr(node, part.name) for part in fields(node))


def _redirected(operator: str, word: Field, site: Site) -> tuple[Effect, ...]:
    text = word.text
    if text is not None and operator in (">&", "<&") and re.fullmatch(r"\d+-?|-", text):
        return ()
    if text is not None and text.startswith(("/dev/tcp/", "/dev/udp/")):
        return (Effect(kind=EffectKind.NETWORK, target=text, detail="bash opens a connection"),)
    match operator:
        case "<":
            return site.read(word) if text != "-" else site.read(Field("./-", word.source))
        case "<&":
            return unknown(EffectKind.READ, word.source)
        case "<>":
            return (*site.read(word), *site.write(word))
        case _:
            return site.write(word)


# ---- which program -------------------------------------------------------------------------

_SYSTEM = re.compile(r"/(?:usr/(?:local/)?|opt/homebrew/)?s?bin/([^/]+)")
_IN_SHELL = words_of(
    "cd pushd popd export declare typeset local readonly unset set shopt alias unalias eval source . "
    "trap read mapfile readarray getopts let exec hash enable bind complete umask ulimit"
)
_ALTERING = words_of(
    "shopt enable hash unalias mapfile readarray read getopts let pushd popd bind complete compgen "
    "compopt ulimit umask exec disown fc history times caller suspend logout select coproc function"
)
"""Builtins that change the shell and are not modelled."""
_BUILTIN = _ALTERING | _IN_SHELL | words_of("printf wait test [ : echo set unset command builtin")
"""Commands that run in the shell: where one is not understood, the shell may have changed."""
_READING = {name: row for row in READING for name in row.names.split()}
_CHANGING = {name: row for row in changing.ROWS for name in row.names.split()}
_SHELLS = words_of("bash sh dash zsh ksh mksh fish ash csh tcsh rbash")
_VERSIONS = words_of("python python3 node gcc g++ clang cc cmake make perl ruby java php lua")


def _program(word: str, root: Path) -> str:
    """The name of a program: without its folder where that is one of the system's."""
    found = _SYSTEM.fullmatch(word)
    return found.group(1) if found and root not in Path(word).parents else word


def _meaning(name: str, words: Sequence[Field], site: Site, root: Path) -> Meaning:
    """What a program does with its words."""
    row: Row | None = _READING.get(name) or _CHANGING.get(name)
    if row is not None:
        found = row.means(words, site)
    elif name == "git":
        found = git(words, site)
    elif name in ("cp", "mv"):
        found = changing.copy(name, words, site)
    elif name == "ln":
        found = changing.link(words, site)
    elif name == "dd":
        found = changing.dd(words, site)
    elif name in _SHELLS:
        found = wrappers.shell(name, words, site)
    elif name in ("test", "["):
        found = _test(name, words, site)
    elif handler := _BUILTINS.get(name) or wrappers.HANDLERS.get(name):
        found = handler(words, site)
    elif name in _VERSIONS and [word.text for word in words] in (["--version"], ["-V"]):
        found = Meaning()
    else:
        found = Meaning(
            tuple(network(name, words, site)),
            (f"what {name[:60]} does is not known",),
            alters_shell=name in _ALTERING,
        )
    if not found.doubts and name not in _BUILTIN_NAMES and _shadowed(name, root):
        return replace(found, doubts=(f"PATH finds {name} inside the repository",))
    return found


def _test(name: str, words: Sequence[Field], site: Site) -> Meaning:
    if name == "[":
        if not words or words[-1].text != "]":
            return Meaning((), ("`[` without `]`",))
        words = words[:-1]
    return builtins.test(words, site, arithmetic=False)


_BUILTINS = {
    "printf": builtins.printf,
    "command": builtins.command,
    "export": builtins.declare,
    "local": builtins.declare,
    "readonly": builtins.declare,
    "declare": builtins.declare,
    "typeset": builtins.declare,
    "set": builtins.set_,
    "unset": builtins.unset,
    "cd": builtins.cd,
}
_BUILTIN_NAMES = frozenset(_BUILTINS) | words_of(
    "echo true false : pwd test [ exit return break continue shift wait type builtin exec eval . "
    "source trap alias time coproc"
)


def _shadowed(name: str, root: Path) -> bool:
    """Whether PATH may lead to a program of the repository instead of the system's."""
    return any(
        folder is None or os.path.lexists(folder / name)
        for folder in _inside(root, os.environ.get("PATH", ""))
    )


@lru_cache(maxsize=8)
def _inside(root: Path, path: str) -> tuple[Path | None, ...]:
    """The folders of PATH inside the root; None for one that depends on where the shell is."""
    folders = [Path(entry) if entry else None for entry in path.split(os.pathsep)]
    relative = [None for folder in folders if folder is None or not folder.is_absolute()]
    inside = [f for f in folders if f is not None and (root == f or root in f.parents)]
    return (*relative[:1], *inside)
