"""`!command`: a command that the user runs, shown like a call and told with the next message."""

from __future__ import annotations

import asyncio
import contextlib
import time

from .blocks import Block, Call, Transcript
from .desk import TROUBLES, Desk


async def run_own_command(command: str, desk: Desk, transcript: Transcript) -> str | None:
    """Run it in the session, opened where there is none; what the model is to be told of it."""
    at = transcript.append(
        Block("call", call=Call(name="!", arguments={"command": command}, state="running"),
              live=True, began=time.monotonic())
    )  # fmt: skip
    block = transcript.blocks[at]
    call = block.call
    assert call is not None

    def progress(text: str) -> None:
        call.output += text
        block.version += 1
        with contextlib.suppress(ValueError):
            transcript.changed.add(transcript.blocks.index(block))

    try:
        session = await desk.open()
        result = await session.shell(command, progress)
        call.result, call.exit_code = result.text, result.exit_code
        call.state = "failed" if result.error or result.exit_code else "done"
        return f"I ran `{command}` myself:\n{result.text}"
    except asyncio.CancelledError:
        call.state, call.why = "failed", "stopped"
    except TROUBLES as error:
        call.state, call.why = "denied", str(error)
    finally:
        call.output = "" if call.result else call.output
        block.live, block.seconds = False, time.monotonic() - block.began
        progress("")
    return None
