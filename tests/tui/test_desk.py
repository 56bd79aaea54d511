"""What the TUI works with, without a screen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from unabridged.agent.config import Flags
from unabridged.model.chat.tokenizer import write_ranks
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
