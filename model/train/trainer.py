"""The training loop: next-token prediction with Per-Head Muon and Quantile Balancing.

A step reads packs, adds up their gradients (over processes too), clips, updates the weights and
then the routers' biases. All that a step does follows from the recipe, its number and the state
before it, so a run that was stopped and resumed ends in the same weights, bit for bit.

A run lives in a folder: `log.jsonl`, one line a step or evaluation, and its last checkpoints.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from ..checkpoint import Checkpoint, load, save_model
from ..k3 import K3
from . import muon
from .corpus import Mixture
from .packing import Pack, Sample, own
from .qat import set_qat
from .quantile import QuantileBalancer
from .recipe import Recipe

KEPT = 2
"""Checkpoints that a run keeps; older ones are deleted."""
_EVAL_TOKENS = 8192


class TrainingError(RuntimeError):
    """A run that cannot go on; the message says what stands and what to do."""


@dataclass(frozen=True, slots=True)
class Score:
    """How a model does on samples of one family when it is shown the right tokens so far."""

    samples: int
    tokens: float
    """Share of the tokens it writes that are its first choice."""
    exact: float
    """Share of exact ranges (arguments, names) with every token right."""
    whole: float
    """Share of samples with every token right."""

    def to_dict(self) -> dict[str, float]:
        return {
            "samples": self.samples,
            "tokens": round(self.tokens, 4),
            "exact": round(self.exact, 4),
            "whole": round(self.whole, 4),
        }


class Trainer:
    """One run.

    Args:
        model: float32, with plain experts (`packed_experts=False`). Trained in place.
        folder: of the run; made if missing. A checkpoint in it is resumed.
        held_out: what it is judged by.
        checkpoint_every, evaluate_every: in steps.

    Raises:
        TrainingError: the folder's checkpoint belongs to another model or recipe.
    """

    def __init__(
        self,
        model: K3,
        recipe: Recipe,
        mixture: Mixture,
        folder: Path,
        held_out: Sequence[Sample] = (),
        checkpoint_every: int = 100,
        evaluate_every: int = 200,
    ) -> None:
        self.model, self.recipe, self.mixture, self.folder = model, recipe, mixture, folder
        self.held_out = held_out
        self.checkpoint_every, self.evaluate_every = checkpoint_every, evaluate_every
        self.optimizers = muon.build(model, recipe.muon_lr, recipe.adam_lr, recipe.weight_decay)
        self.rank, self.world = 0, 1
        if dist.is_initialized():
            self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.step = 0
        """Steps done."""
        self.tokens = 0
        """Tokens read, in all processes."""
        folder.mkdir(parents=True, exist_ok=True)
        if (last := last_checkpoint(folder)) is not None:
            self._resume(last)
        self.balancer = QuantileBalancer(
            model, recipe.balance_memory
        )  # starts from the biases that the model has

    # --- a step ----------------------------------------------------------------------------------

    def train_step(self) -> dict[str, float]:
        """Do one step; what the log says of it.

        Raises:
            TrainingError: the loss or its gradient is not finite. Nothing was updated.
        """
        began = time.perf_counter()
        phase = self.recipe.phase(self.step)
        set_qat(self.model, phase.qat)
        self.model.train()
        rate = self.recipe.rate(self.step)
        for optimizer, peak in zip(
            self.optimizers, (self.recipe.muon_lr, self.recipe.adam_lr), strict=True
        ):
            optimizer.zero_grad(set_to_none=True)
            for group in optimizer.param_groups:
                group["lr"] = peak * rate

        # Weighted loss, weight, tokens; where the gradients are, for the sake of NCCL.
        sums = torch.zeros(3, dtype=torch.float64, device=self.model.device)
        for number in range(self.rank, self.recipe.packs, self.world):
            pack = self.mixture.pack(self.step, number)
            loss, weight = weighted_loss(self.model, pack)
            loss.backward()
            sums += sums.new_tensor([loss.item(), weight, sum(pack.lengths)])
        gradients = self._gradients()
        if self.world > 1:
            dist.all_reduce(sums)
            _all_reduce(gradients)
        loss, weight, tokens = sums.tolist()
        for gradient in gradients:
            gradient.div_(weight)
        norm = float(torch.nn.utils.get_total_norm(gradients))
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise TrainingError(self._diverged(loss, norm))
        if norm > self.recipe.clip:
            for gradient in gradients:
                gradient.mul_(self.recipe.clip / norm)
        for optimizer in self.optimizers:
            optimizer.step()
        excess = self.balancer.step()
        self.step += 1
        self.tokens += int(tokens)
        seconds = time.perf_counter() - began
        return {
            "step": self.step,
            "tokens": self.tokens,
            "loss": round(loss / weight, 5),
            "gradient": round(norm, 4),
            "rate": round(rate, 5),
            "load_excess": round(max(excess, default=0.0), 4),
            "tokens_per_second": round(tokens / seconds, 1),
        }

    def _gradients(self) -> list[Tensor]:
        """Of all parameters; where a pack reached none of an expert's weights there is zero."""
        gradients: list[Tensor] = []
        for parameter in self.model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
        return gradients

    def _diverged(self, loss: float, norm: float) -> str:
        last = last_checkpoint(self.folder)
        kept = f"the last good checkpoint is {last}" if last else "there is no checkpoint yet"
        return (
            f"step {self.step + 1}: the loss is {loss} and its gradient's norm {norm}, not a "
            f"finite number; stopped before the update. Of this run {kept}; lower the rates, or "
            "look at the data of this step"
        )

    # --- the run ---------------------------------------------------------------------------------

    def run(self, until: int | None = None) -> Iterator[dict[str, Any]]:
        """Train up to a step (the recipe's last when None); yields what it logs.

        Ends early, after a checkpoint, when the process is told to stop (SIGINT, SIGTERM).
        """
        until = self.recipe.steps if until is None else min(until, self.recipe.steps)
        saved = self.step
        with _stop_requested() as stop:
            while self.step < until and not stop:
                yield self._log(self.train_step())
                if self.held_out and (self.step == until or self.step % self.evaluate_every == 0):
                    scores = evaluate(self.model, self.held_out)
                    judged = {family: score.to_dict() for family, score in scores.items()}
                    yield self._log({"step": self.step, "held_out": judged})
                if self.step % self.checkpoint_every == 0:
                    self.save()
                    saved = self.step
            if saved != self.step:
                self.save()

    def _log(self, entry: dict[str, Any]) -> dict[str, Any]:
        if self.rank == 0:
            with (self.folder / "log.jsonl").open("ab") as file:
                file.write(json.dumps(entry).encode() + b"\n")
        return entry

    # --- checkpoints -----------------------------------------------------------------------------

    def save(self) -> None:
        """Write a checkpoint, whole or not at all, and delete those that are too old."""
        if self.rank != 0:
            return
        state = {
            "step": self.step,
            "tokens": self.tokens,
            "recipe": self.recipe.model_dump(mode="json"),
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }
        path = self.folder / f"checkpoint-{self.step:07}.pt"
        temporary = path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        for old in _checkpoints(self.folder)[:-KEPT]:
            old.unlink()

    def _resume(self, path: Path) -> None:
        try:
            state = torch.load(path, map_location=self.model.device, weights_only=True)
            if Recipe.model_validate_json(json.dumps(state["recipe"])) != self.recipe:
                raise TrainingError(
                    f"{path}: this run follows another recipe; give a new folder, or the recipe "
                    "it began with"
                )
            self.model.load_state_dict(state["model"])
            for optimizer, own_state in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(own_state)
        except TrainingError:
            raise
        except (RuntimeError, KeyError, ValueError, OSError) as error:
            raise TrainingError(f"{path}: cannot go on from this checkpoint: {error}") from None
        self.step, self.tokens = state["step"], state["tokens"]


