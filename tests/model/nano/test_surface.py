"""What K3-nano was trained on stays what the harness sends it.

`model/nano/surface.json` holds hashes of one whole session as `render` gives it, part by part.
The session is fixed here: its repository, words, replies and answer.
"""

from __future__ import annotations

import hashlib
import json
import re
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any

from unabridged.agent.events import Question
from unabridged.agent.policy import parse_allow
from unabridged.agent.providers.scripted import ScriptedProvider
from unabridged.agent.session import Session, Settings
from unabridged.model.chat.render import render
from unabridged.model.nano import profile as nano

FILES = {
    "shop/__init__.py": "",
    "shop/cart.py": 'LIMIT = 3\n\n\ndef first(items):\n    """The first items."""\n    return items[:LIMIT]\n',
    "shop/pay.py": "from .cart import first\n\n\ndef pay(items):\n    return sum(first(items))\n",
    "test_cart.py": (
        "import unittest\n\nfrom shop.cart import first\n\n\nclass TestCart(unittest.TestCase):\n"
        "    def test_first(self):\n        self.assertEqual(first([1, 2, 3, 4]), [1, 2, 3])\n"
    ),
}
RUN = "python3 -m unittest -q"


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


REPLIES: list[dict[str, Any]] = [
    {"reasoning": "Where is it?", "calls": [call("search", pattern="first")]},
    {"reasoning": "And what is not there?", "calls": [call("search", pattern="last")]},
    {"reasoning": "With lines around.", "calls": [call("search", pattern="def first", context=1)]},
    {
        "reasoning": "Ask.",
        "calls": [call("ask_user", question="What name?", choices=["head", "top"])],
    },
    {
        "reasoning": "3 files: a plan first.",
        "calls": [
            call(
                "propose_plan",
                plan="Rename first to head.",
                paths=["shop/cart.py", "shop/pay.py", "test_cart.py"],
                commands=[RUN.split()],
            )
        ],
    },
    {
        "reasoning": "The plan stands.",
        "calls": [
            call("edit", path="shop/cart.py", old="first(", new="head("),
            call("edit", path="shop/pay.py", old="first", new="head", replace_all=True),
            call("edit", path="test_cart.py", old="first", new="head", replace_all=True),
        ],
    },
    {"reasoning": "Run the tests.", "calls": [call("shell", command=RUN)]},
    {
        "reasoning": "They pass.",
        "calls": [call("finish", status="done", summary="first is now head.", verified=[RUN])],
    },
]


async def rendered(folder: Path) -> dict[str, str]:
    """Part of the session -> its text, with what differs from run to run taken out."""
    repo = folder / "repo"
    for name, text in FILES.items():
        path = repo / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    steps = count()
    provider = ScriptedProvider(lambda _asked: REPLIES[next(steps)], window=nano.WINDOW)
    rules = (parse_allow("write:**"), parse_allow(f"execute:{RUN}"))
    settings = Settings(nano.MODEL, session_rules=rules)
    async with Session.create(repo, provider, settings, folder / "sessions") as session:
        async for item in session.start("Rename first."):
            if isinstance(item, Question):
                session.answer("head")
        assert session.ended is not None
        assert session.ended.exit_code == 0, session.ended
        messages = [json.loads(message) for message in session.core.view.request()]
        tools = json.loads(session.core.view.tools)
    effort = nano.EFFORT or None
    return {
        "tools": _text([], tools=tools, effort=effort),
        # A result on its own needs a name, which it otherwise has from its call.
        **{
            f"{number:02} {message['role']}": _text([{"name": message["role"], **message}])
            for number, message in enumerate(messages)
        },
        "whole": _text(messages, tools=tools, effort=effort),
    }


def _text(messages: list[dict[str, Any]], **options: Any) -> str:
    segments = render(messages, generation_prefix=False, **options)
    text = "".join(segment.text for segment in segments)
    return re.sub(r"in \d+\.\d+s", "in 0.000s", text)


async def test_the_surface_is_the_one_that_was_trained_on(tmp_path: Path) -> None:
    now = {
        name: hashlib.sha256(text.encode()).hexdigest()
        for name, text in (await rendered(tmp_path)).items()
    }
    stored = files("unabridged.model.nano").joinpath("surface.json").read_text()
    trained: dict[str, str] = json.loads(stored)["sha256"]
    different = [name for name in now | trained if now.get(name) != trained.get(name)]
    assert not different, (
        f"this changes what K3-nano was trained on: retrain, or restore ({', '.join(different)}).\n"
        f"Now it is {json.dumps(now, indent=2)}"
    )


async def test_two_runs_render_alike(tmp_path: Path) -> None:
    """Nothing of a clock, an id or a path of this machine is in it."""
    assert await rendered(tmp_path / "a") == await rendered(tmp_path / "b")
