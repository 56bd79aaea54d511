from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import signal
import stat
import struct
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from unabridged.model.state_cli import add_parser
from unabridged.model.state_store import (
    StateStore,
    entries,
    fingerprint_checkpoint,
    prefix_hashes,
    prune,
    read_header,
    strangers,
)

FINGERPRINT = hashlib.sha256(b"weights").hexdigest()


def tensors(seed: int = 0, size: int = 64) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn(4, size, generator=generator)
    return {
        "kda.0.state": torch.randn(2, 4, 4, generator=generator),
        "kda.0.conv": torch.randn(3, 8, generator=generator).to(torch.bfloat16),
        "mla.1.latent": base.T,  # not contiguous
        "row": base[1],  # a view of a larger storage
        "position": torch.tensor(7),
        "empty": torch.empty(0, 5),
    }


def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and torch.equal(left[name], right[name])
        for name in left
    )


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    return StateStore(tmp_path / "states", FINGERPRINT)


def files(store: StateStore) -> list[Path]:
    return [path for path in store.root.rglob("*") if path.is_file()]


def test_a_state_comes_back_bit_for_bit(store: StateStore) -> None:
    saved = tensors()
    assert store.save([1, 2, 3], saved, {"model": "nano"})
    state = store.load([1, 2, 3, 4], 3)
    assert state is not None
    assert state.position == 3
    assert state.metadata == {"model": "nano"}
    assert equal(state.tensors, saved)
    (path,) = files(store)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_the_longest_stored_prefix_is_found(store: StateStore) -> None:
    for length, seed in ((2, 2), (5, 5), (8, 8)):
        store.save(list(range(length)), tensors(seed))
    store.save([9, 9, 9], tensors(9))
    assert store.positions(list(range(10))) == [2, 5, 8]
    assert store.positions([0, 1, 2, 3, 4, 99, 6, 7]) == [2, 5]
    for prompt, seed in ((list(range(8)), 8), (list(range(7)), 5), ([9, 9, 9, 9], 9)):
        state = store.longest(prompt)
        assert state is not None
        assert equal(state.tensors, tensors(seed))
    assert store.longest([0]) is None
    assert store.longest([]) is None


def test_an_empty_store_has_nothing_and_creates_nothing(store: StateStore) -> None:
    assert store.longest([1, 2]) is None
    assert entries(store.root) == []
    assert not store.root.exists()


@given(st.lists(st.integers(0, 163_839)), st.data())
def test_prefix_hashes_are_hashes_of_the_prefixes(tokens: list[int], data: st.DataObject) -> None:
    positions = sorted(data.draw(st.sets(st.integers(0, len(tokens)))))
    expected = [
        hashlib.sha256(struct.pack(f"<{position}I", *tokens[:position])).hexdigest()
        for position in positions
    ]
    assert prefix_hashes(tokens, positions) == expected


