"""`symbols`: where a name is declared, where it is used, and what calls it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from ..agent.context.errors import ContextError
from ..agent.context.symbols import Definition, Reference, find
from ..agent.effects import Effect, EffectKind
from .base import Arguments, Context, Facts, Result, Tool, ToolError, path_effects
from .files import in_thread
from .text import plural


class SymbolsArguments(Arguments):
    """Which name, and what about it."""

    name: Annotated[
        str,
        Field(
            min_length=1,
            description="An identifier. `Class.method` looks for `method` inside `Class`.",
        ),
    ]
    what: Annotated[
        Literal["definitions", "references", "callers"],
        Field(
            description="definitions: where it is declared. references: the lines that use it. "
            "callers: the functions that call it."
        ),
    ] = "definitions"
    path: Annotated[
        str, Field(description="Folder or file, relative to the repository root. Default: all.")
    ] = "."
    limit: Annotated[int, Field(ge=1, le=5000, description="Most lines to show.")] = 200


class Symbols(Tool[SymbolsArguments]):
    """Find declarations and uses of a name."""

    name = "symbols"
    description = (
        "Find where a name is declared, used, or called from, in the files as they are now. "
        "Declarations are known for Python, JavaScript, TypeScript, Go, Rust, Java, C and C++; "
        "references and callers go by name, so two things of the same name are not told apart. "
        "Vendored, generated and ignored files and files that may hold secrets are left out."
    )
    arguments = SymbolsArguments

    def effects(self, args: SymbolsArguments, facts: Facts) -> tuple[Effect, ...]:
        return path_effects(EffectKind.READ, facts.locate(args.path))

    async def run(self, args: SymbolsArguments, context: Context) -> Result:
        if re.search(r"[\s()]", args.name.strip()) or not args.name.strip(".: "):
            raise ToolError(
                f"{args.name!r} is no identifier: give the bare name, or `Class.method`. `search` "
                "finds other text."
            )
        where = context.facts.locate(args.path)
        if not where.inside:
            raise ToolError(f"{args.path} is outside the repository: `symbols` looks inside it.")
        if not where.path.exists():
            raise ToolError(f"{where.name} does not exist. Use `list` to see what is there.")
        under = "" if where.name == "." else where.name
        try:
            found = await in_thread(
                lambda stop: find(
                    context.facts.root, args.name.strip(), under=under, stop=stop.is_set
                )
            )
        except ContextError as error:
            raise ToolError(str(error)) from error
        definitions = [one for one in found.definitions if context.readable(one.file)]
        references = [one for one in found.references if context.readable(one.file)]
        closed = len(found.definitions) + len(found.references)
        closed -= len(definitions) + len(references)
        match args.what:
            case "definitions":
                lines, count = _definitions(definitions), len(definitions)
            case "references":
                lines, count = _lines(references), len(references)
            case _:
                callers = [one for one in references if one.call]
                lines, count = _callers(callers), len(callers)
        heading = f"{plural(count, args.what[:-1])} of {args.name}"
        if found.unparsed:
            heading += (
                f"; {plural(len(found.unparsed), 'file')} with the name in other languages, "
                "use `search` for them"
            )
        if closed:
            heading += "; places in files that a rule does not allow reading are left out"
        shown = lines[: args.limit]
        if len(lines) > len(shown):
            shown.append(
                f"… {plural(len(lines) - len(shown), 'more line')}: raise `limit` or give `path`"
            )
        return Result("\n".join([f"{heading}:" if lines else f"{heading}.", *shown]))


def _definitions(definitions: Iterable[Definition]) -> list[str]:
    by_file: dict[str, list[Definition]] = defaultdict(list)
    for one in definitions:
        by_file[one.file].append(one)
    lines: list[str] = []
    for file, ones in by_file.items():
        lines.append(file)
        for one in ones:
            inside = f"  (in {one.inside})" if one.inside else ""
            doc = f"  — {one.declaration.doc}" if one.declaration.doc else ""
            span = f"{one.declaration.line}-{one.declaration.end}"
            lines.append(f"  {span}: {one.declaration.signature}{inside}{doc}")
    return lines


def _lines(references: Iterable[Reference]) -> list[str]:
    by_file: dict[str, list[Reference]] = defaultdict(list)
    for one in references:
        by_file[one.file].append(one)
    lines: list[str] = []
    for file, ones in by_file.items():
        lines.append(file)
        for one in ones:
            inside = f"  (in {one.inside})" if one.inside else ""
            lines.append(f"  {one.line}: {one.text}{inside}")
    return lines


def _callers(calls: Iterable[Reference]) -> list[str]:
    by_caller: dict[tuple[str, str], list[int]] = defaultdict(list)
    for one in calls:
        by_caller[one.file, one.inside].append(one.line)
    lines: list[str] = []
    last = ""
    for (file, inside), at in by_caller.items():
        if file != last:
            lines.append(file)
            last = file
        numbers = ", ".join(map(str, at))
        lines.append(f"  {inside or 'top level'}: line{'s' if len(at) > 1 else ''} {numbers}")
    return lines
