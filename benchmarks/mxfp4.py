"""Measure products with packed MXFP4 weights on this CPU, with weights that are not in the cache.

    python benchmarks/mxfp4.py [--threads 1 2] [--batch 1 4 32 128] [--rounds 9]

Expert matrices of the 2.8T model, [3072, 3584], 24 of them in turn. Each line is a way to multiply
one of them with a batch: time, and its ratio to torch's product with the same weights in bfloat16
and in float32. Where a CPU has no bfloat16 instructions torch's own is slow for large batches, and
the ratio to float32 says more.

Goals: compiled, batch 1 at most 0.4x bfloat16 on one thread and 0.5x on two; batch 32 at most
1.5x; without a compiler at most 20x at batch 1; packed weights under 30 % of bfloat16's memory.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from unabridged.model import mxfp4, mxfp4_kernel

Ways = dict[str, Callable[[int], Tensor]]
"""How to multiply with a matrix of this number, by name."""
ROWS, COLUMNS, MATRICES = 3072, 3584, 24


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure products with MXFP4 weights.")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 32, 128])
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    packed = torch.randint(0, 256, (MATRICES, ROWS, COLUMNS // 2), dtype=torch.uint8)
    scale = torch.randint(115, 125, (MATRICES, ROWS, COLUMNS // 32), dtype=torch.uint8)
    wide = torch.stack([mxfp4.unpack(p, s) for p, s in zip(packed, scale, strict=True)])
    wider = wide.float()
    kernel = mxfp4_kernel.kernel()
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}; kernel:", end=" ")
    print(kernel.describe() if kernel else mxfp4_kernel.why_not())
    print(f"packed: {(packed.nbytes + scale.nbytes) / wide.nbytes:.1%} of bfloat16's memory")

    def with_kernel(x: Tensor, e: int) -> Tensor:
        assert kernel is not None
        return kernel.matmul(x, torch.full((len(x),), e), packed, scale)

    def kernel_unpacks(x: Tensor, e: int) -> Tensor:
        assert kernel is not None
        return x @ kernel.unpack(packed[e], scale[e]).to(x.dtype).T

    def plain(x: Tensor, e: int) -> Tensor:
        return x @ mxfp4.unpack(packed[e], scale[e], x.dtype).T

    for threads in args.threads:
        torch.set_num_threads(threads)
        for batch in args.batch:
            x = torch.randn(batch, COLUMNS)
            low = x.bfloat16()
            ways: Ways = {
                "bfloat16 weights, torch": lambda e: low @ wide[e].T,  # noqa: B023
                "float32 weights, torch": lambda e: x @ wider[e].T,  # noqa: B023
            }
            if kernel is not None:
                ways["packed, compiled"] = lambda e: with_kernel(x, e)  # noqa: B023
                ways["unpacked by the kernel, torch"] = lambda e: kernel_unpacks(x, e)  # noqa: B023
            ways["unpacked by torch, bfloat16"] = lambda e: plain(low, e)  # noqa: B023
            ways["unpacked by torch, float32"] = lambda e: plain(x, e)  # noqa: B023
            print(f"\n{threads} thread{'s' * (threads > 1)}, batch {batch}")
            report(ways, args.rounds)


def report(ways: Ways, rounds: int) -> None:
    """Time each way in every round, so that what else the machine does hits all of them.

    As in a model, a product comes after others of its kind: the first of three matrices, which finds
    the caches (of page tables too) as another way left them, is not counted.
    """
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name, way in ways.items():
            for at in range(3):
                start = time.perf_counter()
                way((3 * number + at) % MATRICES)
                if at:
                    taken[name].append(time.perf_counter() - start)
    low, wide = (statistics.median(taken[f"{kind} weights, torch"]) for kind in KINDS)
    for name, times in taken.items():
        middle = statistics.median(times)
        print(
            f"  {name:30} {middle * 1e6:9,.0f} us (best {min(times) * 1e6:9,.0f})"
            f"  {middle / low:6.2f}x bfloat16  {middle / wide:6.2f}x float32"
        )


KINDS = ("bfloat16", "float32")

if __name__ == "__main__":
    main()
