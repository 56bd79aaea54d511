"""Sequence states on disk: what a long prefix cost to compute, kept for the next time.

K3's KDA state can be resumed only where it was saved, so the store answers one question: which
is the longest prefix of these token ids whose state is here? An entry is a safetensors file under

    ROOT / FINGERPRINT / POSITION-TOKENHASH-rRANKwWORLD.safetensors

where the fingerprint stands for weights and configuration and the token hash is SHA-256 over all
ids up to the position (one pass over a prompt gives the hashes of all its prefixes). Each rank of
a tensor-parallel model keeps its own entries.

A file appears complete or not at all (temporary name, fsync, rename) and carries a checksum. A
damaged or foreign file is ignored with one log line: losing an entry costs time, never a result.
The least recently used entries go when the store grows over its cap.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import sys
import time
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

FORMAT = "unabridged-state-1"
DEFAULT_MAX_BYTES = 64 * 2**30
_SUFFIX = ".safetensors"
_TEMPORARY = ".writing-"
_ABANDONED_AFTER = 3600.0  # seconds; no write takes so long, its writer is dead
_NAME = re.compile(r"(\d{8})-([0-9a-f]{32})-r(\d+)w(\d+)\.safetensors")


class StateError(ValueError):
    """An entry that cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class StoredState:
    """The state of a sequence after `position` tokens."""

    position: int
    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    """What the caller of `save` noted."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the store, as its name and the file system tell it."""

    path: Path
    size: int
    """Bytes."""
    used: float
    """When it was last saved or loaded, in seconds since the epoch."""
    position: int
    token_hash: str
    rank: int
    world_size: int

    @property
    def id(self) -> str:
        """`FINGERPRINT/NAME`, unique in the store."""
        return f"{self.path.parent.name}/{self.path.name.removesuffix(_SUFFIX)}"


@dataclass(frozen=True, slots=True)
class Header:
    """What an entry says about itself, read without its tensors."""

    fingerprint: str
    token_hash: str
    position: int
    rank: int
    world_size: int
    created: str
    """ISO 8601, UTC."""
    checksum: str
    metadata: dict[str, str]
    shapes: dict[str, tuple[str, tuple[int, ...]]]
    """dtype and shape of each tensor."""


def default_root() -> Path:
    """The folder of the store in the user's cache."""
    import platformdirs

    return platformdirs.user_cache_path("unabridged") / "states"


