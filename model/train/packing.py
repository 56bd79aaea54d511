"""From conversations to what a training step reads: samples, and packs of samples.

A sample is one sequence with a weight on each token: how much the loss minds whether the model
would have written it. A pack is several samples one after the other; every layer starts each of
them afresh (`K3.forward` with `lengths`), so a pack computes what its samples compute alone, and
nothing is padded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from ..chat.render import render
from ..chat.tokenizer import CLOSE, OPEN, SEP, Tokenizer
from ..chat.xtml import Segment

Shown = Literal["all", "bare", "words"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One sequence to learn from."""

    tokens: list[int]
    weights: list[float]
    """For each token, the weight of its prediction from those before it; the first has none."""
    exact: list[tuple[int, int]]
    """Ranges of tokens that only count when all of them are right: an argument, a copied name."""
    family: str

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Pack:
    """Samples for one forward pass."""

    samples: list[Sample]

    @property
    def lengths(self) -> list[int]:
        return [len(sample) for sample in self.samples]

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """(tokens [N] int64, targets [N] int64, weights [N] float32) of the N tokens.

        targets[i] is the token after i in the same sample; at a sample's end there is none, and
        its weight is 0.
        """
        tokens = [t for sample in self.samples for t in sample.tokens]
        targets = [t for sample in self.samples for t in [*sample.tokens[1:], 0]]
        weights = [w for sample in self.samples for w in [*sample.weights[1:], 0.0]]
        return torch.tensor(tokens), torch.tensor(targets), torch.tensor(weights)


def fill(draw: Callable[[], Sample], tokens: int) -> Pack:
    """A pack of about `tokens` tokens: samples are drawn until the next would not fit.

    A first sample that is longer than that makes a pack of its own; nothing is cut.
    """
    samples = [draw()]
    room = tokens - len(samples[0])
    while room > 0:
        sample = draw()
        room -= len(sample)
        if room >= 0:
            samples.append(sample)
    return Pack(samples)


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a sample's text that is encoded on its own."""

    text: str
    weight: float = 0.0
    exact: bool = False


def sample_of_parts(parts: Iterable[Part], tokenizer: Tokenizer, family: str) -> Sample:
    """A sample of plain text."""
    tokens: list[int] = []
    weights: list[float] = []
    exact: list[tuple[int, int]] = []
    for part in parts:
        piece = tokenizer.encode(part.text)
        if part.exact:
            exact.append((len(tokens), len(tokens) + len(piece)))
        tokens += piece
        weights += [part.weight] * len(piece)
    return Sample(tokens, weights, exact, family)


def sample_of_session(
    session: Mapping[str, Any],
    tokenizer: Tokenizer,
    context_weight: float = 0.0,
    start_weight: float = 1.0,
    shown: Shown = "all",
) -> Sample:
    """A conversation as the chat format renders it.

    Args:
        session: `family`, and what `chat.render` takes: `messages`, and where they are given
            `tools`, `thinking` and `effort`. The messages at the places in `slips` are read as
            context: they hold mistakes, and only what follows them is to be learnt.
        context_weight: the weight of what the model does not write itself, which is 1 for what
            it does. A little teaches copying: names come again in files and results too.
        start_weight: the weight of the first two tokens of each argument: where to copy from is
            decided there, and the rest follows.
        shown: all of it, or only a part. What is the same in every session (tools, system text,
            preamble) is a third of it, and no layer of K3 knows positions: what is learnt in
            `bare` sessions holds in whole ones. `words` begins at the user's words, without
            the repository.

    Returns:
        A sample whose exact ranges are the values of the arguments the model writes, each with
        the token that ends it.

    Raises:
        XtmlError: the conversation cannot be rendered.
    """
    messages = session["messages"]
    slips = [messages[place] for place in session.get("slips", ())]
    if shown == "bare":
        messages = _without_the_fixed_part(messages)
    elif shown == "words":
        first = next(n for n, message in enumerate(messages) if message["role"] == "assistant")
        messages = messages[max(first - 1, 0) :]

    def rendered(count: int) -> list[Segment]:
        return render(
            messages[:count],
            tools=session.get("tools") if shown == "all" else None,
            thinking=session.get("thinking", True),
            effort=session.get("effort"),
            generation_prefix=False,
        )

    segments = rendered(len(messages))
    for place, message in enumerate(messages):
        if any(message is slip for slip in slips):
            # A longer conversation extends a shorter one, so these are the segments of the slip.
            for at in range(len(rendered(place)), len(rendered(place + 1))):
                segments[at] = replace(segments[at], generated=False)
    family = str(session["family"])
    return sample_of_segments(segments, tokenizer, family, context_weight, start_weight)


def _without_the_fixed_part(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    kept: list[Mapping[str, Any]] = []
    for message in messages:
        if message["role"] == "system":
            continue
        content = message.get("content")
        if isinstance(content, str) and content.startswith("<preamble>"):
            message = {**message, "content": content.partition("</preamble>\n")[2]}
        kept.append(message)
    return kept


def sample_of_segments(
    segments: Sequence[Segment],
    tokenizer: Tokenizer,
    family: str,
    context_weight: float = 0.0,
    start_weight: float = 1.0,
) -> Sample:
    """A rendered conversation; see `sample_of_session`."""
    tokens: list[int] = []
    weights: list[float] = []
    exact: list[tuple[int, int]] = []
    tag: list[str] = []  # of the tag being read: its bracket, then its name and attributes
    start: int | None = None
    for segment in segments:
        piece = (tokenizer.encode_control if segment.control else tokenizer.encode)(segment.text)
        if segment.control and segment.text in (OPEN, CLOSE):
            tag = [segment.text]
        elif segment.control and segment.text == SEP:
            if segment.generated and tag[:2] == [OPEN, "argument"]:
                start = len(tokens) + 1
            tag = []
        elif tag:
            if start is not None and tag == [CLOSE] and segment.text == "argument":
                exact.append((start, len(tokens)))
                start = None
            tag.append(segment.text)
        tokens += piece
        weights += [1.0 if segment.generated else context_weight] * len(piece)
    for begin, end in exact:
        for at in range(begin, min(begin + 2, end)):
            weights[at] = start_weight
    return Sample(tokens, weights, exact, family)


def own(sample: Sample) -> list[int]:
    """The positions of the tokens that the model writes itself."""
    return [i for i, weight in enumerate(sample.weights) if weight >= 1.0]
