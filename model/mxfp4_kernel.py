"""Products with packed MXFP4 weights on a CPU, by a small C kernel compiled on first use.

The kernel (mxfp4_kernel.c beside this file, and decode_kernel.c, which uses it) is compiled once
into the user's cache when a C compiler is present, and picks AVX-512, AVX2 or portable C when it runs. Without a compiler
`kernel()` is None and `why_not()` says so; callers then unpack an expert before they multiply.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from .mxfp4 import GROUP

_SOURCES = tuple(Path(__file__).with_name(f"{name}_kernel.c") for name in ("mxfp4", "decode"))
_FLAGS = ("-O3", "-std=c11", "-shared", "-fPIC")
_LEVELS = ("portable C", "AVX2", "AVX-512")
_COMPILE_SECONDS = 60
_NO_SUCH_EXPERT = 2


class KernelError(Exception):
    """The kernel cannot be had; the text says why."""


class Kernel:
    """The compiled kernel.

    Args:
        library: shared object made by `build`.
        level: instructions to use, 0 to 2 (portable, AVX2, AVX-512); default the processor's best.
    """

    def __init__(self, library: Path, level: int | None = None) -> None:
        self._c = ctypes.CDLL(str(library))
        pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        self._c.mxfp4_matmul.argtypes = [pointer] * 5 + [size] * 4 + [number] * 2
        self._c.mxfp4_unpack.argtypes = [pointer] * 3 + [size] * 2 + [number] * 2
        self.decode = self._c.k3_decode
        """See decode_kernel.py."""
        self.decode.argtypes = [pointer] * 8
        self.level = self._c.mxfp4_level() if level is None else level

    def describe(self) -> str:
        """What runs, in a few words."""
        return f"compiled, {_LEVELS[self.level]}"

    def matmul(self, x: Tensor, expert: Tensor, packed: Tensor, scale: Tensor) -> Tensor:
        """Each input times the weights of its expert: y[p] = W[expert[p]] x[p].

        Args:
            x: [n, in], in a multiple of 32, any float dtype; products are float32.
            expert: [n] int64; equal ones side by side share their reading of the weights.
            packed: [experts, out, in / 2] uint8, contiguous.
            scale: [experts, out, in / 32] uint8, contiguous.

        Returns:
            [n, out] in the dtype of x. Not differentiable.

        Raises:
            ValueError: shapes or dtypes that do not fit.
            MemoryError: no room for a copy of the inputs.
        """
        self._check(packed, scale)
        (n, columns), (experts, rows, _) = x.shape, packed.shape
        if columns != packed.shape[-1] * 2 or expert.shape != (n,) or expert.dtype != torch.int64:
            raise ValueError(
                f"inputs {list(x.shape)} for experts {list(expert.shape)} {expert.dtype} do not "
                f"fit packed weights {list(packed.shape)}"
            )
        wide, expert = x.float().contiguous(), expert.contiguous()
        y = torch.empty(n, rows)
        failed = self._c.mxfp4_matmul(
            *(t.data_ptr() for t in (packed, scale, expert, wide, y)),
            *(n, experts, rows, columns, torch.get_num_threads(), self.level),
        )
        if failed == _NO_SUCH_EXPERT:
            raise ValueError(f"there are {experts} experts, not {int(expert.max()) + 1}")
        if failed:
            raise MemoryError("no memory for the inputs of an MXFP4 product")
        return y.to(x.dtype)

    def unpack(self, packed: Tensor, scale: Tensor) -> Tensor:
        """`mxfp4.unpack` in float32: packed [..., n / 2], scale [..., n / 32] -> [..., n]."""
        self._check(packed, scale)
        rows, columns = scale[..., 0].numel(), packed.shape[-1] * 2
        out = torch.empty(*packed.shape[:-1], columns)
        self._c.mxfp4_unpack(
            *(t.data_ptr() for t in (packed, scale, out)),
            *(rows, columns, torch.get_num_threads(), self.level),
        )
        return out

    @staticmethod
    def _check(packed: Tensor, scale: Tensor) -> None:
        for name, tensor in (("weights", packed), ("scales", scale)):
            if tensor.dtype != torch.uint8 or not tensor.is_contiguous() or tensor.is_cuda:
                raise ValueError(f"packed {name} must be contiguous uint8 in main memory")
        if scale.shape != (*packed.shape[:-1], packed.shape[-1] * 2 // GROUP):
            raise ValueError(f"scales {list(scale.shape)} for packed {list(packed.shape)}")


@cache
def kernel() -> Kernel | None:
    """The kernel of this machine, compiled now if it never was; None where it cannot be."""
    return _try_kernel()[0]


def why_not() -> str:
    """Why `kernel()` is None, in one line; empty when it is not."""
    return _try_kernel()[1]


@cache
def _try_kernel() -> tuple[Kernel | None, str]:
    import platformdirs

    try:
        return Kernel(build(platformdirs.user_cache_path("unabridged") / "kernels")), ""
    except (KernelError, OSError) as error:
        return None, str(error)


def build(folder: Path, compilers: Sequence[str] = ("cc", "gcc", "clang")) -> Path:
    """The shared object, compiled into `folder` unless the same one is there.

    Raises:
        KernelError: no compiler, or it failed; the text says which.
    """
    compiler = next(filter(None, map(shutil.which, compilers)), None)
    if compiler is None:
        raise KernelError("no C compiler (cc, gcc or clang) on PATH")
    identity = f"{os.path.realpath(compiler)} {' '.join(_FLAGS)}".encode()
    source = b"".join(path.read_bytes() for path in _SOURCES)
    name = hashlib.sha256(source + identity).hexdigest()[:16]
    library = folder / f"mxfp4-{name}.so"
    if not _ours(library):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch, library.name)
            try:
                # Some compilers have no OpenMP: then one thread does the work.
                _compile(compiler, [*_FLAGS, "-fopenmp"], made)
            except KernelError:
                _compile(compiler, _FLAGS, made)
            made.replace(library)
    return library


def _ours(library: Path) -> bool:
    """Whether the file is there, and nobody else could have written it."""
    try:
        status = library.stat()
    except OSError:
        return False
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _compile(compiler: str, flags: Sequence[str], out: Path) -> None:
    command = [compiler, *flags, "-o", str(out), *map(str, _SOURCES), "-lm"]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_COMPILE_SECONDS, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise KernelError(f"{compiler} took over {_COMPILE_SECONDS} s") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise KernelError(f"{compiler} failed: {said[0]}")
    out.chmod(0o700)
