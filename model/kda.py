"""Kimi Delta Attention: linear attention that forgets per channel and writes by error.

Per head, a state S [K, V] is decayed on its key axis, corrected towards v at k, then read by q:

    S_t = (I - beta_t k_t k_t^T) diag(exp g_t) S_{t-1} + beta_t k_t v_t^T        o_t = S_t^T q_t

`recurrent_kda` says just that. `chunk_kda` computes the same for 64 tokens at a time in matrix
products. `kda_step` is one token, in place, for decoding (`kda_step_fused` is the same for a
compiler). The layer comes last.

Source: Kimi K3 report, section 2.1.1, equations 1 to 6.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import TextConfig
from .norm import RMSNorm

CHUNK = 64
"""Tokens whose effect on the state is one matrix product."""
TILE = 16
"""Tokens over which decays are factored: exp(16 * 5) still fits float32, exp(64 * 5) does not."""
_SPAN = 64 * CHUNK * 128
"""Values of q that a CPU prepares at a time, so that what is made from them stays in its cache."""


def recurrent_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """KDA token by token: the definition.

    Args:
        q: [B, T, H, K], already scaled by K^-0.5.
        k: [B, T, H, K].
        v: [B, T, H, V].
        g: [B, T, H, K], log-decay, at most 0.
        beta: [B, T, H], write strength.
        initial_state: [B, H, K, V]; zero when None.

    Returns:
        o [B, T, H, V] in the dtype of `v`, and the final state [B, H, K, V]. Both are computed in
        float32 (in float64 where an input is float64).
    """
    dtype = v.dtype
    q, k, v, g, beta, S = _widen(q, k, v, g, beta, initial_state, q.shape[0])
    outputs: list[Tensor] = []
    for t in range(q.shape[1]):
        k_t = k[:, t, :, :, None]  # [B, H, K, 1]
        S = S * g[:, t, :, :, None].exp()
        error = v[:, t, :, None] - (S * k_t).sum(-2, keepdim=True)  # [B, H, 1, V]
        S = S + k_t * (beta[:, t, :, None, None] * error)
        outputs.append((S * q[:, t, :, :, None]).sum(-2))
    o = torch.stack(outputs, 1) if outputs else torch.zeros_like(v)
    return o.to(dtype), S


def chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | Sequence[int] | None = None,
    *,
    product_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """KDA by chunks of 64 tokens: the result of `recurrent_kda`, in matrix products.

    With the tokens of a chunk as rows and G the running sum of g within it:

        A_ij = beta_i sum_d k_id k_jd exp(G_id - G_jd)  for i > j        T = (I + A)^-1 diag(beta)
        P_ij =        sum_d q_id k_jd exp(G_id - G_jd)  for i >= j
        R    = T (v - (k exp G) S)            # what each token writes, given what is there
        o    = (q exp G) S + P R
        S   <- exp(G_last) S + (k exp(G_last - G))^T R

    All that does not need S is computed for many chunks together, by `_prepare`.

    Args:
        q, k, v, g, beta: as for `recurrent_kda`; g at least -5.
        initial_state: [B, H, K, V], or [N, H, K, V] with `cu_seqlens`; zero when None.
        cu_seqlens: N + 1 ascending offsets from 0 to T; the one row (B = 1) then holds N
            sequences, each with its own state.
        product_dtype: round the operands of the matrix products to this dtype (bfloat16, where
            hardware multiplies it faster); sums and the state keep their precision.

    Returns:
        o [B, T, H, V] in the dtype of `v`, and the final states, shaped like `initial_state`.
    """
    dtype, (B, T, H, K), V = v.dtype, q.shape, v.shape[-1]
    plan = _Plan.of([T] * B if cu_seqlens is None else _lengths(cu_seqlens, B, T), q.device)
    q, k, v, g, beta, S = _widen(q, k, v, g, beta, initial_state, len(plan.order))
    grad = torch.is_grad_enabled()
    mm = _Products(product_dtype)

    # The state with its axes swapped, [N H, V, K], the longest sequence first. Without gradients it
    # is updated in place.
    S = S.mT[plan.order].flatten(0, 1).clone(memory_format=torch.contiguous_format)
    ended: list[Tensor] = []
    o = torch.empty(B * T * H, V, dtype=S.dtype, device=S.device)
    # A GPU is best filled at once, and gradients keep everything anyway.
    span = _SPAN // (H * CHUNK * K) if q.is_cpu and not grad else len(plan.token)
    with torch.autocast(q.device.type, enabled=False):
        for steps in plan.spans(max(span, 1)):
            begin, end = steps[0], steps[-1]
            rows, real = plan.rows(begin, end, H)
            q_, k_, v_, g_, beta_ = (
                _gather(name, x.reshape(B * T * H, -1), rows)
                for name, x in zip("qkvgb", (q, k, v, g, beta), strict=True)
            )
            if real is not None:  # rows past the end of a sequence neither decay nor write
                g_, beta_ = g_ * real[..., None], beta_ * real[..., None]
            p = _prepare(q_, k_, v_, g_, beta_, mm)
            running = [(last - first) * H for first, last in pairwise(steps)]
            outputs: list[Tensor] = []
            # Split, not sliced: the gradient of a slice is as large as the whole.
            for n, *parts in zip(running, *(x.split(running) for x in p), strict=True):
                c = _Prepared(*parts)
                if n < len(S):
                    S, over = S.split([n, len(S) - n])
                    ended.append(over)
                R = mm(c.T, c.v - mm(c.k, S.mT))
                outputs.append(mm.onto(mm(c.q, S.mT), c.P, R))
                S = mm.onto(_scale(S, c.decay), R.mT, c.k_end)
            out = torch.cat(outputs, out=_scratch("o", p.v))  # [chunks H, 64, V]
            if real is not None:
                rows, out = rows[real.flatten()], out[real]
            o.index_copy_(0, rows, out.view(-1, V))
    S = torch.cat([S, *reversed(ended)]).unflatten(0, (-1, H))[plan.order.argsort()]
    return o.view(B, T, H, V).to(dtype), S.mT


class _Prepared(NamedTuple):
    """What `chunk_kda` knows of each chunk before it knows the state; n = chunks x heads."""

    q: Tensor  # [n, 64, K]  q exp(G)
    k: Tensor  # [n, 64, K]  k exp(G)
    k_end: Tensor  # [n, 64, K]  k exp(G_last - G)
    v: Tensor  # [n, 64, V]
    decay: Tensor  # [n, 1, K]  exp(G_last)
    P: Tensor  # [n, 64, 64]
    T: Tensor  # [n, 64, 64]


def _prepare(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, mm: _Products) -> _Prepared:
    """Everything in a chunk that does not need the state, by doubling.

    In a tile of 16 tokens, exp(G_i - G_j) is a product of two factors around the tile's middle,
    each within exp(+-40). Then, of two neighbouring blocks, the decay from j in the left to i in
    the right is (from j to the left's end) x (from the right's start to i), both at most 1: the
    scores of the pair are one product, and the two blocks become one of twice the length, whose
    factors are the old ones times the decay across the other half. Nothing can overflow. The
    inverse of I + A doubles the same way: [[X, 0], [-Y A X, Y]] for inverses X and Y.

    Args:
        q, k, v, g: [n, 64, K or V]; overwritten when no gradient is wanted.
        beta: [n, 64, 1].
        mm: the batched matrix product.
    """
    n, _, K = q.shape

    def blocks(x: Tensor, size: int) -> Tensor:
        return x.view(n * CHUNK // size, size, -1)

    tiles = blocks(g, TILE)
    G = torch.cumsum(tiles, 1, out=_scratch("G", tiles))  # [4n, 16, K], since the tile began
    # No result depends on where the middle lies, so no gradient does.
    middle, total = G[:, TILE // 2 - 1, None].detach().clone(), G[:, -1, None].clone()
    near = torch.sub(G, middle, out=_scratch("G", G)).exp_()
    cols = torch.div(blocks(k, TILE), near, out=_scratch("cols", near))
    q, k = _scale(blocks(q, TILE), near), _scale(blocks(k, TILE), near)
    P = mm(q, cols.mT).tril_()
    A = (mm(k, cols.mT) * blocks(beta, TILE)).tril_(-1)
    # By substitution: powers of A would lose digits where keys repeat.
    one = torch.eye(TILE, dtype=A.dtype, device=A.device).expand_as(A)
    X = torch.linalg.solve_triangular(A, one, upper=False, unitriangular=True)
    to_middle = middle.exp()
    q, k, cols = _scale(q, to_middle), _scale(k, to_middle), _scale(cols, (total - middle).exp())

    size = TILE
    while size < CHUNK:
        # From here q and k reach back to their block's start, cols reach on to its end.
        left = blocks(cols, 2 * size).split(size, 1)[0].mT
        right = blocks(q, 2 * size).split(size, 1)[1], blocks(k, 2 * size).split(size, 1)[1]
        A = mm(right[1], left) * blocks(beta, 2 * size).split(size, 1)[1]
        P = _corner(*_pairs(P), mm(right[0], left))
        X_left, X_right = _pairs(X)
        X = _corner(X_left, X_right, torch.bmm(torch.bmm(X_right, A), X_left).neg_())
        across = total.view(-1, 2, 1, K).exp()
        before = torch.stack([torch.ones_like(across[:, 0]), across[:, 0]], 1).flatten(0, 1)
        after = torch.stack([across[:, 1], torch.ones_like(across[:, 1])], 1).flatten(0, 1)
        q = _scale(blocks(q, size), before)
        k = _scale(blocks(k, size), before)
        cols = _scale(blocks(cols, size), after)
        total = total.view(-1, 2, 1, K).sum(1)
        size *= 2
    return _Prepared(
        blocks(q, CHUNK), blocks(k, CHUNK), blocks(cols, CHUNK), v, total.exp(), P, X * beta.mT
    )


def _pairs(x: Tensor) -> tuple[Tensor, Tensor]:
    """The left and the right one of each two neighbouring blocks: [2m, ...] -> 2 x [m, ...]."""
    left, right = x.unflatten(0, (-1, 2)).unbind(1)
    return left, right


def _corner(left: Tensor, right: Tensor, corner: Tensor) -> Tensor:
    """Blocks [m, s, s] on the diagonal and one below: [m, 2s, 2s], zero above."""
    if torch.is_grad_enabled():
        above = torch.cat([left, torch.zeros_like(left)], 2)
        return torch.cat([above, torch.cat([corner, right], 2)], 1)
    m, s, _ = corner.shape
    whole = corner.new_zeros(m, 2 * s, 2 * s)
    whole[:, :s, :s], whole[:, s:, s:], whole[:, s:, :s] = left, right, corner
    return whole


def _scale(x: Tensor, factor: Tensor) -> Tensor:
    """x * factor, into x's own memory when no gradient needs x."""
    return x * factor if torch.is_grad_enabled() else x.mul_(factor)


