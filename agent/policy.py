"""Pure: effects + rules + scope -> a decision with its reason.

Each effect is decided on its own; the strictest decision wins. For one effect, a matching `deny`
rule beats `ask`, `ask` beats `allow`, and where no rule matches the built-in default counts:
reading inside the root passes, a command that is fully spelled out by its other effects passes,
everything else asks. What cannot be known is never allowed by a rule that names a path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Literal

from pydantic import field_validator, model_validator

from .effects import Effect, EffectKind
from .events import Record
from .scope import Scope

Verdict = Literal["allow", "ask", "deny", "plan_first"]
Mode = Literal["ask", "read-only"]

PATH_KINDS = frozenset(
    {
        EffectKind.READ,
        EffectKind.WRITE,
        EffectKind.DELETE,
        EffectKind.OUTSIDE_ROOT,
        EffectKind.SECRET,
        EffectKind.GIT_DESTRUCTIVE,
    }
)
CHANGES = frozenset({EffectKind.WRITE, EffectKind.DELETE})
ALWAYS_ASK = frozenset({EffectKind.GIT_DESTRUCTIVE})
"""Kinds that no rule and no plan can allow: only a person, each time."""

PLAN_FIRST = (
    "This would change a second file, and no plan has been approved. Call propose_plan first: "
    "say which files you will change, how, and what you will leave alone."
)


class Rule(Record):
    """One rule. `command` is a list of words; a trailing `"*"` takes the rest."""

    decision: Literal["allow", "ask", "deny"]
    effect: EffectKind | None = None
    path: str | None = None
    """Git-ignore style pattern: relative to the root, or absolute for what lies outside."""
    command: tuple[str, ...] | None = None
    match: tuple[str, ...] = ()
    """Examples that the rule must match: paths, or commands of plain words."""
    not_match: tuple[str, ...] = ()
    origin: str = "session"

    @field_validator("command")
    @classmethod
    def _not_empty(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and (not value or value == ("*",)):
            raise ValueError('name the program: ["*"] alone would match every command')
        return value

    @field_validator("path")
    @classmethod
    def _positive(cls, value: str | None) -> str | None:
        if value is not None and (not value.strip() or value.startswith(("!", "#"))):
            raise ValueError(f"{value!r} is no path pattern: use another rule to except paths")
        return value

    @model_validator(mode="after")
    def _coherent(self) -> Rule:
        if self.effect is None and self.path is None and self.command is None:
            raise ValueError("a rule needs `effect`, `path` or `command`")
        if self.command is not None and self.effect not in (None, EffectKind.EXECUTE):
            raise ValueError("`command` goes with effect `execute`")
        if self.command is not None and self.path is not None:
            raise ValueError("give `command` or `path`, not both: they name different effects")
        if self.path is not None and self.effect is not None and self.effect not in PATH_KINDS:
            raise ValueError(f"effect `{self.effect.value}` has no path")
        if (self.match or self.not_match) and self.command is None and self.path is None:
            raise ValueError("`match` and `not_match` go with `command` or `path`")
        for wanted, examples in ((True, self.match), (False, self.not_match)):
            for example in examples:
                if self._matches_example(example) is not wanted:
                    verb = "does not match" if wanted else "matches"
                    raise ValueError(f"the rule {verb} its own example {example!r}")
        return self

    def _matches_example(self, example: str) -> bool:
        if self.command is not None:
            import shlex

            return words_match(self.command, tuple(shlex.split(example)))
        return self.path is not None and path_matches(self.path, example)

    def applies(self, effect: Effect) -> bool:
        """Whether the rule speaks of this effect."""
        if self.effect is not None and effect.kind is not self.effect:
            return False
        if self.command is not None:
            return effect.kind is EffectKind.EXECUTE and words_match(self.command, effect.command)
        if self.path is not None:
            if effect.path is None:
                return False
            # What narrows holds for a folder as for all in it; what widens means what it says.
            whole = self.decision != "allow" and path_matches(self.path, f"{effect.path}/")
            return whole or path_matches(self.path, effect.path)
        return True

    def could_apply(self, effect: Effect) -> bool:
        """Whether the rule might speak of part of an effect: of a path or words that are unknown,
        or of something below a folder."""
        if self.effect is not None and effect.kind is not self.effect:
            return False
        if self.path is not None:
            if effect.path is None:
                return effect.kind in PATH_KINDS
            return effect.below and may_match_below(self.path, effect.path)
        return self.command is not None and effect.kind is EffectKind.EXECUTE and not effect.command

    def describe(self) -> str:
        """One line for a person, in the form of the settings."""
        parts = [self.decision]
        if self.effect is not None:
            parts.append(self.effect.value)
        if self.path is not None:
            parts.append(f"path {self.path}")
        if self.command is not None:
            parts.append(f"command {' '.join(self.command)}")
        return f"{' '.join(parts)} [{self.origin}]"


@dataclass(frozen=True)
class Decided:
    """A decision, why, and the rule behind it (None: the built-in default)."""

    verdict: Verdict
    reason: str
    effect: Effect | None = None
    rule: str | None = None


_STRICTNESS: dict[str, int] = {"allow": 0, "ask": 1, "deny": 2}


def decide(
    effects: Sequence[Effect],
    rules: Sequence[Rule] = (),
    scope: Scope | None = None,
    mode: Mode = "ask",
    *,
    plan_needed_after: AbstractSet[str] | None = None,
) -> Decided:
    """The strictest decision over all effects.

    `plan_needed_after`: the files already changed in this task when no plan was approved; a
    change of another file that would ask is then answered with `plan_first`. None: no such gate.
    """
    decisions = [decide_effect(effect, rules, scope) for effect in effects]
    strictest = max(
        decisions,
        key=lambda d: _STRICTNESS[d.verdict],
        default=Decided("allow", "it has no effect on anything"),
    )
    if strictest.verdict != "ask":
        return strictest
    if mode == "read-only":
        return Decided(
            "deny",
            f"read-only mode: {strictest.reason}",
            strictest.effect,
            "mode read-only",
        )
    if plan_needed_after is not None:
        asked = {
            d.effect.path
            for d in decisions
            if d.verdict == "ask" and d.effect and d.effect.kind in CHANGES and d.effect.path
        } - {".git"}  # a commit changes no file of the task
        if asked - plan_needed_after and len(asked | plan_needed_after) > 1:
            return Decided("plan_first", PLAN_FIRST, strictest.effect, "plan first")
    return strictest


def decide_effect(effect: Effect, rules: Iterable[Rule], scope: Scope | None) -> Decided:
    """The decision for one effect."""
    found: dict[str, Rule] = {}
    doubtful: Rule | None = None
    for rule in rules:
        if rule.applies(effect):
            found.setdefault(rule.decision, rule)
        elif rule.decision != "allow" and rule.could_apply(effect):
            doubtful = doubtful or rule
    if rule := found.get("deny"):
        return Decided("deny", _says(rule, effect), effect, rule.describe())
    if rule := found.get("ask"):
        return Decided("ask", _says(rule, effect), effect, rule.describe())
    if doubtful is not None:
        reason = f"{effect.describe()}: cannot tell whether `{doubtful.describe()}` applies"
        return Decided("ask", reason, effect, doubtful.describe())
    if effect.kind in ALWAYS_ASK:
        return Decided("ask", f"{effect.describe()}: always asked", effect)
    if rule := found.get("allow"):
        return Decided("allow", _says(rule, effect), effect, rule.describe())
    if scope is not None:
        outside = leaves_scope(effect, scope)
        if outside is None:
            return Decided("allow", f"{effect.describe()}: part of the approved plan", effect,
                           "approved plan")  # fmt: skip
        decided = _default(effect)
        if decided.verdict == "ask":
            return Decided("ask", f"{effect.describe()}: {outside}", effect, "approved plan")
        return decided
    return _default(effect)


def outside_scope(
    changed: Mapping[str, EffectKind],
    granted: Sequence[Effect],
    rules: Sequence[Rule] = (),
    scope: Scope | None = None,
) -> tuple[str, ...]:
    """The paths that a call changed although nobody agreed to that.

    `changed`: path -> `write` or `delete`. Agreed is what the call's own effects name, what a rule
    allows, and what an approved plan covers. A call that was let change the repository without
    naming paths is held to the plan where there is one.
    """
    if scope is None and any(
        effect.kind in CHANGES | ALWAYS_ASK and effect.path is None for effect in granted
    ):
        return ()
    named = [effect.path for effect in granted if effect.kind in CHANGES and effect.path]
    git = any(effect.command[:1] == ("git",) for effect in granted)
    return tuple(
        name
        for name, kind in sorted(changed.items())
        if not any(each in (".", name) or name.startswith(f"{each}/") for each in named)
        and not (git and _is_git_data(name))
        and decide_effect(Effect(kind=kind, path=name), rules, scope).verdict != "allow"
    )


def _is_git_data(name: str) -> bool:
    """Whether git itself writes this file, and it makes git run nothing."""
    folder, _, rest = name.partition("/")
    return folder == ".git" and not rest.startswith(("hooks", "config", "modules"))


def leaves_scope(effect: Effect, scope: Scope) -> str | None:
    """Why an effect is not covered by an approved scope; None when it is covered."""
    if effect.kind is EffectKind.EXECUTE:
        if any(words_match(words, effect.command) for words in scope.commands):
            return None
        return "the approved plan does not name this command"
    if effect.path is not None and any(
        path_matches(pattern, effect.path)
        or path_matches(pattern, f"{effect.path}/")
        or (effect.below and may_match_below(pattern, effect.path))
        for pattern in scope.not_touch
    ):
        return f"the approved plan says not to touch {effect.path}"
    if effect.kind not in scope.kinds:
        return f"the approved plan has no `{effect.kind.value}`"
    if effect.kind not in PATH_KINDS:
        return None
    if effect.path is None:
        return "it cannot be known which path this touches"
    if not any(path_matches(pattern, effect.path) for pattern in scope.paths):
        return f"{effect.path} is not among the files of the approved plan"
    return None


def _default(effect: Effect) -> Decided:
    match effect.kind:
        case EffectKind.READ if effect.path is not None and not effect.path.startswith("/"):
            return Decided("allow", f"{effect.describe()}: reading inside the root", effect)
        case EffectKind.EXECUTE if effect.understood:
            return Decided("allow", f"{effect.describe()}: does only what is listed", effect)
        case _:
            return Decided("ask", f"{effect.describe()}: asked by default", effect)


def _says(rule: Rule, effect: Effect) -> str:
    return f"{effect.describe()}: rule `{rule.describe()}`"


def words_match(pattern: tuple[str, ...], words: tuple[str, ...]) -> bool:
    """Whether the words of a command match; a trailing `"*"` takes the rest, none included."""
    if not words:
        return False
    if pattern[-1:] == ("*",):
        head = pattern[:-1]
        return bool(head) and words[: len(head)] == head
    return words == pattern


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> Callable[[str], bool]:
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines([pattern]).match_file


def path_matches(pattern: str, path: str) -> bool:
    """Whether the path of an effect matches a git-ignore style pattern.

    A pattern that starts with `/` is an absolute path and speaks of what lies outside the root;
    any other is relative to the root (`.` is all of it, `./name` a name in
    the root itself) and speaks only of
    what lies inside, so that no rule reaches further than it reads.
    """
    if pattern.startswith("/") is not path.startswith("/"):
        return False
    if pattern in (".", "./"):
        return True
    anchored = pattern[1:] if pattern.startswith("./") else pattern
    return _compiled(anchored)(path.lstrip("/"))


def may_match_below(pattern: str, folder: str) -> bool:
    """Whether a pattern may match something in a folder; true where that is not clear."""
    if pattern.startswith("/") is not folder.startswith("/"):
        return False
    anchored = pattern.removeprefix("./").strip("/")
    everywhere = "/" not in pattern.rstrip("/") or "\\" in pattern
    if everywhere or folder == "." or anchored in ("", "."):
        return True
    for part, name in zip(anchored.split("/"), folder.strip("/").split("/"), strict=False):
        if part == "**":
            return True
        if not fnmatchcase(name, part):
            return False
    return True


def readable(rules: Sequence[Rule], approved: Sequence[Effect] = ()) -> Callable[[str], bool]:
    """Which files a tool that goes through a folder may show: a test for a path.

    What a rule denies or asks about is left out; what it asks about is not where a person has
    just approved an effect that the same rule speaks of.
    """
    denied = [rule for rule in rules if rule.decision == "deny"]
    asked = [
        rule for rule in rules if rule.decision == "ask" and not any(map(rule.applies, approved))
    ]
    closed = [rule for rule in (*denied, *asked) if rule.effect in (None, EffectKind.READ)]

    def test(path: str) -> bool:
        effect = Effect(kind=EffectKind.READ, path=path)
        return not any(rule.applies(effect) for rule in closed)

    return test


def parse_allow(text: str) -> Rule:
    """`--allow EFFECT[:PATHSPEC]` or `execute:WORDS`. Raises ValueError with what to write."""
    name, colon, rest = text.partition(":")
    try:
        kind = EffectKind(name)
    except ValueError:
        names = ", ".join(kind.value for kind in EffectKind)
        raise ValueError(f"--allow {text!r}: {name!r} is no effect; choose of {names}") from None
    if not colon:
        return Rule(decision="allow", effect=kind, origin="--allow")
    if not rest.strip():
        raise ValueError(f"--allow {text!r}: nothing after the colon")
    if kind is EffectKind.EXECUTE:
        import shlex

        try:
            words = tuple(shlex.split(rest))
        except ValueError as error:
            raise ValueError(f"--allow {text!r}: {error}") from None
        return Rule(decision="allow", effect=kind, command=words, origin="--allow")
    return Rule(decision="allow", effect=kind, path=rest, origin="--allow")
