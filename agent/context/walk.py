"""Which files a repository has: listed by git, or by folder with ignore files where git is absent.

Only regular files inside the root come out as files. Everything else that has a name (symlinks,
FIFOs, devices, submodules, nested repositories, names that are not UTF-8) comes out with the
reason why it is left. No file is opened here, so nothing can hang.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from . import git
from .errors import ContextError, Stop, check, never

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

OWN_IGNORE_FILE = ".unabridgedignore"
"""Syntax of .gitignore, in any folder; tracked files are left out too."""

IGNORED_BY_GIT = "ignored by git"
DELETED = "deleted from the work tree"
GONE = "deleted while loading"
"""Reasons that others ask about."""
# Without git nobody says what is not source; these are never entered.
_TOOL_FOLDERS = frozenset(
    {
        ".git", ".hg", ".svn", ".jj", "node_modules", "__pycache__", ".venv", "venv", ".tox",
        ".nox", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".gradle", ".terraform",
    }
)  # fmt: skip
_CHECK_EVERY = 2048


class Left(NamedTuple):
    """Something that is not given to the model in full, and why."""

    name: str
    """Relative to the root, `/` between parts, `/` at the end of a folder."""
    reason: str


class Stamp(NamedTuple):
    """What tells that a file changed without reading it."""

    size: int
    """Bytes."""
    changed: int
    """Time of the last change of the inode, in ns: nothing but a change sets it."""

    @classmethod
    def of(cls, found: os.stat_result) -> Stamp:
        """From what `lstat` says."""
        return cls(found.st_size, found.st_ctime_ns)


class File(NamedTuple):
    """A regular file, as the listing saw it."""

    name: str
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a root, by name."""

    files: tuple[File, ...]
    left: tuple[Left, ...]
    git: bool
    """Whether git made the list."""


def walk(
    root: Path,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    submodules: bool = False,
    stop: Stop = never,
) -> Listing:
    """List `root`.

    Args:
        include: patterns (.gitignore syntax) of ignored files to list all the same.
        exclude: patterns of files to leave out.
        submodules: list the files of submodules too, instead of one entry each.

    Raises ContextError when `root` is not a folder that can be read.
    """
    try:
        os.scandir(root).close()
    except OSError as error:
        raise ContextError(f"{root}: {error.strerror}: give a folder that can be read.") from error
    wanted, unwanted = matcher(include), matcher(exclude)
    listing = _from_git(root, wanted, submodules, stop) or _from_folders(root, wanted, stop)
    return _filter(root, listing, wanted, unwanted)


class Matcher:
    """Whether a name matches any of some patterns of .gitignore syntax."""

    def __init__(self, spec: GitIgnoreSpec | None) -> None:
        self._spec = spec

    def __call__(self, name: str) -> bool:
        return self._spec is not None and self._spec.match_file(name)

    def __bool__(self) -> bool:
        return self._spec is not None


def matcher(patterns: Sequence[str]) -> Matcher:
    """Compile patterns given by a person. Raises ContextError for one that is malformed."""
    if not patterns:
        return Matcher(None)
    from pathspec import GitIgnoreSpec

    for pattern in patterns:
        try:
            GitIgnoreSpec.from_lines([pattern])
        except ValueError as error:
            raise ContextError(f"{pattern!r} is not a pattern of .gitignore syntax.") from error
    return Matcher(GitIgnoreSpec.from_lines(patterns))


# --- with git ----------------------------------------------------------------------------------


