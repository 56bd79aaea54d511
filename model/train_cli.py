"""`unabridged model train`: train a small K3, or go on with it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .folder import folder as named

_HELD_OUT_COPIES = 40


def add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    guarded: Callable[[Callable[[argparse.Namespace], int]], Callable[[argparse.Namespace], int]],
) -> None:
    """Add `train`; `guarded` turns errors of the model package into one line."""
    train = commands.add_parser(
        "train",
        help="train a small K3",
        description=(
            "Train a small K3 by a recipe. The run lives in a folder: a log, the last "
            "checkpoints, and the weights when it ends. Called again, it goes on."
        ),
    )
    train.add_argument(
        "--config",
        default="nano",
        metavar="nano|DIR",
        help="a folder with config.json, tiktoken.model and recipe.json (default: K3-nano's)",
    )
    train.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the run")
    train.add_argument("--recipe", type=Path, metavar="FILE", help="in place of the folder's")
    train.add_argument(
        "--sessions",
        type=Path,
        metavar="DIR",
        help="folder of *.jsonl files (default: they are made first, in the run's folder)",
    )
    train.add_argument(
        "--count", type=int, default=4000, metavar="N", help="sessions to make (default: 4000)"
    )
    train.add_argument(
        "--held-out", type=int, default=24, metavar="N", help="test sessions to judge by"
    )
    train.add_argument(
        "--weights", type=named, metavar="DIR|nano", help="start from this checkpoint's weights"
    )
    train.add_argument("--until", type=int, metavar="STEP", help="stop early, to go on later")
    train.add_argument("--device", default="cpu", help="as torch names it (default: cpu)")
    train.add_argument("--threads", type=int, metavar="N", help="of the CPU")
    train.add_argument("--checkpoint-every", type=int, default=100, metavar="STEPS")
    train.add_argument("--evaluate-every", type=int, default=200, metavar="STEPS")
    train.set_defaults(run=guarded(_train))


def _train(args: argparse.Namespace) -> int:
    import torch
    import torch.distributed as dist

    from .chat.tokenizer import Tokenizer
    from .config import K3Config
    from .k3 import K3
    from .train.corpus import Mixture, held_out
    from .train.initial import initialise
    from .train.recipe import Recipe
    from .train.trainer import Trainer, TrainingError, export, warm_start

    folder = named(args.config)
    config = K3Config.from_pretrained(folder)
    tokenizer = Tokenizer.from_file(folder)
    tokenizer.check(config.text_config.vocab_size, config.eos_token_id)
    recipe = Recipe.read(args.recipe or folder / "recipe.json")
    if args.threads:
        torch.set_num_threads(args.threads)
    if dist.is_torchelastic_launched():  # torchrun: as many processes as it says
        dist.init_process_group("nccl" if args.device.startswith("cuda") else "gloo")

    torch.manual_seed(recipe.seed)
    model = K3(config, packed_experts=False)
    initialise(model)
    if args.weights is not None:
        warm_start(model, args.weights)
    model.to(args.device)
    training, test = _sessions(args, recipe)
    samples = held_out(
        tokenizer, [test[i] for i in range(min(args.held_out, len(test)))], _HELD_OUT_COPIES
    )
    mixture = Mixture(recipe, tokenizer, training)
    try:
        trainer = Trainer(
            model,
            recipe,
            mixture,
            args.out,
            samples,
            args.checkpoint_every,
            args.evaluate_every,
        )
        if trainer.step:
            print(f"going on after step {trainer.step:,}", file=sys.stderr)
        _follow(trainer, args.until)
    except TrainingError as error:
        print(f"unabridged model: {error}", file=sys.stderr)
        return 1
    if trainer.rank == 0:
        export(model, folder, args.out / "weights")
        print(args.out / "weights")
    return 0


def _follow(trainer: Any, until: int | None) -> None:
    """Train behind a progress bar."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True, quiet=trainer.rank > 0)
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[now]}"),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=trainer.recipe.steps, completed=trainer.step, now="")
        for entry in trainer.run(until):
            if "loss" in entry:
                now = f"loss {entry['loss']:.3f}, {entry['tokens_per_second']:,.0f} tokens/s"
                progress.update(bar, advance=1, now=now)
                continue
            for family, score in entry["held_out"].items():
                shares = ", ".join(f"{k} {v:.3f}" for k, v in score.items() if k != "samples")
                progress.print(f"step {entry['step']}: {family}: {shares}", highlight=False)


def _sessions(args: argparse.Namespace, recipe: Any) -> tuple[Any, Any]:
    """Sessions to train on, and of the split to judge by."""
    from .train.corpus import Sessions

    where: Path = args.sessions or args.out / "sessions"
    files = sorted(where.glob("*.jsonl")) if where.is_dir() else []
    if args.sessions is not None and not files:
        raise ValueError(f"{where}: no .jsonl files in it")
    if not files and any(phase.copies < 1 for phase in recipe.phases):
        files = _made(where, args.count)
    return Sessions(files, "train"), Sessions(files, "test")


def _made(where: Path, count: int) -> list[Path]:
    """Make sessions, most of them of small repositories."""
    from .train import data

    where.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    orders = [("train", "small", 0.7), ("train", "medium", 0.2), ("train", "large", 0.1)]
    for split, size, share in [*orders, ("test", "small", 0.02)]:
        print(f"making sessions: {split}, {size} repositories", file=sys.stderr)
        path = where / f"{split}-{size}.jsonl"
        part = path.with_suffix(".tmp")
        part.unlink(missing_ok=True)
        wanted = str(max(1, round(count * share)))
        data.main(["--split", split, "--size", size, "--count", wanted, "--out", str(part)])
        part.replace(path)
        files.append(path)
    return files
