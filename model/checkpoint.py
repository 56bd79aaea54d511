"""Checkpoints: Moonshot's tensor names in safetensors shards, read lazily, written identically.

A checkpoint is checked before it is used, from its headers alone: every tensor that is missing,
unknown, or of the wrong shape or dtype is named before any weight of the model is touched.
Tensors are then read one at a time.

In the model, routed experts are stacked, [experts, out, in]; in a checkpoint each stands alone.

Source: headers of the released shards; the safetensors format.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from . import mxfp4
from .config import K3Config
from .k3 import K3, kept_in_float32
from .skeleton import skeleton

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
_STACKED = re.compile(r"(.+\.experts)\.(w[123])(_packed|_scale)?")
_HEADER_LIMIT = 100_000_000  # bytes, as in the safetensors library
_SHOWN = 20


class CheckpointError(Exception):
    """A checkpoint that cannot be read or written; the message names the file and the tensor."""


class MismatchError(CheckpointError):
    """A checkpoint of another model. Each list names tensors."""

    def __init__(
        self,
        folder: Path,
        missing: Sequence[str],
        extra: Sequence[str],
        shape: Sequence[str],
        dtype: Sequence[str],
    ) -> None:
        self.missing, self.extra, self.shape, self.dtype = missing, extra, shape, dtype
        lines = [f"{folder}: this checkpoint does not fit its configuration"]
        for title, names in (
            ("missing", missing),
            ("unknown", extra),
            ("wrong shape", shape),
            ("wrong dtype", dtype),
        ):
            if names:
                lines.append(f"  {title} ({len(names)}):")
                lines += [f"    {name}" for name in names[:_SHOWN]]
                if len(names) > _SHOWN:
                    lines.append(f"    and {len(names) - _SHOWN} more")
        super().__init__("\n".join(lines))


class Spec(NamedTuple):
    """dtype (safetensors' name) and shape of a stored tensor."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * _DTYPES[self.dtype].itemsize

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


@dataclass(frozen=True)
class Shard:
    """One safetensors file, known by its header."""

    path: Path
    header: bytes
    """The JSON as it stands in the file, padding included."""
    tensors: dict[str, Spec]
    """In the order of their data."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read and check the header: a few hundred kilobytes of a file of any size.

        Raises:
            CheckpointError: not a safetensors file, or not all of it.
        """
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                start = file.read(8)
                length = int.from_bytes(start, "little")
                if start.startswith(b"version "):
                    raise CheckpointError(f"{path}: a Git LFS pointer; the file itself is not here")
                if len(start) < 8 or length > _HEADER_LIMIT:
                    raise CheckpointError(f"{path}: not a safetensors file")
                if 8 + length > size:
                    raise CheckpointError(
                        f"{path}: truncated inside its header ({size:,} bytes); download it again"
                    )
                header = file.read(length)
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror or error}") from None
        tensors = _parse_header(path, header, size - 8 - length)
        return cls(path, header, tensors)

    @cached_property
    def _file(self) -> Any:
        from safetensors import safe_open

        return safe_open(self.path, framework="pt")

    def read(self, name: str) -> Tensor:
        """One tensor, from the file's memory map."""
        return self._file.get_tensor(name)


