"""What the TUI works with, without a screen."""

from __future__ import annotations

import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from unabridged.agent import session as session_module
from unabridged.agent.config import Flags
from unabridged.agent.counting import CALLS
from unabridged.agent.events import FilesChanged, TextPart
from unabridged.agent.providers.scripted import Script, Turn
from unabridged.agent.session import load_repository
from unabridged.model.chat.tokenizer import write_ranks
from unabridged.tui import desk as desk_module
from unabridged.tui.desk import Desk, Start


def test_the_plan_counts_as_the_settings_say(shop: Path, tmp_path: Path) -> None:
    """With the vocabulary that a headless run would count with, and exactly."""
    write_ranks([bytes((byte,)) for byte in range(256)], tmp_path / "tiktoken.model")
    start = Start(shop, tmp_path / "sessions", Flags(base_url="http://127.0.0.1:9/v1"), cache=None)
    desk = Desk(start)
    desk.connect()
    assert desk.config is not None
    assert not desk.plan(lambda: False).exact
    desk.config = replace(desk.config, vocabulary=tmp_path / "tiktoken.model")
    loaded = desk.plan(lambda: False)
    assert loaded.exact
    assert loaded.tokens > sum(path.stat().st_size for path in shop.glob("shop/*.py"))


class Counter(BaseHTTPRequestHandler):
    """A vLLM that says 20 tokens of whatever it is asked."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"count": 20}')

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass


def test_the_plan_has_the_endpoints_count(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "WORTH", 0)
    with ThreadingHTTPServer(("127.0.0.1", 0), Counter) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,)).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        desk = Desk(Start(shop, tmp_path / "sessions", Flags(base_url=url), cache=None))
        desk.connect()
        assert desk.config is not None
        desk.config = replace(desk.config, dialect="vllm")
        loaded = desk.plan(lambda: False)
        server.shutdown()
    assert loaded.note == f"counted by {url}"
    assert loaded.tokens == len(loaded.segments) * (20 + CALLS["vllm"].around)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each load, whether it was to be kept."""
    made: list[bool] = []

    def counted(*args: Any, keep: bool = True, **options: Any) -> Any:
        made.append(keep)
        return load_repository(*args, keep=keep, **options)

    monkeypatch.setattr(desk_module, "load_repository", counted)
    return made


@pytest.fixture
def start(shop: Path, tmp_path: Path) -> Start:
    script = tmp_path / "script.json"
    script.write_text(Script(turns=(Turn(content="Hello."),), order="history").model_dump_json())
    return Start(shop, tmp_path / "sessions", Flags(model="kimi-k3"), script, cache=tmp_path / "c")


def connected(start: Start) -> Desk:
    desk = Desk(start)
    desk.connect()
    return desk


async def test_the_load_of_the_plan_is_the_sessions(start: Start, loads: list[bool]) -> None:
    desk = connected(start)
    planned = desk.plan(lambda: False)
    assert connected(start).plan(lambda: False).stored == 0  # a plan alone leaves nothing behind
    loads.clear()
    await desk.open()
    assert loads == []
    assert desk.loaded is planned
    assert connected(start).plan(lambda: False).stored == len(planned.segments)
    await desk.let_go()


async def test_what_changed_since_the_plan_is_told(start: Start, shop: Path) -> None:
    desk = connected(start)
    desk.plan(lambda: False)
    (shop / "shop/price.py").write_bytes(b"RATE = 0.3\n")
    (shop / "shop/new.py").write_bytes(b"NEW = 1\n")
    session = await desk.open()
    async for _ in session.start((TextPart(text="Hi"),)):
        pass
    (told,) = (event for event in session.events if isinstance(event, FilesChanged))
    assert sorted(told.files) == ["shop/new.py", "shop/price.py"]
    await desk.let_go()


@pytest.mark.parametrize("why", ["other options", "too old"])
async def test_a_plan_that_no_longer_holds_is_not_used(
    start: Start, loads: list[bool], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    desk = connected(start)
    desk.plan(lambda: False)
    if why == "other options":
        desk.options = replace(desk.options, exclude=("README.md",))
    else:
        monkeypatch.setattr(desk_module, "FRESH", -1.0)
    await desk.open()
    assert loads == [False, True]
    assert desk.loaded is not None
    assert desk.loaded.files == (2 if why == "other options" else 3)
    await desk.let_go()
