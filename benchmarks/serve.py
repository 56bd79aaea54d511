"""Measure serving on this machine: sessions side by side, and what a restored prefix saves.

    python benchmarks/serve.py sessions [--engines embedded vllm] [--sessions 1 4 16]
    python benchmarks/serve.py restore [--model random|nano] [--tokens 2000 8000 32000]

sessions  K3-nano behind `unabridged serve`, the same requests to each engine: tokens per second
          over all sessions, time to the first token (median), memory of the server's processes.
restore   the time to the first token of a prompt that nobody read before, and of the same prompt
          in the next process, from the state store. `random` is a small K3 of random weights with
          a window of 65,536 tokens. Goal: 20 times faster at 32,000 tokens.

Run it with the Python of `make venv-vllm`. Servers are started and ended one after the other, on
stores of their own. Absolute numbers are those of this machine and of what else it does: the load
is printed with them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

NANO = Path(__file__).parents[1] / "model/nano"
REPLY = 48
"""Tokens of each reply."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure serving on this machine.")
    parser.add_argument("what", choices=["sessions", "restore"])
    parser.add_argument("--engines", nargs="+", default=["embedded", "vllm"])
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--model", choices=["random", "nano"], default="random")
    parser.add_argument("--tokens", type=int, nargs="+", default=[2000, 8000, 32000])
    args = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        if args.what == "sessions":
            for engine in args.engines:
                sessions(engine, args.sessions, Path(scratch))
        else:
            restore(args.model, args.tokens, Path(scratch))


def sessions(engine: str, counts: list[int], scratch: Path) -> None:
    with serving(NANO, engine, scratch / engine) as (url, server):
        for count in counts:
            began = time.perf_counter()
            firsts, tokens = asyncio.run(_talk(url, count))
            seconds = time.perf_counter() - began
            print(
                f"{engine:9} {count:2} sessions  {tokens / seconds:7.1f} tokens/s  "
                f"first token {statistics.median(firsts):6.2f} s  "
                f"memory {memory(server.pid) / 2**20:6.0f} MiB",
                flush=True,
            )


async def _talk(url: str, count: int) -> tuple[list[float], int]:
    """Times to the first token of each session, and tokens of all replies."""
    limits = httpx.Limits(max_connections=count)
    async with httpx.AsyncClient(timeout=3600, trust_env=False, limits=limits) as client:
        done = await asyncio.gather(*(_reply(client, url, n) for n in range(count)))
    return [first for first, _ in done], sum(tokens for _, tokens in done)


async def _reply(client: httpx.AsyncClient, url: str, number: int) -> tuple[float, int]:
    words = " ".join(f"item{number}_{i}" for i in range(60))
    body: dict[str, Any] = {
        "model": "k3-nano",
        "messages": [{"role": "user", "content": f"Session {number}: {words}"}],
        "max_tokens": REPLY,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began = time.perf_counter()
    first, tokens = 0.0, 0
    async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if '"delta"' in line and not first and '"role":"assistant"' not in line:
                first = time.perf_counter() - began
            if '"completion_tokens":' in line:
                tokens = int(line.split('"completion_tokens":')[1].split(",")[0].strip(" }"))
    return first or time.perf_counter() - began, tokens


def restore(which: str, lengths: list[int], scratch: Path) -> None:
    model = NANO if which == "nano" else random_model(scratch / "random")
    dice = random.Random(1)
    prompts = [[dice.randrange(1700) for _ in range(length)] for length in lengths]
    passes: list[list[tuple[float, int]]] = []
    for _ in ("cold", "restored"):
        with serving(model, "vllm", scratch / "states") as (url, _):
            first_token(url, model.name, prompts[0][:64])  # what only the first request pays
            passes.append([first_token(url, model.name, prompt) for prompt in prompts])
            time.sleep(5)  # what is saved is saved in the background
    for length, (cold, _), (warm, kept) in zip(lengths, *passes, strict=True):
        print(
            f"{length:6} tokens  cold {cold:7.2f} s  restored {warm:6.2f} s  "
            f"{cold / warm:5.1f} times  {kept / length:4.0%} cached",
            flush=True,
        )


def first_token(url: str, model: str, prompt: list[int]) -> tuple[float, int]:
    """Seconds to the first token of a prompt, and how many of its tokens were cached."""
    name = "k3-nano" if model == "nano" else model
    body = {"model": name, "prompt": prompt, "max_tokens": 1, "temperature": 0}
    began = time.perf_counter()
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=3600, trust_env=False)
    answer.raise_for_status()
    seconds = time.perf_counter() - began
    details = answer.json()["usage"].get("prompt_tokens_details") or {}
    return seconds, details.get("cached_tokens") or 0


@contextlib.contextmanager
def serving(
    model: Path, engine: str, states: Path
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server of ours while it is needed."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    chosen = "nano" if model == NANO else str(model)
    words = ["serve", "--model", chosen, "--engine", engine, "--port", str(port)]
    words += ["--states", str(states), "--dtype", "float32"]
    server = subprocess.Popen([sys.executable, "-m", "unabridged", *words])
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{url}/health", timeout=2, trust_env=False).status_code == 200:
                    break
            if server.poll() is not None:
                raise SystemExit(f"the {engine} server did not start")
            time.sleep(0.5)
        yield url, server
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(120)


def memory(pid: int) -> int:
    """Bytes of main memory that a process and all below it hold (Linux)."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    own = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return own + sum(memory(int(child)) for child in children)


def random_model(folder: Path) -> Path:
    """A checkpoint of random weights: K3-nano's sizes and vocabulary, another window."""
    from unabridged.model.checkpoint import save_model
    from unabridged.model.config import K3Config
    from unabridged.model.k3 import K3

    document = K3Config.from_pretrained(NANO).to_dict()
    document["text_config"]["max_position_embeddings"] = 65_536
    save_model(K3(K3Config.from_dict(document), packed_experts=False), folder)
    shutil.copy(NANO / "tiktoken.model", folder)
    return folder


if __name__ == "__main__":
    main()