def export(model: K3, like: Path, folder: Path) -> None:
    """Write a checkpoint folder that the engine opens, experts packed as MXFP4, with its sums.

    Args:
        like: the folder whose tokenizer, and way of being asked, the model was trained with.
    """
    save_model(model, folder)
    for name in ("tiktoken.model", "generation_config.json"):
        if (like / name).is_file() and like != folder:
            (folder / name).write_bytes((like / name).read_bytes())
    names = ("config.json", "generation_config.json", "model.safetensors", "tiktoken.model")
    sums = (
        f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n"
        for name in names
        if (folder / name).is_file()
    )
    (folder / "SHA256SUMS").write_bytes("".join(sums).encode())


def warm_start(model: K3, folder: Path) -> None:
    """Take over the weights of a checkpoint folder of the same shape.

    Raises:
        CheckpointError: naming what does not fit.
    """
    load(model, Checkpoint.open(folder))


def weighted_loss(model: K3, pack: Pack) -> tuple[Tensor, float]:
    """The summed cross entropy of a pack, each token times its weight; and the summed weights."""
    tokens, targets, weights = (tensor.to(model.device) for tensor in pack.tensors())
    hidden = model.hidden(tokens, pack.lengths)
    judged = weights.nonzero().flatten()  # the head is a large product: spare it the others
    logits = model.language_model.lm_head(hidden[judged]).float()
    losses = F.cross_entropy(logits, targets[judged], reduction="none")
    return (losses * weights[judged]).sum(), float(weights.sum())


