"""What of a checkpoint is there, what is missing, and whether its scales are sound.

Unlike loading, which stops at the first shard that cannot be used, this looks at all of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from . import mxfp4
from .checkpoint import (
    INDEX,
    CheckpointError,
    Shard,
    Spec,
    canonical,
    expected_tensors,
    index_of,
)
from .config import K3Config
from .k3 import K3
from .sizes import human
from .skeleton import skeleton

_SHOWN = 12


@dataclass(frozen=True)
class Inspection:
    """The state of a checkpoint folder. Lists name tensors or files, sorted as in the model."""

    folder: str
    expected: int
    """Tensors that the configuration asks for."""
    present: int
    """Of these, the ones that are there."""
    nbytes: dict[str, int]
    """Bytes of what is there, by dtype (safetensors' names)."""
    shards: list[str]
    """Files that can be read."""
    missing_shards: list[str]
    damaged_shards: list[str]
    """A line each: what is wrong."""
    missing: list[str]
    unknown: list[str]
    wrong: list[str]
    """Shape or dtype, a line each."""
    scales: int | None
    """Scale tensors looked at; None when they were not asked for."""
    damaged_scales: list[str]
    """Scale tensors with a byte that is not a number."""

    @property
    def sound(self) -> bool:
        """Whether a model can be loaded from it."""
        return not (self.missing or self.unknown or self.wrong or self.damaged_scales) and not (
            self.missing_shards or self.damaged_shards
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"sound": self.sound}


def inspect(
    folder: str | Path,
    scales: bool = True,
    progress: Callable[[str], object] = lambda _file: None,
) -> Inspection:
    """Look at every shard of a checkpoint.

    Args:
        scales: read all scale bytes (about a twentieth of the weights) and look for 255.
        progress: called with the name of each shard before it is read.

    Raises:
        ConfigError: no usable `config.json`.
        CheckpointError: neither an index nor a single file; a damaged index.
    """
    folder = Path(folder)
    config = K3Config.from_pretrained(folder)
    with skeleton():
        expected = expected_tensors(K3(config, getattr(torch, config.dtype)))
    wanted = index_of(folder)
    found: dict[str, Spec] = {}
    shards: list[str] = []
    absent: list[str] = []
    damaged: list[str] = []
    looked = 0
    unsound: list[str] = []
    for file in sorted(wanted):
        progress(file)
        if not (folder / file).exists():
            absent.append(file)
            continue
        try:
            shard = Shard.open(folder / file)
            lost = [name for name in wanted[file] if name not in shard.tensors]
            if lost:
                more = f" and {len(lost) - 1:,} more" if len(lost) > 1 else ""
                damaged.append(f"{file}: without {lost[0]}{more}, against {INDEX}")
            found |= {canonical(name): spec for name, spec in shard.tensors.items()}
            if scales:
                for name in shard.tensors:
                    if name.endswith(".weight_scale"):
                        looked += 1
                        if bool((shard.read(name) == mxfp4.NAN_SCALE).any()):
                            unsound.append(name)
            shards.append(file)
        except CheckpointError as error:
            damaged.append(str(error).removeprefix(f"{folder}/"))
    both = [(name, spec, found[name]) for name, spec in expected.items() if name in found]
    nbytes: Counter[str] = Counter()
    for _, _, spec in both:
        nbytes[spec.dtype] += spec.nbytes
    return Inspection(
        folder=str(folder),
        expected=len(expected),
        present=len(both),
        nbytes=dict(nbytes),
        shards=shards,
        missing_shards=absent,
        damaged_shards=damaged,
        missing=[name for name in expected if name not in found],
        unknown=[name for name in found if name not in expected],
        wrong=[f"{name}: {has}, expected {spec}" for name, spec, has in both if has != spec],
        scales=looked if scales else None,
        damaged_scales=unsound,
    )


def report(seen: Inspection) -> str:
    """For a person: names that differ only in the number of the expert stand together."""
    total = sum(seen.nbytes.values())
    sizes = ", ".join(f"{dtype} {human(n)}" for dtype, n in sorted(seen.nbytes.items()))
    lines = [
        f"{seen.folder}: {'sound' if seen.sound else 'not sound'}",
        f"tensors  {seen.present:,} of {seen.expected:,}",
        f"bytes    {human(total)} ({sizes or 'nothing'})",
        (
            f"shards   {len(seen.shards)} here, {len(seen.missing_shards)} missing, "
            f"{len(seen.damaged_shards)} damaged"
        ),
        "scales   not looked at"
        if seen.scales is None
        else f"scales   {seen.scales:,} tensors looked at, {len(seen.damaged_scales)} damaged",
    ]
    for title, names in (
        ("missing shards", seen.missing_shards),
        ("damaged shards", seen.damaged_shards),
        ("missing tensors", _grouped(seen.missing)),
        ("unknown tensors", _grouped(seen.unknown)),
        ("wrong tensors", seen.wrong),
        ("damaged scales", _grouped(seen.damaged_scales)),
    ):
        if names:
            lines += ["", f"{title}:", *(f"  {name}" for name in names[:_SHOWN])]
            if len(names) > _SHOWN:
                lines.append(f"  and {len(names) - _SHOWN:,} more (--json names all)")
    return "\n".join(lines)


def _grouped(names: Iterable[str]) -> list[str]:
    counts = Counter(re.sub(r"\.experts\.\d+\.w\d\.", ".experts.*.", name) for name in names)
    return [name if n == 1 else f"{name} ({n:,} tensors)" for name, n in counts.items()]
