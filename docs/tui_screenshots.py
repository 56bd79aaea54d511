"""Make the pictures of docs/tui.md: the TUI at work on a small repository, played by a script.

python docs/tui_screenshots.py
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from pathlib import Path

from unabridged.agent.config import Flags
from unabridged.agent.providers.scripted import Script, ScriptedCall, Turn
from unabridged.tui.app import UnabridgedApp
from unabridged.tui.desk import Start
from unabridged.tui.memory import Memory
from unabridged.tui.widgets.approval_card import ApprovalCard
from unabridged.tui.widgets.plan_card import PlanCard

IMAGES = Path(__file__).with_name("images")
FILES = {
    "shop/price.py": "RATE = 0.2\n\n\ndef total(net):\n    return net * (1 + RATE)\n",
    "shop/cart.py": "from .price import total\n\n\ndef checkout(items):\n    return total(sum(items))\n",
    "README.md": "# Shop\n",
}
ANSWER = """`total` is defined in `shop/price.py` and used in the cart. I will rename it in **two steps**:

1. `total` becomes `gross` in `shop/price.py`
2. the cart follows
"""


def call(name: str, **arguments: object) -> ScriptedCall:
    """A call of the scripted model."""
    return ScriptedCall(name=name, arguments=arguments)


TURNS = (
    Turn(
        reasoning="The user wants a rename of `total`. The cart uses it as well, so two files.",
        content=ANSWER,
        calls=(call("propose_plan", plan="Rename `total` to `gross`, then follow it in the cart.",
                    paths=["shop/price.py"], commands=[["pytest", "*"]], not_touch=["README.md"]),),
    ),
    Turn(calls=(call("edit", path="shop/price.py", old="def total(net)", new="def gross(net)"),)),
    Turn(calls=(call("edit", path="shop/cart.py", old="import total", new="import gross"),)),
    Turn(calls=(call("finish", status="done", summary="Renamed `total` to `gross` in two files."),)),
)  # fmt: skip


async def shoot(folder: Path, theme: str) -> None:
    """One session, five pictures."""
    repo = folder / "shop"
    for name, text in FILES.items():
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=repo, check=True)  # noqa: ASYNC221 - nothing else runs
    script = folder / "script.json"
    script.write_text(Script(turns=TURNS).model_dump_json())
    start = Start(root=repo, sessions=folder / "sessions", script=script, cache=folder / "cache",
                  flags=Flags(model="kimi-k3"))  # fmt: skip
    app = UnabridgedApp(start, Memory(folder / "tui.json"), f"unabridged-{theme}")
    async with app.run_test(size=(110, 36)) as pilot:

        async def until(kind: type | None) -> None:
            while not (app.card is None if kind is None else isinstance(app.card, kind)):
                await pilot.pause(0.05)
            await pilot.pause(0.5)

        def shot(name: str) -> None:
            picture = app.export_screenshot(title="unabridged")
            (IMAGES / f"tui-{name}-{theme}.svg").write_text(picture)

        while not app.opening.planned.is_set():
            await pilot.pause(0.05)
        await pilot.pause(0.3)
        shot("load")
        app.prompt.put("Rename total to gross, everywhere")
        await pilot.press("enter")
        await until(PlanCard)
        shot("plan")
        await pilot.press("y")
        await until(ApprovalCard)
        shot("approval")
        await pilot.press("y")
        await until(None)
        shot("end")
        app.prompt.put("/diff")
        await pilot.press("enter")
        await pilot.pause(0.8)
        shot("diff")
        await app.desk.let_go()


def main() -> None:
    """Both themes."""
    IMAGES.mkdir(exist_ok=True)
    for theme in ("dark", "light"):
        with tempfile.TemporaryDirectory() as name:
            asyncio.run(shoot(Path(name), theme))


if __name__ == "__main__":
    main()
