"""What it looks like, at three sizes in both themes. After a wanted change run this with
UPDATE_SNAPSHOTS=1, look at the pictures, and commit them."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from unabridged.agent.providers.scripted import ScriptedCall, Turn
from unabridged.tui import paint
from unabridged.tui.opening import Opening
from unabridged.tui.widgets import status
from unabridged.tui.widgets.approval_card import ApprovalCard
from unabridged.tui.widgets.plan_card import PlanCard

FOLDER = Path(__file__).with_name("snapshots")
ANSWER = """I will rename it in **two steps**:

1. `total` becomes `gross` in `shop/price.py`
2. the cart follows

```python
def gross(net):
    return net * (1 + RATE)
```
"""
TURNS = (
    Turn(
        reasoning="The user wants a rename of `total`. The cart uses it as well.", content=ANSWER,
        calls=(ScriptedCall(name="propose_plan", arguments={
            "plan": "Rename it, then follow it in the cart.", "paths": ["shop/price.py"]}),),
    ),
    Turn(calls=(
        ScriptedCall(name="edit", arguments={"path": "shop/price.py", "old": "def total(net)",
                                             "new": "def gross(net)"}),
    )),
    Turn(calls=(
        ScriptedCall(name="edit", arguments={"path": "shop/cart.py", "old": "import total",
                                             "new": "import gross"}),
    )),
)  # fmt: skip


async def shot(desk: Any) -> str:
    """The screen after a moment, without what differs from run to run."""
    await desk.pilot.pause(0.3)
    return re.sub(r"terminal-\d+", "terminal", desk.app.export_screenshot(title="Unabridged"))


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_the_screen_looks_as_it_did(
    open_tui: Any, size: tuple[int, int], theme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (paint, status):
        monkeypatch.setattr(module, "duration", lambda _seconds: "1 s")
    monkeypatch.setattr(status, "SPINNER", "⠋")
    monkeypatch.setattr(paint, "WORTH_SAYING", 1e9)
    monkeypatch.setattr(
        Opening, "greet", lambda one: one._app.transcript.note("Unabridged in shop.")
    )
    name = f"{size[0]}x{size[1]}-{theme}.svg"
    async with open_tui(TURNS, size=size, theme=f"unabridged-{theme}", sandbox="off") as desk:
        await desk.started()
        await desk.say("Rename total to gross")
        await desk.card(PlanCard)
        await desk.pilot.press("y")
        await desk.card(ApprovalCard)
        await desk.sees("shop/cart.py is not among")
        desk.app.show_standing()
        # On a busy machine the last layout may come later; a screen that stays wrong still fails.
        path = FOLDER / name
        wanted, until = path.read_text() if path.exists() else "", time.monotonic() + 5
        while (picture := await shot(desk)) != wanted and time.monotonic() < until:
            pass
    if os.environ.get("UPDATE_SNAPSHOTS"):
        FOLDER.mkdir(exist_ok=True)
        path.write_text(picture)
        return
    if picture != wanted:
        (path.with_suffix(".new.svg")).write_text(picture)
        pytest.fail(f"{name} looks otherwise: compare it with {path.with_suffix('.new.svg')}")
