"""What it takes until K3-nano begins to answer: a repository read cold, and opened again after an edit.

    python benchmarks/reopen.py [--tokens 6000] [--rounds 5] [--threads 2]

Each round makes a repository of Python files and an empty store of states. The first session reads
all of it; then a line of one file is edited, and a second session, on an engine of its own over the
same store, reads what the store does not hold. The time runs from the request to the first token of
the reply, so it holds looking up and loading the states, and neither the loading of the weights nor
the packing. Goal: a tenth at most.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import tempfile
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import torch

from unabridged.agent.budget import Limits
from unabridged.agent.connect import nano_folder
from unabridged.agent.events import AssistantMessage
from unabridged.agent.providers.base import Delta, Reply, Request
from unabridged.agent.providers.embedded import EmbeddedProvider
from unabridged.agent.session import Session, Settings
from unabridged.model.engine import open_engine
from unabridged.model.nano.profile import MODEL

FUNCTION = '''def {name}(numbers, limit={n}):
    """The numbers below limit, times {n}."""
    return [each * {n} for each in numbers if each < limit]


'''
WORDS = ("anchor", "basket", "candle", "garden", "harbor", "ladder", "marble", "needle", "orchard")
TOKENS_A_FUNCTION = 62
"""About so many; the result says how many there were."""


class Timed(EmbeddedProvider):
    """Notes when the first token of a reply of one token is there."""

    seconds = 0.0

    async def stream(self, request: Request) -> AsyncGenerator[Delta | Reply]:
        began = time.perf_counter()
        async for item in super().stream(replace(request, max_completion_tokens=1)):
            if isinstance(item, Reply):
                self.seconds = time.perf_counter() - began
            yield item


@dataclass(frozen=True)
class Opened:
    seconds: float
    prompt: int
    cached: int


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tokens", type=int, default=6_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rounds = [measure(options.tokens) for _ in range(options.rounds)]
    for name, column in zip(("cold", "after an edit"), zip(*rounds, strict=True), strict=True):
        times = sorted(opened.seconds for opened in column)
        print(f"{name:14} {column[0].prompt:6,} tokens, {column[0].cached:6,} cached: "
              f"{median(times):.3f} s ({times[0]:.3f}-{times[-1]:.3f})")  # fmt: skip
    ratios = sorted(again.seconds / cold.seconds for cold, again in rounds)
    print(f"ratio, round by round: {median(ratios):.3f} ({ratios[0]:.3f}-{ratios[-1]:.3f})")


def measure(tokens: int) -> tuple[Opened, Opened]:
    """Cold, then again after an edit."""
    with tempfile.TemporaryDirectory() as name:
        top = Path(name).resolve()
        repo = top / "repo"
        repo.mkdir()
        for number in range(max(1, tokens // (TOKENS_A_FUNCTION * 10))):
            functions = (
                FUNCTION.format(name=f"{word}_{number}", n=number + 2) for word in (*WORDS, "last")
            )
            (repo / f"m{number:03}.py").write_text("".join(functions))
        for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "First"]):
            named = ["git", "-c", "user.name=n", "-c", "user.email=n@example.com", *words]
            subprocess.run(named, cwd=repo, check=True, capture_output=True)
        cold = asyncio.run(opened(top))
        edited = repo / "m001.py"
        edited.write_text(edited.read_text().replace("limit=3", "limit=300", 1))
        return cold, asyncio.run(opened(top))


async def opened(top: Path) -> Opened:
    """A session of one request, on an engine of its own."""
    engine, tokenizer = open_engine(nano_folder(), dtype=torch.float32, states=top / "states")
    provider = Timed(engine, tokenizer, MODEL)
    settings = Settings(
        model=MODEL, on_ask="stop", sandbox="off", limits=Limits(steps=1), cache=top / "cache"
    )
    session = Session.create(top / "repo", provider, settings, top / "sessions")
    async with session:
        async for _ in session.start("Rename anchor_1 to sail_1."):
            pass
    await provider.close()
    (reply,) = [event for event in session.events if isinstance(event, AssistantMessage)]
    assert reply.usage is not None
    return Opened(provider.seconds, reply.usage.prompt, reply.usage.cached)


if __name__ == "__main__":
    main()
