"""Decoding in C against the same model in torch, which other tests hold to the specification."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from unabridged.model import decode_kernel, mxfp4_kernel
from unabridged.model.decode_kernel import Decoder, decoder
from unabridged.model.k3 import K3
from unabridged.model.mxfp4_kernel import Kernel, build

pytestmark = pytest.mark.needs("cc")

ODD = {  # no width is a multiple of a register, MLA comes first, each layer is a block
    "vocab_size": 301,
    "hidden_size": 52,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "intermediate_size": 75,
    "num_experts": 5,
    "num_experts_per_token": 5,
    "moe_intermediate_size": 32,
    "routed_expert_hidden_size": 96,
    "routed_scaling_factor": 2.5,
    "q_lora_rank": 21,
    "kv_lora_rank": 19,
    "qk_nope_head_dim": 7,
    "qk_rope_head_dim": 3,
    "v_head_dim": 11,
    "attn_res_block_size": 1,
    "activation_situ_linear_beta": None,
}
ODD_LINEAR = {
    "num_heads": 5,
    "head_dim": 6,
    "short_conv_kernel_size": 2,
    "full_attn_layers": [1],
    "kda_layers": [2, 3],
}


@pytest.fixture(scope="module", params=["usual", "odd"])
def model(request: pytest.FixtureRequest, make_config: Any, make_model: Any) -> K3:
    config = make_config(quantized=True)
    if request.param == "odd":
        document = config.to_dict()
        document["text_config"] |= ODD
        document["text_config"]["linear_attn_config"] |= ODD_LINEAR
        config = type(config).from_dict(document)
    return make_model(config, dtype=torch.float32)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("kernels"))


def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    scale = float(wanted.abs().max())
    assert float((got - wanted).abs().max()) < 1e-4 * max(scale, 1.0)


@pytest.mark.parametrize("level", [0, 1], ids=["portable", "avx2"])
def test_logits_and_states_are_those_of_torch(model: K3, library: Path, level: int) -> None:
    if level > Kernel(library).level:
        pytest.skip("this processor has no AVX2")
    ours = Decoder(model, Kernel(library, level))
    read, fresh = model.new_state(), model.new_state()
    model.extend(read, list(range(2, 90)))
    for start in (read, fresh):  # after a prompt, and from nothing
        one, other = start.fork(), start.fork()
        for token in torch.randint(0, 300, (40,)).tolist():
            close(ours.step([one], [token]), model.step([other], [token]))
        assert one.tokens == other.tokens
        wanted = other.to_tensors()
        assert one.to_tensors().keys() == wanted.keys()
        for name, tensor in one.to_tensors().items():
            close(tensor.float(), wanted[name].float())


def test_a_sequence_says_the_same_beside_others(model: K3, library: Path) -> None:
    ours = Decoder(model, Kernel(library))
    states = [model.new_state() for _ in range(3)]
    for n, state in enumerate(states):
        model.extend(state, list(range(2, 20 + 30 * n)))
    alone = [ours.step([state.fork()], [7 + n]) for n, state in enumerate(states)]
    together = ours.step([state.fork() for state in states], [7, 8, 9])
    assert torch.equal(torch.cat(alone), together)


def test_a_state_goes_on_with_torch_where_c_left_it(model: K3, library: Path) -> None:
    ours = Decoder(model, Kernel(library))
    state = model.new_state()
    model.extend(state, [5, 6, 7])
    ours.step([state], [8])
    stored = model.state_from_tensors(state.to_tensors())
    whole = model.new_state()
    wanted = model.extend(whole, [5, 6, 7, 8, 9, 10])
    close(model.extend(stored, [9, 10]), wanted)


def test_a_model_decodes_by_it_once_it_is_told_to(
    make_config: Any, make_model: Any, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mxfp4_kernel, "kernel", lambda: Kernel(library))
    model = make_model(make_config(quantized=True), dtype=torch.float32)
    state = model.new_state()
    model.extend(state, [5, 6, 7])
    wanted = model.step([state.fork()], [8])
    model.prepare_decode()
    got = model.step([state.fork()], [8])
    assert model._decoder is not None
    assert not torch.equal(got, wanted)  # another order of sums
    close(got, wanted)
    with pytest.raises(ValueError, match="token id 512 is outside"):
        model.step([state], [512])
    assert list(state.tokens) == [5, 6, 7]


def test_what_it_is_not_for_stays_with_torch(
    make_config: Any, make_model: Any, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mxfp4_kernel, "kernel", lambda: Kernel(library))
    assert decoder(make_model(make_config(quantized=True), dtype=torch.bfloat16)) is None
    assert decoder(make_model(make_config())) is None  # plain experts
    model = make_model(make_config(quantized=True), dtype=torch.float32)
    assert decoder(model) is not None
    monkeypatch.setattr(decode_kernel, "SMALL", 255)
    assert decoder(model) is None
    monkeypatch.setattr(decode_kernel, "SMALL", 256)
    monkeypatch.setattr(mxfp4_kernel, "kernel", lambda: None)
    assert decoder(model) is None
