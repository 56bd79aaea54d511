"""Fork a session: a copy of its log up to some point, to go on another way from there."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from .events import AnyEvent, AssistantMessage, SessionStarted, ToolResult
from .store import SUFFIX, Store, StoreError, find, new_session_id


def fork(folder: Path, source: str, kept: Sequence[AnyEvent]) -> str:
    """Write `kept`, the beginning of a session's log, as a new session; returns its id.

    Copies of files go along, so that the fork can undo what came before it. Raises StoreError.
    """
    log = find(folder, source)
    fresh = new_session_id()
    with Store.create(folder, fresh) as store:
        for event in kept:
            if isinstance(event, SessionStarted):
                origin = log.name.removesuffix(SUFFIX)
                event = event.model_copy(update={"session": fresh, "forked_from": origin})
            store.append(event)
    files = log.with_suffix(".files")
    if files.is_dir():
        shutil.copytree(files, folder / f"{fresh}.files", symlinks=True, dirs_exist_ok=True)
    return fresh


def until_step(events: Sequence[AnyEvent], step: int | None) -> Sequence[AnyEvent]:
    """The log up to and with a step, its results included; all of it without one.

    Raises StoreError when there is no such step.
    """
    if step is None:
        return events
    steps = [event for event in events if isinstance(event, AssistantMessage)]
    if step not in {reply.step for reply in steps}:
        raise StoreError(f"there is no step {step}: the session has steps 1 to {len(steps)}.")
    later = [reply.seq for reply in steps if reply.step > step]
    if not later:
        return events
    # What led to the next step (its request, the user's words before it) is not part of this one.
    results = [e.seq for e in events if isinstance(e, ToolResult | AssistantMessage)]
    last = max(seq for seq in results if seq < later[0])
    return events[: last + 1]
