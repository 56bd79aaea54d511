"""A small K3 with blocks of few tokens, and vLLM in a process of its own, or as a server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from unabridged.model.checkpoint import save_model

DRIVER = Path(__file__).with_name("drive.py")


@pytest.fixture(scope="session")
def small_k3(tmp_path_factory: pytest.TempPathFactory, make_config: Any, make_model: Any) -> Path:
    """Random weights, packed experts. One KDA state is as large as 47 latents: blocks of 48."""
    folder = tmp_path_factory.mktemp("small") / "k3"
    linear = make_config().text_config.linear_attn_config.model_dump() | {"head_dim": 32}
    config = make_config(quantized=True, kv_lora_rank=96, linear_attn_config=linear)
    save_model(make_model(config), folder)
    return folder


@pytest.fixture(scope="session")
def drive() -> Callable[..., Any]:
    """`drive(model, options, steps)`: what drive.py gives for the job."""

    def run(model: Path, options: dict[str, Any], steps: list[dict[str, Any]]) -> Any:
        ranks = options.get("tensor_parallel_size", 1) * options.get("pipeline_parallel_size", 1)
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        }
        small = {"kv_cache_memory_bytes": 64 * 2**20, "enable_prefix_caching": True}
        job = {"model": str(model), "options": small | options, "steps": steps}
        if ranks == 1:
            job["options"].setdefault("enforce_eager", True)
        done = subprocess.run(
            [sys.executable, str(DRIVER)],
            input=json.dumps(job).encode(),
            env=environment,
            capture_output=True,
            timeout=900,
        )
        assert done.returncode == 0, (done.stdout + done.stderr).decode()[-8000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """K3-nano behind `unabridged serve --engine vllm`, in blocks of 64 tokens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    root = tmp_path_factory.mktemp("states")
    words = ["serve", "--engine", "vllm", "--port", str(port), "--states", str(root)]
    words += ["--cache", "128M", "--verbose", "--", "--block-size", "16", "--enforce-eager"]
    log = (root / "log").open("wb")
    server = subprocess.Popen(
        [sys.executable, "-m", "unabridged", *words],
        stdout=log,
        stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert server.stderr is not None
    try:
        told = b""
        while b"serving k3-nano at" not in told:
            told = server.stderr.readline()
            assert told, (root / "log").read_bytes().decode()[-8000:]
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.communicate(timeout=120)
