"""What a fleet of accelerators holds of a K3 model, and how vLLM is started on it: arithmetic only.

Two ways to share the model are weighed. *Tensor parallel*: the cards of a node share every layer
(nodes are pipeline stages); a sequence's KDA state is shared too, but its latents are whole on
each card, because all heads read the same ones. *Data parallel*: the cards of a stage share only
the routed experts; everything else is whole on each card, which serves its own sequences.

Weights and states are those that `model audit` counts.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from .audit import Audit, audit
from .config import K3Config
from .sizes import human

USABLE = 0.90
"""Part of a card's memory that vLLM takes."""
WORKING = 6 * 2**30
"""Bytes of each card set aside for activations and communication: an assumption."""
_LENGTHS = (131_072, 1_048_576)


@dataclass(frozen=True, slots=True)
class Share:
    """One way to share a model among the cards, and what it leaves room for."""

    name: str
    tensor: int
    pipeline: int
    data: int
    weights: int
    """Bytes on the fullest card."""
    free: int
    """Bytes left on it for states and latents; negative when the weights do not fit."""
    sequences: dict[int, int]
    """How many sequences of a length, in tokens, the whole fleet holds at a time."""


def shares(counts: Audit, experts: int, nodes: int, cards: int, memory: int) -> list[Share]:
    """The two ways.

    Args:
        experts: bytes of the routed experts.
        cards: accelerators of a node.
        memory: bytes of one card.
    """
    rest = counts.bytes - experts
    room = int(memory * USABLE) - WORKING
    found: list[Share] = []
    for name, tensor, data in (("tensor parallel", cards, 1), ("data parallel", 1, cards)):
        weights = experts // (cards * nodes) + rest // (tensor * nodes)
        free = room - weights
        sequences = {
            length: data * max(free // _sequence(counts, length, tensor, nodes), 0)
            for length in _LENGTHS
            if length <= counts.window
        }
        found.append(Share(name, tensor, nodes, data, weights, free, sequences))
    return found


def _sequence(counts: Audit, length: int, tensor: int, stages: int) -> int:
    """Bytes of one sequence on one card of each stage."""
    latents = length * counts.latent_bytes_per_token
    return -(-counts.kda_state_bytes // (tensor * stages)) + -(-latents // stages)


def plan(config: K3Config, name: str, nodes: int, cards: int, memory: int) -> str:
    """The arithmetic and the commands, for people."""
    counts = audit(config)
    packed = [n for kind, n in counts.bytes_by_precision.items() if kind.startswith("MXFP4")]
    experts = sum(packed) or counts.parameters_by_part["routed experts"] * 2
    found = shares(counts, experts, nodes, cards, memory)
    usable = int(memory * USABLE) - WORKING
    lines = [
        f"{name} on {nodes} x {cards} cards of {human(memory)}:",
        f"  weights                  {human(counts.bytes)}, of it routed experts {human(experts)}",
        f"  KDA state per sequence   {human(counts.kda_state_bytes)}, whatever its length",
        f"  latents per token        {human(counts.latent_bytes_per_token)}",
        f"  usable on each card      {human(usable)} ({USABLE:.0%}, less {human(WORKING)})",
    ]
    for share in found:
        title = (
            f"{share.name}: tensor {share.tensor} x pipeline {share.pipeline} x data {share.data}"
        )
        lines += ["", title, f"  weights on each card     {human(share.weights)}"]
        if share.free < 0:
            lines.append(f"  do not fit: {human(-share.free)} too much on each card")
            continue
        lines.append(f"  left for sequences       {human(share.free)} on each card")
        lines += [
            f"  at {length:>9,} tokens      {count:,} sequences at a time"
            for length, count in share.sequences.items()
        ]
    fitting = [share for share in found if share.free >= 0]
    if not fitting:
        return "\n".join([*lines, "", "Nothing fits: more nodes, or more memory."])
    best = max(fitting, key=lambda share: (*share.sequences.values(), share.tensor))
    lines += [
        "",
        "Not run by us. On the first node, then on every other one, then on the first:",
        "",
    ]
    return "\n".join([*lines, *commands(best, name, nodes)])


def commands(share: Share, name: str, nodes: int) -> list[str]:
    """How vLLM is started: its own K3 model, which is the one for accelerators."""
    words = ["vllm", "serve", name, "--trust-remote-code"]
    words += ["--tensor-parallel-size", str(share.tensor)]
    words += ["--pipeline-parallel-size", str(share.pipeline)]
    if share.data > 1:
        words += ["--data-parallel-size", str(share.data), "--enable-expert-parallel"]
    if nodes > 1:
        words += ["--distributed-executor-backend", "ray"]
    words += ["--reasoning-parser", "kimi_k3", "--tool-call-parser", "kimi_k3"]
    words += ["--enable-auto-tool-choice", "--enable-prefix-caching"]
    words += ["--prefix-cache-retention-interval", "32768", "--enable-prompt-tokens-details"]
    ray = ["  ray start --head --port 6379", "  ray start --address FIRST_NODE:6379"]
    return [*(ray if nodes > 1 else []), f"  {shlex.join(words)}"]
