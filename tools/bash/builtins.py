"""The shell's own commands: tests, printf, variables, and those that change the shell."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...agent.effects import Effect, EffectKind
from .site import Field, Site, unknown
from .syntax import words_of
from .usage import Meaning, meaning, not_understood, parse_words

_PATH_TESTS = words_of("-a -b -c -d -e -f -g -h -k -p -r -s -u -w -x -L -N -O -G -S")
_TEXT_TESTS = words_of("-n -z -o")
_TEXT_COMPARISONS = words_of("= == != < > =~")
_NUMBER_COMPARISONS = words_of("-eq -ne -lt -le -gt -ge")
_PATH_COMPARISONS = words_of("-nt -ot -ef")

TEST_YES = ("test -f README.md", "[ -d src ]", "[ -z \"$HOME\" ]", "[ a = b ]", "test 1 -lt 2",
            "[[ -f README.md && a == b* ]]", "[[ $# -gt 0 ]]", "[ $? -eq 0 ]")  # fmt: skip
TEST_NO = ("test -v 'a[$(id)]'", "[ -v 'a[$(id)]' ]", "[[ -v x ]]", "[[ $HOME -eq 1 ]]",
           "[ -f /etc/passwd ]", "[ $HOME = x ]", "[[ -R x ]]", "[[ 'a[$(id)]' -eq 0 ]]",
           "test $(rm x)", "[ \"$HOME\" \"$PATH\" ]")  # fmt: skip


def test(words: Sequence[Field], site: Site, *, arithmetic: bool) -> Meaning:
    """`test`, `[` and `[[`. In `[[`, -eq and its like evaluate what they compare: `arithmetic`."""
    effects: list[Effect] = []
    if any(word.several for word in words):
        return not_understood("words that may turn out to be operators")
    if not arithmetic and len(words) > 4 and any(word.text is None for word in words):
        return not_understood("words that may turn out to be operators")
    position = 0
    while position < len(words):
        word = words[position]
        left = word.text
        operator = words[position + 1].text if position + 1 < len(words) else None
        right = words[position + 2] if position + 2 < len(words) else None
        if right is not None and operator in _TEXT_COMPARISONS:
            position += 3
        elif right is not None and operator in _NUMBER_COMPARISONS:
            if arithmetic and not (_is_number(word) and _is_number(right)):
                return not_understood("a comparison that evaluates its operands", effects)
            position += 3
        elif right is not None and operator in _PATH_COMPARISONS:
            effects.extend((*site.look(word), *site.look(right)))
            position += 3
        elif left in ("!", "(", ")", "&&", "||", "-o") or (left == "-a" and position):
            position += 1
        elif left in _PATH_TESTS and position + 1 < len(words):
            effects.extend(site.look(words[position + 1]))
            position += 2
        elif (left in _TEXT_TESTS and position + 1 < len(words)) or (
            left == "-t" and position + 1 < len(words) and _is_number(words[position + 1])
        ):
            position += 2
        elif left is not None and left.startswith("-"):
            return not_understood(f"test `{left}`", effects)
        elif left is None and len(words) > 1 and not arithmetic:
            return not_understood("a word that may turn out to be an operator", effects)
        else:
            position += 1
    return meaning(effects)


def _is_number(word: Field) -> bool:
    return word.number or (
        word.text is not None and re.fullmatch(r"-?[0-9]+", word.text) is not None
    )


PRINTF_YES = ("printf '%s\\n' a b", "printf 'hi\\n'", "printf '%-10s %5d\\n' x 3")
PRINTF_NO = ("printf -v x hi", "printf '%n' 'a[$(id)]'", 'printf "$HOME"', "printf '%5n' x")


def printf(words: Sequence[Field], site: Site) -> Meaning:
    """`printf`: only prints, but for `-v` and `%n`, which assign."""
    parsed = parse_words(words, {}, stops=True)
    if parsed.doubts:
        return Meaning((), parsed.doubts)
    form = parsed.operands[0].text if parsed.operands else ""
    if form is None or re.search(r"%[^A-Za-z%]*[hlLqjzt]*n", form):
        return not_understood("its format may assign")
    return Meaning()


COMMAND_YES = ("command -v git", "command ls src")
COMMAND_NO = ("command rm README.md", "command make")


def command(words: Sequence[Field], site: Site) -> Meaning:
    """`command -v name` asks for a name; `command name ...` runs it."""
    parsed = parse_words(words, {"-v": "", "-V": "", "-p": ""}, stops=True)
    if parsed.has("-v -V"):
        return Meaning((), parsed.doubts)
    return Meaning((), parsed.doubts, runs=(parsed.operands,) if parsed.operands else ())


HARMLESS_NAMES = words_of("""LC_ALL LC_CTYPE LC_NUMERIC LC_TIME LC_COLLATE LC_MESSAGES LANG TZ COLUMNS LINES CI NO_COLOR
    CLICOLOR CLICOLOR_FORCE FORCE_COLOR PYTHONUNBUFFERED PYTHONDONTWRITEBYTECODE PYTHONHASHSEED
    RUST_BACKTRACE RUST_LOG NODE_ENV TERM DEBUG VERBOSE GIT_OPTIONAL_LOCKS""")
_HARMLESS_VALUE = re.compile(r"[A-Za-z0-9_+.@,:=-]*(?:/[A-Za-z0-9_+-]+)*")
_OWN_NAME = re.compile(
    r"[a-z_][a-z0-9_]*|[A-Z]|DIR|FILE|FILES|ROOT|SRC|OUT|BASE|NAME|COUNT|PATTERN"
)
_LOWER_MEANINGFUL = re.compile(r".*_proxy|histchars|auto_resume|_")


def is_harmless(name: str, value: str | None) -> bool:
    """Whether setting a variable in the environment of a known program changes nothing of note."""
    if name == "GIT_OPTIONAL_LOCKS":
        return value == "0"
    return (
        name in HARMLESS_NAMES
        and value is not None
        and not value.startswith("/")
        and bool(_HARMLESS_VALUE.fullmatch(value))
    )


def is_own(name: str) -> bool:
    """Whether a name is a variable of the line itself, which no program looks at."""
    return bool(_OWN_NAME.fullmatch(name)) and not _LOWER_MEANINGFUL.fullmatch(name)


DECLARE_YES = ("export LANG=C", "local x=1", "readonly name=a")
DECLARE_NO = ("export PATH=.", "export GIT_PAGER=./evil", "declare -i x='a[$(id)]'", "export -p",
              "declare -n ref=PATH", "export", "export BASH_ENV=x", "export x=\"$(rm y)\"")  # fmt: skip


def declare(words: Sequence[Field], site: Site) -> Meaning:
    """`export`, `local`, `readonly`, `declare`, `typeset` of plain variables."""
    assignments: list[tuple[str, str | None]] = []
    for word in words:
        source = word.text if word.text is not None else word.head
        found = re.match(r"([A-Za-z_][A-Za-z0-9_]*)=", source)
        if found is None or word.several:
            effect = Effect(kind=EffectKind.SECRET, detail="the environment may hold keys")
            return Meaning((effect,), ("a declaration that is not modelled",), alters_shell=True)
        value = source[found.end() :] if word.text is not None else None
        name = found.group(1)
        if not is_harmless(name, value) and not is_own(name):
            return Meaning((), (f"it sets {name} for later commands",), alters_shell=True)
        assignments.append((name, value))
    if not words:
        effect = Effect(kind=EffectKind.SECRET, detail="the environment may hold keys")
        return Meaning((effect,), ("it lists the environment",))
    return Meaning(assignments=tuple(assignments))


SET_YES = ("set -e", "set -euo pipefail", "set -x", "set +e", "set -o pipefail")
SET_NO = ("set", "set -a", "set -- a b", "set -o posix", "set -k", "set -f", "set -o allexport")


def set_(words: Sequence[Field], site: Site) -> Meaning:
    """`set` with the options of careful scripts; others change what later commands mean."""
    position = 0
    while position < len(words):
        text = words[position].text or ""
        position += 1
        if not re.fullmatch(r"[-+][euxv]*o?", text) or len(text) < 2:
            return Meaning((), ("it changes the shell's options",), alters_shell=True)
        if text.endswith("o"):
            option = words[position].text if position < len(words) else None
            position += 1
            if option not in ("pipefail", "errexit", "nounset", "xtrace", "verbose"):
                return Meaning((), ("it changes the shell's options",), alters_shell=True)
    if not words:
        effect = Effect(kind=EffectKind.SECRET, detail="the environment may hold keys")
        return Meaning((effect,), ("it lists every variable",))
    return Meaning()


UNSET_YES = ("unset x",)
UNSET_NO = ("unset PATH", "unset -f ls", "unset GIT_PAGER", "unset 'a[$(id)]'")


def unset(words: Sequence[Field], site: Site) -> Meaning:
    """`unset` of the line's own variables."""
    if words and all(word.text is not None and is_own(word.text) for word in words):
        return Meaning(assignments=tuple((word.text or "", None) for word in words))
    return Meaning((), ("it unsets what later commands may rely on",), alters_shell=True)


CD_YES = ("cd src", "cd .", "cd src/../src")
CD_NO = ("cd", "cd /etc", "cd ..", "cd -", "cd ~", "cd $HOME", "cd --x")


def cd(words: Sequence[Field], site: Site) -> Meaning:
    """`cd`: the folder is looked at; where it leads is the walker's business."""
    parsed = parse_words(words, {"-L": "", "-P": "", "-e": ""})
    doubts = list(parsed.doubts)
    if len(parsed.operands) > 1:
        doubts.append("more than one folder")
    if not parsed.operands or parsed.operands[0].text in (None, "-"):
        return Meaning(unknown(EffectKind.READ, "cd"), tuple(doubts))
    return Meaning(site.look(parsed.operands[0]), tuple(doubts))
