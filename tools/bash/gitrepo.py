"""Whether a repository's own settings make reading git commands run programs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from .folders import exists, is_folder

_MAX_CONFIG = 1 << 20
_MAX_INDEX = 64 << 20

_RUNS = re.compile(
    r"""(?imx)
    (?:^|\])[ \t\r]*                                    # a key stands at a line's start or after ]
    (?: (?P<key>textconv|external|command|clean|smudge|process|program|defaultkeycommand
        |worktree|promisor|partialclonefilter|partialclone|alternaterefscommand)
        [ \t\r]* (?: =[ \t]*(?P<value>[^\r\n]*) | $ | [;\#] )
    )
    | (?P<include>^[ \t]*\[[ \t]*include)               # settings from other files
    """
)
_LFS = re.compile(r"git-lfs (?:clean|smudge|filter-process)(?: --? %f| -- %f)?\s*")


def untrusted(cwd: Path) -> str | None:
    """Why git may run programs of the repository's choice in this folder; None when it does not.

    Covers what the hardened environment cannot: keys whose names the repository chooses
    (`diff.NAME.textconv`, `filter.NAME.clean`), settings that take git elsewhere, and submodules,
    where git runs itself without that environment.
    """
    found = False
    for folder in (cwd, *cwd.parents):
        if all(exists(folder / name) for name in ("HEAD", "objects", "refs")):
            return f"{folder.name} looks like a bare repository"
        if not exists(folder / ".git"):
            continue
        git_dir = git_dir_of(folder)
        if git_dir is None:
            return f"{folder / '.git'} cannot be read"
        if reason := _unsafe(folder, git_dir):
            return reason
        found = True
        if exists(git_dir / "HEAD"):
            return None  # git stops here; a `.git` without a head it may pass over
    return None if found else "no repository is found here"


def _unsafe(work_tree: Path, git_dir: Path) -> str | None:
    common = common_dir_of(git_dir)
    for config in (common / "config", git_dir / "config.worktree", common / "config.worktree"):
        if reason := _unsafe_config(config):
            return reason
    links = _gitlinks(git_dir / "index")
    if links is None:
        return "the index may name submodules"
    for name in links:
        module = work_tree / name
        if not exists(module / ".git"):
            continue
        module_dir = git_dir_of(module)
        if module_dir is None:
            return f"submodule {name} cannot be read"
        if reason := _unsafe_config(common_dir_of(module_dir) / "config", submodule=True):
            return f"submodule {name}: {reason}"
        if _gitlinks(module_dir / "index") != []:
            return f"submodule {name} has submodules"
    return None


def git_dir_of(folder: Path) -> Path | None:
    """The repository of a work tree: its `.git` folder, or where its `.git` file leads."""
    mark = folder / ".git"
    try:
        if is_folder(mark):
            return mark
        text = mark.read_bytes()[:4096].decode(errors="replace").strip()
    except OSError:
        return None
    if not text.startswith("gitdir:"):
        return None
    return folder / text.removeprefix("gitdir:").strip()


def common_dir_of(git_dir: Path) -> Path:
    """Where the settings are: a linked work tree shares those of the main one."""
    try:
        text = (git_dir / "commondir").read_bytes()[:4096].decode(errors="replace").strip()
    except OSError:
        return git_dir
    return git_dir / text


def _unsafe_config(config: Path, *, submodule: bool = False) -> str | None:
    try:
        if not exists(config):
            return None
        if not config.is_file() or config.stat().st_size > _MAX_CONFIG:
            return f"{config.name} is not an ordinary file"
        text = config.read_bytes().decode(errors="replace")
    except OSError as error:
        return f"{config.name}: {error.strerror}"
    for found in _RUNS.finditer(text):
        if found["include"]:
            return "git's settings include other files"
        key, value = found["key"].lower(), (found["value"] or "").strip()
        if key == "worktree" and submodule:
            continue  # every submodule has it
        if not _LFS.fullmatch(value):
            return f"git's settings of the repository have `{key} = {value[:60]}`"
    if submodule and re.search(r"(?im)(?:^|\])[ \t\r]*fsmonitor", text):
        return "git's settings of the repository have `fsmonitor`"
    return None


_GITLINK = re.compile(rb"\x00\x00\xe0\x00")


def read_index(cwd: Path) -> bytes:
    """The bytes of the index of the repository around a folder; empty when it cannot be read,
    or when names in it are not whole (version 4, split)."""
    for folder in (cwd, *cwd.parents):
        if exists(folder / ".git"):
            git_dir = git_dir_of(folder)
            data = _index(git_dir / "index") if git_dir else None
            whole = data and data[4:8] != b"\0\0\0\4" and b"link\0\0" not in data
            return data if data and whole else b""
    return b""


def _index(path: Path) -> bytes | None:
    """The index file; empty when there is none, None when it cannot be read."""
    try:
        if not exists(path):
            return b""
        return path.read_bytes() if path.stat().st_size <= _MAX_INDEX else None
    except OSError:
        return None


def _gitlinks(index: Path) -> list[str] | None:
    """The submodules in an index; None when it cannot be told. No index: none."""
    data = _index(index)
    if not data:
        return None if data is None else []
    version = int.from_bytes(data[4:8], "big")
    if data[:4] != b"DIRC" or b"link\0\0" in data:  # not an index, or one half of a split one
        return None
    if version == 4:  # its names are compressed
        return None if _GITLINK.search(data) else []
    links: list[str] = []
    for found in _GITLINK.finditer(data):
        entry = found.start() - 24
        # Entries start 12 bytes in and are padded to 8: a mode elsewhere is other data.
        if entry < 12 or (entry - 12) % 8:
            continue
        flags = int.from_bytes(data[entry + 60 : entry + 62], "big")
        start = entry + (64 if version == 3 and flags & 0x4000 else 62)
        end = data.find(b"\0", start)
        links.append(data[start:end].decode(errors="surrogateescape"))
    return links


def tracked(cwd: Path) -> tuple[Path, tuple[str, ...]] | None:
    """The work tree around a folder and the names of its index; None when they cannot be told."""
    work_tree = next((f for f in (cwd, *cwd.parents) if exists(f / ".git")), None)
    git_dir = git_dir_of(work_tree) if work_tree is not None else None
    if work_tree is None or git_dir is None:
        return None
    index = git_dir / "index"
    try:
        found = index.stat()
    except FileNotFoundError:
        return work_tree, ()
    except OSError:
        return None
    names = _index_names(index, (found.st_ino, found.st_size, found.st_mtime_ns))
    return None if names is None else (work_tree, names)


@lru_cache(maxsize=8)
def _index_names(index: Path, _stamp: tuple[int, int, int]) -> tuple[str, ...] | None:
    data = _index(index)
    try:
        return None if data is None else tuple(_names(data))
    except (IndexError, ValueError):
        return None


def _names(data: bytes) -> Iterator[str]:
    """Names in an index, versions 2 to 4. Raises IndexError or ValueError for any other."""
    version, count = int.from_bytes(data[4:8], "big"), int.from_bytes(data[8:12], "big")
    if data[:4] != b"DIRC" or version not in (2, 3, 4) or b"link\0\0" in data:
        raise ValueError("not a whole index")
    position, name = 12, b""
    for _ in range(count):
        extended = version > 2 and data[position + 60] & 0x40
        start = position + (64 if extended else 62)
        kept = b""
        if version == 4:  # a name is the one before it, cut at the end, and what follows
            cut, start = _varint(data, start)
            kept = name[: len(name) - cut]
        end = data.index(b"\0", start)
        before, name = name, kept + data[start:end]
        if name < before:
            raise ValueError("names out of order: ids of another size")
        yield name.decode(errors="surrogateescape")
        position = end + 1 if version == 4 else position + ((end - position) // 8 + 1) * 8


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """(number, position after it), as git packs offsets."""
    byte = data[position]
    value = byte & 127
    while byte & 128:
        position += 1
        byte = data[position]
        value = (value + 1 << 7) + (byte & 127)
    return value, position + 1
