"""Measure KDA on this CPU against what its arithmetic and its memory allow.

    python benchmarks/kda.py [prefill] [linear] [decode] [--threads 1 2] [--rounds 7]

prefill  chunk_kda over 2,048 tokens (8 heads of 128): time over the time of its bare matrix
         products at the fp32 GEMM rate measured in the same round. Goal: 2.5 at most.
linear   time over T from 2k to 64k tokens in spans of 2,048 with carried state, as the exponent of
         a power law. Goal: 1.05 at most.
decode   one step over states of 16 sequences x 96 heads (101 MB, larger than the cache): time over
         the time to copy them. Goal: 1.5 at most, on two threads or on one with the compiled step.

Each round measures both sides one after the other, so that what else the machine does hits both;
the ratio's median and best over the rounds are printed.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from unabridged.model.kda import CHUNK, chunk_kda, compiled_kda_step, kda_step

HEADS, K = 8, 128
SPAN = 2048


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure KDA on this CPU.")
    parser.add_argument("what", nargs="*", help="prefill, linear, decode (default: all)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    parts = {"prefill": prefill, "linear": linear, "decode": decode}
    unknown = set(args.what) - set(parts)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}")
    for threads in args.threads:
        torch.set_num_threads(threads)
        for part in args.what or parts:
            for line in parts[part](args.rounds):
                print(f"{part:8} {threads} thread{'s' * (threads > 1)}  {line}", flush=True)


def prefill(rounds: int) -> Iterator[str]:
    inputs, state = tokens(SPAN)
    flops = chunk_flops(SPAN)

    def products(dtype: torch.dtype) -> float:
        """Seconds that the bare products would take at the measured GEMM rate."""
        a = torch.randn(2048, 2048).to(dtype)
        return fastest(lambda: a @ a, 2) / (2 * 2048**3) * flops

    def round_(dtype: torch.dtype | None) -> tuple[float, float]:
        floor = products(torch.float32)
        return fastest(
            lambda: chunk_kda(*inputs, initial_state=state, product_dtype=dtype), 2
        ), floor

    results = [round_(None) for _ in range(rounds)]
    rate = max(flops / floor for _, floor in results) / 1e9
    speed = SPAN / min(taken for taken, _ in results)
    yield f"fp32  {ratios(results)} of the products' time ({rate:.0f} GFLOP/s), {speed:,.0f} tok/s"
    faster = products(torch.float32) / products(torch.bfloat16)
    if faster < 1:
        yield f"bf16  not measured: this CPU multiplies bfloat16 at {faster:.2f} of the fp32 rate"
        return
    results = [round_(torch.bfloat16) for _ in range(rounds)]
    speed = SPAN / min(taken for taken, _ in results)
    yield f"bf16  {ratios(results)} of the fp32 products' time, {speed:,.0f} tok/s"


def linear(rounds: int) -> Iterator[str]:
    lengths = [2048 * 2**i for i in range(6)]
    inputs, state = tokens(lengths[-1])

    def run(T: int) -> None:
        S = state
        for start in range(0, T, SPAN):
            _, S = chunk_kda(*(x[:, start : start + SPAN] for x in inputs), initial_state=S)

    run(SPAN)
    taken = [
        min(fastest(lambda T=T: run(T), 1) for _ in range(max(2, rounds // 2))) for T in lengths
    ]
    x, y = [math.log(T) for T in lengths], [math.log(t) for t in taken]
    slope = statistics.linear_regression(x, y).slope
    speeds = ", ".join(f"{T // 1024}k {T / t:,.0f}" for T, t in zip(lengths, taken, strict=True))
    yield f"exponent {slope:.3f}; tok/s at {speeds}"


def decode(rounds: int) -> Iterator[str]:
    n = 16 * 96
    S = torch.zeros(n, K, K).mT
    other = torch.empty(n, K, K)
    q, k, v = (torch.randn(n, K) for _ in range(3))
    k, g, beta = F.normalize(k, dim=-1), -5 * torch.rand(n, K), torch.rand(n)
    for name, step in (("compiled", compiled_kda_step()), ("eager", kda_step)):
        step(S, q, k, v, g, beta)
        results = [
            (fastest(lambda: step(S, q, k, v, g, beta), 3), fastest(lambda: other.copy_(S.mT), 3))  # noqa: B023
            for _ in range(rounds)
        ]
        best = min(taken for taken, _ in results) * 1e3
        rate = 2 * S.nbytes / min(floor for _, floor in results) / 1e9
        yield f"{name:8}  {ratios(results)} of a copy ({rate:.0f} GB/s), {best:.1f} ms"


def tokens(T: int) -> tuple[list[Tensor], Tensor]:
    """q, k, v, g, beta of one sequence and a state."""
    q, k, v = (torch.randn(1, T, HEADS, K) for _ in range(3))
    g, beta = -5 * torch.rand(1, T, HEADS, K), torch.rand(1, T, HEADS)
    q, k = F.normalize(q, dim=-1) * K**-0.5, F.normalize(k, dim=-1)
    return [q, k, v, g, beta], torch.randn(1, HEADS, K, K)


def chunk_flops(T: int) -> float:
    """Products of the chunk form as the paper writes it: five [C, C, K], three [C, K, K], T^-1."""
    per_chunk = 5 * 2 * CHUNK**2 * K + 3 * 2 * CHUNK * K**2 + 2 * CHUNK**3 / 3
    return T / CHUNK * HEADS * per_chunk


def fastest(work: Callable[[], object], times: int) -> float:
    """Seconds of the fastest of some runs."""
    best = math.inf
    for _ in range(times):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def ratios(results: list[tuple[float, float]]) -> str:
    each = [taken / floor for taken, floor in results]
    return f"{statistics.median(each):.2f}x (best {min(each):.2f}x)"


if __name__ == "__main__":
    main()
