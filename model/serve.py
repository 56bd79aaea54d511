"""How a checkpoint is served with vLLM: the command, its environment, what must be true before.

Pure but for looking at the machine; `serve_cli` prints or runs what this module says.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .config import K3Config
from .folder import folder as named
from .sampling import Defaults
from .sizes import human

PLUGIN = "unabridged"
"""Our name among vLLM's plugins."""
CONNECTOR = "unabridged.model.vllm_plugin.state_connector"
_MIB = 2**20
_SESSIONS = 4
"""Whole windows that the cache holds by default."""
_LEAST_CACHE = 256 * _MIB


class ServeError(ValueError):
    """Something that must be put right before anything is loaded; the message says what."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What to serve, and how."""

    model: Path
    name: str
    host: str = "127.0.0.1"
    port: int = 8000
    dtype: str | None = None
    """`bfloat16` or `float32`; None is the checkpoint's, or float32 on a CPU without bfloat16."""
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    window: int | None = None
    """Longest sequence; None is the model's."""
    cache_bytes: int | None = None
    """Memory for KDA states and latents, for each rank."""
    states: Path | None = None
    """Folder of the state store; None keeps nothing beyond the process."""
    accelerated: bool = False
    """Whether vLLM is the one for accelerators."""
    own_model: bool = True
    """Whether our model serves the checkpoint, or vLLM's own K3."""
    more: tuple[str, ...] = ()
    """Further arguments for vLLM, as they are."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command line and what its environment adds to ours."""

    words: list[str]
    environment: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        names = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*names, shlex.join(self.words)])


def find_model(text: str) -> Path:
    """The folder of `nano` or of a path. Raises `ServeError`."""
    folder = named(text)
    if not (folder / "config.json").is_file():
        raise ServeError(
            f"--model {text}: no checkpoint there (no config.json); give a folder, or nano"
        )
    return folder.resolve()


def check_port(host: str, port: int) -> None:
    """Raises `ServeError` where nobody could listen."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except (OSError, OverflowError) as error:
        raise ServeError(
            f"cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}; "
            "choose another --port"
        ) from None


def vllm_command(settings: Settings, cache_bytes: int, dtype: str) -> Command:
    """How to start vLLM.

    Args:
        cache_bytes: see `cache_size`.
        dtype: see `precision`.
    """
    ranks = settings.tensor_parallel * settings.pipeline_parallel
    said = Defaults.of_checkpoint(settings.model)
    sampling = {"temperature": said.temperature, "top_p": said.top_p}
    words = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(settings.model)]
    options: dict[str, Any] = {
        "--served-model-name": settings.name,
        "--host": settings.host,
        "--port": settings.port,
        "--dtype": dtype,
        "--tensor-parallel-size": settings.tensor_parallel,
        "--pipeline-parallel-size": settings.pipeline_parallel,
        "--reasoning-parser": "kimi_k3",
        "--tool-call-parser": "kimi_k3",
        # vLLM does not know `do_sample`, nor K3's own settings where a checkpoint says nothing.
        "--override-generation-config": json.dumps(sampling),
    }
    if settings.own_model:
        options["--tokenizer-mode"] = "unabridged_k3"
    if settings.window is not None:
        options["--max-model-len"] = settings.window
    # vLLM adds routes of plugins that are named only; what else was named stays.
    plugins = ",".join(filter(None, [os.environ.get("VLLM_PLUGINS"), PLUGIN]))
    environment = {"VLLM_PLUGINS": plugins, "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    if not settings.accelerated:
        options["--kv-cache-memory-bytes"] = cache_bytes
        environment["VLLM_HOST_IP"] = "127.0.0.1"
        environment["VLLM_CPU_OMP_THREADS_BIND"] = _binding(ranks)
    if settings.states is not None and settings.own_model:
        options["--kv-transfer-config"] = json.dumps(
            {
                "kv_connector": "StateStoreConnector",
                "kv_connector_module_path": CONNECTOR,
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {"root": str(settings.states)},
            }
        )
    words += [text for option in options.items() for text in map(str, option)]
    words += [] if settings.own_model else ["--trust-remote-code"]
    words += ["--enable-auto-tool-choice", "--enable-prefix-caching"]
    words += ["--enable-prompt-tokens-details", "--no-enable-log-requests", *settings.more]
    return Command(words, environment)


def _binding(ranks: int) -> str:
    """Which cores each rank's threads run on; vLLM's own choice covers one rank only."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if ranks == 1 or len(cores) < ranks:
        return "auto" if ranks == 1 else "nobind"
    share = len(cores) // ranks
    own = [cores[rank * share : (rank + 1) * share] for rank in range(ranks)]
    return "|".join(",".join(map(str, part)) for part in own)


