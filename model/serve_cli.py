"""`unabridged serve`: offer a checkpoint over HTTP, with vLLM or with the embedded engine."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from .cli import size
from .folder import NANO
from .serve import (
    Command,
    ServeError,
    Settings,
    available_memory,
    cache_size,
    check_model,
    check_port,
    check_vllm,
    child_environment,
    find_model,
    precision,
    vllm_command,
)
from .state_store import default_root

_POLL = 0.5  # seconds between two looks at a server that is starting
_PATIENCE = 20.0  # seconds that a server has to end by itself
_TAIL = 15  # lines of its log that are shown when it fails


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser], name: str, line: str
) -> None:
    """Add the command. It sets `run`: arguments to exit code."""
    serve = subparsers.add_parser(
        name,
        help=line,
        description="Serve a checkpoint in OpenAI's form until interrupted. Further arguments for "
        "vLLM may follow --.",
    )
    serve.add_argument("--model", default="nano", metavar="PATH|nano", help="(default: nano)")
    serve.add_argument(
        "--engine",
        choices=["vllm", "embedded"],
        help="(default: embedded for nano, vllm for any other model)",
    )
    serve.add_argument("--name", help="what the model is called (default: its folder's name)")
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--port", type=int, default=8000)
    serve.add_argument(
        "--api-key-env",
        metavar="NAME",
        help="ask clients for the key in this environment variable",
    )
    serve.add_argument("--dtype", choices=["bfloat16", "float32"])
    serve.add_argument("--max-model-len", type=int, metavar="TOKENS", help="(default: the model's)")
    serve.add_argument("--tensor-parallel-size", type=int, default=1, metavar="N")
    serve.add_argument("--pipeline-parallel-size", type=int, default=1, metavar="N")
    serve.add_argument(
        "--cache", type=size, metavar="SIZE", help="memory for states and latents, such as 2G"
    )
    serve.add_argument(
        "--states", type=Path, metavar="DIR", help="the state store (default: in the user's cache)"
    )
    serve.add_argument("--no-states", action="store_true", help="keep no states on disk")
    serve.add_argument(
        "--print-command", action="store_true", help="print what would be run, and end"
    )
    serve.add_argument("--repair", action="store_true", help="repair the installation of vLLM")
    serve.add_argument("--verbose", action="store_true", help="show the server's own log")
    serve.add_argument(
        "--plan", action="store_true", help="say what a fleet holds and how to start it, and end"
    )
    serve.add_argument("--nodes", type=int, default=1, metavar="N", help="with --plan")
    serve.add_argument("--gpus-per-node", type=int, default=8, metavar="G", help="with --plan")
    serve.add_argument("--gpu-memory", type=float, default=141.0, metavar="GiB", help="with --plan")
    serve.add_argument("vllm", nargs="*", metavar="-- ...", help="further arguments for vLLM")
    serve.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from .chat.tokenizer import TokenizerError
    from .config import ConfigError

    try:
        if args.repair:
            return _repair()
        if args.plan:
            return _plan(args)
        engine = args.engine or ("embedded" if args.model == "nano" else "vllm")
        return (_vllm if engine == "vllm" else _embedded)(args)
    except (ServeError, ConfigError, TokenizerError) as error:
        print(f"unabridged serve: {error}", file=sys.stderr)
        return 2


def _repair() -> int:
    from .vllm_plugin.installation import faults, repair

    found = faults()
    for line in repair(found):
        print(line)
    if left := faults():
        raise ServeError(left[0].message)
    if not found:
        print("vLLM is ready: nothing to repair")
    return 0


def _plan(args: argparse.Namespace) -> int:
    from .config import K3Config
    from .fleet import plan

    if min(args.nodes, args.gpus_per_node) < 1 or args.gpu_memory <= 0:
        raise ServeError("--nodes, --gpus-per-node and --gpu-memory must be positive")
    released = args.model == "nano"  # nobody plans a fleet for it
    config = K3Config.released() if released else K3Config.from_pretrained(find_model(args.model))
    name = "moonshotai/Kimi-K3" if released else args.model
    memory = int(args.gpu_memory * 2**30)
    print(plan(config, name, args.nodes, args.gpus_per_node, memory))
    return 0


def _settings(args: argparse.Namespace) -> Settings:
    from .vllm_plugin.installation import is_for_cpu

    model = find_model(args.model)
    accelerated = not is_for_cpu()
    return Settings(
        model=model,
        name=args.name or ("k3-nano" if model == NANO else model.name),
        host=args.host,
        port=args.port,
        dtype=args.dtype,
        tensor_parallel=args.tensor_parallel_size,
        pipeline_parallel=args.pipeline_parallel_size,
        window=args.max_model_len,
        cache_bytes=args.cache,
        states=None if args.no_states else (args.states or default_root()),
        accelerated=accelerated,
        own_model=not accelerated or os.environ.get("UNABRIDGED_VLLM_MODEL") == "unabridged",
        more=tuple(args.vllm),
    )


def _key(args: argparse.Namespace) -> str | None:
    """The API key that clients must give. Raises `ServeError`."""
    key = os.environ.get(args.api_key_env) if args.api_key_env else None
    if args.api_key_env and not key:
        raise ServeError(f"--api-key-env: the variable {args.api_key_env} is not set")
    if key is None and args.host not in ("127.0.0.1", "::1", "localhost"):
        raise ServeError(f"others can reach {args.host}: give --api-key-env, or serve on 127.0.0.1")
    return key


def _embedded(args: argparse.Namespace) -> int:
    if args.tensor_parallel_size * args.pipeline_parallel_size > 1 or args.vllm:
        raise ServeError("the embedded engine runs in one process; use --engine vllm")
    if find_spec("torch") is None or find_spec("uvicorn") is None:
        raise ServeError("the embedded engine needs: pip install 'unabridged[serve]'")
    settings, _ = _settings(args), _key(args)
    words = [sys.executable, "-m", "unabridged", "model", "serve", "--weights", str(settings.model)]
    words += ["--name", settings.name, "--host", settings.host, "--port", str(settings.port)]
    for option, value in (("--api-key-env", args.api_key_env), ("--dtype", args.dtype)):
        words += [option, value] if value else []
    words += ["--no-states"] if settings.states is None else ["--states", str(settings.states)]
    return _start(args, settings, Command(words), None)


def _vllm(args: argparse.Namespace) -> int:
    from .config import K3Config

    settings, key = _settings(args), _key(args)
    config = K3Config.from_pretrained(settings.model)
    check_model(settings, config)
    dtype = precision(settings, config)
    cache = cache_size(settings, config, dtype, available_memory())
    if not args.print_command:
        check_vllm(settings)
    return _start(args, settings, vllm_command(settings, cache, dtype), key)


def _start(args: argparse.Namespace, settings: Settings, command: Command, key: str | None) -> int:
    """Run the server until it ends or we are told to end."""
    if args.print_command:
        print(command)
        return 0
    check_port(settings.host, settings.port)
    log = None if args.verbose else _log_file(settings)
    out = None if log is None else log.open("wb")
    environment = child_environment(command, os.environ, key)
    # In a group of its own: vLLM's workers end with it, and our Ctrl-C reaches it once.
    server = subprocess.Popen(
        command.words,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=out,
        start_new_session=True,
    )
    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        if not _wait_until_ready(server, settings, log):
            return 1
        url = f"http://{settings.host}:{settings.port}/v1"
        print(f"serving {settings.name} at {url}", file=sys.stderr, flush=True)
        code = server.wait()
        if code:
            _tell_end(code, log)
        return 1 if code else 0
    except KeyboardInterrupt:
        return 130
    finally:
        signal.signal(signal.SIGTERM, previous)
        _end(server)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _log_file(settings: Settings) -> Path:
    import platformdirs

    folder = platformdirs.user_log_path("unabridged")
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"serve-{settings.port}.log"


def _wait_until_ready(
    server: subprocess.Popen[bytes], settings: Settings, log: Path | None
) -> bool:
    """Wait for the server's health, saying how long it takes. False when it ended instead."""
    import httpx

    url = f"http://{settings.host}:{settings.port}/health"
    started = time.monotonic()
    shown = sys.stderr.isatty()
    while True:
        if (code := server.poll()) is not None:
            _tell_end(code, log)
            return False
        try:
            ready = httpx.get(url, timeout=2, trust_env=False).status_code == 200
        except httpx.HTTPError:
            ready = False
        if shown:
            print(f"\rloading, {time.monotonic() - started:.0f} s ", end="", file=sys.stderr)
        if ready:
            if shown:
                print("\r\x1b[K", end="", file=sys.stderr)
            return True
        time.sleep(_POLL)


def _tell_end(code: int, log: Path | None) -> None:
    """Say that the server ended by itself, and the end of its log."""
    print(f"unabridged serve: the server ended with {code}", file=sys.stderr)
    if log is not None:
        lines = log.read_bytes().decode(errors="replace").splitlines()
        print("\n".join(_telling(lines)), f"(all of it: {log})", sep="\n", file=sys.stderr)


def _telling(lines: Sequence[str]) -> list[str]:
    """The last lines, led by the first that names an error."""
    first = [line for line in lines if "Error" in line and line not in lines[-_TAIL:]][:1]
    return [*first, *lines[-_TAIL:]]


def _end(server: subprocess.Popen[bytes]) -> None:
    """End the server and its workers."""
    for number, patience in ((signal.SIGINT, _PATIENCE), (signal.SIGKILL, _PATIENCE)):
        if server.poll() is not None and number is signal.SIGINT:
            continue
        try:
            os.killpg(server.pid, number)
            server.wait(patience)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