@dataclass(frozen=True, slots=True)
class _Products:
    """Products of batches of matrices, with operands rounded to `dtype` if one is given."""

    dtype: torch.dtype | None

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        """a @ b."""
        if self.dtype is None:
            return torch.bmm(a, b)
        return torch.bmm(a.to(self.dtype), b.to(self.dtype)).to(a.dtype)

    def onto(self, c: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """c + a @ b, in c's memory."""
        return c.baddbmm_(a, b) if self.dtype is None else c.add_(self(a, b))


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.kept: dict[tuple[str, torch.dtype], Tensor] = {}


_buffers = _Buffers()


def _scratch(name: str, like: Tensor) -> Tensor | None:
    """Memory for a result shaped like `like`, kept for the next call; None where autograd rules.

    Fresh memory costs a CPU more than the arithmetic that fills it: each page is faulted in.
    """
    if torch.is_grad_enabled() or not like.is_cpu:
        return None
    buffer = _buffers.kept.get((name, like.dtype))
    if buffer is None or buffer.numel() < like.numel():
        with torch.inference_mode(False):  # usable inside and outside of inference mode
            buffer = torch.empty(like.numel(), dtype=like.dtype)
        _buffers.kept[name, like.dtype] = buffer
    return buffer[: like.numel()].view(like.shape)


def _gather(name: str, x: Tensor, rows: Tensor) -> Tensor:
    """The given rows of x [tokens H, K], chunk by chunk: [n, 64, K]."""
    out = _scratch(name, x[:1].expand(len(rows), -1))
    return torch.index_select(x, 0, rows, out=out).unflatten(0, (-1, CHUNK))


def _widen(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor | None, sequences: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The inputs in float32, or float64 if one of them is; a zero state if there is none."""
    if state is None:
        state = torch.zeros(
            sequences, *k.shape[2:], v.shape[-1], dtype=torch.float32, device=k.device
        )
    given = (q, k, v, g, beta, state)
    wide = torch.float64 if any(x.dtype == torch.float64 for x in given) else torch.float32
    q, k, v, g, beta, state = (x.to(wide) for x in given)
    return q, k, v, g, beta, state


def _lengths(cu_seqlens: Tensor | Sequence[int], B: int, T: int) -> list[int]:
    ends = cu_seqlens.tolist() if isinstance(cu_seqlens, Tensor) else list(cu_seqlens)
    lengths = [end - start for start, end in pairwise(ends)]
    if B != 1 or len(ends) < 2 or ends[0] != 0 or ends[-1] != T or min(lengths) < 0:
        raise ValueError(
            f"cu_seqlens must ascend from 0 to T = {T} over one row (B = 1, here {B}); got {ends}"
        )
    return lengths


class _Plan(NamedTuple):
    """Where the tokens of several sequences lie in chunks, in the order the chunks are run.

    Sequences run side by side: step i holds the i-th chunk of each that has one, longest first.
    """

    order: Tensor  # [N] the sequences, longest first
    token: Tensor  # [chunks, 64] the token in each row of each chunk
    real: Tensor  # [chunks, 64] false past the end of a sequence
    steps: list[int]  # step i runs chunks steps[i] to steps[i + 1]
    ragged: bool

    @classmethod
    def of(cls, lengths: list[int], device: torch.device) -> Self:
        length = torch.tensor(lengths)
        order = length.argsort(descending=True, stable=True)
        start = (length.cumsum(0) - length)[order]
        within = CHUNK * torch.arange(max(-(-max(lengths) // CHUNK), 1))[:, None]  # [steps, 1]
        has = within < length[order]  # [steps, N]
        first = (start + within)[has]  # [chunks] first token of each
        token = first[:, None] + torch.arange(CHUNK)
        real = token < (start + length[order]).expand_as(has)[has][:, None]
        token = token.where(real, first[:, None])
        steps = [0, *has.sum(1).cumsum(0).tolist()]
        ragged = not bool(real.all())
        return cls(order.to(device), token.to(device), real.to(device), steps, ragged)

    def spans(self, chunks: int) -> Iterator[list[int]]:
        """Cut the steps into runs of about that many chunks: the offsets of each run's steps."""
        begin = 0
        for at in range(1, len(self.steps)):
            last = at == len(self.steps) - 1
            if last or self.steps[at + 1] - self.steps[begin] > chunks:
                if self.steps[at] > self.steps[begin]:
                    yield self.steps[begin : at + 1]
                begin = at

    def rows(self, begin: int, end: int, heads: int) -> tuple[Tensor, Tensor | None]:
        """For chunks begin to end, head by head: rows of [tokens x heads] and which are real."""
        head = torch.arange(heads, device=self.token.device)
        rows = self.token[begin:end, None, :] * heads + head[:, None]  # [chunks, H, 64]
        if not self.ragged:
            return rows.flatten(), None
        real = self.real[begin:end, None, :].expand_as(rows)
        return rows.flatten(), real.flatten(0, 1)


def kda_gate(z: Tensor, A_log: Tensor, lower_bound: float = -5.0) -> Tensor:
    """The log-decay: lower_bound sigmoid(exp(A) z), in (lower_bound, 0) (equation 5).

    Args:
        z: [..., H, K], decay logits with their bias already added.
        A_log: [H], log-slope of each head.
    """
    return lower_bound * torch.sigmoid(A_log.exp()[:, None] * z)


def kda_step(S: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """One token of `recurrent_kda`, in place, in few calls and without a copy of the state.

    Args:
        S: [n, K, V], overwritten by the new state; n counts sequences and heads. Fastest where
            S.mT is contiguous.
        q, k, g: [n, K]; v: [n, V]; beta: [n].

    Returns:
        o: [n, V].
    """
    rows = S.mT.mul_(g.exp()[:, None])  # [n, V, K]
    error = v[:, :, None] - torch.bmm(rows, k[:, :, None])  # [n, V, 1]
    rows.baddbmm_(error * beta[:, None, None], k[:, None])
    return torch.bmm(rows, q[:, :, None])[:, :, 0]


def kda_step_fused(S: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """`kda_step` row by row: compiled, it reads and writes each row S[:, v] once."""
    rows = S.mT
    decayed = rows * g.exp()[:, None]
    error = v - (decayed * k[:, None]).sum(-1)
    new = decayed + (beta[:, None] * error)[:, :, None] * k[:, None]
    rows.copy_(new)
    return (new * q[:, None]).sum(-1)


@functools.cache
def compiled_kda_step() -> Callable[..., Tensor]:
    """`kda_step_fused` through torch.compile, which needs a C++ compiler (or a GPU).

    Compiling takes some seconds; afterwards a step over states larger than the cache costs about
    as much as copying them.
    """
    return torch.compile(kda_step_fused, dynamic=True)


def short_conv(y: Tensor, weight: Tensor) -> Tensor:
    """Causal depthwise convolution over what came before: out_t = sum_j w_j y_{t + j}.

    Args:
        y: [kernel - 1 + T, C], led by the tail of what came before (zeros at the start).
        weight: [C, 1, kernel], the last tap for the newest token.

    Returns:
        [T, C] in the dtype of `weight`.
    """
    return _ShortConv.apply(y, weight.squeeze(1).mT)


class _ShortConv(torch.autograd.Function):
    """With its gradients by hand: autograd would fill a whole tensor for each tap's slice."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, taps: Tensor) -> Tensor:
        ctx.save_for_backward(y, taps)
        T = len(y) - len(taps) + 1
        out = y[:T] * taps[0]
        for j in range(1, len(taps)):
            out.addcmul_(y[j : j + T].to(out.dtype), taps[j])
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor]:
        (grad,) = grad_outputs
        y, taps = ctx.saved_tensors
        T = len(grad)
        grad_y = grad.new_zeros(y.shape)
        for j, tap in enumerate(taps):
            grad_y[j : j + T].addcmul_(grad, tap)
        grad_taps = [(y[j : j + T] * grad).sum(0) for j in range(len(taps))]
        return grad_y.to(y.dtype), torch.stack(grad_taps)


def l2_normalise(x: Tensor) -> Tensor:
    """x / sqrt(sum(x^2) + 1e-6) over the last axis."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


@dataclass(slots=True)
class KDAState:
    """What a KDA layer remembers of one sequence."""

    S: Tensor
    """[H, K, V], float32; memory runs along K."""
    tail: Tensor
    """[kernel - 1, 3 H K]: the last projections of q, k and v before their convolutions."""

    def fork(self) -> Self:
        return type(self)(self.S.mT.clone().mT, self.tail.clone())


class KimiDeltaAttention(nn.Module):
    """The layer. Parameters are named and shaped as in the checkpoint."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        linear = config.linear_attn_config
        hidden, H, K = config.hidden_size, linear.num_heads, linear.head_dim
        self.heads, self.head_dim = H, K
        self.kernel = linear.short_conv_kernel_size
        self.lower_bound = linear.gate_lower_bound
        self.step: Callable[..., Tensor] = kda_step
        """How one token is decoded; `compiled_kda_step()` is the fast one."""
        self.product_dtype: torch.dtype | None = None
        """See `chunk_kda`."""

        self.q_proj = nn.Linear(hidden, H * K, bias=False)
        self.k_proj = nn.Linear(hidden, H * K, bias=False)
        self.v_proj = nn.Linear(hidden, H * K, bias=False)
        self.q_conv1d = nn.Conv1d(H * K, H * K, self.kernel, groups=H * K, bias=False)
        self.k_conv1d = nn.Conv1d(H * K, H * K, self.kernel, groups=H * K, bias=False)
        self.v_conv1d = nn.Conv1d(H * K, H * K, self.kernel, groups=H * K, bias=False)
        # Decay: low rank, a bias per channel, a slope per head (stored padded to 128 heads).
        self.f_a_proj = nn.Linear(hidden, K, bias=False)
        self.f_b_proj = nn.Linear(K, H * K, bias=False)
        self.dt_bias = nn.Parameter(torch.empty(H * K))
        self.A_log = nn.Parameter(torch.empty(-(-H // 128) * 128))
        self.b_proj = nn.Linear(hidden, H, bias=False)
        self.g_proj = nn.Linear(hidden, H * K, bias=False)
        self.o_norm = RMSNorm(K, config.rms_norm_eps)
        self.o_proj = nn.Linear(H * K, hidden, bias=False)
        self.init_decay()

    @torch.no_grad()
    def init_decay(self) -> None:
        """Start with decays spread over time scales: dt log-uniform in [1e-3, 1e-1], slope 1.

        A state whose decays all start fast never learns to keep anything.
        """
        if self.dt_bias.is_meta:
            return
        self.A_log.zero_()
        dt = torch.empty_like(self.dt_bias).uniform_(math.log(1e-3), math.log(1e-1)).exp_()
        dt = dt.clamp_(min=1e-4)
        self.dt_bias.copy_(dt + torch.log(-torch.expm1(-dt)))

    def new_state(self, dtype: torch.dtype) -> KDAState:
        """The state before the first token; `dtype` is that of the projections."""
        H, K, device = self.heads, self.head_dim, self.dt_bias.device
        S = torch.zeros(H, K, K, device=device).mT
        return KDAState(S, torch.zeros(self.kernel - 1, 3 * H * K, dtype=dtype, device=device))

    def forward(
        self, x: Tensor, lengths: Sequence[int], states: Sequence[KDAState] | None = None
    ) -> Tensor:
        """Attend.

        Args:
            x: [N, hidden], the new tokens of several sequences, one sequence after the other.
            lengths: how many of them belong to each sequence.
            states: what came before in each sequence, updated in place; None starts all at zero.

        Returns:
            [N, hidden].
        """
        N, H, K = len(x), self.heads, self.head_dim
        decoding = next((i for i, length in enumerate(lengths) if length != 1), len(lengths))
        if states is not None and 0 < decoding < len(lengths):
            # Sequences that decode stand before those that read a prompt: a chunk for each is lost.
            first = self(x[:decoding], lengths[:decoding], states[:decoding])
            return torch.cat([first, self(x[decoding:], lengths[decoding:], states[decoding:])])
        # One token for each sequence, as in decoding, needs no chunks.
        one_each = states if all(length == 1 for length in lengths) else None
        if one_each is None:
            convolved = self._convolved(x, lengths, states)
        else:
            convolved = self._convolved_one(x, one_each)
        q, k = l2_normalise(convolved[:, :2]).unbind(1)
        q, v = q * K**-0.5, convolved[:, 2]
        z = self.f_b_proj(self.f_a_proj(x)).float() + self.dt_bias
        g = kda_gate(z.view(N, H, K), self.A_log[:H], self.lower_bound)
        beta = torch.sigmoid(self.b_proj(x).float())
        if states is None:
            o, _ = self._chunks(q, k, v, g, beta, S=None, lengths=lengths)
        elif one_each is not None:
            o = torch.stack(
                [self.step(s.S, *row) for s, *row in zip(one_each, q, k, v, g, beta, strict=True)]
            )
        else:
            before = torch.stack([state.S for state in states])
            o, after = self._chunks(q, k, v, g, beta, S=before, lengths=lengths)
            for state, S in zip(states, after, strict=True):
                state.S.copy_(S)
        gate = torch.sigmoid(self.g_proj(x).float()).view(N, H, K)
        gated = F.rms_norm(o, (K,), self.o_norm.weight.float(), self.o_norm.eps) * gate
        return self.o_proj(gated.to(x.dtype).view(N, H * K))

    def _convolved(
        self, x: Tensor, lengths: Sequence[int], states: Sequence[KDAState] | None
    ) -> Tensor:
        """q, k and v after their convolutions and SiLU, [N, 3, H, K] in float32."""
        y = torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], -1)  # [N, 3 H K]
        tail = self.kernel - 1
        nothing = y.new_zeros(tail, y.shape[-1])
        pieces: list[Tensor] = []
        for i, piece in enumerate(y.split(list(lengths))):
            pieces += [nothing if states is None else states[i].tail.to(y.dtype), piece]
        led = torch.cat(pieces)
        out = F.silu(short_conv(led, self._conv_weight()))
        # `out` also has the windows that straddle two sequences: keep each sequence's own.
        own: list[Tensor] = []
        start = 0
        for i, length in enumerate(lengths):
            own.append(out[start : start + length])
            start += length + tail
            if states is not None:
                states[i].tail.copy_(led[start - tail : start])
        return torch.cat(own).view(len(x), 3, self.heads, self.head_dim)

    def _convolved_one(self, x: Tensor, states: Sequence[KDAState]) -> Tensor:
        """`_convolved` for one token of each sequence."""
        y = torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], -1)  # [N, 3 H K]
        tails = torch.stack([state.tail for state in states])
        windows = torch.cat([tails.to(y.dtype), y[:, None]], 1)  # [N, kernel, 3 H K]
        for state, window in zip(states, windows, strict=True):
            state.tail.copy_(window[1:])
        out = F.silu((windows * self._conv_weight().squeeze(1).mT).sum(1))
        return out.view(len(x), 3, self.heads, self.head_dim)

    def _conv_weight(self) -> Tensor:
        """[3 H K, 1, kernel], float32."""
        return torch.cat([self.q_conv1d.weight, self.k_conv1d.weight, self.v_conv1d.weight]).float()

    def _chunks(
        self, *inputs: Tensor, S: Tensor | None, lengths: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """`chunk_kda` over packed tokens: o [N, H, V] and the states [n, H, K, V]."""
        o, S = chunk_kda(
            *(x[None] for x in inputs),
            initial_state=S,
            cu_seqlens=[0, *accumulate(lengths)],
            product_dtype=self.product_dtype,
        )
        return o[0], S
