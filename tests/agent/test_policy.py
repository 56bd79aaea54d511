"""The policy core: strictest wins, nothing unknown is allowed, every decision has a reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from unabridged.agent.effects import Effect, EffectKind
from unabridged.agent.policy import (
    Rule,
    Verdict,
    decide,
    may_match_below,
    parse_allow,
    path_matches,
    readable,
    words_match,
)
from unabridged.agent.scope import Scope

K = EffectKind
READ = Effect(kind=K.READ, path="a.py")
WRITE = Effect(kind=K.WRITE, path="src/a.py")
OUTSIDE = Effect(kind=K.OUTSIDE_ROOT, path="/etc/x")
UNKNOWN = Effect(kind=K.EXECUTE)
LS = Effect(kind=K.EXECUTE, command=("ls",), understood=True)
PYTEST = Effect(kind=K.EXECUTE, command=("pytest", "-q"))


def verdict(effects: list[Effect], *rules: Rule, scope: Scope | None = None) -> Verdict:
    return decide(effects, rules, scope).verdict


def allow(text: str) -> Rule:
    return parse_allow(text)


@pytest.mark.parametrize(
    ("effects", "expected"),
    [
        ([], "allow"),
        ([READ], "allow"),
        ([LS, READ], "allow"),
        ([WRITE], "ask"),
        ([READ, WRITE], "ask"),
        ([Effect(kind=K.READ, path="/etc/passwd"), OUTSIDE], "ask"),
        ([Effect(kind=K.READ)], "ask"),
        ([READ, Effect(kind=K.SECRET, path=".env")], "ask"),
        ([UNKNOWN], "ask"),
        ([PYTEST], "ask"),
        ([Effect(kind=K.NETWORK, target="x.org")], "ask"),
        ([Effect(kind=K.DELETE, path="a.py")], "ask"),
        ([Effect(kind=K.SPAWN)], "ask"),
        ([Effect(kind=K.GIT_DESTRUCTIVE)], "ask"),
    ],
)
def test_defaults(effects: list[Effect], expected: Verdict) -> None:
    decided = decide(effects)
    assert decided.verdict == expected
    assert decided.reason


def test_deny_beats_ask_beats_allow_whatever_the_order() -> None:
    rules = [
        allow("write"),
        Rule(decision="ask", effect=K.WRITE, path="src/**"),
        Rule(decision="deny", effect=K.WRITE, path="src/a.py"),
    ]
    for order in (rules, rules[::-1]):
        assert verdict([WRITE], *order) == "deny"
        assert verdict([Effect(kind=K.WRITE, path="src/b.py")], *order) == "ask"
        assert verdict([Effect(kind=K.WRITE, path="b.py")], *order) == "allow"


def test_every_effect_needs_its_own_allow() -> None:
    write_outside = [Effect(kind=K.WRITE, path="/etc/x"), OUTSIDE]
    assert verdict(write_outside, allow("write")) == "ask"
    assert verdict(write_outside, allow("write"), allow("outside_root:/etc/**")) == "allow"
    assert verdict([PYTEST, WRITE], allow("execute:pytest *")) == "ask"


def test_c24_a_rule_for_cd_opens_nothing_else() -> None:
    cd = Effect(kind=K.EXECUTE, command=("cd", "x"), understood=True)
    python = Effect(kind=K.EXECUTE, command=("python", "y.py"))
    assert verdict([cd, python], allow("execute:cd *")) == "ask"


def test_what_is_unknown_is_not_allowed_by_a_rule_that_names_something() -> None:
    somewhere = Effect(kind=K.WRITE)
    assert verdict([somewhere], allow("write:**")) == "ask"
    assert verdict([UNKNOWN], allow("execute:pytest *")) == "ask"
    assert verdict([somewhere], allow("write")) == "allow"
    assert verdict([UNKNOWN], allow("execute")) == "allow"


def test_what_is_unknown_may_be_what_a_deny_names() -> None:
    somewhere = Effect(kind=K.WRITE)
    deny_path = Rule(decision="deny", effect=K.WRITE, path="secrets/**")
    deny_push = Rule(decision="deny", effect=K.EXECUTE, command=("git", "push", "*"))
    assert verdict([somewhere], allow("write"), deny_path) == "ask"
    assert verdict([UNKNOWN], allow("execute"), deny_push) == "ask"
    assert verdict([PYTEST], allow("execute"), deny_push) == "allow"


def test_c33_destructive_git_always_asks() -> None:
    reset = [
        Effect(kind=K.EXECUTE, command=("git", "reset", "--hard"), understood=True),
        Effect(kind=K.GIT_DESTRUCTIVE, detail="uncommitted changes would be lost"),
    ]
    everything = [Rule(decision="allow", effect=kind) for kind in K]
    scope = Scope(paths=(".",), kinds=tuple(K), commands=(("git", "*"),))
    assert verdict(reset, *everything) == "ask"
    assert verdict(reset, *everything, scope=scope) == "ask"
    assert verdict(reset, Rule(decision="deny", effect=K.GIT_DESTRUCTIVE)) == "deny"


def test_read_only_denies_what_would_ask_and_says_so() -> None:
    decided = decide([WRITE], mode="read-only")
    assert decided.verdict == "deny"
    assert "read-only" in decided.reason
    assert decide([READ], mode="read-only").verdict == "allow"
    assert decide([WRITE], [allow("write:src/**")], mode="read-only").verdict == "allow"


# --- scope -------------------------------------------------------------------------------------

SCOPE = Scope(
    paths=("src/**",), kinds=(K.WRITE,), commands=(("pytest", "*"),), not_touch=("src/keep.py",)
)


@pytest.mark.parametrize(
    ("effect", "expected", "why"),
    [
        (WRITE, "allow", "approved plan"),
        (PYTEST, "allow", "approved plan"),
        (Effect(kind=K.WRITE, path="docs/a.md"), "ask", "not among the files"),
        (Effect(kind=K.WRITE, path="src/keep.py"), "ask", "says not to touch"),
        (Effect(kind=K.DELETE, path="src/a.py"), "ask", "has no `delete`"),
        (Effect(kind=K.WRITE), "ask", "cannot be known"),
        (Effect(kind=K.WRITE, path="/src/a.py"), "ask", "not among the files"),
        (Effect(kind=K.EXECUTE, command=("make",)), "ask", "does not name this command"),
        (UNKNOWN, "ask", "does not name this command"),
        (READ, "allow", "inside the root"),
    ],
)
def test_a_scope_covers_what_it_says(effect: Effect, expected: Verdict, why: str) -> None:
    decided = decide([effect], scope=SCOPE)
    assert decided.verdict == expected
    assert why in decided.reason


def test_a_rule_still_denies_inside_a_scope() -> None:
    deny = Rule(decision="deny", path="src/a.py")
    assert verdict([WRITE], deny, scope=SCOPE) == "deny"


def test_a_second_file_needs_a_plan_first() -> None:
    other = [Effect(kind=K.WRITE, path="b.py")]
    assert decide(other, plan_needed_after=frozenset()).verdict == "ask"
    assert decide(other, plan_needed_after={"b.py"}).verdict == "ask"
    decided = decide(other, plan_needed_after={"a.py"})
    assert decided.verdict == "plan_first"
    assert "propose_plan" in decided.reason
    assert decide(other, [allow("write:b.py")], plan_needed_after={"a.py"}).verdict == "allow"
    two = [Effect(kind=K.DELETE, path="a"), Effect(kind=K.DELETE, path="b")]
    assert decide(two, plan_needed_after=frozenset()).verdict == "plan_first"


# --- rules -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("*.py", "a/b.py", True),
        ("src/**", "src/a/b.py", True),
        ("src/**", "other/src/a.py", False),
        ("./a.py", "a.py", True),
        ("./a.py", "x/a.py", False),
        (".", "anything/at/all", True),
        (".", "/etc/passwd", False),
        ("*", "/etc/passwd", False),
        ("/tmp/**", "/tmp/x", True),
        ("/tmp/**", "tmp/x", False),
        ("docs/", "docs/a.md", True),
    ],
)
def test_paths(pattern: str, path: str, expected: bool) -> None:
    assert path_matches(pattern, path) is expected


@given(st.lists(st.text(min_size=1), min_size=1, max_size=4), st.lists(st.text(), max_size=3))
def test_words(words: list[str], rest: list[str]) -> None:
    exact = tuple(words)
    assert words_match(exact, exact)
    assert words_match((*exact, "*"), (*exact, *rest))
    if rest and exact[-1] != "*":
        assert not words_match(exact, (*exact, *rest))
    assert not words_match((*exact, "*"), exact[:-1])
    assert not words_match(exact, ())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "needs `effect`, `path` or `command`"),
        ({"command": ("*",)}, "name the program"),
        ({"command": ("ls",), "effect": "write"}, "goes with effect `execute`"),
        ({"command": ("ls",), "path": "a"}, "not both"),
        ({"path": "a", "effect": "network"}, "has no path"),
        ({"path": "!a"}, "no path pattern"),
        ({"command": ("git", "log", "*"), "match": ("git status",)}, "does not match its own"),
        ({"command": ("git", "*"), "not_match": ("git push",)}, "matches its own example"),
        ({"path": "src/**", "match": ("lib/a",)}, "does not match its own example 'lib/a'"),
        ({"effect": "write", "match": ("x",)}, "go with `command` or `path`"),
        ({"effect": "fly"}, "effect"),
    ],
)
def test_a_rule_that_says_nothing_or_contradicts_itself_is_refused(
    fields: dict[str, object], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        Rule.model_validate({"decision": "allow", **fields})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fly", "'fly' is no effect; choose of read, write"),
        ("write:", "nothing after the colon"),
        ("execute:'a", "No closing quotation"),
        ("execute:*", "name the program"),
    ],
)
def test_allow_that_cannot_be_read_says_what_to_write(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("*", r"\*")):
        parse_allow(text)


# --- laws --------------------------------------------------------------------------------------

EFFECTS = st.builds(
    Effect,
    kind=st.sampled_from(K),
    path=st.sampled_from([None, "a.py", "src/a.py", "/etc/x"]),
    command=st.sampled_from([(), ("ls",), ("git", "push")]),
    understood=st.booleans(),
)
RULES = st.sampled_from(
    [
        *(Rule(decision=d, effect=k) for d in ("allow", "ask", "deny") for k in K),
        *(Rule(decision=d, path=p) for d in ("allow", "ask", "deny") for p in ("*.py", "/etc/**")),
        *(Rule(decision=d, command=("git", "*")) for d in ("allow", "ask", "deny")),
    ]
)
ORDER = {"allow": 0, "ask": 1, "deny": 2}


@given(st.lists(EFFECTS, max_size=4), EFFECTS, st.lists(RULES, max_size=5))
def test_more_effects_are_never_decided_more_leniently(
    effects: list[Effect], more: Effect, rules: list[Rule]
) -> None:
    assert ORDER[decide([*effects, more], rules).verdict] >= ORDER[decide(effects, rules).verdict]


@given(st.lists(EFFECTS, max_size=4), st.lists(RULES, max_size=5), RULES)
def test_a_narrowing_rule_never_widens(
    effects: list[Effect], rules: list[Rule], rule: Rule
) -> None:
    if rule.decision != "allow":
        before, after = decide(effects, rules), decide(effects, [*rules, rule])
        assert ORDER[after.verdict] >= ORDER[before.verdict]


@given(st.lists(EFFECTS, min_size=1, max_size=4))
def test_nothing_but_reading_inside_and_understood_commands_passes_by_default(
    effects: list[Effect],
) -> None:
    harmless = all(
        (e.kind is K.READ and e.path is not None and not e.path.startswith("/"))
        or (e.kind is K.EXECUTE and e.understood)
        for e in effects
    )
    assert (decide(effects).verdict == "allow") is harmless


# --- folders -----------------------------------------------------------------------------------


def deny(path: str, effect: K | None = None) -> Rule:
    return Rule(decision="deny", path=path, effect=effect)


@pytest.mark.parametrize(
    ("pattern", "folder", "expected"),
    [
        ("private/**", ".", True),
        ("private/**", "private", True),
        ("private/**", "private/deep", True),
        ("private/**", "src", False),
        ("src/private/", "src", True),
        ("src/private/", "src/other", False),
        ("src/*/x", "src/a", True),
        ("src/*/x", "lib", False),
        ("**/x", "lib", True),
        ("*.pem", "src", True),
        ("x", "src", True),
        ("./x", "src", False),
        ("/etc/ssl/*", "/etc", True),
        ("/etc/ssl/*", "/usr", False),
        ("/etc/ssl/*", "etc", False),
        ("etc/*", "/etc", False),
        (".", "src", True),
    ],
)
def test_what_a_pattern_may_match_below_a_folder(pattern: str, folder: str, expected: bool) -> None:
    assert may_match_below(pattern, folder) is expected


NAME = st.text(alphabet="ab.*?[]!-\\", min_size=1, max_size=3)
PATTERN = st.lists(st.sampled_from(["**", "*", "a", "b*", "?", "[ab]", "a.b"]) | NAME, min_size=1,
                   max_size=3).map("/".join)  # fmt: skip
PART = st.sampled_from(["a", "b", "ab", "a.b", "[ab]", "b*"])
PATH = st.lists(PART, min_size=2, max_size=4)


@given(PATTERN, PATH, st.data())
def test_no_match_below_a_folder_is_missed(
    pattern: str, path: list[str], data: st.DataObject
) -> None:
    try:
        matches = path_matches(pattern, "/".join(path))
    except ValueError:
        return
    if matches:
        folder = "/".join(path[: data.draw(st.integers(1, len(path) - 1))])
        assert may_match_below(pattern, folder)
        assert may_match_below(pattern, ".")


def test_a_narrowing_rule_reaches_into_folders() -> None:
    allow = [Rule(decision="allow", effect=kind) for kind in (K.READ, K.WRITE, K.DELETE)]
    for kind in (K.READ, K.DELETE):
        whole = Effect(kind=kind, path=".", below=True)
        itself = Effect(kind=kind, path="private", below=True)
        other = Effect(kind=kind, path="src", below=True)
        assert verdict([whole], *allow, deny("private/**")) == "ask"
        assert verdict([itself], *allow, deny("private/**")) == "deny"
        assert verdict([other], *allow, deny("private/**")) == "allow"
        assert verdict([itself], *allow, deny("private/**", K.WRITE)) == "allow"


def test_a_plan_that_spares_a_folder_does_not_cover_what_holds_it() -> None:
    scope = Scope(paths=("src/", "src"), kinds=(K.DELETE,), not_touch=("src/keep/**",))
    assert verdict([Effect(kind=K.DELETE, path="src", below=True)], scope=scope) == "ask"
    assert verdict([Effect(kind=K.DELETE, path="src/keep", below=True)], scope=scope) == "ask"
    assert verdict([Effect(kind=K.DELETE, path="src/a", below=True)], scope=scope) == "allow"


def test_what_may_be_shown_of_a_folder() -> None:
    ask = Rule(decision="ask", effect=K.READ, path="drafts/")
    rules = [deny("private/**"), ask, Rule(decision="deny", effect=K.WRITE, path="src/")]
    shown = readable(rules)
    names = ["a", "private", "private/x", "drafts/x", "src/a", "/etc/x"]
    assert [name for name in names if shown(name)] == ["a", "src/a", "/etc/x"]
    approved = readable(rules, [Effect(kind=K.READ, path="drafts")])
    assert [name for name in names if approved(name)] == ["a", "drafts/x", "src/a", "/etc/x"]
