"""An endpoint counts the tokens of a repository, where it has a call for that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from unabridged.agent import counting as counting_module
from unabridged.agent.config import Config, Counting
from unabridged.agent.context.load import Load, load
from unabridged.agent.counting import CALLS, EndpointCounter, counted, counting

WINDOW = 32_768
TEXT = "".join(f"value_{number} = {number}\n" for number in range(700))


class Server(ThreadingHTTPServer):
    """Counts words as tokens, in the way of every dialect; `answers` come first, one a call."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, dict[str, Any], str | None]] = []
        self.answers: list[tuple[int, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        server.asked.append((self.path, body, self.headers["authorization"]))
        if server.answers:
            status, answer = server.answers.pop(0)
        elif self.path == "/tokenize":
            status, answer = 200, {"count": len(body["prompt"].split()), "tokens": []}
        elif self.path == "/v1/tokenizers/estimate-token-count":
            (message,) = body["messages"]
            status, answer = 200, {"data": {"total_tokens": len(message["content"].split())}}
        else:
            status, answer = 404, {}
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    root.mkdir()
    for name in "abc":
        (root / f"{name}.py").write_text(TEXT)
    return root


@pytest.fixture
def loaded(repo: Path) -> Load:
    found = load(repo, window=WINDOW)
    assert len(found.segments) > 3
    return found


def asks(server: Server, dialect: str = "vllm", key: str | None = None) -> EndpointCounter:
    return EndpointCounter(server.url, "k3", key, CALLS[dialect])


@pytest.mark.parametrize(
    ("dialect", "path", "around"),
    [
        ("vllm", "/tokenize", 16),
        ("sglang", "/tokenize", 16),
        ("moonshot", "/v1/tokenizers/estimate-token-count", 0),
    ],
)
def test_a_load_is_counted_as_the_dialect_does(
    server: Server, loaded: Load, dialect: str, path: str, around: int
) -> None:
    found = counted(loaded, asks(server, dialect, "sk-1"), None)
    assert found.exact
    assert found.tokens == sum(len(one.text.split()) + around for one in loaded.segments)
    assert found.note == f"counted by {server.url}"
    assert {(asked[0], asked[1]["model"], asked[2]) for asked in server.asked} == {
        (path, "k3", "Bearer sk-1")
    }
    assert found.segments == loaded.segments, "what is sent does not depend on who counts"


def test_counts_are_kept_by_content(
    server: Server, loaded: Load, repo: Path, tmp_path: Path
) -> None:
    first = counted(loaded, asks(server), tmp_path / "cache")
    calls = len(server.asked)
    assert counted(loaded, asks(server), tmp_path / "cache") == first
    assert len(server.asked) == calls
    (repo / "c.py").write_text(TEXT + "last = 1\n")
    counted(load(repo, window=WINDOW), asks(server), tmp_path / "cache")
    assert calls < len(server.asked) < 2 * calls


@pytest.mark.parametrize(
    ("status", "answer", "why"),
    [
        (404, {}, "the endpoint has no call that counts tokens"),
        (500, {}, "the endpoint did not count: HTTP 500"),
        (200, {"other": 1}, "the endpoint's count could not be read"),
        (200, {"count": -4}, "the endpoint's count could not be read"),
        (200, {"count": True}, "the endpoint's count could not be read"),
        (200, ["count"], "the endpoint's count could not be read"),
        (200, {"count": 10**9}, "the endpoint's count could not be read"),
    ],
)
def test_an_endpoint_that_does_not_count_is_asked_once(
    server: Server, loaded: Load, status: int, answer: Any, why: str
) -> None:
    server.answers = [(status, answer)]
    found = counted(loaded, asks(server), None)
    assert (found.tokens, found.exact, found.note) == (loaded.tokens, False, f"estimated: {why}")
    assert len(server.asked) == 1


def test_nobody_there(server: Server, loaded: Load) -> None:
    gone = EndpointCounter("http://127.0.0.1:9/v1", "k3", None, CALLS["vllm"])
    found = counted(loaded, gone, None)
    assert found.note == "estimated: the endpoint did not count: ConnectError"


def test_what_was_not_counted_is_estimated_by_what_was(
    server: Server, loaded: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting_module, "MOST_CALLS", 2)
    found = counted(loaded, asks(server), None)
    assert len(server.asked) == 2
    assert not found.exact
    assert found.note.startswith(f"2 of {len(loaded.segments)} messages counted by {server.url}")
    words = sum(len(one.text.split()) + 16 for one in loaded.segments)
    assert 0.8 * words < found.tokens < 1.2 * words
    monkeypatch.setattr(counting_module, "SECONDS", 0.0)
    late = counted(loaded, asks(server), None)
    assert late.note.startswith("estimated: not within")


def test_a_slow_endpoint_is_not_waited_for(
    server: Server, loaded: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting_module, "CALL_SECONDS", 0.1)
    monkeypatch.setattr(Handler, "do_POST", lambda _self: threading.Event().wait(0.4))
    found = counted(loaded, asks(server), None)
    assert found.note == "estimated: no count within 0.1 s"


def test_a_small_repository_is_not_worth_a_call(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    small = load(tmp_path, window=WINDOW)
    assert counted(small, asks(server), None, least=20_000) == small
    assert server.asked == []


@pytest.mark.parametrize(
    ("base_url", "count", "asked", "counts"),
    [
        ("http://127.0.0.1:8000/v1", "auto", False, True),
        ("http://127.0.0.1:8000/v1", "off", False, False),
        ("http://127.0.0.1:8000/v1", "off", True, True),
        ("https://api.moonshot.ai/v1", "auto", False, False),
        ("https://api.moonshot.ai/v1", "auto", True, True),
        ("https://api.moonshot.ai/v1", "endpoint", False, True),
        ("https://openrouter.ai/api/v1", "endpoint", True, False),
        ("https://api.kimi.com/coding/v1", "endpoint", True, False),
        ("local:", "endpoint", True, False),
    ],
)
def test_files_go_to_be_counted_only_where_they_may(
    base_url: str, count: Counting, asked: bool, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNABRIDGED_API_KEY", "sk-1")
    found = counting(Config(base_url=base_url, count=count), asked=asked)
    assert (found is not None) is counts


def test_plan_and_run_say_who_counted(server: Server, repo: Path, tmp_path: Path) -> None:
    env = {**os.environ, "HOME": str(tmp_path), "UNABRIDGED_BASE_URL": server.url}
    env = {name: value for name, value in env.items() if not name.startswith("XDG_")}

    def said(*words: str) -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "unabridged", *words], cwd=repo, env=env, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        return done.stdout, done.stderr

    window = str(WINDOW)
    plan, _ = said("context", "plan", "--window", window)
    assert "(an estimate; --vocabulary FILE counts exactly)" in plan
    assert server.asked == []
    plan, _ = said("context", "plan", "--window", window, "--count")
    assert f"(counted by {server.url})" in plan
    calls = len(server.asked)
    _, told = said("run", "Look", "--window", window)
    assert f"tokens, counted by {server.url}\n" in told
    assert [path for path, *_ in server.asked[:calls]] == ["/tokenize"] * calls
    assert "/tokenize" not in [path for path, *_ in server.asked[calls:]], "they were kept"
