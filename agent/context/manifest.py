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
    given = _by_reason(outlined)
    missing = _by_reason(left for left in skipped if left.reason != IGNORED_BY_GIT)
    text = ""
    for most in (400, 150, 60, 25, 10, 3, 1):
        lines = [
            "<manifest>",
            f"Whole above: {_files(files)}, {size:,} bytes.",
            *_lines("As outlines; `read` gives the text:", given, most),
            *_lines("Not above; `read` and `list` reach most of it:", missing, most),
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
    return _lines(title, _by_reason(entries), most)


def _by_reason(entries: Iterable[Left]) -> dict[str, Names]:
    by_reason: dict[str, list[str]] = defaultdict(list)
    for entry in entries:
        by_reason[entry.reason].append(entry.name)
    return {reason: Names(names) for reason, names in sorted(by_reason.items())}


def _lines(title: str, by_reason: dict[str, Names], most: int) -> list[str]:
    lines = [title] if by_reason else []
    for reason, names in by_reason.items():
        lines.append(f"  {reason}:")
        lines += [f"    {line}" for line in names.lines(most)]
    return lines


class Names:
    """Names that can be told one by one, or ever more briefly by folder with counts."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = sorted(names)
        # From every name on its own to top folders; each grouping is made from the one before.
        groups = dict.fromkeys(self._names, 1)
        self._groupings = [groups]
        for depth in range(max((name.count("/") for name in groups), default=0), 0, -1):
            above: dict[str, int] = defaultdict(int)
            for name, count in groups.items():
                above[_ancestor(name, depth)] += count
            groups = above
            self._groupings.append(groups)

    def lines(self, most: int) -> list[str]:
        """At most about `most` lines that account for every name, as detailed as that allows."""
        for groups in self._groupings:
            if len(groups) <= most:
                return [
                    quote(group) + (f" ({_files(count)})" if count > 1 else "")
                    for group, count in groups.items()
                ]
        return [f"{_files(len(self._names))} in {len(self._groupings[-1]):,} places"]


def _ancestor(name: str, depth: int) -> str:
    """The folder `depth` parts down that holds `name`, or `name` when it lies higher."""
    parts = name.split("/", depth)
    return "/".join(parts[:depth]) + "/" if len(parts) > depth else name


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"
