"""Listing: by git and without it, with a reason for everything left, and never a hang."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from unabridged.agent.context.errors import Cancelled, ContextError
from unabridged.agent.context.walk import Listing, read_regular, walk

from .conftest import Repo

MakeRepo = Callable[..., Repo]


def names(listing: Listing) -> list[str]:
    return [file.name for file in listing.files]


def reasons(listing: Listing) -> dict[str, str]:
    return dict(listing.left)


def test_git_lists_tracked_and_untracked_but_not_ignored(make_repo: MakeRepo) -> None:
    repo = make_repo({".gitignore": "*.log\n", "a.py": "x", "sub/.gitignore": "!keep.log\n"})
    repo.write("new.py", "y")
    repo.write("a.log", "l")
    repo.write("sub/keep.log", "k")
    repo.write("cache/b.log", "l")
    (repo.root / ".git/info/exclude").write_text("private.txt\n")
    repo.write("private.txt", "p")
    listing = walk(repo.root)
    assert listing.git
    assert names(listing) == [".gitignore", "a.py", "new.py", "sub/.gitignore", "sub/keep.log"]
    assert reasons(listing) == {
        "a.log": "ignored by git",
        "cache/": "ignored by git",
        "private.txt": "ignored by git",
    }
    assert "cache/b.log" in names(walk(repo.root, include=["cache/*.log"]))
    assert reasons(walk(repo.root, exclude=["sub/"]))["sub/keep.log"] == "excluded as asked"


def test_a_folder_of_a_repository_can_be_the_root(make_repo: MakeRepo) -> None:
    repo = make_repo({"a.py": "x", "sub/b.py": "y"})
    assert names(walk(repo.root / "sub")) == ["b.py"]


def test_without_git_nested_ignore_files_count(tmp_path: Path) -> None:
    for name in ["a.py", "b.log", "sub/c.log", "sub/keep.log", "node_modules/x/y.js", "out/z"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / ".gitignore").write_text("*.log\nout/\n!\n")
    (tmp_path / "sub/.gitignore").write_text("!keep.log\n")
    listing = walk(tmp_path)
    assert not listing.git
    assert names(listing) == [".gitignore", "a.py", "sub/.gitignore", "sub/keep.log"]
    assert reasons(listing) == {
        "b.log": "ignored by .gitignore",
        "sub/c.log": "ignored by .gitignore",
        "out/": "ignored by .gitignore",
        "node_modules/": "made by tools",
    }


def test_our_own_ignore_file_leaves_out_tracked_files(make_repo: MakeRepo) -> None:
    repo = make_repo({"a.py": "x", "data/b.py": "y", ".unabridgedignore": "data/\n", "s/c.py": "z"})
    repo.write("s/.unabridgedignore", "/c.py\n")
    listing = walk(repo.root)
    assert names(listing) == [".unabridgedignore", "a.py", "s/.unabridgedignore"]
    assert reasons(listing)["data/b.py"] == "ignored by .unabridgedignore"
    assert "s/c.py" in names(walk(repo.root, include=["s/c.py"]))


@pytest.mark.parametrize("with_git", [True, False])
def test_what_is_not_a_regular_file_is_named_and_not_opened(
    tmp_path: Path, with_git: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "repo"
    repo = Repo(root)
    repo.write("a.py", "x")
    repo.write("gone.py", "x")
    repo.write("folder/b.py", "x")
    repo.commit()
    if not with_git:
        (root / ".git").rename(tmp_path / "elsewhere")
    (root / "gone.py").unlink()
    (root / "link.py").symlink_to("a.py")
    (root / "loop").symlink_to("loop")
    (root / "up").symlink_to("..")
    os.mkfifo(root / "fifo")
    bad = os.fsdecode(b"caf\xe9.py")
    (root / bad).write_text("x")
    inner = Repo(root / "inner")
    inner.write("c.py", "x")
    inner.commit()
    sock = socket.socket(socket.AF_UNIX)
    monkeypatch.chdir(root)
    sock.bind("socket")
    sock.close()

    listing = walk(root)
    assert names(listing) == ["a.py", "folder/b.py"]
    expected = {
        "fifo": "FIFO",
        "link.py": "symbolic link",
        "loop": "symbolic link",
        "up": "symbolic link",
        "inner/": "nested repository",
        bad: "its name is not UTF-8",
        "socket": "socket",
    }
    if with_git:
        expected["gone.py"] = "deleted from the work tree"
        for special in ("fifo", "socket"):  # git does not list them at all
            expected.pop(special)
    assert reasons(listing) == expected


def test_a_tracked_folder_that_became_a_link_does_not_lead_out(
    make_repo: MakeRepo, tmp_path: Path
) -> None:
    repo = make_repo({"folder/a.py": "x", "b.py": "y"})
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.py").write_text("secret")
    (repo.root / "folder/a.py").unlink()
    (repo.root / "folder").rmdir()
    (repo.root / "folder").symlink_to(outside)
    listing = walk(repo.root)
    assert names(listing) == ["b.py"]
    assert reasons(listing)["folder/a.py"] == "behind a symbolic link"


def test_c72_submodules_are_one_entry_unless_asked(make_repo: MakeRepo) -> None:
    library = make_repo({"lib.py": "x"}, "library")
    repo = make_repo({"a.py": "x"})
    repo.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library.root), "dep")
    repo.commit()
    listing = walk(repo.root)
    assert names(listing) == [".gitmodules", "a.py"]
    assert reasons(listing) == {"dep/": "submodule"}
    assert names(walk(repo.root, submodules=True)) == [".gitmodules", "a.py", "dep/lib.py"]


def test_nothing_of_the_repository_runs(make_repo: MakeRepo) -> None:
    repo = make_repo({"a.py": "x"})
    ran = repo.root.parent / "ran"
    repo.write(".git/evil", f"#!/bin/sh\ntouch {ran}\n").chmod(0o755)
    for setting in ["core.fsmonitor", "core.pager", "diff.external", "core.sshCommand"]:
        repo.git("config", setting, str(repo.root / ".git/evil"))
    ran.unlink(missing_ok=True)  # git config itself may ask the monitor
    assert names(walk(repo.root)) == ["a.py"]
    assert not ran.exists()


def test_inherited_git_variables_do_not_count(
    make_repo: MakeRepo, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_repo({"other.py": "x"}, "other")
    repo = make_repo({"a.py": "x"})
    monkeypatch.setenv("GIT_DIR", str(other.root / ".git"))
    assert names(walk(repo.root)) == ["a.py"]


def test_a_root_that_is_no_folder_is_an_error_for_a_person(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ContextError, match="Not a directory"):
        walk(tmp_path / "file")
    with pytest.raises(ContextError, match="No such file"):
        walk(tmp_path / "missing")
    with pytest.raises(ContextError, match="pattern"):
        walk(tmp_path, include=["!"])


def test_walking_can_be_stopped(make_repo: MakeRepo) -> None:
    repo = make_repo({"a.py": "x"})
    with pytest.raises(Cancelled):
        walk(repo.root, stop=lambda: True)


def test_reading_never_waits_and_never_follows(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "a").write_bytes(b"x")
    (tmp_path / "link").symlink_to("a")
    assert read_regular(tmp_path / "fifo", 10) == "FIFO"
    assert read_regular(tmp_path / "link", 10) == "symbolic link"
    assert read_regular(tmp_path / "missing", 10) == "deleted while loading"
    assert read_regular(Path("/dev/zero"), 10) == "device"
    assert read_regular(tmp_path / "a", 10) == b"x"
    if sys.platform == "linux":  # opens, is a regular file, and fails when read
        assert read_regular(Path("/proc/self/mem"), 10) == "cannot be read: Input/output error"
    assert str(read_regular(tmp_path / "a", 0)).startswith("larger")