def _from_git(root: Path, wanted: Matcher, submodules: bool, stop: Stop) -> Listing | None:
    """None when `root` is not in a work tree, or git knows no file below it."""
    others = ["ls-files", "-z", "-o", "--exclude-standard"]
    ignored = ["ls-files", "-z", "-o", "-i", "--exclude-standard"]
    commands = [["ls-files", "-z", "-s"], others, [*ignored, "--directory"]]
    if wanted:
        commands.append(ignored)
    staged, untracked, ignored_names, *ignored_files = git.outputs(root, *commands, stop=stop)
    if not staged and not untracked:
        return None

    names: set[str] = set()
    left: list[Left] = []
    modules: list[str] = []
    for record in _records(staged):
        facts, _, path = record.partition(b"\t")
        name = os.fsdecode(path)
        if facts.startswith(b"160000"):
            modules.append(name)
        else:
            names.add(name)
    for path in _records(untracked):
        name = os.fsdecode(path)
        if name.endswith("/"):
            left.append(Left(name, "nested repository"))
        else:
            names.add(name)
    names.update(name for data in ignored_files for name in _decoded(data) if wanted(name))
    check(stop)
    ignored_folders = _outermost(sorted(_decoded(ignored_names)))
    left += [Left(name, IGNORED_BY_GIT) for name in ignored_folders if name not in names]

    files, irregular = _stat(root, names, stop)
    check(stop)
    left += irregular
    for name in modules:
        inside = walk(root / name, stop=stop) if submodules and _checked_out(root, name) else None
        if inside is None:
            left.append(Left(f"{name}/", "submodule"))
            continue
        files += [File(f"{name}/{file.name}", file.stamp) for file in inside.files]
        left += [Left(f"{name}/{one.name}", one.reason) for one in inside.left]
    return Listing(tuple(sorted(files)), tuple(sorted(set(left))), git=True)


def _records(data: bytes | None) -> list[bytes]:
    return data.split(b"\0")[:-1] if data else []


def _decoded(data: bytes | None) -> Iterator[str]:
    return map(os.fsdecode, _records(data))


def _outermost(names: Iterable[str]) -> Iterator[str]:
    """Sorted names without those inside a folder that is named too."""
    folder = "\0"
    for name in names:
        if not name.startswith(folder):
            yield name
            folder = name if name.endswith("/") else folder


def _checked_out(root: Path, module: str) -> bool:
    folder = root / module
    return folder.is_dir() and not folder.is_symlink() and (folder / ".git").exists()


def _stat(root: Path, names: set[str], stop: Stop) -> tuple[list[File], list[Left]]:
    """Sort names into regular files and the rest."""
    files: list[File] = []
    left: list[Left] = []
    folders = {"": True}
    base = f"{root}/"
    for number, name in enumerate(sorted(names)):
        if number % _CHECK_EVERY == 0:
            check(stop)
        try:
            found = os.lstat(base + name)
        except OSError as error:
            gone = isinstance(error, FileNotFoundError | NotADirectoryError)
            why = DELETED if gone else f"cannot be read: {error.strerror}"
            left.append(Left(name, why))
            continue
        problem = _problem(name, found.st_mode)
        if problem is None and not _plain_folder(base, name.rpartition("/")[0], folders):
            problem = "behind a symbolic link"
        if problem is None:
            files.append(File(name, Stamp.of(found)))
        else:
            left.append(Left(name, problem))
    return files, left


def _plain_folder(base: str, folder: str, known: dict[str, bool]) -> bool:
    """Whether no part of `folder` is a symlink, which could lead out of the root."""
    if folder not in known:
        parent = folder.rpartition("/")[0]
        plain = _plain_folder(base, parent, known) and not Path(base, folder).is_symlink()
        known[folder] = plain
    return known[folder]


def _problem(name: str, mode: int) -> str | None:
    """Why something cannot be loaded, told without opening it."""
    if not stat.S_ISREG(mode):
        return _KINDS.get(stat.S_IFMT(mode), "not a regular file")
    if not name.isascii():
        try:
            name.encode("utf-8")
        except UnicodeEncodeError:
            return "its name is not UTF-8"
    return None


_KINDS = {
    stat.S_IFLNK: "symbolic link",
    stat.S_IFIFO: "FIFO",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
    stat.S_IFDIR: "folder in place of a file",
}


# --- without git -------------------------------------------------------------------------------


class _Scope(NamedTuple):
    """An ignore file and the folder it speaks for."""

    folder: str
    """With `/` at the end; empty for the root."""
    spec: GitIgnoreSpec


def _ignored(scopes: Iterable[_Scope], name: str) -> bool:
    """What the innermost ignore file with an opinion says. `scopes`: outermost first."""
    verdict = False
    for folder, spec in scopes:
        if name.startswith(folder):
            opinion = spec.check_file(name[len(folder) :]).include
            verdict = verdict if opinion is None else opinion
    return verdict


