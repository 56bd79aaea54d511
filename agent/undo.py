"""Undo: put paths back to what they were before the session's calls touched them.

Pure planning over what the log says: each path's first copy is the aim, and a path is refused when
it is not as the last call left it, because then somebody else changed it since. Only recorded
paths are ever touched.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from ..tools.diff import whole_diff
from ..tools.text import UTF8, detect
from .context.errors import Stop, never
from .copies import Change, Copies, Copy, Snapshot
from .events import AnyEvent, AssistantMessage, Checkpoint, ToolResult

AFTER = "after"
"""Key in `ToolResult.data`: what a call left at the paths it touched."""

OUTSIDE = "outside_scope"
"""Key in `ToolResult.data`: the paths of these that nobody agreed to."""


@dataclass(frozen=True)
class Touch:
    """What one call did to one path."""

    step: int
    name: str
    before: Copy
    after: Copy | None
    """None when the call was interrupted, so that nobody looked."""


@dataclass(frozen=True)
class Restoration:
    """A path to put back, or why it is not."""

    name: str
    now: Copy
    aim: Copy
    refusal: str = ""


def touches(events: Iterable[AnyEvent]) -> list[Touch]:
    """What the calls of a session touched, in order."""
    step = 0
    open_calls: dict[str, tuple[int, dict[str, str]]] = {}
    found: list[Touch] = []

    def settle(call_id: str, after: Mapping[str, str]) -> None:
        step, files = open_calls.pop(call_id, (0, {}))
        for name, before in files.items():
            left = Copy.parse(after[name]) if name in after else None
            if (was := Copy.parse(before)) != left:
                found.append(Touch(step, name, was, left))

    for event in events:
        match event:
            case AssistantMessage():
                step = event.step
            case Checkpoint():
                files = open_calls.setdefault(event.call_id, (step, {}))[1]
                for name, copy in event.files.items():
                    files.setdefault(name, copy)
            case ToolResult():
                settle(event.call_id, cast("dict[str, str]", event.data.get(AFTER, {})))
            case _:
                pass
    for call_id in list(open_calls):
        settle(call_id, {})
    return found


def plan(
    touched: Sequence[Touch], now: Callable[[str], Copy], has: Callable[[Copy], bool]
) -> list[Restoration]:
    """Pure: how to bring every touched path back, in order of first touch.

    Paths that are already as they were are left out.
    """
    chains: dict[str, list[Touch]] = {}
    for touch in touched:
        chains.setdefault(touch.name, []).append(touch)
    planned: list[Restoration] = []
    for name, chain in chains.items():
        aim, last, current = chain[0].before, chain[-1].after, now(name)
        if current == aim:
            continue
        refusal = ""
        if last is None:
            refusal = "the call that touched it was interrupted, so what it left is not known"
        elif current != last:
            refusal = "it was changed since"
        elif any(a.after not in (None, b.before) for a, b in pairwise(chain)):
            refusal = "somebody else changed it between two steps of the session"
        elif not has(aim):
            refusal = "no copy of it was kept: it was too large, or no plain file"
        planned.append(Restoration(name, current, aim, refusal))
    return planned


class Undo:
    """Checkpoints before calls, scans around unknown commands, and the way back."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = root
        self.copies = Copies(root, folder)

    # --- while the session runs --------------------------------------------------------------

    def checkpoint(self, names: Iterable[str]) -> dict[str, str]:
        """Keep what is at these paths, and below folders; for a `Checkpoint` event."""
        return {name: str(copy) for name, copy in self.copies.take(names).items()}

    def after(self, names: Iterable[str]) -> dict[str, str]:
        """What is at these paths now; for `ToolResult.data[AFTER]`."""
        return {name: str(self.copies.look(name)) for name in names}

    def scan(self) -> Snapshot:
        """Before a command that may touch anything; blocking, run it in a thread."""
        return self.copies.scan()

    def changes(self, before: Snapshot, stop: Stop = never) -> list[Change]:
        """After it: what it changed; when stopped, what was found by then. Blocking."""
        return self.copies.changes(before, stop)

    def read(self, copy: str) -> bytes | None:
        """The bytes of a file as a checkpoint names it; None when there are none."""
        parsed = Copy.parse(copy)
        return self.copies.read(parsed) if parsed.kind == "file" else None

    def close(self) -> None:
        """Drop the copies of what was never changed."""
        self.copies.close()

    # --- the way back ------------------------------------------------------------------------

    def plan(self, events: Iterable[AnyEvent], since: int = 0) -> list[Restoration]:
        """How to undo all calls of step `since` and later."""
        chosen = [touch for touch in touches(events) if touch.step >= since]
        return plan(chosen, self.copies.look, self.copies.has)

    def diff(self, item: Restoration) -> str:
        """What restoring would do, for a person: a unified diff, or a line where there is none."""
        if item.refusal:
            return f"{item.name}: left alone, {item.refusal}\n"
        lines = ""
        if item.now.kind == item.aim.kind and item.now.mode != item.aim.mode:
            lines = f"{item.name}: mode {item.now.mode:o} -> {item.aim.mode:o}\n"
            if item.now.digest == item.aim.digest:
                return lines
        if {item.now.kind, item.aim.kind} <= {"file", "absent"}:
            return lines + self._file_diff(item)
        return f"{lines}{item.name}: {self._words(item.now)} -> {self._words(item.aim)}\n"

    def restore(self, planned: Sequence[Restoration]) -> list[Restoration]:
        """Put the paths back; the list as carried out, each refusal with its reason.

        Keeps what is there now, so that an undo can be undone. Each path is looked at again just
        before, and one that fails leaves the others.
        """
        self.copies.take(item.name for item in planned if not item.refusal)
        outcomes = {item.name: item for item in planned}
        for item in sorted(planned, key=_order):
            if not item.refusal:
                refusal = self._restore(item)
                outcomes[item.name] = Restoration(item.name, item.now, item.aim, refusal)
        return list(outcomes.values())

    def _restore(self, item: Restoration) -> str:
        """Put one path back; why not, or empty."""
        path = self.root / item.name
        if self.copies.look(item.name) != item.now:
            return "it was changed since"
        existing = path.parent
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
        if os.path.realpath(existing) != str(existing):
            return "one of its folders is a link now"
        try:
            if item.now.kind == "folder" and item.aim.kind != "folder":
                path.rmdir()
            elif item.aim.kind in ("absent", "folder") and item.now.kind in ("file", "link"):
                path.unlink()
            if item.aim.kind == "folder":
                path.mkdir(parents=True, exist_ok=True)
                path.chmod(item.aim.mode)
            elif item.aim.kind in ("file", "link"):
                self._put(path, item.aim)
        except OSError as error:
            return f"{error.strerror or error}"
        return ""

    def _put(self, path: Path, aim: Copy) -> None:
        data = self.copies.read(aim)
        assert data is not None, "the plan checked that it was kept"
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".undo-", dir=path.parent) as folder:
            temporary = Path(folder, "copy")
            if aim.kind == "link":
                temporary.symlink_to(os.fsdecode(data))
            else:
                temporary.write_bytes(data)
                temporary.chmod(aim.mode)
            temporary.replace(path)

    def _file_diff(self, item: Restoration) -> str:
        path = self.root / item.name
        now = path.read_bytes() if item.now.kind == "file" else None
        aim = self.copies.read(item.aim) if item.aim.kind == "file" else None
        now_text, aim_text = detect(now or b""), detect(aim or b"")
        if now_text is None or aim_text is None:
            sizes = [f"{len(data)} bytes" if data is not None else "nothing" for data in (now, aim)]
            return f"{item.name}: binary, {sizes[0]} -> {sizes[1]}\n"
        if aim is None:
            return f"{item.name}: removed\n" + whole_diff(item.name, now, b"", UTF8, now_text)
        return whole_diff(item.name, now, aim, aim_text, now_text)

    def _words(self, copy: Copy) -> str:
        match copy.kind:
            case "absent":
                return "nothing"
            case "link":
                target = self.copies.read(copy)
                return f"link to {os.fsdecode(target)}" if target is not None else "a link"
            case "folder":
                return "a folder"
            case _:
                return f"a {copy.kind}"


def _order(item: Restoration) -> tuple[Any, ...]:
    """Removals first and from below, then folders from above, then the rest."""
    depth = item.name.count("/")
    if item.aim.kind == "absent":
        return 0, -depth
    return (1, depth) if item.aim.kind == "folder" else (2, depth)
