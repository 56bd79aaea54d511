from __future__ import annotations

import json
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from unabridged.tools.base import Context, Facts, Result, Tool, ToolError


class Bench:
    """A repository with tools at work in it, remembering what the model was shown."""

    def __init__(self, root: Path, files: Path) -> None:
        self.root = root
        self.files = files
        self.seen: dict[str, str] = {}

    @property
    def facts(self) -> Facts:
        return Facts(self.root, dict(self.seen))

    def put(self, name: str, data: bytes) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def args(self, tool: Tool[Any], arguments: Mapping[str, Any]) -> Any:
        return tool.arguments.model_validate_json(json.dumps(arguments))

    async def run(self, tool: Tool[Any], **arguments: Any) -> Result:
        result = await tool.run(self.args(tool, arguments), Context(self.facts, "call", self.files))
        self.seen.update(result.seen)
        return result

    async def refused(self, tool: Tool[Any], **arguments: Any) -> str:
        with pytest.raises(ToolError) as caught:
            await self.run(tool, **arguments)
        return str(caught.value)

    def effects(self, tool: Tool[Any], **arguments: Any) -> list[tuple[str, str | None]]:
        found = tool.effects(self.args(tool, arguments), self.facts)
        return [(effect.kind.value, effect.path) for effect in found]

    def preview(self, tool: Tool[Any], **arguments: Any) -> str:
        return tool.preview(self.args(tool, arguments), self.facts)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    root, files = tmp_path / "repo", tmp_path / "files"
    root.mkdir()
    files.mkdir()
    return Bench(root.resolve(), files)


@pytest.fixture
def git(bench: Bench) -> Callable[..., str]:
    def run(*words: str) -> str:
        return subprocess.run(
            ["git", "-c", "user.name=t", "-c", "user.email=t@example.com", *words],
            cwd=bench.root, check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip

    run("init", "-q", "-b", "main")
    return run


Run = Callable[..., Awaitable[Result]]