def test_other_weights_and_other_ranks_are_not_seen(store: StateStore) -> None:
    store.save([1, 2], tensors())
    other = hashlib.sha256(b"others").hexdigest()
    twin = FINGERPRINT[:16] + other[16:]  # shares the folder, not the model
    assert StateStore(store.root, other).longest([1, 2]) is None
    assert StateStore(store.root, twin).longest([1, 2]) is None
    for rank in (0, 1):
        ranked = StateStore(store.root, FINGERPRINT, rank=rank, world_size=2)
        assert ranked.longest([1, 2]) is None
        ranked.save([1, 2], tensors(rank + 10))
    second = StateStore(store.root, FINGERPRINT, rank=1, world_size=2).longest([1, 2])
    assert second is not None
    assert equal(second.tensors, tensors(11))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def test_any_flipped_bit_is_noticed_and_the_shorter_prefix_serves(
    store: StateStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.save([1], tensors(1, size=4))
    store.save([1, 2], tensors(2, size=4))
    path = max(files(store), key=lambda path: path.name)
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    for at in [*range(0, header, 7), *range(header, len(whole), 11), len(whole) - 1]:
        path.write_bytes(whole)
        flip(path, at)
        caplog.clear()
        fresh = StateStore(store.root, FINGERPRINT)
        state, again = fresh.longest([1, 2, 3]), fresh.longest([1, 2, 3])
        assert state is not None
        assert again is not None
        # A flip may fall on padding of the header, which says nothing.
        if state.position == 2:
            assert equal(state.tensors, tensors(2, size=4))
        assert len(caplog.records) == (state.position == 1)  # one line, however often it is met
        assert all(str(path) in record.getMessage() for record in caplog.records)


def test_damaged_and_foreign_files_are_ignored_and_a_save_repairs(
    store: StateStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.save([1, 2], tensors())
    (path,) = files(store)
    for damage in (b"", b"\xff" * 100, path.read_bytes()[:-1]):
        path.write_bytes(damage)
        assert store.longest([1, 2]) is None
    save_file({"a": torch.zeros(2)}, path)  # a safetensors file of something else
    assert store.longest([1, 2]) is None
    assert len(caplog.records) == 1
    assert store.save([1, 2], tensors())
    assert store.longest([1, 2]) is not None
    (path.parent / "notes.txt").write_text("mine")
    (path.parent / "00000002-zz.safetensors").write_text("mine")
    assert store.positions([1, 2]) == [2]
    assert [path.name for path in strangers(store.root)] == ["00000002-zz.safetensors", "notes.txt"]


def test_a_renamed_entry_is_not_taken_for_another_prefix(
    store: StateStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.save([1, 2], tensors())
    store.save([3, 4], tensors(1))
    first, second = sorted(files(store))
    first.replace(second)
    swapped = [store.longest(tokens) for tokens in ([1, 2], [3, 4])]
    assert swapped == [None, None]
    assert "another prefix" in caplog.text


def test_the_least_recently_used_go_first(store: StateStore) -> None:
    for length in (1, 2, 3):
        store.save(list(range(length)), tensors(length))
    size = entries(store.root)[0].size
    for age, path in enumerate(sorted(files(store))):
        os.utime(path, (0, 1_000 + age))
    assert store.load([0], 1) is not None  # now the most recently used
    store.max_bytes = 3 * size + size // 2
    store.save(list(range(4)), tensors(4))
    assert store.positions(list(range(9))) == [1, 3, 4]
    other = StateStore(store.root, hashlib.sha256(b"b").hexdigest(), max_bytes=size + size // 2)
    other.save([5], tensors(5))  # the cap is over all models; the new one stays
    assert [entry.position for entry in entries(store.root)] == [1]
    assert other.longest([5]) is not None


def test_a_state_over_the_cap_is_refused_without_emptying_the_store(
    store: StateStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.save([1], tensors())
    store.max_bytes = 1
    assert not store.save([1, 2], tensors())
    assert "cap" in caplog.text
    assert store.positions([1, 2]) == [1]


def test_prune_by_age_and_of_abandoned_writes(store: StateStore) -> None:
    store.save([1], tensors())
    store.save([1, 2], tensors())
    old, new = sorted(files(store))
    hour_ago = time.time() - 4000
    os.utime(old, (hour_ago, hour_ago))
    abandoned, fresh = old.with_name(".writing-a"), old.with_name(".writing-b")
    for folder in (abandoned, fresh):
        folder.mkdir()
        (folder / "state").write_bytes(b"x")
    os.utime(abandoned, (hour_ago, hour_ago))
    removed = prune(store.root, 2**40, unused_for=3600)
    assert [entry.path for entry in removed] == [old]
    assert sorted(files(store)) == sorted([new, fresh / "state"])


def test_an_unwritable_cache_costs_a_log_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "states").write_text("a file is in the way")
    store = StateStore(tmp_path / "states", FINGERPRINT)
    assert not store.save([1], tensors())
    assert "cannot store the state" in caplog.text
    assert store.longest([1]) is None


def test_a_full_disk_costs_a_log_line_and_leaves_nothing(
    store: StateStore, caplog: pytest.LogCaptureFixture
) -> None:
    # RLIMIT_FSIZE makes writing fail the way a full disk does, for this process's child only.
    code = textwrap.dedent(
        """
        import resource, signal, sys
        from pathlib import Path
        import torch
        from unabridged.model.state_store import StateStore
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
        store = StateStore(Path(sys.argv[1]), sys.argv[2])
        print(store.save([1], {"a": torch.zeros(1 << 18)}), store.longest([1]))
        """
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(store.root), FINGERPRINT], capture_output=True, text=True
    )
    assert result.stdout == "False None\n", result.stderr
    assert "cannot store the state" in result.stderr
    assert files(store) == []


WRITER = """
import sys, time
from pathlib import Path
import torch
from unabridged.model.state_store import StateStore, prefix_hashes
store = StateStore(Path(sys.argv[1]), sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for round in range(int(sys.argv[3])):
    for length in range(1, 9):
        tokens = list(range(length))
        value = torch.full((int(sys.argv[4]),), float(length))
        if round:  # write it again, as over a damaged one
            store._faulty.add(store._path(length, prefix_hashes(tokens, [length])[0]))
        assert store.save(tokens, {"a": value})
        state = store.load(tokens, length)
        assert state is not None and torch.equal(state.tensors["a"], value), length
print("done", flush=True)
"""


def writer(store: StateStore, rounds: int, size: int) -> subprocess.Popen[str]:
    arguments = [str(store.root), FINGERPRINT, str(rounds), str(size)]
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_writer_killed_at_any_moment_leaves_no_half_entry(store: StateStore) -> None:
    for delay in (0.0, 0.03, 0.1):
        process = writer(store, rounds=100, size=2**21)
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        process.stdin.write("\n")
        process.stdin.flush()
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        for entry in entries(store.root):
            state = store.load(list(range(entry.position)), entry.position)
            assert state is not None
            assert torch.equal(state.tensors["a"], torch.full((2**21,), float(entry.position)))
    assert all(path.parent.name.startswith(".writing-") for path in strangers(store.root))
    for path in store.root.glob("*/.writing-*"):
        os.utime(path, (0, 0))
    prune(store.root, 2**40)
    assert strangers(store.root) == []


def test_concurrent_writers_of_the_same_states(store: StateStore) -> None:
    processes = [writer(store, rounds=3, size=2**12) for _ in range(3)]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert out == "done\n", err
    assert store.positions(list(range(9))) == list(range(1, 9))
    assert strangers(store.root) == []


def test_a_state_saved_here_is_found_by_a_new_process(store: StateStore) -> None:
    store.save(list(range(5)), tensors(5))
    code = (
        "import sys; from pathlib import Path; from unabridged.model.state_store import StateStore;"
        "s = StateStore(Path(sys.argv[1]), sys.argv[2]).longest(range(9));"
        "from safetensors.torch import save_file; save_file(s.tensors, sys.argv[3])"
    )
    target = store.root / "out"
    subprocess.run(
        [sys.executable, "-c", code, str(store.root), FINGERPRINT, str(target)], check=True
    )
    assert equal(load_file(target), tensors(5))


def test_the_store_names_change_with_the_weights(tmp_path: Path) -> None:
    def fingerprint() -> str:
        return fingerprint_checkpoint(tmp_path)

    (tmp_path / "config.json").write_text("{}")
    save_file({"w": torch.zeros(4)}, tmp_path / "model.safetensors")
    first = fingerprint()
    assert fingerprint() == first
    (tmp_path / "README.md").write_text("no weight")
    assert fingerprint() == first
    save_file({"w": torch.tensor([0.0, 0, 0, 1])}, tmp_path / "model.safetensors")
    second = fingerprint()
    (tmp_path / "config.json").write_text("{ }")
    assert len({first, second, fingerprint()}) == 3


# --- the command --------------------------------------------------------------------------------


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers(), "state", "")
    args = parser.parse_args(["state", *arguments])
    return args.run(args)


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code = run(*arguments, "--json")
    return code, json.loads(capsys.readouterr().out)


def test_list_and_show(store: StateStore, capsys: pytest.CaptureFixture[str]) -> None:
    store.save([1, 2, 3], tensors(), {"model": "nano"})
    code, listed = run_json(capsys, "list", "--dir", str(store.root))
    assert code == 0
    (entry,) = listed["states"]
    assert (entry["position"], entry["rank"], entry["world_size"]) == (3, 0, 1)
    assert listed["bytes"] == entry["bytes"] == Path(entry["path"]).stat().st_size
    code, shown = run_json(capsys, "show", entry["id"][-20:], "--dir", str(store.root))
    assert code == 0
    assert shown["fingerprint"] == FINGERPRINT
    assert shown["metadata"] == {"model": "nano"}
    assert shown["tensors"]["kda.0.state"] == ["F32", 2, 4, 4]
    assert run("show", entry["id"], "--dir", str(store.root)) == 0
    text = capsys.readouterr().out
    assert "mla.1.latent  F32 [64, 4]" in text
    assert run("list", "--dir", str(store.root)) == 0
    assert "1 states" in capsys.readouterr().out


def test_show_of_what_is_not_there(store: StateStore, capsys: pytest.CaptureFixture[str]) -> None:
    store.save([1], tensors())
    store.save([2], tensors())
    assert run("show", "zzz", "--dir", str(store.root)) == 2
    assert run("show", "r0w1", "--dir", str(store.root)) == 2
    errors = capsys.readouterr().err
    assert "no state has 'zzz'" in errors
    assert "2 states have 'r0w1'" in errors
    path = entries(store.root)[0].path
    path.write_bytes(b"")
    assert run("show", path.name[:20], "--dir", str(store.root)) == 1


def test_verify_finds_every_fault(store: StateStore, capsys: pytest.CaptureFixture[str]) -> None:
    for token in range(4):
        store.save([token], tensors(token))
    assert run_json(capsys, "verify", "--dir", str(store.root)) == (0, {"checked": 4, "faults": {}})
    sound, flipped, cut, renamed = (entry.path for entry in entries(store.root))
    flip(flipped, -3)
    cut.write_bytes(cut.read_bytes()[:-9])
    moved = renamed.with_name(renamed.name.replace("00000001", "00000002"))
    renamed.rename(moved)
    stranger = sound.with_name("notes.txt")
    stranger.write_text("x")
    code, report = run_json(capsys, "verify", "--dir", str(store.root))
    assert code == 1
    assert report["checked"] == 4
    assert report["faults"].keys() == {str(p) for p in (flipped, cut, moved, stranger)}
    assert run("verify", sound.name[:30], "--dir", str(store.root)) == 0
    assert run("verify", flipped.name[:30], "--dir", str(store.root)) == 1
    assert "its checksum does not fit" in capsys.readouterr().out


def test_prune_command(store: StateStore, capsys: pytest.CaptureFixture[str]) -> None:
    for token in range(3):
        store.save([token], tensors(token))
    size = entries(store.root)[0].size
    code, report = run_json(capsys, "prune", "--dir", str(store.root), "--max-size", str(2 * size))
    assert (code, len(report["removed"]), report["bytes"]) == (0, 1, size)
    assert run("prune", "--dir", str(store.root), "--max-size", "1G") == 0
    assert len(entries(store.root)) == 2
    assert run("prune", "--dir", str(store.root), "--all") == 0
    assert entries(store.root) == []
    with pytest.raises(SystemExit) as exit_info:
        run("prune", "--max-size", "lots")
    assert exit_info.value.code == 2
    assert "'lots' is not a size" in capsys.readouterr().err


def test_listing_needs_no_torch(store: StateStore) -> None:
    store.save([1], tensors())
    code = (
        "import argparse, sys; from unabridged.model.state_cli import add_parser;"
        "p = argparse.ArgumentParser(); add_parser(p.add_subparsers(), 'state', '');"
        f"a = p.parse_args(['state', 'list', '--dir', {str(store.root)!r}]); a.run(a);"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_headers_are_readable_by_any_safetensors_tool(
    store: StateStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    store.save([1, 2], tensors())
    (path,) = files(store)
    header = read_header(path)
    assert header.position == 2
    assert header.token_hash == prefix_hashes([1, 2], [2])[0]
    assert equal(load_file(path), tensors())
