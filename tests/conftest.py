"""What all tests share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import settings

# A busy machine is slow, not wrong; and what lands is not up to the dice of one run.
settings.register_profile("everyday", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "everyday")


@pytest.fixture
def serve_script() -> Iterator[Callable[..., Any]]:
    """Serve a script over HTTP from a thread, for tests that run commands as processes.

    `serve_script(script, key=..., record=...)` gives the `ScriptedServer`: its `url`, `requests`
    and `failures`.
    """
    from unabridged.agent.providers.scripted_server import serving_in_thread

    with ExitStack() as stack:
        yield lambda script, **options: stack.enter_context(serving_in_thread(script, **options))
