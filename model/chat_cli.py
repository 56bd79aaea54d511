"""`unabridged model chat|serve`: talk to a checkpoint, or offer it over HTTP."""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import sys
from collections.abc import Callable
from contextlib import aclosing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .folder import folder

if TYPE_CHECKING:
    from .chat.tokenizer import Tokenizer
    from .converse import Finish
    from .engine import Engine

Run = Callable[[argparse.Namespace], int]
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


def add_commands(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], guard: Callable[[Run], Run]
) -> None:
    """Add both commands; `guard` turns the errors of loading a checkpoint into exit code 2."""
    weights = argparse.ArgumentParser(add_help=False)
    weights.add_argument(
        "--weights",
        type=folder,
        required=True,
        metavar="PATH|nano",
        help="folder of a checkpoint with its tiktoken.model",
    )
    weights.add_argument("--device", default="cpu", help="as torch names it (default: cpu)")
    weights.add_argument(
        "--dtype", choices=["bfloat16", "float32"], help="(default: as the checkpoint)"
    )
    weights.add_argument(
        "--states", type=Path, metavar="DIR", help="the state store (default: in the user's cache)"
    )
    weights.add_argument(
        "--no-states", action="store_true", help="do not keep sequence states on disk"
    )

    chat = commands.add_parser(
        "chat",
        parents=[weights],
        help="talk to a checkpoint",
        description="Talk to a checkpoint. Reasoning is shown before the answer, and kept.",
    )
    chat.add_argument("--prompt", metavar="TEXT", help="ask this and end; - reads standard input")
    chat.add_argument("--image", action="append", type=Path, default=[], metavar="FILE",
                      help="an image that goes with the first message; may be repeated")  # fmt: skip
    chat.add_argument("--system", metavar="TEXT", help="a system message")
    chat.add_argument("--effort", choices=["low", "high", "max"])
    chat.add_argument("--max-tokens", type=int, metavar="N", help="(default: the whole window)")
    chat.add_argument("--temperature", type=float, help="0 is greedy")
    chat.add_argument("--top-p", type=float)
    chat.add_argument("--seed", type=int)
    chat.add_argument("--json", action="store_true", help="with --prompt: print one JSON document")
    chat.set_defaults(run=guard(_chat))

    serve = commands.add_parser(
        "serve",
        parents=[weights],
        help="serve a checkpoint in OpenAI's form",
        description="Serve a checkpoint over HTTP, in OpenAI's form, until interrupted.",
    )
    serve.add_argument("--name", help="what the model is called (default: the folder's name)")
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--port", type=int, default=8000)
    serve.add_argument(
        "--api-key-env",
        metavar="NAME",
        help="ask clients for the key in this environment variable",
    )
    serve.set_defaults(run=guard(_serve))


def _open(args: argparse.Namespace) -> tuple[Engine, Tokenizer]:
    import torch

    from .engine import open_engine
    from .state_store import default_root

    dtype = getattr(torch, args.dtype) if args.dtype else None
    states = None if args.no_states else args.states or default_root()
    return open_engine(args.weights, device=args.device, dtype=dtype, states=states)


def _serve(args: argparse.Namespace) -> int:
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise ValueError("this needs a web server: pip install 'unabridged[serve]'")
    key = None
    if args.api_key_env is not None:
        key = os.environ.get(args.api_key_env)
        if not key:
            raise ValueError(f"--api-key-env: the variable {args.api_key_env} is not set")
    from .server import check_address, serve

    check_address(args.host, key)
    name = args.name or args.weights.resolve().name
    engine, tokenizer = _open(args)
    print(f"serving {name} at http://{args.host}:{args.port}/v1", file=sys.stderr)
    serve(engine, tokenizer, name, host=args.host, port=args.port, api_key=key)
    engine.close()
    return 0


def _chat(args: argparse.Namespace) -> int:
    from .converse import RequestError
    from .engine import EngineError

    if args.json and args.prompt is None:
        raise ValueError("--json needs --prompt")
    messages: list[dict[str, Any]] = []
    if args.system:
        messages.append({"role": "system", "content": args.system})
    images = [_image_part(path) for path in args.image]
    engine, tokenizer = _open(args)
    try:
        with asyncio.Runner() as runner:
            while True:
                asked = _asked(args)
                if asked is None:
                    return 0
                content = [*images, {"type": "text", "text": asked}] if images else asked
                turn = [*messages, {"role": "user", "content": content}]
                try:
                    finish = runner.run(_answer(engine, tokenizer, turn, args))
                except KeyboardInterrupt:
                    if args.prompt is not None:
                        return 130
                    print(f"{_PLAIN if sys.stdout.isatty() else ''}\n(stopped; not kept)")
                    continue
                except (RequestError, EngineError) as error:
                    print(f"unabridged model: {error}", file=sys.stderr)
                    if args.prompt is not None:
                        return 2 if isinstance(error, RequestError) else 1
                    continue
                if args.prompt is not None:
                    return 0
                messages, images = [*turn, _message(finish)], []
    finally:
        engine.close()


def _image_part(path: Path) -> dict[str, Any]:
    """A file as a message's part. Raises `ValueError`."""
    try:
        data = base64.b64encode(path.read_bytes()).decode()
    except OSError as error:
        raise ValueError(f"--image {path}: {error.strerror or error}") from None
    return {"type": "image_url", "image_url": {"url": f"data:;base64,{data}"}}


def _asked(args: argparse.Namespace) -> str | None:
    """What the user says next; None when there is no more."""
    if args.prompt is not None:
        return sys.stdin.buffer.read().decode() if args.prompt == "-" else args.prompt
    try:
        return input("> " if sys.stdin.isatty() else "")
    except (EOFError, KeyboardInterrupt):
        return None


async def _answer(
    engine: Engine, tokenizer: Tokenizer, messages: list[dict[str, Any]], args: argparse.Namespace
) -> Finish:
    """Ask, and show the reply as it comes."""
    from .chat.parse import ContentDelta, Problem, ReasoningDelta
    from .converse import ChatRequest, Finish, converse

    request = ChatRequest(
        messages,
        effort=args.effort or engine.defaults.effort,
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        top_p=args.top_p,
        seed=args.seed,
    )
    dim, plain = (_DIM, _PLAIN) if sys.stdout.isatty() else ("", "")
    reasoned = answered = False
    async with aclosing(converse(engine, tokenizer, request)) as items:
        async for item in items:
            if isinstance(item, Finish):
                break
            if args.json:
                continue
            match item:
                case ReasoningDelta(text):
                    print(f"{dim}{text}{plain}", end="", flush=True)
                    reasoned = True
                case ContentDelta(text):
                    between = "\n\n" if reasoned and not answered else ""
                    print(f"{between}{text}", end="", flush=True)
                    answered = True
                case Problem(message):
                    print(f"\n(the output left its format: {message})", file=sys.stderr)
                case _:
                    pass
        else:
            raise AssertionError("a conversation ends with Finish")
    if args.json:
        usage = item.usage
        document = {
            "message": _message(item),
            "finish_reason": item.reason,
            "problems": [problem.message for problem in item.reply.problems],
            "usage": {
                "prompt": usage.prompt,
                "cached": usage.cached,
                "completion": usage.completion,
                "reasoning": usage.reasoning,
            },
        }
        print(json.dumps(document, ensure_ascii=False))
    else:
        cut = "  (cut by --max-tokens)" if item.reason == "length" else ""
        print(cut)
    return item


def _message(finish: Finish) -> dict[str, Any]:
    from .chat.parse import new_call_id, to_message

    return to_message(finish.reply, [new_call_id() for _ in finish.reply.calls])
