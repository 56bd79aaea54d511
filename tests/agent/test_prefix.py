"""C59, C60: what is sent begins as before, and what breaks that is named."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unabridged.agent import prefix as module
from unabridged.agent.context.load import Options
from unabridged.agent.events import Elided, PrefixChanged, RequestSent
from unabridged.agent.headless import Output, run_headless
from unabridged.agent.prefix import Prefix, first_difference, read_prefix, write_prefix
from unabridged.agent.session import Session

if TYPE_CHECKING:
    from .conftest import Bench

DONE = [("finish", {"status": "done", "summary": "Did it."})]
LOOK = [("list", {})]


def broken(session: Session) -> list[tuple[str, str]]:
    return [(e.block, e.since) for e in session.events if isinstance(e, PrefixChanged)]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


async def test_c60_two_sessions_of_one_task_send_the_same_prefix(bench: Bench, cache: Path) -> None:
    hashes: list[list[str]] = []
    for kept in (None, cache, cache):
        session = await bench.play([LOOK, LOOK, DONE], cache=kept)
        hashes.append([e.prefix_hash for e in session.events if isinstance(e, RequestSent)])
        assert not broken(session)
    assert hashes[0] == hashes[1] == hashes[2]


async def test_an_edit_between_sessions_is_appended_and_breaks_nothing(
    bench: Bench, cache: Path
) -> None:
    (bench.repo / "big.py").write_bytes(b"".join(b"x%d = 1\n" % n for n in range(2000)))
    first = await bench.play([DONE], cache=cache)
    (bench.repo / "a.py").write_bytes(b"def f():\n    return 2\n")
    second = await bench.play([DONE], cache=cache)
    assert not broken(second)
    packed = len(bench.messages(first)) - 1
    assert bench.messages(second)[:packed] == bench.messages(first)[:packed]
    assert "return 2" in bench.messages(second)[packed]["content"]
    fresh = await bench.play([DONE], cache=cache, rebuild=True)
    assert "return 2" not in bench.messages(fresh)[-1]["content"]
    assert broken(fresh) == [("pack segment 1", "the last session here")]


@pytest.mark.parametrize(
    ("change", "block"),
    [
        ({"model": "kimi-k3-next"}, "model"),
        ({"effort": "low"}, "effort"),
        ({"instructions": "Be brief."}, "system"),
        ({"tools": ()}, "tools"),
        ({"context": Options(exclude=["b.py"])}, "pack segment 1"),
    ],
)
async def test_what_a_new_session_changes_is_named(
    bench: Bench, cache: Path, change: dict[str, Any], block: str
) -> None:
    await bench.play(["Hello."], cache=cache)
    session = await bench.play(["Hello."], cache=cache, **change)
    assert broken(session) == [(block, "the last session here")]
    again = await bench.play(["Hello."], cache=cache, **change)
    assert not broken(again)
    result = session.result()
    assert result.context is not None
    assert result.context.prefix_changes == (f"{block}, since the last session here",)


@pytest.mark.parametrize("change", ["model", "effort"])
async def test_what_a_resumed_session_changes_is_named(bench: Bench, change: str) -> None:
    await bench.play([LOOK, DONE])
    same = await bench.play_on([LOOK, DONE], "Go on.")
    assert not broken(same)
    other = await bench.play_on([LOOK, DONE], "Go on.", **{change: "low"})
    assert broken(other) == [(change, "the request before")]


async def test_another_endpoint_has_nothing_cached(bench: Bench) -> None:
    await bench.play([DONE])
    session = bench.resume([DONE])
    session.provider.endpoint = "elsewhere"
    await bench.run(session, "Go on.")
    assert broken(session) == [("endpoint", "the request before")]


async def test_a_circle_left_out_is_named_by_its_first_message(bench: Bench) -> None:
    stuck = await bench.play([LOOK] * 12)
    assert bench.code(stuck) == 6
    again = await bench.play_on([LOOK, DONE], "Go on.")
    (elided,) = [e for e in again.events if isinstance(e, Elided)]
    ((block, since),) = broken(again)
    kind, number = block.split()
    assert (kind, since) == ("message", "the request before")
    before = bench.messages(stuck)
    now = bench.messages(again, 0)
    differing = next(n for n, (a, b) in enumerate(zip(before, now, strict=False)) if a != b)
    assert int(number) == differing + 1
    assert elided.seq > 0


async def test_the_meter_tells_people(bench: Bench, cache: Path, capsys: Any) -> None:
    for effort in ("max", "low"):
        session = bench.create([LOOK, DONE], cache=cache, effort=effort, price=lambda _usage: 0.25)
        await run_headless(session, "go", Output())
    told = capsys.readouterr().err
    assert "prefix: the effort is not as in the last session here: from there on nothing" in told
    assert " tokens cached, " in told
    assert ", 0.2500 USD" in told


# --- the comparison -------------------------------------------------------------------------------

texts = st.sampled_from(["a", "b"])
prefixes = st.builds(
    Prefix, texts, texts, texts, texts, texts, st.lists(texts, max_size=3).map(tuple)
)


@given(prefixes, prefixes)
def test_a_prefix_is_kept_only_by_one_that_repeats_it(before: Prefix, now: Prefix) -> None:
    block = first_difference(before, now)
    cut = replace(now, segments=now.segments[: len(before.segments)])
    assert (block is None) == (cut == before)
    assert first_difference(before, before) is None
    grown = replace(before, segments=(*before.segments, "c"))
    assert first_difference(before, grown) is None
    assert first_difference(grown, before) == f"pack segment {len(grown.segments)}"


def test_only_the_latest_repositories_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_KEPT", 3)
    for number in range(5):
        write_prefix(tmp_path, Path(f"/r{number}"), Prefix(model="m"))
        time.sleep(0.01)
    known = [read_prefix(tmp_path, Path(f"/r{number}")) is not None for number in range(5)]
    assert known == [False, False, True, True, True]


@given(prefixes)
def test_a_prefix_is_kept_between_sessions(tmp_path_factory: Any, prefix: Prefix) -> None:
    folder = tmp_path_factory.mktemp("cache")
    assert read_prefix(folder, Path("/r")) is None
    write_prefix(folder, Path("/r"), prefix)
    assert read_prefix(folder, Path("/r")) == prefix
    assert read_prefix(folder, Path("/s")) is None
    (file,) = folder.rglob("*.json")
    for damage in (b"", b"[]", b"{}", b'{"segments": 1}', b'{"segments": [], "more": 1}'):
        file.write_bytes(damage)
        assert read_prefix(folder, Path("/r")) in (None, Prefix())
