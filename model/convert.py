"""A plain checkpoint into the precisions of the released one: routed experts as MXFP4.

Tensors are read, rounded and written one at a time, so that the size of the model does not matter.

Source: Kimi K3 report, section 4.1.4; headers of the released shards.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import mxfp4
from .checkpoint import INDEX, Checkpoint, CheckpointError, Spec, expected_tensors, write_shards
from .config import K3Config
from .k3 import K3
from .skeleton import skeleton

_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_TYPES = {"F32": torch.float32, "BF16": torch.bfloat16}


def convert(
    source: str | Path,
    target: str | Path,
    shard_bytes: int = 5_000_000_000,
    progress: Callable[[str], object] = lambda _file: None,
) -> K3Config:
    """Write the checkpoint `source` (plain floats of any width) anew, packed, into `target`.

    Files beside the weights (tokenizer, generation settings) are copied; `config.json` gets the
    quantisation of the release. `progress` is called with the name of each shard.

    Returns:
        The configuration written.

    Raises:
        ConfigError, CheckpointError: the source is damaged, packed already or not finite (the
            tensor is named); the target is not an empty folder, or cannot be written.
    """
    source, target = Path(source), Path(target)
    config = K3Config.from_pretrained(source)
    if config.text_config.quantization_config is not None:
        raise CheckpointError(f"{source}: its experts are packed already")
    checkpoint = Checkpoint.open(source)
    plain = _specs(config)
    # Training keeps wider floats than the release; any width will do as a source.
    found = {n: s.dtype for n, s in checkpoint.tensors.items() if s.dtype in _FLOATS}
    checkpoint.check({n: s._replace(dtype=found.get(n, s.dtype)) for n, s in plain.items()})
    packed_config = K3Config.from_dict(_quantized(config.to_dict()), str(source / "config.json"))
    specs = _specs(packed_config)

    def read(name: str) -> Tensor:
        tensor = checkpoint.read(name)
        if not bool(tensor.isfinite().all()):
            raise CheckpointError(f"{source}: {name} holds values that are not finite")
        return tensor

    @lru_cache(1)
    def rounded(name: str) -> dict[str, Tensor]:
        codes, scale = mxfp4.quantize(read(name))
        return {f"{name}_packed": mxfp4.pack(codes), f"{name}_scale": scale}

    def stored(name: str) -> Tensor:
        if name in plain:
            return read(name).to(_TYPES[specs[name].dtype])
        return rounded(name.removesuffix("_packed").removesuffix("_scale"))[name]

    try:
        target.mkdir(parents=True, exist_ok=True)
        if any(target.iterdir()):
            raise CheckpointError(f"{target}: not empty; give a new folder")
        write_shards(target, specs, stored, shard_bytes, progress)
        for file in sorted(source.iterdir()):
            if file.is_file() and file.suffix != ".safetensors" and file.name not in _OURS:
                shutil.copyfile(file, target / file.name)
        packed_config.save(target)  # last: a folder without it is not taken for a checkpoint
    except OSError as error:
        raise CheckpointError(f"{error.filename or target}: {error.strerror or error}") from None
    return packed_config


_OURS = frozenset({INDEX, "config.json"})


def _specs(config: K3Config) -> dict[str, Spec]:
    with skeleton():
        return expected_tensors(K3(config, getattr(torch, config.dtype)))


def _quantized(document: dict[str, Any]) -> dict[str, Any]:
    scheme = K3Config.released().to_dict()["text_config"]["quantization_config"]
    text = document["text_config"] | {"quantization_config": scheme}
    return document | {"text_config": text}
