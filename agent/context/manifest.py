"""The last part of a pack: what the model should know about what it was and was not given."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from .pack import quote
from .walk import IGNORED_BY_GIT, Left


def manifest(
    files: int,
    size: int,
    outlined: Sequence[Left],
    skipped: Sequence[Left],
    fits: Callable[[str], bool],
) -> str:
    """Name what is not given whole, with the reason.

    Long lists are told by folder with counts, ever more briefly until `fits` agrees. Files that
    git ignores are not part of the repository and not told: another clone does not have them.
    """
    told = [left for left in skipped if left.reason != IGNORED_BY_GIT]
    text = ""
    for most in (400, 150, 60, 25, 10, 3, 1):
        lines = [
            "<manifest>",
            f"Whole above: {_files(files)}, {size:,} bytes.",
            *section("As outlines; `read` gives the text:", outlined, most),
            *section("Not above; `read` and `list` reach most of it:", told, most),
            "Files that git ignores are not mentioned.",
            "</manifest>",
        ]
        text = "\n".join(lines) + "\n"
        if fits(text):
            break
    return text


def news(left: Sequence[Left], gone: Sequence[str]) -> str:
    """For a section of differences: what is newly left out, and what is there no more."""
    lines = [
        "<manifest>",
        *section("Not above; `read` and `list` reach most of it:", left, 100),
        *section("There no more:", [Left(name, "deleted") for name in gone], 100),
        "</manifest>",
    ]
    return "\n".join(lines) + "\n"


def section(title: str, entries: Sequence[Left], most: int) -> list[str]:
    """A title and the entries by reason; nothing when there are none."""
    if not entries:
        return []
    by_reason: dict[str, list[str]] = defaultdict(list)
    for entry in entries:
        by_reason[entry.reason].append(entry.name)
    lines = [title]
    for reason, names in sorted(by_reason.items()):
        lines.append(f"  {reason}:")
        lines += [f"    {line}" for line in by_folder(names, most)]
    return lines


def by_folder(names: Iterable[str], most: int) -> list[str]:
    """At most about `most` lines that account for every name: names, else folders with counts.

    The deepest grouping that is short enough is taken; what lies higher keeps its own name.
    """
    ordered = sorted(names)
    if len(ordered) <= most:
        return [quote(name) for name in ordered]
    for depth in range(max(name.count("/") for name in ordered), 0, -1):
        groups: dict[str, int] = defaultdict(int)
        for name in ordered:
            groups[_ancestor(name, depth)] += 1
        if len(groups) <= most:
            return [
                quote(group) + (f" ({_files(count)})" if count > 1 else "")
                for group, count in groups.items()
            ]
    return [f"{_files(len(ordered))} in {len({_ancestor(name, 1) for name in ordered}):,} places"]


def _ancestor(name: str, depth: int) -> str:
    """The folder `depth` parts down that holds `name`, or `name` when it lies higher."""
    parts = name.split("/", depth)
    return "/".join(parts[:depth]) + "/" if len(parts) > depth else name


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"
