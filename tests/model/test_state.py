"""Sequence states: forked, stored, and continued bit for bit in another process."""

from __future__ import annotations

import hashlib
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from unabridged.model.checkpoint import save_model
from unabridged.model.k3 import K3
from unabridged.model.state import SequenceState, StateMismatchError
from unabridged.model.state_store import StateStore, prefix_hashes


@pytest.fixture(scope="module")
def model(make_config: Any, make_model: Any) -> K3:
    return make_model(make_config())


def ids(n: int) -> list[int]:
    return torch.randint(0, 512, (n,), generator=torch.Generator().manual_seed(n)).tolist()


def go_on(model: K3, state: SequenceState) -> Tensor:
    """A span of prefill, then steps: the logits of each."""
    rows = [model.extend(state, ids(70))]
    rows += [model.step([state], [token])[0] for token in ids(5)]
    return torch.stack(rows)


CONTINUE = """
import sys, torch
from safetensors.torch import load_file, save_file
from unabridged.model.checkpoint import load_model
torch.set_num_threads(1)
folder, first, second = sys.argv[1], eval(sys.argv[2]), eval(sys.argv[3])
model = load_model(folder)
state = model.state_from_tensors(load_file(f"{folder}/state.safetensors"))
rows = [model.extend(state, first)] + [model.step([state], [token])[0] for token in second]
save_file({"rows": torch.stack(rows), **state.to_tensors()}, f"{folder}/result.safetensors")
"""


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_continued_in_a_new_process_bit_for_bit(
    make_config: Any, make_model: Any, tmp_path: Path, precision: str
) -> None:
    config = make_config().model_copy(update={"dtype": precision})
    model = make_model(config, dtype=getattr(torch, precision))
    save_model(model, tmp_path)
    state = model.new_state()
    model.extend(state, ids(100))
    save_file(state.to_tensors(), tmp_path / "state.safetensors")
    wanted = go_on(model, state)
    subprocess.run(
        [sys.executable, "-c", CONTINUE, str(tmp_path), repr(ids(70)), repr(ids(5))],
        check=True,
        timeout=120,
    )
    result = load_file(tmp_path / "result.safetensors")
    assert torch.equal(result.pop("rows"), wanted)
    after = state.to_tensors()
    assert result.keys() == after.keys()
    for name, tensor in after.items():
        assert torch.equal(result[name], tensor), name


def test_a_fork_is_independent_and_equal(model: K3) -> None:
    state = model.new_state()
    model.extend(state, ids(90))
    before = {name: tensor.clone() for name, tensor in state.to_tensors().items()}
    fork = state.fork()
    rows = go_on(model, fork)
    assert all(torch.equal(before[name], t) for name, t in state.to_tensors().items())
    assert state.position == 90
    assert torch.equal(go_on(model, state), rows)


def test_the_hash_names_the_prefix(model: K3) -> None:
    state = model.new_state()
    model.extend(state, [5, 300, 7])
    assert state.token_hash == hashlib.sha256(struct.pack("<3I", 5, 300, 7)).hexdigest()
    assert [state.token_hash] == prefix_hashes([5, 300, 7], [3])


def test_through_the_store(model: K3, tmp_path: Path) -> None:
    store = StateStore(tmp_path, "ab" * 32)
    state = model.new_state()
    tokens = ids(80)
    model.extend(state, tokens)
    assert store.save(tokens, state.to_tensors())
    found = store.longest([*tokens, 1, 2])
    assert found is not None
    assert found.position == 80
    assert torch.equal(go_on(model, model.state_from_tensors(found.tensors)), go_on(model, state))


def test_names_and_shapes(model: K3) -> None:
    state = model.new_state()
    model.extend(state, ids(9))
    shapes = {name: (t.dtype, tuple(t.shape)) for name, t in state.to_tensors().items()}
    assert shapes["tokens"] == (torch.int32, (9,))
    assert shapes["layers.0.S"] == (torch.float32, (4, 64, 64))
    assert shapes["layers.0.tail"] == (torch.float32, (3, 3 * 4 * 64))
    assert shapes["layers.3.latents"] == (torch.float32, (9, 32 + 16))
    assert len(shapes) == 1 + 6 * 2 + 3


def test_a_foreign_state_is_refused_by_name(model: K3) -> None:
    state = model.new_state()
    model.extend(state, ids(9))
    good = state.to_tensors()

    def refused(change: dict[str, Tensor | None], message: str) -> None:
        tensors = {k: v for k, v in (good | change).items() if v is not None}
        with pytest.raises(StateMismatchError, match=message):
            model.state_from_tensors(tensors)

    refused({"tokens": None}, "no int32 `tokens`")
    refused({"layers.2.S": None}, r"layers\.2\.S is missing")
    refused({"layers.2.S": torch.zeros(4, 64, 32)}, r"layers\.2\.S is .*\[4, 64, 32\]")
    refused({"layers.2.S": good["layers.2.S"].half()}, r"layers\.2\.S is torch\.float16")
    refused({"layers.3.latents": torch.zeros(8, 48)}, r"layers\.3\.latents .*has .*\[9, 48\]")
    refused({"layers.99.S": torch.zeros(1)}, r"no tensor layers\.99\.S")
