"""httpx, without the command line that it brings along.

Where rich and click are installed (the TUI brings them), `import httpx` also imports its command
line with all of rich and pygments: 5 MB and a tenth of a second for each start. Here an empty
module stands in that place while httpx is imported. Import httpx from here.
"""

from __future__ import annotations

import sys
from types import ModuleType

__all__ = ["EventSource", "httpx"]

_COMMAND_LINE = "httpx._main"


def _main() -> None:
    """httpx's command line is not there: run `python -m httpx` in a process of its own."""


if "httpx" not in sys.modules:
    sys.modules[_COMMAND_LINE] = _stub = ModuleType(_COMMAND_LINE)
    _stub.main = _main  # pyright: ignore[reportAttributeAccessIssue] - all that is asked of it
try:
    import httpx
    from httpx_sse import EventSource
finally:
    if getattr(sys.modules.get(_COMMAND_LINE), "main", None) is _main:
        del sys.modules[_COMMAND_LINE]