def _parse_header(path: Path, header: bytes, available: int) -> dict[str, Spec]:
    """The tensors of a header, checked against the bytes of data that follow it."""
    placed: list[tuple[int, int, str, Spec]] = []
    try:
        document = json.loads(header)
        document.pop("__metadata__", None)
        for name, entry in document.items():
            begin, end = entry["data_offsets"]
            placed.append((begin, end, name, Spec(entry["dtype"], tuple(entry["shape"]))))
        placed.sort(key=lambda item: item[:2])
    except (ValueError, TypeError, KeyError, AttributeError):
        raise CheckpointError(f"{path}: not a safetensors file (its header is damaged)") from None
    at = 0
    for begin, end, name, spec in placed:
        if spec.dtype in _DTYPES and end - begin != spec.nbytes:
            raise CheckpointError(f"{path}: {name}: {end - begin} bytes do not hold {spec}")
        if begin != at:
            raise CheckpointError(f"{path}: {name}: its data overlaps or leaves a gap")
        at = end
        if end > available:
            raise CheckpointError(
                f"{path}: truncated: {name} and what follows are not all there "
                f"({available:,} bytes of data of {placed[-1][1]:,}); download it again"
            )
    if at != available:
        raise CheckpointError(f"{path}: {available - at:,} bytes follow the last tensor")
    return {name: spec for _, _, name, spec in placed}


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a folder, by name. Opening reads headers only."""

    folder: Path
    shards: tuple[Shard, ...]
    index: bytes | None
    """`model.safetensors.index.json` as it stands; None for a single file."""
    _places: dict[str, tuple[Shard, str]] = field(repr=False)

    @classmethod
    def open(cls, folder: str | Path, prefix: str = "") -> Self:
        """Find and check the shards of a folder.

        Args:
            prefix: only tensors whose names begin so; of shards without any, nothing is read, and
                they need not be there.

        Raises:
            CheckpointError: no checkpoint there, a shard missing, damaged, or at odds with the
                index.
        """
        folder = Path(folder)
        wanted = {
            file: chosen
            for file, names in index_of(folder).items()
            if (chosen := [name for name in names if canonical(name).startswith(prefix)])
            or not names
        }
        if not wanted:
            raise CheckpointError(f"{folder / INDEX}: no tensor begins with {prefix}")
        for file, names in wanted.items():
            if not (folder / file).exists():
                also = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
                raise CheckpointError(
                    f"{folder / file}: not there; it should hold {names[0]}{also}"
                )
        shards = tuple(Shard.open(folder / file) for file in sorted(wanted))
        places: dict[str, tuple[Shard, str]] = {}
        for shard in shards:
            for name in wanted[shard.path.name]:
                if name not in shard.tensors:
                    raise CheckpointError(f"{shard.path}: {name} is not in it, as {INDEX} says")
            for name in shard.tensors:
                if not canonical(name).startswith(prefix):
                    continue
                if canonical(name) in places:
                    other = places[canonical(name)][0].path.name
                    raise CheckpointError(f"{shard.path}: {name} is in {other} too")
                places[canonical(name)] = (shard, name)
        index = folder / INDEX
        return cls(folder, shards, index.read_bytes() if index.exists() else None, places)

    @property
    def tensors(self) -> dict[str, Spec]:
        """dtype and shape of every tensor."""
        return {name: shard.tensors[stored] for name, (shard, stored) in self._places.items()}

    def read(self, name: str) -> Tensor:
        """One tensor.

        Raises:
            CheckpointError: a scale of MXFP4 weights is not a number.
        """
        shard, stored = self._places[name]
        tensor = shard.read(stored)
        if name.endswith(".weight_scale") and bool((tensor == mxfp4.NAN_SCALE).any()):
            raise CheckpointError(
                f"{shard.path}: {stored}: a scale byte is 255 (not a number); "
                "the file is damaged, download it again"
            )
        return tensor

    def check(self, expected: Mapping[str, Spec]) -> None:
        """Compare with the tensors a model needs.

        Raises:
            MismatchError: naming every tensor that differs.
        """
        found = self.tensors
        both = [(name, spec, found[name]) for name, spec in expected.items() if name in found]
        missing = [name for name in expected if name not in found]
        extra = [name for name in found if name not in expected]
        shape = [f"{n}: {f}, expected {e}" for n, e, f in both if f.shape != e.shape]
        dtype = [f"{n}: {f}, expected {e}" for n, e, f in both if f.shape == e.shape and f != e]
        if missing or extra or shape or dtype:
            raise MismatchError(self.folder, missing, extra, shape, dtype)


def index_of(folder: Path) -> dict[str, list[str]]:
    """Tensor names by file; of a single file without an index, none.

    Raises:
        CheckpointError: no checkpoint there, or the index is damaged.
    """
    try:
        return _parse_index(folder / INDEX, (folder / INDEX).read_bytes())
    except FileNotFoundError:
        if not (folder / SINGLE).exists():
            raise CheckpointError(f"{folder}: neither {INDEX} nor {SINGLE} is there") from None
        return {SINGLE: []}
    except OSError as error:
        raise CheckpointError(f"{folder / INDEX}: {error.strerror or error}") from None


def canonical(name: str) -> str:
    """Loaders accept two spellings of the backbone's prefix."""
    alias = "language_model.layers."
    return name.replace(alias, "language_model.model.layers.") if name.startswith(alias) else name


