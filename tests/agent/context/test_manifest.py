"""The manifest accounts for everything, in whatever room it has."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from unabridged.agent.context.manifest import Names, manifest
from unabridged.agent.context.walk import IGNORED_BY_GIT, Left

part = st.text('ab\n"é', min_size=1, max_size=3)
names = st.lists(st.lists(part, min_size=1, max_size=4).map("/".join), min_size=1, unique=True)


@given(names, st.integers(1, 12))
def test_every_name_is_counted_once(ones: list[str], most: int) -> None:
    lines = Names(ones).lines(most)
    counts = [re.search(r"(?:^|\()([\d,]+) files?(?:\)$| in )", line) for line in lines]
    assert sum(int(found[1].replace(",", "")) if found else 1 for found in counts) == len(ones)
    assert len(lines) <= most or len(lines) == 1
    assert all("\n" not in line for line in lines)


def test_what_a_manifest_looks_like_with_and_without_room() -> None:
    skipped = [Left(f"docs/p{n}/f{m}", "does not fit") for n in range(3) for m in range(4)]
    skipped += [Left("uv.lock", "lock file"), Left("build/", IGNORED_BY_GIT)]
    roomy = manifest(2, 1234, [Left("a.py", "as asked")], skipped, lambda _: True)
    assert roomy.startswith("<manifest>\nWhole above: 2 files, 1,234 bytes.\n")
    assert roomy.count('"docs/p') == 12
    assert '  lock file:\n    "uv.lock"\n' in roomy
    assert "build/" not in roomy
    tight = manifest(2, 1234, [], skipped, lambda text: len(text) < 300)
    assert '    "docs/p0/" (4 files)\n    "docs/p1/" (4 files)\n' in tight
    tighter = manifest(2, 1234, [], skipped, lambda text: len(text) < 250)
    assert '    "docs/" (12 files)\n' in tighter