def precision(settings: Settings, config: K3Config) -> str:
    """The dtype to serve in: float32 on a CPU that would only imitate bfloat16."""
    if settings.dtype is not None or settings.accelerated:
        return settings.dtype or config.dtype
    return config.dtype if config.dtype == "float32" or _has_bfloat16() else "float32"


def _has_bfloat16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags or " bf16" in flags


def cache_size(settings: Settings, config: K3Config, dtype: str, available: int) -> int:
    """Bytes for states and latents of each rank: given, or four whole windows where they fit.

    Raises `ServeError` when weights and cache do not fit into `available` bytes.
    """
    text = config.text_config
    width = 2 if dtype == "bfloat16" else 4
    mla = len(text.linear_attn_config.full_attn_layers)
    linear = text.linear_attn_config
    heads = linear.num_heads // settings.tensor_parallel
    state = heads * linear.head_dim * (4 * linear.head_dim + 9 * width)
    row = text.latent_size * width
    # A block holds one layer's state, or as many rows as take that much; a window of them, and
    # four more states of each KDA layer: running, and kept for the prefix cache.
    block = max(-(-state // row), 128)
    window = settings.window or text.max_position_embeddings
    pages = mla * -(-window // block) + (text.num_hidden_layers - mla) * 4
    wanted = max(_SESSIONS * pages * block * row // settings.pipeline_parallel, _LEAST_CACHE)
    ranks = settings.tensor_parallel * settings.pipeline_parallel
    weights = sum(path.stat().st_size for path in settings.model.glob("*.safetensors"))
    if dtype == "float32" and config.dtype == "bfloat16" and text.quantization_config is None:
        weights *= 2
    room = (available - weights) // ranks
    cache = settings.cache_bytes or min(wanted, max(room // 2, _LEAST_CACHE))
    if weights + cache * ranks > available:
        raise ServeError(
            f"{human(weights)} of weights and {human(cache * ranks)} of cache do not fit into the "
            f"{human(available)} of memory that are free; give a smaller --cache or model"
        )
    return cache


def available_memory() -> int:
    """Bytes that a new process may take."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_vllm(settings: Settings) -> None:
    """Raises `ServeError` where vLLM is missing, broken, or not the one that the plugin is for."""
    from .vllm_plugin.installation import faults

    for fault in faults():
        hint = "; `unabridged serve --repair` does it" if fault.repairable else ""
        raise ServeError(fault.message + hint)
    if find_spec("tiktoken") is None:
        raise ServeError("the tokenizer needs tiktoken: pip install 'unabridged[serve]'")
    if not (settings.model / "tiktoken.model").is_file():
        raise ServeError(f"{settings.model}: no tiktoken.model beside the weights")


def check_model(settings: Settings, config: K3Config) -> None:
    """Raises `ServeError` for sizes that the model cannot be cut or run in."""
    text = config.text_config
    if settings.window is not None and settings.window > text.max_position_embeddings:
        raise ServeError(
            f"--max-model-len {settings.window:,}: the model was made for "
            f"{text.max_position_embeddings:,} tokens"
        )
    if not 1 <= settings.pipeline_parallel <= text.num_hidden_layers:
        raise ServeError(
            f"--pipeline-parallel-size {settings.pipeline_parallel}: the model has "
            f"{text.num_hidden_layers} layers"
        )
    if settings.tensor_parallel < 1:
        raise ServeError(f"--tensor-parallel-size {settings.tensor_parallel}: at least 1")
    if not settings.accelerated:
        check_shares(config, settings.tensor_parallel)


def check_shares(config: K3Config, ranks: int) -> None:
    """Raises `ServeError` where tensor-parallel ranks cannot share the model evenly."""
    from .vllm_plugin.shards import ShardError, check

    try:
        check(config.text_config, ranks)
    except ShardError as error:
        raise ServeError(f"--tensor-parallel-size {ranks}: {error}") from None


def child_environment(command: Command, ours: Mapping[str, str], key: str | None) -> dict[str, str]:
    """The environment to start a command in. A key travels here, never on the command line."""
    return {**ours, **command.environment} | ({"VLLM_API_KEY": key} if key else {})
