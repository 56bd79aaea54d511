"""`unabridged model ...`: count a configuration; inspect, convert and run a checkpoint."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from .chat_cli import add_commands
from .folder import folder
from .train_cli import add_command as add_train_command

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str = "model",
    line: str = "look into a K3 model, or run one",
) -> None:
    """Add the command. Each sub-command sets `run`: arguments to exit code."""
    model = subparsers.add_parser(name, help=line, description="K3 models on this machine.")
    commands = model.add_subparsers(dest="model_command", required=True, metavar="COMMAND")

    audit = commands.add_parser(
        "audit",
        help="count tensors, parameters, bytes, state and FLOPs of a configuration",
        description="Count what a configuration costs, without its weights.",
    )
    audit.add_argument(
        "--config",
        type=folder,
        metavar="PATH|nano",
        help="config.json or its folder (default: the released 2.8T model)",
    )
    audit.add_argument("--json", action="store_true", help="print one JSON document")
    audit.add_argument(
        "--memory", type=size, metavar="BYTES", help="say what fits in it (80G, 1.5T, ...)"
    )
    audit.set_defaults(run=_needing_torch(_audit))

    inspect = commands.add_parser(
        "inspect",
        help="say what of a checkpoint is there, missing or damaged",
        description="Look at every shard of a checkpoint. Exit code 1: a model cannot be loaded.",
    )
    inspect.add_argument("path", type=folder, metavar="PATH|nano", help="folder of a checkpoint")
    inspect.add_argument(
        "--no-scales", action="store_true", help="headers only: do not read scales"
    )
    inspect.add_argument("--json", action="store_true", help="print one JSON document")
    inspect.set_defaults(run=_needing_torch(_inspect))

    convert = commands.add_parser(
        "convert",
        help="pack a plain checkpoint as the release is packed",
        description="Write a checkpoint anew with its routed experts as MXFP4.",
    )
    convert.add_argument("source", type=Path, metavar="SOURCE", help="folder of a plain checkpoint")
    convert.add_argument("target", type=Path, metavar="TARGET", help="new or empty folder")
    convert.add_argument(
        "--shard-size", type=size, default=5_000_000_000, metavar="BYTES", help="(default: 5 GB)"
    )
    convert.set_defaults(run=_needing_torch(_convert))

    generate = commands.add_parser(
        "generate",
        help="continue a text",
        description="Continue a text with a checkpoint, as the bare language model.",
    )
    generate.add_argument(
        "--weights", type=folder, required=True, metavar="PATH|nano", help="folder of a checkpoint"
    )
    source = generate.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompt", metavar="TEXT", help="text to continue; - reads standard input")
    source.add_argument("--ids", metavar="IDS", help="token ids to continue, as 1,2,3")
    generate.add_argument("--max-tokens", type=int, default=256, metavar="N")
    generate.add_argument("--temperature", type=float, default=1.0, help="0 is greedy")
    generate.add_argument("--top-p", type=float, default=0.95)
    generate.add_argument("--seed", type=int, default=0)
    generate.add_argument("--device", default="cpu", help="as torch names it (default: cpu)")
    generate.add_argument(
        "--dtype", choices=["bfloat16", "float32"], help="(default: as the checkpoint)"
    )
    generate.add_argument("--json", action="store_true", help="print one JSON document at the end")
    generate.set_defaults(run=_needing_torch(_generate))

    add_commands(commands, _needing_torch)
    add_train_command(commands, _needing_torch)


def size(text: str) -> int:
    """Bytes from `123`, `80G` or `1.5TiB`; units are powers of 1024."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size (write 123, 80G or 1.5T)")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _needing_torch(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """Run with one line and exit code 2 where torch is missing or the input cannot be used."""

    def guarded(args: argparse.Namespace) -> int:
        if find_spec("torch") is None:
            return _fail("this needs PyTorch: pip install 'unabridged[model]'")
        from .checkpoint import CheckpointError
        from .config import ConfigError

        try:
            return run(args)
        except (ConfigError, CheckpointError, ValueError) as error:
            return _fail(str(error))

    return guarded


def _fail(message: str) -> int:
    print(f"unabridged model: {message}", file=sys.stderr)
    return 2


def _audit(args: argparse.Namespace) -> int:
    from .audit import audit, report
    from .config import K3Config

    config = K3Config.from_pretrained(args.config) if args.config else K3Config.released()
    counts = audit(config, args.memory)
    print(json.dumps(counts.to_dict(), indent=2) if args.json else report(counts))
    return 0


def _inspect(args: argparse.Namespace) -> int:
    from .inspection import inspect, report

    seen = inspect(args.path, not args.no_scales, _progress("looking at"))
    print(json.dumps(seen.to_dict(), indent=2) if args.json else report(seen))
    return 0 if seen.sound else 1


def _convert(args: argparse.Namespace) -> int:
    from .convert import convert

    convert(args.source, args.target, args.shard_size, _progress("writing"))
    print(f"{args.target}: written; its experts are MXFP4")
    return 0


def _progress(doing: str) -> Callable[[str], object]:
    """A line on standard error for each shard, where somebody looks."""
    if not sys.stderr.isatty():
        return lambda _file: None
    return lambda file: print(f"{doing} {file}", file=sys.stderr)


def _generate(args: argparse.Namespace) -> int:
    import torch

    from .chat.tokenizer import StreamDecoder, Tokenizer
    from .checkpoint import load_model
    from .config import K3Config
    from .generate import stream
    from .sampling import Sampling

    sampling = Sampling(args.temperature, args.top_p, args.seed)
    config = K3Config.from_pretrained(args.weights)  # the cheapest thing to be wrong comes first
    decoder = None
    if args.ids is not None:
        ids = _parse_ids(args.ids)
    else:
        tokenizer = Tokenizer.from_file(args.weights / "tiktoken.model")
        tokenizer.check(config.text_config.vocab_size, config.eos_token_id)
        decoder = StreamDecoder(tokenizer)
        text = sys.stdin.buffer.read().decode() if args.prompt == "-" else args.prompt
        ids = tokenizer.encode(text)
    try:
        torch.empty(0, device=args.device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device {args.device}: {str(error).splitlines()[0]}") from None
    dtype = getattr(torch, args.dtype) if args.dtype else None
    model = load_model(args.weights, dtype, args.device)

    tokens: list[int] = []
    words: list[str] = []
    for _, token in stream(model, [ids], args.max_tokens, sampling):
        tokens.append(token)
        if token == config.eos_token_id:
            break
        words.append(decoder.push(token) if decoder else str(token))
        if not args.json:
            print(words[-1], end="" if decoder else " ", flush=True)
    if decoder:
        words.append(decoder.flush())
    if args.json:
        stopped = tokens[-1] == config.eos_token_id
        document = {
            "prompt_tokens": len(ids),
            "tokens": tokens[:-1] if stopped else tokens,
            "text": "".join(words) if decoder else None,
            "finish_reason": "stop" if stopped else "length",
        }
        print(json.dumps(document, ensure_ascii=False))
    else:
        print(words[-1] if decoder else "")
    return 0


def _parse_ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--ids {text}: write token ids as 1,2,3") from None
