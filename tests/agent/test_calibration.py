"""Estimates are corrected by what endpoints report, and what is sent does not depend on that."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unabridged.agent.calibration import learn, read_scale
from unabridged.agent.events import PackSegment, RepositoryLoaded, RequestSent

if TYPE_CHECKING:
    from .conftest import Bench


async def test_the_second_session_knows_what_the_first_was_told(
    bench: Bench, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    (bench.repo / "big.py").write_bytes(b"some_name = other_name\n" * 20_000)
    reported = 0
    estimated: list[int] = []
    loads: list[RepositoryLoaded] = []
    texts: list[list[str]] = []
    for _ in range(2):
        session = await bench.play(["Hello."], cache=cache, tools=())
        loads += bench.of(session, RepositoryLoaded)
        texts.append([event.text for event in bench.of(session, PackSegment)])
        estimated += [sent.estimated_tokens for sent in bench.of(session, RequestSent)]
        reported = session.core.state.spent.prompt
    assert loads[0].estimated == loads[1].estimated
    assert abs(estimated[1] - reported) < 0.03 * reported
    assert abs(loads[0].tokens - reported) > 0.05 * reported, "it was off at first"
    assert texts[0] == texts[1]


def test_a_report_that_cannot_be_is_not_believed(tmp_path: Path) -> None:
    learn(tmp_path, "m", 1000, 100_000)
    learn(tmp_path, "m", 1000, 3)
    learn(tmp_path, "m", 0, 3)
    assert read_scale(tmp_path, "m") == 1.0
    learn(tmp_path, "m", 1000, 1200)
    assert read_scale(tmp_path, "m") == pytest.approx(1.2)
    assert read_scale(tmp_path, "other") == 1.0
    assert read_scale(None, "m") == 1.0
    for damage in (b"", b"[]", b'{"m": "x"}', b'{"m": -4}', b'{"m": NaN}'):
        (tmp_path / "calibration.json").write_bytes(damage)
        assert read_scale(tmp_path, "m") == 1.0


@given(st.lists(st.floats(0.6, 1.9), min_size=8, max_size=20))
def test_it_follows_the_reports(
    tmp_path_factory: pytest.TempPathFactory, ratios: list[float]
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    for ratio in ratios:
        learn(folder, "m", 1_000_000, int(1_000_000 * ratio))
    assert min(ratios) - 0.01 <= read_scale(folder, "m") <= max(ratios) + 0.01
    for _ in range(8):
        learn(folder, "m", 1_000_000, 1_100_000)
    assert read_scale(folder, "m") == pytest.approx(1.1, abs=0.01)
