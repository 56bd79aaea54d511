"""Rules that the user made in a dialogue: worked out from effects, shown, kept in the settings."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from .config import ConfigError, Flags, config_folder, load_config
from .effects import Effect, EffectKind
from .policy import ALWAYS_ASK, PATH_KINDS, Rule, decide_effect
from .scope import Scope

ORIGIN = "you, in a dialogue"


def asked(effects: Sequence[Effect], rules: Sequence[Rule], scope: Scope | None) -> list[Effect]:
    """Those of a call's effects for which a person is asked."""
    return [one for one in effects if decide_effect(one, rules, scope).verdict == "ask"]


def rules_for(effects: Sequence[Effect], *, broad: bool = False) -> tuple[Rule, ...] | None:
    """Rules that would allow these effects; None where no rule can.

    Narrow: the very command, the very file. Broad: the program with its sub-command and any
    further words, the folder of the file.
    """
    found: list[Rule] = []
    for effect in effects:
        rule = _rule(effect, broad)
        if rule is None:
            return None
        if rule not in found:
            found.append(rule)
    return tuple(found)


def _rule(effect: Effect, broad: bool) -> Rule | None:
    if effect.kind in ALWAYS_ASK or effect.kind is EffectKind.SECRET:
        return None
    if effect.kind is EffectKind.EXECUTE:
        if not effect.command:
            return None
        words = (*effect.command[: 1 + _subcommand(effect)], "*") if broad else effect.command
        if words[-1] == "*" and not broad:
            return None  # a last `*` is a word of the command, and would be read as a wildcard
        other = (*words[:-2], f"{words[-2]}-other") if broad else (*words, "--other")
        return _made(effect.kind, command=words, match=(shlex.join(effect.command),),
                     not_match=(shlex.join(other),))  # fmt: skip
    if effect.kind in PATH_KINDS:
        if effect.path is None or effect.path.strip() != effect.path or effect.path[-1:] == "/":
            return None
        path = effect.path
        if broad and "/" in path.strip("/"):
            folder = str(PurePosixPath(path).parent)
            return _made(effect.kind, path=f"{anchored(folder)}/", match=(path,),
                         not_match=(f"{folder}.other/x",))  # fmt: skip
        return _made(effect.kind, path=anchored(path), match=(path,), not_match=_others(path))
    return _made(effect.kind)


def _others(path: str) -> tuple[str, ...]:
    """A path that a rule for this one must not match; none where it is for the whole root."""
    return () if path == "." else (f"{path}.other",)


def _subcommand(effect: Effect) -> bool:
    """Whether the second word says what the program does, as in `git log`."""
    return len(effect.command) > 1 and effect.command[1].isalpha()


def anchored(path: str) -> str:
    """A path of an effect as a pattern that means this path and no other."""
    escaped = "".join(f"\\{c}" if c in "*?[]\\!#" else c for c in path)
    return escaped if path.startswith("/") else f"./{escaped}"


def _made(
    effect: EffectKind,
    *,
    path: str | None = None,
    command: tuple[str, ...] | None = None,
    match: tuple[str, ...] = (),
    not_match: tuple[str, ...] = (),
) -> Rule | None:
    try:
        return Rule(decision="allow", effect=effect, path=path, command=command, match=match,
                    not_match=not_match, origin=ORIGIN)  # fmt: skip
    except ValueError:
        return None  # a name that no pattern can hold


def scope_for(effects: Sequence[Effect]) -> Scope:
    """A scope that covers these effects, as far as one can."""
    return Scope(
        paths=tuple(
            anchored(e.path) for e in effects if e.path is not None and e.kind in PATH_KINDS
        ),
        kinds=tuple(dict.fromkeys(e.kind for e in effects if e.kind is not EffectKind.EXECUTE)),
        commands=tuple(e.command for e in effects if e.command),
    )


def as_toml(rule: Rule) -> str:
    """A rule as it stands in the settings."""
    lines = ["[[rule]]", f"decision = {_quoted(rule.decision)}"]
    if rule.effect is not None:
        lines.append(f"effect = {_quoted(rule.effect.value)}")
    if rule.path is not None:
        lines.append(f"path = {_quoted(rule.path)}")
    if rule.command is not None:
        lines.append(f"command = [{', '.join(map(_quoted, rule.command))}]")
    if rule.match:
        lines.append(f"match = [{', '.join(map(_quoted, rule.match))}]")
    if rule.not_match:
        lines.append(f"not_match = [{', '.join(map(_quoted, rule.not_match))}]")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A basic string of TOML: one of JSON, but that it may not hold DEL either."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def remember(rules: Sequence[Rule], path: Path | None = None) -> Path:
    """Add rules at the end of the user's settings, whose other lines stay as they are.

    The file is read back before it takes the place of the one before. Returns its path. Raises
    ConfigError.
    """
    path = path if path is not None else config_folder() / "config.toml"
    try:
        before = path.read_bytes() if path.exists() else b""
        added = "\n".join(map(as_toml, rules)).encode()
        gap = b"" if not before else b"\n" if before.endswith(b"\n") else b"\n\n"
        fresh = path.with_name(path.name + ".new")
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_bytes(before + gap + added)
        try:
            if before:
                fresh.chmod(path.stat().st_mode & 0o777)
            load_config(Flags(), user=fresh, env={})
            os.replace(fresh, path.resolve())  # noqa: PTH105 - the atomic one, by its name
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}: the rule is not kept.") from error
    return path