class StateStore:
    """The states of one model (and one rank of it).

    Args:
        root: folder of the store; created when something is saved.
        fingerprint: hex digest that stands for weights, configuration and precision. States of
            another fingerprint are never seen.
        max_bytes: cap over all entries under `root`.
    """

    def __init__(
        self,
        root: Path,
        fingerprint: str,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.root = root
        self.fingerprint = fingerprint
        self.max_bytes = max_bytes
        self.rank = rank
        self.world_size = world_size
        self._folder = root / fingerprint[:16]
        self._faulty: set[Path] = set()  # reported once, and written anew when saved again

    def positions(self, tokens: Sequence[int]) -> list[int]:
        """Lengths of the prefixes of `tokens` that have an entry, ascending."""
        stored: dict[int, set[str]] = {}
        for entry in _entries_in(self._folder):
            if (entry.rank, entry.world_size) == (self.rank, self.world_size):
                stored.setdefault(entry.position, set()).add(entry.token_hash)
        candidates = sorted(position for position in stored if position <= len(tokens))
        hashes = prefix_hashes(tokens, candidates)
        return [p for p, digest in zip(candidates, hashes, strict=True) if digest[:32] in stored[p]]

    def longest(self, tokens: Sequence[int]) -> StoredState | None:
        """The state of the longest stored prefix of `tokens` that is sound."""
        for position in reversed(self.positions(tokens)):
            state = self.load(tokens, position)
            if state is not None:
                return state
        return None

    def load(self, tokens: Sequence[int], position: int) -> StoredState | None:
        """The state after the first `position` tokens; None when it is not there or not sound."""
        (token_hash,) = prefix_hashes(tokens, [position])
        path = self._path(position, token_hash)
        try:
            header, tensors = read_entry(path)
            mine = (self.fingerprint, token_hash, position, self.rank, self.world_size)
            theirs = (header.fingerprint, header.token_hash, header.position)
            if (*theirs, header.rank, header.world_size) != mine:
                raise StateError("it belongs to another model or another prefix")
        except FileNotFoundError:
            return None
        except (StateError, OSError) as error:
            if path not in self._faulty:
                self._faulty.add(path)
                log.warning("ignoring the stored state %s: %s", path, error)
            return None
        with suppress(OSError):  # removed meanwhile, or a read-only cache
            os.utime(path)
        return StoredState(position, tensors, header.metadata)

    def save(
        self,
        tokens: Sequence[int],
        tensors: Mapping[str, Tensor],
        metadata: Mapping[str, str] | None = None,
    ) -> bool:
        """Store the state after all of `tokens`. True when it is in the store afterwards.

        Never raises for a full disk or an unwritable cache: that is logged, and work goes on.
        """
        position = len(tokens)
        (token_hash,) = prefix_hashes(tokens, [position])
        path = self._path(position, token_hash)
        try:
            if path not in self._faulty and path.exists():
                os.utime(path)
                return True
            size = sum(tensor.nbytes for tensor in tensors.values())
            if size > self.max_bytes:
                log.warning(
                    "not storing a state of %d bytes: the store's cap is %d", size, self.max_bytes
                )
                return False
            own = {
                "format": FORMAT,
                "fingerprint": self.fingerprint,
                "tokens": token_hash,
                "position": str(position),
                "rank": str(self.rank),
                "world_size": str(self.world_size),
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
                "metadata": json.dumps(dict(metadata or {}), sort_keys=True),
            }
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            _write(path, tensors, own)
        except OSError as error:
            log.warning("cannot store the state %s: %s", path, error)
            return False
        self._faulty.discard(path)
        prune(self.root, self.max_bytes, keep=(path,))
        return True

    def _path(self, position: int, token_hash: str) -> Path:
        name = f"{position:08d}-{token_hash[:32]}-r{self.rank}w{self.world_size}{_SUFFIX}"
        return self._folder / name


def prefix_hashes(tokens: Sequence[int], positions: Iterable[int]) -> list[str]:
    """SHA-256 of the first p ids (32 bits each, little-endian) for each p of ascending positions."""
    ids = array("I", tokens)
    if sys.byteorder == "big":
        ids.byteswap()
    data, width = memoryview(ids).cast("B"), ids.itemsize
    running, done, digests = hashlib.sha256(), 0, []
    for position in positions:
        running.update(data[done * width : position * width])
        done = position
        digests.append(running.hexdigest())
    return digests


def entries(root: Path) -> list[Entry]:
    """All entries of the store, most recently used first."""
    if not root.is_dir():
        return []
    found = [entry for folder in root.iterdir() for entry in _entries_in(folder)]
    return sorted(found, key=lambda entry: entry.used, reverse=True)


def strangers(root: Path) -> list[Path]:
    """Files under the store that are no entries: foreign ones and unfinished writes."""
    if not root.is_dir():
        return []
    known = {entry.path for entry in entries(root)}
    return sorted(path for path in root.rglob("*") if path.is_file() and path not in known)


def prune(
    root: Path,
    max_bytes: int,
    *,
    unused_for: float | None = None,
    keep: Collection[Path] = (),
) -> list[Entry]:
    """Remove the least recently used entries until the rest fits, and abandoned writes.

    Args:
        max_bytes: cap on the sum of all entries.
        unused_for: also remove what was not used for so many seconds.
        keep: entries that stay in any case.

    Returns what was removed.
    """
    now = time.time()
    removed: list[Entry] = []
    found = entries(root)
    total = sum(entry.size for entry in found)
    for entry in reversed(found):
        stale = unused_for is not None and now - entry.used > unused_for
        if entry.path in keep or (total <= max_bytes and not stale):
            continue
        with suppress(FileNotFoundError):  # another process was faster
            entry.path.unlink()
            removed.append(entry)
        total -= entry.size
    for path in root.glob(f"*/{_TEMPORARY}*"):
        with suppress(FileNotFoundError):
            if now - path.stat().st_mtime > _ABANDONED_AFTER:
                shutil.rmtree(path, ignore_errors=True)
    return removed


def read_header(path: Path) -> Header:
    """What the entry says about itself. Raises `StateError` when it is not one of ours."""
    return _read_header(path)[0]


def read_entry(path: Path) -> tuple[Header, dict[str, Tensor]]:
    """Read an entry and hold it against its checksum.

    Raises `StateError` when it is damaged or foreign, `OSError` when it cannot be read.
    """
    import safetensors.torch

    header, told = _read_header(path)
    try:
        tensors = safetensors.torch.load_file(path)
    except safetensors.SafetensorError as error:
        raise StateError(f"it is damaged ({error})") from error
    if _checksum(tensors, told) != header.checksum:
        raise StateError("it is damaged (its checksum does not fit its contents)")
    return header, tensors


def fingerprint_checkpoint(folder: Path) -> str:
    """A digest that stands for the weights and configuration of a checkpoint on disk.

    Files up to 256 MiB count in full. Of larger ones the name, size, time of change, header and
    16 evenly spaced pieces of 64 KiB count, so that fingerprinting a terabyte reads 100 MB.
    """
    digest = hashlib.sha256()
    files = sorted(path for path in folder.iterdir() if path.suffix in (".json", _SUFFIX))
    for path in files:
        stat = path.stat()
        digest.update(f"{path.name}\0{stat.st_size}\0".encode())
        with path.open("rb") as file:
            if stat.st_size <= 256 * 2**20:
                digest.update(file.read())
                continue
            digest.update(f"{stat.st_mtime_ns}\0".encode())
            for window in range(16):
                file.seek(window * stat.st_size // 16)
                digest.update(file.read(2**16))
    return digest.hexdigest()


def fingerprint_states(folder: Path, dtype: object, *split: int) -> str:
    """A digest for the states of a checkpoint in a precision: the fingerprint of a store.

    Args:
        dtype: torch's, of weights and activations.
        split: how ranks share the model (tensor-parallel, pipeline stages), if there are several.
    """
    ranks = "" if set(split) <= {1} else " split " + "x".join(map(str, split))
    told = f"{fingerprint_checkpoint(folder)} {dtype}{ranks}"
    return hashlib.sha256(told.encode()).hexdigest()


def _entries_in(folder: Path) -> Iterator[Entry]:
    try:
        paths = list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    for path in paths:
        match = _NAME.fullmatch(path.name)
        if match is None:
            continue
        try:
            stat = path.stat()
        except FileNotFoundError:  # pruned by another process
            continue
        yield Entry(
            path=path,
            size=stat.st_size,
            used=stat.st_mtime,
            position=int(match[1]),
            token_hash=match[2],
            rank=int(match[3]),
            world_size=int(match[4]),
        )


def _read_header(path: Path) -> tuple[Header, dict[str, str]]:
    import safetensors

    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            told: dict[str, str] = file.metadata() or {}
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            shapes = {n: (str(s.get_dtype()), tuple(s.get_shape())) for n, s in slices.items()}
    except safetensors.SafetensorError as error:
        raise StateError(f"it is damaged ({error})") from error
    if told.get("format") != FORMAT:
        raise StateError(f"it is not a sequence state of the form {FORMAT}")
    try:
        header = Header(
            fingerprint=told["fingerprint"],
            token_hash=told["tokens"],
            position=int(told["position"]),
            rank=int(told["rank"]),
            world_size=int(told["world_size"]),
            created=told["created"],
            checksum=told["checksum"],
            metadata=json.loads(told["metadata"]),
            shapes=shapes,
        )
    except (KeyError, ValueError) as error:
        raise StateError(f"its header is damaged ({error!r})") from error
    return header, told


def _write(path: Path, tensors: Mapping[str, Tensor], told: dict[str, str]) -> None:
    """Write the file so that its final name never stands for less than all of it."""
    import safetensors
    import safetensors.torch

    whole = {name: _whole(tensor) for name, tensor in tensors.items()}
    told = {**told, "checksum": _checksum(whole, told)}
    # A folder of its own, because the library writes through a temporary file as well.
    temporary = path.with_name(f"{_TEMPORARY}{secrets.token_hex(8)}")
    temporary.mkdir(mode=0o700)
    try:
        written = temporary / path.name
        try:
            safetensors.torch.save_file(whole, written, told)
        except safetensors.SafetensorError as error:  # how the library tells of a full disk
            raise OSError(str(error)) from error
        written.chmod(0o600)
        with written.open("rb") as file:
            os.fsync(file.fileno())
        written.replace(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _whole(tensor: Tensor) -> Tensor:
    """The tensor in host memory, contiguous, and alone in its storage as safetensors wants it."""
    tensor = tensor.detach().cpu().contiguous()
    alone = tensor.untyped_storage().nbytes() == tensor.nbytes
    return tensor if alone else tensor.clone()


def _checksum(tensors: Mapping[str, Tensor], told: Mapping[str, str]) -> str:
    """SHA-256 over everything in an entry but the checksum itself."""
    import torch

    digest = hashlib.sha256()
    rest = {key: value for key, value in told.items() if key != "checksum"}
    digest.update(json.dumps(rest, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
