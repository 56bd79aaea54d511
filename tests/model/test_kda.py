"""KDA against fla-core's naive functions, a float64 recurrence and the specification's vectors."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from unabridged.model import kda


def inputs(
    B: int, T: int, H: int, K: int, V: int, *, low: float = -5.0, sequences: int = 0
) -> list[Tensor]:
    """q (scaled), k, v, g, beta and an initial state, in float64 but rounded to float32."""
    generator = torch.Generator().manual_seed(T * 31 + K)
    normal = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    q = F.normalize(normal(B, T, H, K), dim=-1) * K**-0.5
    k = F.normalize(normal(B, T, H, K), dim=-1)
    g = low * torch.rand(B, T, H, K, generator=generator)
    beta = torch.rand(B, T, H, generator=generator)
    state = normal(sequences or B, H, K, V)
    return [x.double() for x in (q, k, normal(B, T, H, V), g, beta, state)]


def recurrence(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, S: Tensor) -> Any:
    """Equation 1 as it stands, with the matrix written out: S <- (I - b k k^T) diag(a) S + b k v^T."""
    outputs = []
    eye = torch.eye(k.shape[-1], dtype=S.dtype)
    for t in range(q.shape[1]):
        kt, b = k[:, t, :, :, None], beta[:, t, :, None, None]
        S = (eye - b * kt @ kt.mT) @ torch.diag_embed(g[:, t].exp()) @ S
        S = S + b * kt @ v[:, t, :, None, :]
        outputs.append((S.mT @ q[:, t, :, :, None])[..., 0])
    return torch.stack(outputs, 1), S


def single(tensors: list[Tensor]) -> list[Tensor]:
    return [x.float() for x in tensors]


SHAPES = [(1, 192, 2, 128, 128), (2, 130, 3, 32, 48), (3, 64, 1, 16, 16), (1, 1, 2, 64, 64)]
FORMS = [kda.recurrent_kda, kda.chunk_kda]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("grad", [False, True])
def test_equals_the_equation(
    form: Callable[..., Any], shape: tuple[int, int, int, int, int], grad: bool
) -> None:
    args = inputs(*shape)
    o, S = recurrence(*args)
    with torch.set_grad_enabled(grad):
        wide_o, wide_S = form(*args)
        narrow_o, narrow_S = form(*single(args))
    torch.testing.assert_close(wide_o, o, rtol=0, atol=1e-14)
    torch.testing.assert_close(wide_S, S, rtol=0, atol=1e-13)
    torch.testing.assert_close(narrow_o.double(), o, rtol=0, atol=1e-6)
    torch.testing.assert_close(narrow_S.double(), S, rtol=0, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("naive", ["naive_recurrent_kda", "naive_chunk_kda"])
@pytest.mark.parametrize("grad", [False, True])
def test_equals_fla(form: Callable[..., Any], naive: str, grad: bool, fla: ModuleType) -> None:
    q, k, v, g, beta, S = single(inputs(2, 128, 3, 64, 32))
    reference = getattr(fla, naive)
    wanted_o, wanted_S = reference(
        q, k, v, g, beta, scale=1.0, initial_state=S, output_final_state=True
    )
    with torch.set_grad_enabled(grad):
        o, final = form(q, k, v, g, beta, S)
    torch.testing.assert_close(o, wanted_o, rtol=0, atol=1e-6)
    torch.testing.assert_close(final, wanted_S, rtol=0, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_gradients_equal_fla(form: Callable[..., Any], fla: ModuleType) -> None:
    args = single(inputs(2, 128, 2, 32, 32))
    weights = torch.randn(2, 128, 2, 32), torch.randn(2, 2, 32, 32)

    def gradients(function: Callable[..., Any]) -> list[Tensor]:
        leaves = [x.clone().requires_grad_() for x in args]
        o, S = function(*leaves)
        ((o * weights[0]).sum() + (S * weights[1]).sum()).backward()
        return [leaf.grad for leaf in leaves if leaf.grad is not None]

    wanted = gradients(
        lambda q, k, v, g, beta, S: fla.naive_recurrent_kda(
            q, k, v, g, beta, scale=1.0, initial_state=S, output_final_state=True
        )
    )
    for mine, theirs in zip(gradients(form), wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=2e-5)


def test_gradients_by_finite_differences() -> None:
    q, k, v, g, beta, S = inputs(1, 70, 1, 4, 3, sequences=2)
    leaves = [x.requires_grad_() for x in (q, k, v, g, beta, S)]
    assert torch.autograd.gradcheck(
        lambda *x: kda.chunk_kda(*x, cu_seqlens=[0, 3, 70]), leaves, fast_mode=True
    )


@pytest.mark.parametrize("low", [-5.0, -1e-3])
def test_extreme_decays_and_one_repeated_key(low: float) -> None:
    """Always the fastest decay, or hardly any; one key again and again, at full strength."""
    q, k, v, g, beta, S = inputs(1, 256, 1, 32, 32)
    k, g, beta = k[:, :1].expand_as(k), torch.full_like(g, low), torch.ones_like(beta)
    o, final = recurrence(q, k, v, g, beta, S)
    mine, my_S = kda.chunk_kda(*(x.float() for x in (q, k, v, g, beta, S)))
    torch.testing.assert_close(mine.double(), o, rtol=0, atol=2e-6)
    torch.testing.assert_close(my_S.double(), final, rtol=0, atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 150), min_size=1, max_size=5).filter(sum),
    grad=st.booleans(),
    span=st.sampled_from([1, 3 * 64 * 16, 1 << 20]),
)
def test_packed_sequences_are_independent(lengths: list[int], grad: bool, span: int) -> None:
    T = sum(lengths)
    args = inputs(1, T, 2, 16, 8, sequences=len(lengths))
    ends = torch.tensor([0, *lengths]).cumsum(0)
    kept, kda._SPAN = kda._SPAN, span  # spans cut the same work at other places
    try:
        with torch.set_grad_enabled(grad):
            o, S = kda.chunk_kda(*args, cu_seqlens=ends)
    finally:
        kda._SPAN = kept
    for i, (start, end) in enumerate(pairwise(ends.tolist())):
        if start == end:
            assert torch.equal(S[i], args[5][i])
            continue
        alone = [x[:, start:end] for x in args[:5]]
        wanted_o, wanted_S = recurrence(*alone, S=args[5][i : i + 1])
        torch.testing.assert_close(o[:, start:end], wanted_o, rtol=0, atol=1e-13)
        torch.testing.assert_close(S[i], wanted_S[0], rtol=0, atol=1e-13)


def test_state_carries_over_any_cut() -> None:
    args = inputs(1, 200, 2, 16, 16)
    whole_o, whole_S = kda.chunk_kda(*args)
    S, outputs = args[5], []
    for start, end in [(0, 1), (1, 65), (65, 64 + 65), (129, 200)]:
        o, S = kda.chunk_kda(*(x[:, start:end] for x in args[:5]), initial_state=S)
        outputs.append(o)
    torch.testing.assert_close(torch.cat(outputs, 1), whole_o, rtol=0, atol=1e-13)
    torch.testing.assert_close(S, whole_S, rtol=0, atol=1e-13)


def test_memory_kept_from_inference_mode_serves_outside_of_it() -> None:
    args = single(inputs(1, 64, 1, 8, 8))
    kda._buffers.kept.clear()
    with torch.inference_mode():
        first = kda.chunk_kda(*args)[0].clone()
    with torch.no_grad():
        assert torch.equal(kda.chunk_kda(*args)[0], first)


def test_inputs_are_left_alone() -> None:
    args = single(inputs(1, 64, 1, 16, 16))
    before = [x.clone() for x in args]
    with torch.no_grad():
        kda.chunk_kda(*args)
    assert all(torch.equal(a, b) for a, b in zip(args, before, strict=True))


def test_bfloat16_inputs_and_products() -> None:
    args = single(inputs(1, 128, 2, 64, 64))
    o, S = kda.chunk_kda(*args)
    rounded = [x.bfloat16() for x in args[:3]]
    o_bf16, S_fp32 = kda.chunk_kda(*rounded, *args[3:])
    assert (o_bf16.dtype, S_fp32.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(o_bf16.float(), o, rtol=0.05, atol=5e-3)
    quick_o, quick_S = kda.chunk_kda(*args, product_dtype=torch.bfloat16)
    assert quick_o.dtype == quick_S.dtype == torch.float32
    torch.testing.assert_close(quick_o, o, rtol=0.05, atol=1e-2)
    torch.testing.assert_close(quick_S, S, rtol=0.1, atol=5e-2)


@pytest.mark.parametrize("ends", [[0, 5], [1, 10], [0, 6, 4, 10], []])
def test_offsets_that_do_not_fit_are_refused(ends: list[int]) -> None:
    with pytest.raises(ValueError, match="cu_seqlens must ascend from 0 to T = 10"):
        kda.chunk_kda(*inputs(1, 10, 1, 4, 4, sequences=1), cu_seqlens=ends)


@pytest.mark.parametrize(
    ("A_log", "z", "g"),
    [(0, 0, -2.5), (0, 2, -4.403985389889), (0, -2, -0.596014610111), (0.5, 1, -4.193590758022)],
)
def test_gate_vectors(A_log: float, z: float, g: float) -> None:
    got = kda.kda_gate(torch.tensor([[z]]).double(), torch.tensor([A_log]).double())
    assert got.item() == pytest.approx(g, abs=1e-11)


@pytest.mark.parametrize("step", [kda.kda_step, kda.kda_step_fused])
def test_step_is_one_token_in_place(step: Callable[..., Tensor]) -> None:
    args = single(inputs(1, 1, 6, 32, 32))
    o, final = kda.recurrent_kda(*args)
    q, k, v, g, beta, S = (x[0] for x in args)
    rows = S.mT.contiguous().mT
    got = step(rows, q[0], k[0], v[0], g[0], beta[0])
    torch.testing.assert_close(got, o[0, 0], rtol=0, atol=1e-6)
    torch.testing.assert_close(rows, final[0], rtol=0, atol=1e-5)


def test_compiled_step_equals_the_plain_one() -> None:
    args = single(inputs(1, 1, 6, 32, 32))
    q, k, v, g, beta, S = (x[0] for x in args)
    plain, compiled = S.mT.contiguous().mT, S.mT.contiguous().mT
    row = q[0], k[0], v[0], g[0], beta[0]
    wanted = kda.kda_step(plain, *row)
    got = kda.compiled_kda_step()(compiled, *row)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-6)
    torch.testing.assert_close(compiled, plain, rtol=0, atol=1e-6)


def test_short_convolution_equals_torch_and_carries_its_tail() -> None:
    weight, y = torch.randn(6, 1, 4), torch.randn(20, 6)
    wanted = F.conv1d(F.pad(y.mT[None], (3, 0)), weight, groups=6)[0].mT
    led = F.pad(y, (0, 0, 3, 0))
    torch.testing.assert_close(kda.short_conv(led, weight), wanted)
    halves = [kda.short_conv(led[:10], weight), kda.short_conv(led[7:], weight)]
    torch.testing.assert_close(torch.cat(halves), wanted)


def test_gradients_of_the_short_convolution() -> None:
    weight = torch.randn(6, 1, 4, dtype=torch.float64, requires_grad=True)
    y = torch.randn(9, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(kda.short_conv, (y, weight))
    half = y.detach().bfloat16().requires_grad_()
    kda.short_conv(half, weight.float()).sum().backward()
    assert half.grad is not None
    wanted = torch.autograd.grad(kda.short_conv(y, weight).sum(), y)[0]
    torch.testing.assert_close(half.grad.double(), wanted, rtol=0.02, atol=0.02)


def test_decays_start_spread_over_time_scales(make_config: Any) -> None:
    torch.manual_seed(0)
    layer = kda.KimiDeltaAttention(make_config().text_config)
    dt = F.softplus(layer.dt_bias)  # the inverse of the rule
    assert 1e-3 * 0.99 <= dt.min() < 2e-3
    assert 5e-2 < dt.max() <= 0.1 * 1.01
    assert (layer.A_log == 0).all()
    g = kda.kda_gate(layer.dt_bias.view(4, 64), layer.A_log[:4])
    assert -0.6 < g.min() < g.max() < -0.004


@torch.no_grad()
def test_sequences_that_decode_and_that_read_may_share_a_batch(make_config: Any) -> None:
    config = make_config().text_config
    layer = kda.KimiDeltaAttention(config)
    lengths = [1, 1, 70, 1, 5]
    x = torch.randn(sum(lengths), config.hidden_size)
    together = [layer.new_state(torch.float32) for _ in lengths]
    alone = [state.fork() for state in together]
    mixed = layer(x, lengths, together)
    apart = [
        layer(part, [n], [state])
        for part, n, state in zip(x.split(lengths), lengths, alone, strict=True)
    ]
    torch.testing.assert_close(mixed, torch.cat(apart))
    for a, b in zip(together, alone, strict=True):
        torch.testing.assert_close(a.S, b.S)
        torch.testing.assert_close(a.tail, b.tail)