@torch.no_grad()
def evaluate(model: K3, samples: Sequence[Sample]) -> dict[str, Score]:
    """Scores by family; see `Score`."""
    model.eval()
    right: dict[str, list[list[int]]] = {}
    for pack in _packs(samples):
        tokens, targets, _ = (tensor.to(model.device) for tensor in pack.tensors())
        hidden = model.hidden(tokens, pack.lengths)
        choices = torch.cat(
            [model.language_model.lm_head(part).argmax(-1) for part in hidden.split(1024)]
        )
        good = (choices == targets).cpu()
        for sample, ok in zip(pack.samples, good.split(pack.lengths), strict=True):
            written = ok[[i - 1 for i in own(sample)]]
            exact = [bool(ok[max(a - 1, 0) : b - 1].all()) for a, b in sample.exact]
            counts = [1, len(written), int(written.sum()), len(exact), sum(exact)]
            right.setdefault(sample.family, []).append([*counts, int(bool(written.all()))])
    scores: dict[str, Score] = {}
    for family, rows in sorted(right.items()):
        count, tokens, good, ranges, exact, whole = torch.tensor(rows).sum(0).tolist()
        scores[family] = Score(
            count, good / max(tokens, 1), exact / max(ranges, 1), whole / max(count, 1)
        )
    return scores


@torch.no_grad()
def load_excess(model: K3, samples: Sequence[Sample]) -> list[float]:
    """How much more than its share the busiest expert of each layer gets; see `Histogram`."""
    model.eval()
    balancer = QuantileBalancer(model, watch_inference=True)
    for pack in _packs(samples):
        model.hidden(pack.tensors()[0].to(model.device), pack.lengths)
    balancer.close()
    return balancer.excess()


def _packs(samples: Sequence[Sample]) -> Iterator[Pack]:
    pack: list[Sample] = []
    for sample in samples:
        if pack and sum(len(s) for s in pack) + len(sample) > _EVAL_TOKENS:
            yield Pack(pack)
            pack = []
        pack.append(sample)
    if pack:
        yield Pack(pack)


def last_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint of a run."""
    return next(reversed(_checkpoints(folder)), None)


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if re.fullmatch(r"checkpoint-\d+\.pt", p.name))


def _all_reduce(gradients: list[Tensor]) -> None:
    """Sum over processes, as one message."""
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    sizes = [gradient.numel() for gradient in gradients]
    for gradient, summed in zip(gradients, flat.split(sizes), strict=True):
        gradient.copy_(summed.view_as(gradient))


@contextmanager
def _stop_requested() -> Iterator[list[int]]:
    """A list that receives the signals that ask the process to stop."""
    received: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM)
    try:
        before = {s: signal.signal(s, lambda number, _: received.append(number)) for s in signals}
    except ValueError:  # not the main thread: nobody to listen to
        yield received
        return
    try:
        yield received
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
