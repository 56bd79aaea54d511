"""Outlines: what a file declares, with line numbers, in a fraction of its tokens."""

from __future__ import annotations

import re

from .syntax import declarations

_HEAD_LINES = 8
_LONGEST = 160

# For languages without a grammar here: lines that look like declarations, and headings.
_DECLARES = re.compile(
    r"^\s{0,4}(?:(?:export|default|public|private|protected|internal|static|final|abstract|async|pub"
    r"|open|override|sealed|data|local|inline|virtual|extern|unsafe)\s+)*"
    r"(?:def|defp|defmodule|defmacro|class|module|function|func|fun|fn|interface|struct|enum|trait"
    r"|type|object|protocol|extension|impl|sub|proc|procedure|package|namespace|message|service|rpc"
    r"|CREATE\s+(?:TABLE|VIEW|FUNCTION|INDEX))\b"
)
_HEADING = re.compile(r"^(?:#{1,6} |={1,6} \S|\*{1,4} \S)")
_UNDERLINE = re.compile(r"^([=\-~^\"'*+#])\1{2,}\s*$")
_KEYWORD_FREE = frozenset({"json", "csv", "tsv", "xml", "txt", "log", "po", "svg", "yaml", "yml"})
_PROSE = frozenset({"md", "mdx", "rst", "adoc", "asciidoc", "txt", "org"})


def outline(name: str, text: str) -> str:
    """The outline of a file's text, one declaration, heading or first line a line."""
    declared = declarations(name, text.encode("utf-8", "replace"))
    if declared:
        kept = [
            f"{one.line}: {'  ' * one.depth}{one.signature}" + (f"  — {one.doc}" if one.doc else "")
            for one in declared
        ]
    else:
        kept = _plain(name, text.split("\n"))
    return "\n".join(kept) + "\n"


def _plain(name: str, lines: list[str]) -> list[str]:
    suffix = name.rpartition(".")[2].lower()
    if suffix in _PROSE:
        found = [at for at, line in enumerate(lines) if _is_heading(lines, at, line)]
    elif suffix in _KEYWORD_FREE:
        found = []
    else:
        found = [at for at, line in enumerate(lines) if _DECLARES.match(line)]
    if found:
        return [f"{at + 1}: {_short(lines[at])}" for at in found]
    kept = [f"{at}: {_short(line)}" for at, line in enumerate(lines[:_HEAD_LINES], 1)]
    if len(lines) > _HEAD_LINES:
        kept.append(f"… {len(lines):,} lines in all")
    return kept


def _is_heading(lines: list[str], at: int, line: str) -> bool:
    if _HEADING.match(line):
        return True
    below = lines[at + 1] if at + 1 < len(lines) else ""
    return bool(line.strip() and _UNDERLINE.match(below)) and not _UNDERLINE.match(line)


def _short(line: str) -> str:
    line = line.rstrip()
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
