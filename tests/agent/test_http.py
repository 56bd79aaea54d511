"""The client of endpoints is httpx, without what only a terminal needs."""

from __future__ import annotations

import subprocess
import sys


def modules_after(statement: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {statement}; print(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    )
    return set(done.stdout.split())


def test_an_endpoint_costs_no_terminal_library() -> None:
    loaded = modules_after("import unabridged.agent.providers.kimi")
    assert "httpx" in loaded
    assert not {"rich", "click", "pygments", "textual", "httpx._main"} & loaded


def test_httpx_is_whole_for_others_before_and_after() -> None:
    both = "from unabridged.agent.http import httpx; import httpx as theirs; assert theirs is httpx"
    assert "httpx" in modules_after(both)
    after = modules_after(
        "from unabridged.agent.http import httpx; import httpx._main as m; m.click"
    )
    assert {"httpx._main", "rich"} <= after
    before = modules_after("import httpx; from unabridged.agent.http import httpx")
    assert "httpx._main" in before
