"""The C kernel against float64, whatever the shape, scale, alignment and instruction set."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unabridged.model import mxfp4, mxfp4_kernel
from unabridged.model.mxfp4_kernel import Kernel, KernelError, build, kernel

pytestmark = pytest.mark.needs("cc")


def levels() -> list[int]:
    best = kernel()
    return list(range(best.level + 1)) if best else []


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("kernels"))


def unaligned(values: Tensor, offset: int) -> Tensor:
    """A contiguous copy that begins `offset` elements into its memory."""
    memory = torch.empty(values.numel() + offset, dtype=values.dtype)
    view = memory[offset:].view(values.shape)
    return view.copy_(values)


def weights(experts: int, rows: int, columns: int, low: int, high: int) -> tuple[Tensor, Tensor]:
    packed = torch.randint(0, 256, (experts, rows, columns // 2), dtype=torch.uint8)
    scale = torch.randint(low, high + 1, (experts, rows, columns // 32), dtype=torch.uint8)
    return packed, scale


def may_be_off(weights: Tensor, x: Tensor, tolerance: float) -> Tensor:
    """Of the products, and of inputs that hold 24 bits of their group's largest: [..., rows]."""
    largest = x.abs().unflatten(-1, (-1, 32)).amax(-1, keepdim=True)
    grid = largest.expand(*largest.shape[:-1], 32).flatten(-2)
    return ((tolerance * x.abs() + 2**-23 * grid) * weights.abs()).sum(-1)


@given(
    seed=st.integers(0, 2**31),
    level=st.sampled_from(levels() or [0]),
    experts=st.integers(1, 4),
    rows=st.integers(1, 40),
    groups=st.integers(1, 9),
    n=st.integers(0, 13),
    low=st.sampled_from([1, 60, 110, 120, 127, 180]),
    spread=st.integers(0, 20),
    offset=st.integers(0, 3),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_equals_float64(
    library: Path,
    seed: int,
    level: int,
    experts: int,
    rows: int,
    groups: int,
    n: int,
    low: int,
    spread: int,
    offset: int,
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(seed)
    packed, scale = weights(experts, rows, groups * 32, low, low + spread)
    x = torch.randn(n, groups * 32).to(dtype)
    expert = torch.randint(0, experts, (n,)).sort().values
    fast = Kernel(library, level)
    got = fast.matmul(
        unaligned(x, offset), expert, unaligned(packed, offset), unaligned(scale, offset)
    )
    exact = mxfp4.unpack(packed, scale, torch.float64)[expert]  # [n, rows, columns]
    wide = x.double()[:, None, :]
    error = (got.double() - (exact * wide).sum(-1)).abs()
    tolerance = 1e-5 if dtype == torch.float32 else 2**-8
    assert got.dtype == dtype
    assert got.shape == (n, rows)
    assert bool((error <= may_be_off(exact, wide, tolerance) + 1e-37).all())


@pytest.mark.parametrize("level", levels())
def test_unpacks_every_code_under_every_scale_bit_for_bit(library: Path, level: int) -> None:
    packed = torch.arange(256, dtype=torch.uint8).repeat_interleave(16).view(256, 16).t()
    packed = packed.repeat(16, 1).contiguous().view(256, 256)[:, :16].contiguous()
    packed = torch.cat([packed, torch.arange(256, dtype=torch.uint8).view(16, 16).repeat(16, 1)])
    for byte in range(256):
        scale = torch.full((packed.shape[0], 1), byte, dtype=torch.uint8)
        got = Kernel(library, level).unpack(packed, scale)
        assert torch.equal(
            got.view(torch.int32), mxfp4.unpack(packed, scale, torch.float32).view(torch.int32)
        ) or (byte == 255 and bool(got.isnan().all()))


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("size", [1e-38, 1e-30, 1e-7, 1.0, 1e20, 1e37])
def test_inputs_of_every_size(library: Path, level: int, size: float) -> None:
    """One column towers over its group; beside it the others still count as far as floats go."""
    torch.manual_seed(11)
    packed, scale = weights(1, 40, 96, 125, 127)
    packed[0, :10, ::16] &= 0xF0  # rows that take nothing of what towers
    scale = (scale - 20).clamp(min=1) if size > 1e30 else scale
    x = torch.randn(1, 96).clamp(-1, 1) * size * 1e-3
    x[0, ::32] = size
    got = Kernel(library, level).matmul(x, torch.zeros(1).long(), packed, scale)
    exact, wide = mxfp4.unpack(packed, scale, torch.float64)[0], x.double()
    assert (exact[:10, ::32] == 0).all()
    error = (got[0].double() - (exact * wide).sum(-1)).abs()
    assert bool((error <= may_be_off(exact, wide, 1e-5) + 1e-36).all())


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("what", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_finite_number_shows(library: Path, level: int, what: float) -> None:
    packed, scale = weights(1, 5, 128, 120, 127)
    x = torch.ones(2, 128)
    x[0, 70] = what
    got = Kernel(library, level).matmul(x, torch.zeros(2).long(), packed, scale)
    assert not got[0].isfinite().any()
    assert got[1].isfinite().all()


@pytest.mark.parametrize("level", levels())
def test_the_nan_scale_is_not_a_number(library: Path, level: int) -> None:
    packed, scale = weights(1, 3, 64, 127, 127)
    scale[0, 1, 1] = mxfp4.NAN_SCALE
    y = Kernel(library, level).matmul(torch.ones(1, 64), torch.zeros(1).long(), packed, scale)
    assert y.isnan().tolist() == [[False, True, False]]


def test_a_sum_does_not_depend_on_its_neighbours_or_on_threads(library: Path) -> None:
    packed, scale = weights(3, 70, 96, 118, 126)
    x, expert = torch.randn(11, 96), torch.tensor([0, 0, 0, 0, 0, 1, 2, 2, 2, 2, 2])
    fast = Kernel(library)
    together = fast.matmul(x, expert, packed, scale)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = [fast.matmul(x[i : i + 1], expert[i : i + 1], packed, scale) for i in range(11)]
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a | {"x": torch.ones(2, 32)}, "do not fit"),
        (lambda a: a | {"expert": torch.tensor([0, 4])}, "there are 2 experts"),
        (lambda a: a | {"expert": torch.tensor([0, -1])}, "experts"),
        (lambda a: a | {"scale": a["scale"][:, :1]}, "scales"),
        (lambda a: a | {"packed": a["packed"].float()}, "uint8"),
        (lambda a: a | {"packed": a["packed"].transpose(0, 1)}, "contiguous"),
    ],
)
def test_what_does_not_fit_is_refused(library: Path, change, message: str) -> None:
    packed, scale = weights(2, 3, 64, 127, 127)
    arguments = {
        "x": torch.ones(2, 64),
        "expert": torch.tensor([0, 1]),
        "packed": packed,
        "scale": scale,
    }
    with pytest.raises(ValueError, match=message):
        Kernel(library).matmul(**change(arguments))


