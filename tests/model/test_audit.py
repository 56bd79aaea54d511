"""The audit of the released model equals its published counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from unabridged.model.audit import Audit, audit, fit, report
from unabridged.model.config import K3Config


@pytest.fixture(scope="module")
def released() -> Audit:
    return audit(K3Config.released(), memory=2_000_000_000_000)


def test_totals(released: Audit) -> None:
    assert released.tensors == 497_220
    assert released.parameters == 2_779_931_834_976
    assert released.active_parameters == 104_189_612_640
    assert released.bytes == 1_560_860_324_864


def test_parts(released: Audit) -> None:
    assert released.parameters_by_part == {
        "KDA": 30_618_086_496,
        "MLA": 5_572_706_304,
        "routed experts": 2_722_740_830_208,
        "router and latent": 92 * (6_423_424 + 51_383_808),
        "shared experts": 92 * 132_120_576,
        "dense GLU": 726_663_168,
        "norms and depth mixing": 3_999_744 + 21_504,
        "embedding": 1_174_405_120,
        "head": 1_174_405_120,
        "vision": 401_214_464 + 46_144_512,
    }


def test_bytes(released: Audit) -> None:
    assert released.bytes_by_precision["MXFP4 weights"] == 1_361_370_415_104
    assert released.bytes_by_precision["MXFP4 scales"] == 85_085_650_944
    assert sum(released.bytes_by_precision.values()) == released.bytes


def test_state(released: Audit) -> None:
    assert (released.kda_layers, released.mla_layers) == (69, 24)
    assert released.kda_recurrent_bytes == 434_110_464
    assert released.kda_conv_bytes == 15_261_696
    assert released.kda_state_bytes == 449_372_160
    assert released.latent_bytes_per_token == 27_648


def test_flops(released: Audit) -> None:
    assert released.matmul_flops_per_token == 2 * 104_189_612_640
    assert released.prefill_attention_flops == 24 * 2 * 96 * (192 + 128)
    assert released.decode_attention_flops == 24 * 2 * 96 * (576 + 512)
    assert 0.7e9 < released.kda_flops_per_token < 0.9e9


def test_what_fits(released: Audit) -> None:
    assert released.fit is not None
    assert released.fit.free == 2_000_000_000_000 - 1_560_860_324_864
    assert released.fit.longest_sequence == 1_048_576
    per_sequence = 449_372_160 + 27_648 * 131_072
    assert released.fit.sequences[131_072] == released.fit.free // per_sequence
    tight = fit(released, 1_560_860_324_864 + 449_372_160 + 27_648 * 1000 + 5)
    assert tight.longest_sequence == 1000
    none = fit(released, 10**9)
    assert none.free < 0
    assert none.longest_sequence == 0
    assert set(none.sequences.values()) == {0}
    assert "do not fit" in report(replace(released, fit=none))


def test_a_small_model_counts_what_torch_counts(make_config: Any, make_model: Any) -> None:
    model = make_model(make_config())
    counts = audit(make_config())
    padding = 6 * (128 - 4)  # A_log is stored for 128 heads
    buffers = 8 * 16  # the router's bias is a buffer
    assert counts.parameters == sum(p.numel() for p in model.parameters()) - padding + buffers
    state = model.new_state()
    tensors = state.to_tensors()
    recurrent = sum(t.nbytes for name, t in tensors.items() if name.endswith(".S"))
    assert counts.kda_recurrent_bytes == recurrent


def test_report_says_the_numbers(released: Audit) -> None:
    text = report(released)
    for number in ("497,220", "2,779,931,834,976", "104,189,612,640", "1,560,860,324,864"):
        assert number in text
