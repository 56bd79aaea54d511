"""How far estimated token counts were off, learned from what endpoints report, by model.

It corrects totals that are shown, priced and held against the window, never what is chosen or how
it is cut: the text of a pack must not depend on what was sent before.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

_LEAST, _MOST = 0.5, 2.0
"""A report outside of these is not believed."""
_WEIGHT = 0.5
"""Of the newest report against all before it."""


def read_scale(cache: Path | None, model: str) -> float:
    """What to multiply estimates for a model with; 1 as long as nothing is known."""
    scale = _read(cache).get(model, 1.0)
    return scale if _LEAST <= scale <= _MOST else 1.0


def learn(cache: Path | None, model: str, estimated: int, reported: int) -> None:
    """Take in one report: a prompt that was estimated, uncorrected, and its tokens as reported."""
    if cache is None or estimated <= 0 or not _LEAST <= reported / estimated <= _MOST:
        return
    known = _read(cache)
    before = known.get(model, reported / estimated)
    known[model] = round(before + _WEIGHT * (reported / estimated - before), 4)
    with contextlib.suppress(OSError):
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = _file(cache).with_suffix(f".{os.getpid()}")
        fresh.write_bytes(json.dumps(known).encode())
        fresh.replace(_file(cache))


def _read(cache: Path | None) -> dict[str, float]:
    if cache is None:
        return {}
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        found = json.loads(_file(cache).read_bytes())
        return {str(model): float(scale) for model, scale in found.items()}
    return {}


def _file(cache: Path) -> Path:
    return cache / "calibration.json"
