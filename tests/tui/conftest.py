"""The TUI over real repositories and sessions, played by scripts in this process."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from unabridged.agent.config import Flags
from unabridged.agent.providers.scripted import Script, Turn
from unabridged.tui.app import UnabridgedApp
from unabridged.tui.desk import Start
from unabridged.tui.memory import Memory

FILES = {
    "shop/price.py": b"RATE = 0.2\n\n\ndef total(net):\n    return net * (1 + RATE)\n",
    "shop/cart.py": b"from .price import total\n\n\ndef checkout(items):\n    return total(sum(items))\n",
    "README.md": b"# Shop\n\nA small shop.\n",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own: no settings, no keys, no sessions of the user."""
    for name in ("UNABRIDGED_BASE_URL", "UNABRIDGED_MODEL", "UNABRIDGED_API_KEY", "MOONSHOT_API_KEY",
                 "UNABRIDGED_EFFORT", "NO_COLOR", "COLORFGBG"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("CONFIG", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / "home" / name.lower()))
    return tmp_path / "home"


@pytest.fixture
def shop(tmp_path: Path, home: Path) -> Path:
    """A small repository."""
    root = tmp_path / "shop-repo"
    for name, data in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "start"]):
        subprocess.run(["git", "-c", "user.name=T", "-c", "user.email=t@example.com", *command],
                       cwd=root, check=True)  # fmt: skip
    return root.resolve()


class Desk:
    """A started TUI, with what tests ask of it."""

    def __init__(self, app: UnabridgedApp, pilot: Pilot[None]) -> None:
        self.app = app
        self.pilot = pilot

    async def until(self, condition: Callable[[], Any], what: str = "", seconds: float = 15) -> Any:
        """Wait for something; what the screen shows is the message where it does not come."""
        for _ in range(int(seconds / 0.02)):
            if found := condition():
                return found
            await self.pilot.pause(0.02)
        raise AssertionError(f"never came: {what}\n{self.screen}")

    @property
    def screen(self) -> str:
        """What the terminal shows, as plain lines."""
        strips = self.app.screen._compositor.render_strips()
        return "\n".join(strip.text.rstrip() for strip in strips)

    async def sees(self, *texts: str) -> None:
        """Wait until the screen holds all texts."""
        await self.until(lambda: all(t in self.screen for t in texts), " and ".join(texts))

    async def card(self, kind: type) -> Any:
        """Wait for a card, and out its grace."""
        await self.until(lambda: isinstance(card := self.app.card, kind) and card is not None and card.is_mounted,
                         kind.__name__)  # fmt: skip
        await self.pilot.pause(0.35)
        return self.app.card

    async def say(self, text: str) -> None:
        """Write and send."""
        self.app.prompt.focus()
        self.app.prompt.put(text)
        await self.pilot.press("enter")

    async def started(self) -> None:
        """Wait for the load plan."""
        await self.until(lambda: self.app.opening.planned.is_set(), "the load plan")

    async def idle(self) -> None:
        """Wait until nothing runs."""
        await self.until(lambda: not self.app.busy, "the end of the turn")
        await self.pilot.pause()

    def events(self, kind: type) -> list[Any]:
        """Events of the session, of one kind."""
        assert self.app.session is not None
        return [event for event in self.app.session.events if isinstance(event, kind)]


Open = Callable[..., Any]


@pytest.fixture
async def open_tui(shop: Path, tmp_path: Path) -> AsyncIterator[Open]:
    """`async with open_tui(turns, size=(100, 30)) as desk:`"""

    @asynccontextmanager
    async def opened(
        turns: Sequence[Turn] = (), size: tuple[int, int] = (100, 32), script: Script | None = None,
        theme: str = "unabridged-dark", **start: Any,
    ) -> AsyncIterator[Desk]:  # fmt: skip
        path = tmp_path / "script.json"
        scripted = start.pop("script_file", path)
        script = script or Script(turns=tuple(turns), order="history")
        path.write_text(script.model_dump_json())
        options = {"root": shop, "sessions": tmp_path / "sessions", "script": scripted,
                   "cache": tmp_path / "cache", "flags": Flags(model="kimi-k3"), **start}  # fmt: skip
        memory = Memory(tmp_path / "tui.json")
        app = UnabridgedApp(Start(**options), memory, theme)
        async with app.run_test(size=size) as pilot:
            try:
                yield Desk(app, pilot)
            finally:
                await app.desk.let_go()
                await asyncio.sleep(0)

    async with AsyncExitStack():
        yield opened