def test_memory_is_left_alone(tmp_path: Path) -> None:
    program = tmp_path / "program"
    source = Path(__file__).with_name("mxfp4_kernel_main.c")
    kernel_source = Path(mxfp4_kernel.__file__).with_name("mxfp4_kernel.c")
    subprocess.run(
        [
            *("cc", "-g", "-O1", "-fsanitize=address,undefined"),
            *("-fno-sanitize-recover=all", f'-DKERNEL="{kernel_source}"'),
            *("-o", str(program), str(source)),
        ],
        check=True,
        capture_output=True,
    )
    done = subprocess.run([program], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert int(done.stdout) > 10_000


class TestBuild:
    def test_compiles_once(self, tmp_path: Path) -> None:
        first = build(tmp_path)
        made = first.stat().st_mtime_ns
        assert build(tmp_path) == first
        assert first.stat().st_mtime_ns == made

    def test_what_others_could_have_written_is_not_loaded(self, tmp_path: Path) -> None:
        library = build(tmp_path)
        library.write_bytes(b"not a library")
        library.chmod(0o777)
        Kernel(build(tmp_path))
        assert library.stat().st_mode & 0o777 == 0o700

    def test_without_a_compiler_it_says_so(self, tmp_path: Path) -> None:
        with pytest.raises(KernelError, match="no C compiler"):
            build(tmp_path, ["no-such-compiler"])

    def test_a_compiler_that_fails_is_quoted(self, tmp_path: Path) -> None:
        broken = tmp_path / "cc"
        broken.write_text("#!/bin/sh\necho 'internal error: out of luck' >&2\nexit 4\n")
        broken.chmod(0o755)
        with pytest.raises(KernelError, match="out of luck"):
            build(tmp_path / "kernels", [str(broken)])
        assert list((tmp_path / "kernels").iterdir()) == []

    def test_several_processes_at_once(self, tmp_path: Path) -> None:
        script = (
            "import sys; from pathlib import Path\n"
            "from unabridged.model.mxfp4_kernel import Kernel, build\n"
            "Kernel(build(Path(sys.argv[1])))"
        )
        racers = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]) for _ in range(3)]
        assert [racer.wait() for racer in racers] == [0, 0, 0]
        assert len(list(tmp_path.iterdir())) == 1
