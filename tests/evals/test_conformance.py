"""The permission table of `safety`: every case, through the tools and the policy."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from unabridged.evals.conformance import Case, cases, decided, repository


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repository(tmp_path_factory.mktemp("conformance"))


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.name)
def test_a_call_gets_its_decision(case: Case, root: Path) -> None:
    assert decided(case, root) == case.expected


def test_the_table_has_all_kinds_of_decisions() -> None:
    found = Counter(case.expected for case in cases())
    assert found.total() >= 120
    assert min(found[said] for said in ("allow", "ask", "deny", "refused")) >= 10
    assert len({case.name for case in cases()}) == found.total()
