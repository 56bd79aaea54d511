"""Make the pictures of docs/tui.md and of the README: real sessions of K3-nano in the TUI.

    python docs/tui_screenshots.py

The sample is that of `make run`. Nothing is scripted: what the pictures show is what the model did.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from textual.pilot import Pilot

from unabridged.tui.app import UnabridgedApp
from unabridged.tui.desk import Start
from unabridged.tui.memory import Memory
from unabridged.tui.screens.changes import Changes
from unabridged.tui.widgets.approval_card import ApprovalCard
from unabridged.tui.widgets.plan_card import PlanCard

IMAGES = Path(__file__).with_name("images")
SAMPLE = Path(__file__).parents[1] / "examples" / "garden"
TASK = "Rename count_dry to thirsty_beds."
SIZE = (100, 32)
GRACE = 0.5
"""Seconds after which a card takes an answer, and the screen is still."""


class Session:
    """One session, in one theme."""

    def __init__(self, app: UnabridgedApp, pilot: Pilot[None], theme: str) -> None:
        self._app = app
        self._pilot = pilot
        self._theme = theme

    async def run(self) -> None:
        """From the load plan to the changes."""
        app, pilot = self._app, self._pilot
        await app.opening.planned.wait()
        await self._shoot("load")
        app.prompt.put(TASK)
        await pilot.press("enter")
        taken: set[type] = set()
        while await self._waits():
            kind = type(app.card)
            if kind not in taken:
                await self._shoot("plan" if kind is PlanCard else "approval")
            taken.add(kind)
            await pilot.press("y")
        await self._shoot("end")
        app.prompt.put("/diff")
        await pilot.press("enter")
        while not isinstance(app.screen, Changes):
            await pilot.pause(0.05)
        await self._shoot("diff")

    async def _waits(self) -> bool:
        """Whether something waits for the user; False at the end of the turn."""
        while self._app.busy and not isinstance(self._app.card, PlanCard | ApprovalCard):
            await self._pilot.pause(0.05)
        await self._pilot.pause(GRACE)
        return self._app.busy

    async def _shoot(self, name: str) -> None:
        await self._pilot.pause(GRACE)
        picture = self._app.export_screenshot(title="unabridged")
        (IMAGES / f"tui-{name}-{self._theme}.svg").write_text(picture)


async def shoot(repo: Path, folder: Path, theme: str) -> None:
    """All pictures in one theme."""
    start = Start(root=repo, sessions=folder / "sessions", cache=folder / "cache")
    app = UnabridgedApp(start, Memory(folder / "tui.json"), f"unabridged-{theme}")
    async with app.run_test(size=SIZE) as pilot:
        await Session(app, pilot, theme).run()
        await app.desk.let_go()


def repository(home: Path) -> Path:
    """The sample, with one commit."""
    repo = home / SAMPLE.name
    shutil.copytree(SAMPLE, repo, ignore=shutil.ignore_patterns("__pycache__"))
    git = ["git", "-c", "user.name=Sample", "-c", "user.email=sample@example.com"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "Add the garden"]):
        subprocess.run([*git, *words], cwd=repo, check=True)
    return repo


def main() -> None:
    """Both themes."""
    IMAGES.mkdir(exist_ok=True)
    for name in list(os.environ):
        if name.startswith(("UNABRIDGED_", "MOONSHOT_", "XDG_")):
            del os.environ[name]
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1",
                   "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring"}  # fmt: skip
    for theme in ("dark", "light"):
        with tempfile.TemporaryDirectory() as name:
            home = Path(name).resolve()
            os.environ["HOME"] = str(home)
            asyncio.run(shoot(repository(home), home, theme))


if __name__ == "__main__":
    main()
