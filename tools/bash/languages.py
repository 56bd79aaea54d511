"""Small languages inside arguments: whether a sed, awk or jq program only filters."""

from __future__ import annotations

import re


def sed(script: str) -> str | None:
    """Why a sed script may do more than filter (`w`, `r`, `e`); None when it only filters."""
    position = 0
    while position < len(script):
        if script[position] in " \t\n;}":
            position += 1
            continue
        if script[position] == "#":
            end = script.find("\n", position)
            position = len(script) if end < 0 else end
            continue
        moved = _sed_address(script, position)
        if moved is None:
            return "a sed address that is not understood"
        position = moved
        while position < len(script) and script[position] in " \t!":
            position += 1
        if position >= len(script):
            return "a sed script without a command"
        command = script[position]
        position += 1
        if command == "{":
            continue
        if command in "sy":
            moved = _sed_substitute(script, position, flags=command == "s")
            if moved is None:
                return "a sed substitution that is not understood"
            position = moved
        elif command in "aic":
            end = script.find("\n", position)
            end = len(script) if end < 0 else end
            if "\\" in script[position:end]:
                return "sed text that is not understood"
            position = end
        elif command in "pdDPNnhHgGxzqQ=lbtT:":
            argument = re.compile(r"[ \t]*[A-Za-z0-9_]*[ \t]*").match(script, position)
            position = argument.end() if argument else position
            if position < len(script) and script[position] not in ";\n}":
                return "a sed command that is not understood"
        else:
            return f"sed command `{command}`"
    return None


def _sed_address(script: str, position: int) -> int | None:
    """The position after an optional address or range."""
    for _ in range(2):
        found = re.compile(r"\d+(?:~\d+)?|\$|[+~]\d+").match(script, position)
        if found:
            position = found.end()
        elif script[position : position + 1] == "/":
            end = _delimited(script, position + 1, "/")
            if end is None:
                return None
            position = end
            while script[position : position + 1] in ("I", "M"):
                position += 1
        following = re.compile(r"[ \t]*,[ \t]*").match(script, position)
        if following is None:
            return position
        position = following.end()
    return position


def _delimited(script: str, position: int, delimiter: str) -> int | None:
    """The position after the closing delimiter; None when bracket rules could differ."""
    bracket = False
    while position < len(script):
        char = script[position]
        if char == "\\":
            position += 1
        elif char == "\n":
            return None
        elif char == delimiter:
            return None if bracket else position + 1
        elif char == "[":
            bracket = True
        elif char == "]":
            bracket = False
        position += 1
    return None


def _sed_substitute(script: str, position: int, *, flags: bool) -> int | None:
    delimiter = script[position : position + 1]
    if not delimiter or delimiter in "\\\n \t;" or delimiter.isalnum() or delimiter == "[":
        return None
    middle = _delimited(script, position + 1, delimiter)
    if middle is None:
        return None
    end = middle
    while end < len(script) and script[end] != delimiter:
        if script[end] == "\n":
            return None
        end += 2 if script[end] == "\\" else 1
    if end >= len(script):
        return None
    found = re.compile(r"[gpiIm0-9]*[ \t]*" if flags else r"[ \t]*").match(script, end + 1)
    position = found.end() if found else end + 1
    return position if position >= len(script) or script[position] in ";\n}" else None


_AWK_ACTS = re.compile(
    r"system|getline|close|fflush|ENVIRON|ARGV|ARGC|ARGIND|PROCINFO|SYMTAB|FUNCTAB|@\s*\w|\||>"
)
_AWK_COMPARISON = re.compile(r"(?<=[\w)\]])\s*>\s*[\d.]+(?=\s*(?:[{)&?;]|$))")


def awk(program: str) -> str | None:
    """Why an awk program may do more than filter; None when it only filters.

    `$3 > 10` is a comparison only where no action, string or pattern has begun; anywhere else
    `>` may be a redirection.
    """
    if "\\\n" in program:
        return "awk with joined lines"
    start = re.match(r"[^{\"/#\n]*", program)
    head = start.group() if start else ""
    text = _AWK_COMPARISON.sub(" ", head) + program[len(head) :]
    hit = _AWK_ACTS.search(text.replace("||", " ").replace(">=", " "))
    return f"awk `{hit.group()}`" if hit else None


_JQ_ACTS = re.compile(
    r"\$ENV|\b(?:\w*env\w*|import|include|get_search_list|modulemeta|load\w*|system|exec|eval)\b"
)


def jq(program: str) -> str | None:
    """Why a jq or yq program may do more than filter; None when it only filters."""
    if hit := _JQ_ACTS.search(program):
        return f"jq `{hit.group()}`"
    return None
