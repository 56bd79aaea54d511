"""What the TUI remembers between days: what was written, the theme. Losing it loses nothing else."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from ..agent.config import data_folder

MOST = 500
LONGEST = 20_000


@dataclass
class Memory:
    """Kept in one small file of the user's data folder."""

    path: Path = field(default_factory=lambda: data_folder() / "tui.json")
    theme: str = ""
    history: list[str] = field(default_factory=list[str])

    @classmethod
    def read(cls, path: Path | None = None) -> Memory:
        """As far as it can be read."""
        memory = cls(path) if path is not None else cls()
        with contextlib.suppress(OSError, ValueError):
            kept: Any = json.loads(memory.path.read_bytes())
            if isinstance(kept, dict):
                table = cast("dict[str, Any]", kept)
                memory.theme = str(table.get("theme", ""))
                memory.history = [str(one) for one in table.get("history", [])]
        return memory

    def write(self) -> None:
        """As far as it can be written."""
        kept = [one for one in self.history if len(one) <= LONGEST][-MOST:]
        fresh = self.path.with_name(self.path.name + ".new")
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fresh.touch(mode=0o600)
            fresh.write_bytes(json.dumps({"theme": self.theme, "history": kept}).encode())
            os.replace(fresh, self.path)  # noqa: PTH105 - the atomic one, by its name