def _parse_index(path: Path, data: bytes) -> dict[str, list[str]]:
    """Tensor names by file."""
    files: dict[str, list[str]] = {}
    try:
        for name, file in json.loads(data)["weight_map"].items():
            if Path(file).name != file:
                raise CheckpointError(f"{path}: {name} lies outside the folder ({file})")
            files.setdefault(file, []).append(name)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise CheckpointError(f"{path}: not an index of safetensors shards") from None
    if not files:
        raise CheckpointError(f"{path}: it names no tensors")
    return files


# --- between the model and its checkpoint --------------------------------------------------------


def expected_tensors(model: K3) -> dict[str, Spec]:
    """Name, dtype and shape of every tensor in the checkpoint of a model (meta device will do)."""
    plain = {"bfloat16": "BF16", "float32": "F32"}[model.config.dtype]
    specs: dict[str, Spec] = {}
    for key, tensor in model.state_dict().items():
        shape = tuple(tensor.shape)
        stacked = _STACKED.fullmatch(key)
        if stacked is None:
            specs[key] = Spec("F32" if kept_in_float32(key) else plain, shape)
            continue
        experts, matrix, part = stacked.groups()
        count, rows, columns = shape
        if part is not None:
            kinds = {f"weight{part}": Spec("U8", (rows, columns))}
        elif model.config.text_config.quantization_config is not None:
            kinds = {
                "weight_packed": Spec("U8", (rows, columns // 2)),
                "weight_scale": Spec("U8", (rows, columns // mxfp4.GROUP)),
            }
        else:
            kinds = {"weight": Spec(plain, (rows, columns))}
        for expert in range(count):
            for kind, spec in kinds.items():
                specs[f"{experts}.{expert}.{matrix}.{kind}"] = spec
    return specs


def load(model: K3, checkpoint: Checkpoint) -> None:
    """Fill a model's weights, converting to its precision.

    Experts that the checkpoint packs are unpacked where the model holds plain ones (to train on).

    Raises:
        MismatchError: before any weight is touched.
        CheckpointError: a tensor that cannot be used.
    """
    checkpoint.check(expected_tensors(model))
    _fill(model.state_dict(), checkpoint, model.config)


@torch.no_grad()
def _fill(weights: Mapping[str, Tensor], checkpoint: Checkpoint, config: K3Config) -> None:
    quantized = config.text_config.quantization_config is not None
    for key, tensor in weights.items():
        stacked = _STACKED.fullmatch(key)
        if stacked is None:
            tensor.copy_(checkpoint.read(key))
            continue
        experts, matrix, part = stacked.groups()
        for expert, target in enumerate(tensor):
            name = f"{experts}.{expert}.{matrix}.weight"
            if part is None and quantized:
                packed, scale = (checkpoint.read(f"{name}_{kind}") for kind in ("packed", "scale"))
                target.copy_(mxfp4.unpack(packed, scale, torch.float32))
            else:
                target.copy_(checkpoint.read(name + (part or "")))


def load_model(
    folder: str | Path,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    packed_experts: bool | None = None,
) -> K3:
    """The model of a checkpoint folder: `config.json` and safetensors shards.

    Args:
        dtype: precision of weights and activations; the checkpoint's when None.
        packed_experts: see `K3`.

    Raises:
        ConfigError, CheckpointError: naming file, field or tensor.
    """
    config = K3Config.from_pretrained(folder)
    checkpoint = Checkpoint.open(folder)
    with skeleton():
        model = K3(config, dtype or getattr(torch, config.dtype), packed_experts)
    checkpoint.check(expected_tensors(model))  # before memory is asked for
    if torch.device(device).type == "cpu":
        _check_memory(model, checkpoint.folder)
    model.to_empty(device=device)
    load(model, checkpoint)
    return model.eval()


def load_part(
    folder: str | Path,
    name: str,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> nn.Module:
    """One module of a checkpoint, such as `language_model.model.layers.5`; nothing else is read.

    Shards that hold nothing of it need not be there. One expert alone, or one tensor, is read by
    `Checkpoint.open(folder, prefix).read(name)`: experts are stacked in the module.

    Raises:
        ConfigError, CheckpointError: as `load_model`; no such module.
    """
    config = K3Config.from_pretrained(folder)
    with skeleton():
        model = K3(config, dtype or getattr(torch, config.dtype))
    try:
        part = model.get_submodule(name)
    except AttributeError:
        raise CheckpointError(f"{folder}: its model has no part {name}") from None
    checkpoint = Checkpoint.open(folder, f"{name}.")
    expected = expected_tensors(model)
    checkpoint.check({n: spec for n, spec in expected.items() if n.startswith(f"{name}.")})
    if torch.device(device).type == "cpu":
        _check_memory(part, checkpoint.folder)
    part.to_empty(device=device)
    _fill(part.state_dict(prefix=f"{name}."), checkpoint, config)
    return part.eval()


def _check_memory(model: nn.Module, folder: Path) -> None:
    """Say so before the kernel does, where the weights cannot fit."""
    needed = sum(tensor.nbytes for tensor in model.state_dict().values())
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > total:
        raise CheckpointError(
            f"{folder}: its weights take {needed / 2**30:,.1f} GiB; "
            f"this machine has {total / 2**30:,.1f} GiB of memory"
        )


@torch.no_grad()
def save_model(
    model: K3,
    folder: str | Path,
    like: Checkpoint | None = None,
    shard_bytes: int = 5_000_000_000,
) -> None:
    """Write a checkpoint: shards, their index, then `config.json`. Existing files are replaced.

    Args:
        like: the checkpoint whose files, order and headers to keep; a model that was loaded and
            not changed is then written byte for byte as it was read.
        shard_bytes: size at which a new shard begins, without `like`.
    """
    folder = Path(folder)
    specs = expected_tensors(model)
    weights = model.state_dict()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if like is None:
            write_shards(folder, specs, partial(_stored, model.config, weights), shard_bytes)
            model.config.save(folder)
            return
        like.check(specs)
        for shard in like.shards:
            names = [canonical(name) for name in shard.tensors]
            tensors = (_stored(model.config, weights, name) for name in names)
            _write_shard(folder / shard.path.name, shard.header, tensors)
        if like.index is not None:
            _write_file(folder / INDEX, [like.index])
        _write_file(folder / "config.json", [(like.folder / "config.json").read_bytes()])
    except OSError as error:
        raise CheckpointError(f"{error.filename or folder}: {error.strerror or error}") from None


def _stored(config: K3Config, weights: Mapping[str, Tensor], name: str) -> Tensor:
    """The tensor that the checkpoint holds under a name."""
    plain: torch.dtype = getattr(torch, config.dtype)
    expert = re.fullmatch(r"(.+\.experts)\.(\d+)\.(w[123])\.weight(_packed|_scale)?", name)
    if expert is None:
        return weights[name].to(torch.float32 if kept_in_float32(name) else plain)
    experts, e, matrix, part = expert.groups()
    key = f"{experts}.{matrix}{part or ''}"
    if key in weights:
        tensor = weights[key][int(e)]
        return tensor if part else tensor.to(plain)
    codes, scale = mxfp4.quantize(weights[f"{experts}.{matrix}"][int(e)])
    return scale if part == "_scale" else mxfp4.pack(codes)


def write_shards(
    folder: Path,
    specs: Mapping[str, Spec],
    stored: Callable[[str], Tensor],
    shard_bytes: int,
    progress: Callable[[str], object] = lambda _file: None,
) -> None:
    """All tensors in order, each made when its turn comes, cut into shards; one gets no index."""
    shards: list[list[str]] = [[]]
    size = 0
    for name, spec in specs.items():
        if shards[-1] and size + spec.nbytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += spec.nbytes
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        file = SINGLE if len(shards) == 1 else file
        progress(file)
        tensors = (stored(name) for name in names)
        _write_shard(folder / file, _header({name: specs[name] for name in names}), tensors)
        weight_map |= dict.fromkeys(names, file)
    if len(shards) > 1:
        total = sum(spec.nbytes for spec in specs.values())
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        _write_file(folder / INDEX, [json.dumps(index, indent=2).encode()])


def _header(specs: Mapping[str, Spec]) -> bytes:
    document: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, spec in specs.items():
        offsets = [at, at + spec.nbytes]
        document[name] = {"dtype": spec.dtype, "shape": spec.shape, "data_offsets": offsets}
        at += spec.nbytes
    text = json.dumps(document, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)


def _write_shard(path: Path, header: bytes, tensors: Iterable[Tensor]) -> None:
    def pieces() -> Iterator[bytes | memoryview]:
        yield len(header).to_bytes(8, "little") + header
        for tensor in tensors:
            yield tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data

    _write_file(path, pieces())


def _write_file(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Under a temporary name first: a file is there whole or not at all."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
