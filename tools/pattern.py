"""The regular expressions of `search`: what ripgrep and Python's `re` understand alike.

A pattern is rewritten so that both engines take it for the same thing, or refused with a reason.
"""

from __future__ import annotations

import re

_CLASSES = frozenset("dDwWsSbB")
_CONTROLS = frozenset("tfv")
_META = frozenset("\\.+*?()|[]{}^$#&-~")
_GROUPS = ("(?:", "(?P<", "(?i)", "(?i:")
_NEVER = r"\r\udc80-\udcff"
_REPETITION = re.compile(r"(?:[*+?]|\{\d+(?:,\d*)?\})\??")


class PatternError(ValueError):
    """A pattern that the two engines do not both understand, and what to do instead."""


def common(pattern: str) -> str:
    """The pattern in the form both engines read alike. Raises PatternError."""
    if "\n" in pattern or "\r" in pattern:
        raise PatternError("a line break: patterns match within one line")
    out: list[str] = []
    at = 0
    in_class = repeated = False
    while at < len(pattern):
        char = pattern[at]
        repetition = None if in_class else _REPETITION.match(pattern, at)
        if repetition:
            piece, at = repetition[0], repetition.end()
            if repeated:
                raise PatternError(f"`{out[-1]}{piece}`, a repetition of a repetition")
        elif char == "\\":
            piece, at = _escape(pattern, at, in_class)
        elif in_class:
            piece, at = _in_class(pattern, at)
            in_class = char != "]"
        elif char == "[":
            piece, at = _class_start(pattern, at)
            in_class = True
        elif pattern.startswith("(?", at):
            piece, at = _group(pattern, at)
        elif char == "{":  # literal for Python, an error for ripgrep
            piece, at = r"\{", at + 1
        else:
            piece, at = char, at + 1
        out.append(piece)
        repeated = repetition is not None
    text = "".join(out)
    try:
        re.compile(text)
    except (re.error, OverflowError) as error:
        raise PatternError(str(error)) from error
    return text


def for_python(text: str) -> str:
    """A common pattern for lines whose wrong bytes were decoded as surrogates.

    Nothing matches such a byte or a carriage return: for ripgrep they are no character and a part
    of a line's end.
    """
    out: list[str] = []
    at = 0
    in_class = False
    while at < len(text):
        piece = text[at : at + 2] if text[at] == "\\" or text.startswith("[^", at) else text[at]
        at += len(piece)
        if in_class:
            in_class = piece != "]"
        elif piece in ("[", "[^"):
            in_class = True
            piece += _NEVER if piece == "[^" else ""
        elif piece in (r"\D", r"\S", r"\W"):
            piece = f"[^{piece.lower()}{_NEVER}]"
        elif piece == r"\s":
            piece = r"[^\S\r]"
        elif piece == ".":
            piece = rf"[^\n{_NEVER}]"
        out.append(piece)
    return "".join(out)


def _escape(pattern: str, at: int, in_class: bool) -> tuple[str, int]:
    char = pattern[at + 1 : at + 2]
    if not char:
        raise PatternError("a backslash at the end")
    if in_class and char in "bBAz":
        raise PatternError(f"`\\{char}` in a class")
    if char in ("n", "r"):
        raise PatternError(f"`\\{char}`: patterns match within one line")
    if char in _CLASSES or char in _CONTROLS:
        return f"\\{char}", at + 2
    if char in "Az":
        return "^" if char == "A" else "$", at + 2
    if char in "xuU":
        digits = {"x": 2, "u": 4, "U": 8}[char]
        found = re.match(rf"[0-9a-fA-F]{{{digits}}}", pattern[at + 2 :])
        if not found:
            raise PatternError(f"`\\{char}` without its {digits} hexadecimal digits")
        return f"\\{char}{found[0]}", at + 2 + digits
    if char in _META:
        return f"\\{char}", at + 2
    if char.isalnum():
        kind = "a reference to a group" if char.isdigit() else "an escape that is not supported"
        raise PatternError(f"`\\{char}`, {kind}")
    return char, at + 2  # a needless backslash, as in \" or \/


def _class_start(pattern: str, at: int) -> tuple[str, int]:
    start = "[^" if pattern[at + 1 : at + 2] == "^" else "["
    at += len(start)
    if pattern[at : at + 1] == "]":  # first in a class it stands for itself
        return start + r"\]", at + 1
    return start, at


def _in_class(pattern: str, at: int) -> tuple[str, int]:
    char = pattern[at]
    if char == "[":
        if pattern[at + 1 : at + 2] in (":", ".", "="):
            raise PatternError(f"`{pattern[at : at + 2]}`, a POSIX class: write the characters")
        return r"\[", at + 1
    if char in "&~":  # doubled they are set operations for ripgrep
        return f"\\{char}", at + 1
    if pattern.startswith("--", at):
        raise PatternError("`--` in a class: write one of them as `\\-`")
    return char, at + 1


def _group(pattern: str, at: int) -> tuple[str, int]:
    if pattern.startswith("(?<", at) and pattern[at + 3 : at + 4] not in ("=", "!"):
        return "(?P<", at + 3
    for group in _GROUPS:
        if pattern.startswith(group, at):
            if group.endswith(")") and at > 0:
                raise PatternError(f"`{group}` not at the start")
            return group, at + len(group)
    raise PatternError(
        f"`{pattern[at : at + 4]}`: look-around, conditions, atomic groups and this flag are not "
        f"supported"
    )