def _read_ignore(root: Path, name: str) -> _Scope | None:
    """An ignore file of the repository; lines that are not patterns are passed over, as git does."""
    from pathspec import GitIgnoreSpec

    data = read_regular(root / name, limit=1 << 20)
    if not isinstance(data, bytes):
        return None
    lines: list[str] = []
    for line in data.decode("utf-8", "surrogateescape").splitlines():
        try:
            GitIgnoreSpec.from_lines([line])
        except ValueError:
            continue
        lines.append(line)
    folder, slash, _ = name.rpartition("/")
    return _Scope(folder + slash, GitIgnoreSpec.from_lines(lines))


def _from_folders(root: Path, wanted: Matcher, stop: Stop) -> Listing:
    files: list[File] = []
    left: list[Left] = []
    todo: list[tuple[str, tuple[_Scope, ...]]] = [("", ())]
    while todo:
        check(stop)
        folder, scopes = todo.pop()
        try:
            with os.scandir(root / folder) as found:
                entries = list(found)
        except OSError as error:
            left.append(Left(folder, f"cannot be read: {error.strerror}"))
            continue
        if any(entry.name == ".gitignore" for entry in entries):
            scope = _read_ignore(root, f"{folder}.gitignore")
            scopes = (*scopes, scope) if scope else scopes
        for entry in entries:
            name = folder + entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_folder and entry.name in _TOOL_FOLDERS:
                if entry.name != ".git":
                    left.append(Left(f"{name}/", "made by tools"))
            elif _ignored(scopes, f"{name}/" if is_folder else name) and not wanted(name):
                left.append(Left(f"{name}/" if is_folder else name, "ignored by .gitignore"))
            elif not is_folder:
                _add(entry, name, files, left)
            elif os.path.lexists(f"{entry.path}/.git"):
                left.append(Left(f"{name}/", "nested repository"))
            else:
                todo.append((f"{name}/", scopes))
    return Listing(tuple(sorted(files)), tuple(sorted(left)), git=False)


def _add(entry: os.DirEntry[str], name: str, files: list[File], left: list[Left]) -> None:
    try:
        found = entry.stat(follow_symlinks=False)
    except OSError as error:
        left.append(Left(name, f"cannot be read: {error.strerror}"))
        return
    problem = _problem(name, found.st_mode)
    if problem is None:
        files.append(File(name, Stamp.of(found)))
    else:
        left.append(Left(name, problem))


# --- both --------------------------------------------------------------------------------------


def _filter(root: Path, listing: Listing, wanted: Matcher, unwanted: Matcher) -> Listing:
    """Apply our own ignore files and what the caller excludes."""
    own = [file.name for file in listing.files if file.name.endswith(OWN_IGNORE_FILE)]
    own = [name for name in own if Path(name).name == OWN_IGNORE_FILE]
    scopes = [scope for name in own if (scope := _read_ignore(root, name)) is not None]
    scopes.sort(key=lambda scope: scope.folder.count("/"))
    if not scopes and not unwanted:
        return listing
    files: list[File] = []
    left = list(listing.left)
    for file in listing.files:
        if unwanted(file.name):
            left.append(Left(file.name, "excluded as asked"))
        elif _ignored(scopes, file.name) and not wanted(file.name):
            left.append(Left(file.name, f"ignored by {OWN_IGNORE_FILE}"))
        else:
            files.append(file)
    return Listing(tuple(files), tuple(sorted(left)), listing.git)


def read_regular(path: Path | str, limit: int) -> bytes | str:
    """The bytes of a regular file of at most `limit` bytes, or why there are none.

    Never follows a symlink and never waits: what became a FIFO since it was listed is refused.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        return GONE
    except OSError as error:
        is_link = error.errno == errno.ELOOP
        return "symbolic link" if is_link else f"cannot be read: {error.strerror}"
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return _KINDS.get(stat.S_IFMT(found.st_mode), "not a regular file")
        if found.st_size > limit:
            return f"larger than {limit >> 20} MiB"
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(limit + 1)
        return data if len(data) <= limit else f"larger than {limit >> 20} MiB"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    finally:
        os.close(descriptor)
