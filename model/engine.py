"""The engine: runs several sequences through one model in this process.

One thread owns the model, another stores states. In each turn the first gives one sequence a span of
prefill and then takes one decode step for all sequences that are ready, so a long prompt does not
stop the others. Requests come from asyncio and get their tokens back as they are sampled.

A prompt starts at its longest known prefix. K3's state can be resumed only where it was kept, so
the engine keeps it at the ends of messages and at the end of a reply: recent ones in memory, all
of them in the `StateStore` if there is one. What a request reused is counted in its `Usage`.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, Self

import torch
from torch import Tensor

from .chat.tokenizer import Tokenizer
from .generate import sample
from .images import Picture
from .sampling import Defaults, Sampling
from .state import StateMismatchError
from .state_store import StateStore, fingerprint_states, prefix_hashes

log = logging.getLogger(__name__)
_UNWRITTEN = 2
"""States that may wait to be stored; each is held in memory meanwhile."""


class State(Protocol):
    """What the engine needs of a state: it belongs to one sequence and can be copied and stored."""

    def fork(self) -> Self:
        """An independent copy."""
        ...

    def to_tensors(self) -> dict[str, Tensor]:
        """Everything in it, by name."""
        ...


class SequenceModel(Protocol):
    """What the engine needs of a model."""

    def new_state(self) -> Any:
        """The state before the first token."""
        ...

    def state_from_tensors(self, tensors: dict[str, Tensor]) -> Any:
        """The state that `to_tensors` described."""
        ...

    def extend(
        self, state: Any, tokens: Sequence[int], image_features: Tensor | None = None
    ) -> Tensor:
        """Read more tokens into the state, in place; logits after the last one, [V].

        `image_features` is given for tokens that stand for images: [how many, hidden].
        """
        ...

    def step(self, states: Sequence[Any], tokens: Sequence[int]) -> Tensor:
        """Read one token into each of several states, in place; logits, [B, V]."""
        ...

    def see(self, patches: Tensor, grid: tuple[int, int, int]) -> Tensor:
        """What stands in the place of an image's tokens, [tokens, hidden]."""
        ...


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """An image and its place in a prompt: markup from `start`, placeholders from `first`."""

    picture: Picture
    start: int
    first: int
    end: int


class EngineError(Exception):
    """The engine could not go on with a sequence; the message is for a person."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """How far the prompt has been read, in tokens: first what was cached, last all of it."""

    read: int
    total: int
    cached: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Exact counts of one request, in tokens."""

    prompt: int
    cached: int
    """Part of `prompt` whose state was reused."""
    completion: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The last item of a generation: why it ended (`stop` is the model's own end) and its counts."""

    reason: Literal["stop", "length"]
    usage: Usage


Item = Prefill | int | Finished
"""What a generation yields: its start and progress, the ids of the reply, its end."""


class Engine:
    """Continuous batching over one model.

    Args:
        model: the model, used from the engine's thread only.
        end_token: id that ends a message (`<|end_of_msg|>`): generation stops there, and the
            state is kept after each one in a prompt.
        vocab_size: ids from here on are never sampled (a padded embedding has more).
        window: longest sequence, prompt and reply together, in tokens.
        store: where states outlive the process; None keeps them in memory only.
        max_batch: sequences that run at a time; others wait in order of arrival.
        prefill_span: tokens of a prompt that are read between two decode steps.
        save_every: fewest tokens between two places where a prompt's state is kept.
        kept_states: how many states stay in memory, the most recently used ones.
        sees: whether the model has a vision tower.
        defaults: what holds where a request does not say.
    """

    def __init__(
        self,
        model: SequenceModel,
        *,
        end_token: int,
        vocab_size: int,
        window: int,
        store: StateStore | None = None,
        max_batch: int = 4,
        prefill_span: int = 512,
        save_every: int = 256,
        kept_states: int = 8,
        sees: bool = False,
        defaults: Defaults = Defaults(),  # noqa: B008 - frozen
    ) -> None:
        self.window = window
        self.vocab_size = vocab_size
        self.stores_states = store is not None
        self.sees = sees
        self.defaults = defaults
        self._model = model
        self._end_token = end_token
        self._prefixes = _Prefixes(model, store, kept_states)
        self._max_batch = max_batch
        self._prefill_span = prefill_span
        self._save_every = save_every
        self._inbox: queue.SimpleQueue[_Sequence | None] = queue.SimpleQueue()
        self._waiting: list[_Sequence] = []
        self._running: list[_Sequence] = []
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def load(self) -> tuple[int, int]:
        """How many sequences run and how many wait."""
        return len(self._running), len(self._waiting)

    async def generate(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: Sampling,
        images: Sequence[PlacedImage] = (),
    ) -> AsyncGenerator[Item]:
        """Yield `Prefill`s, then the ids of the reply, the end token included, last a `Finished`.

        Closing the iterator cancels the sequence and frees its state.

        Raises `EngineError` when prompt and reply do not fit the window, the model fails, or the
        engine is closed.
        """
        self._check(prompt, max_tokens)
        loop = asyncio.get_running_loop()
        items: asyncio.Queue[Item | EngineError] = asyncio.Queue()

        def deliver(item: Item | EngineError) -> None:
            loop.call_soon_threadsafe(items.put_nowait, item)

        sequence = _Sequence(list(prompt), images, max_tokens, sampling, deliver)
        self._inbox.put(sequence)
        try:
            while True:
                item = await items.get()
                if isinstance(item, EngineError):
                    raise item
                yield item
                if isinstance(item, Finished):
                    return
        finally:
            sequence.cancelled = True
            self._inbox.put(None)  # wakes an engine that has nothing else to do

    def close(self) -> None:
        """Stop the thread; generations under way raise `EngineError`."""
        self._closed = True
        self._inbox.put(None)
        self._thread.join()

    def _check(self, prompt: Sequence[int], max_tokens: int) -> None:
        if self._closed:
            raise EngineError("the engine is closed")
        if not prompt:
            raise EngineError("the prompt is empty")
        if max_tokens < 1:
            raise EngineError(f"max_tokens is {max_tokens}; it must be at least 1")
        if len(prompt) + max_tokens > self.window:
            raise EngineError(
                f"{len(prompt):,} tokens of prompt and {max_tokens:,} of reply do not fit "
                f"the window of {self.window:,} tokens"
            )
        for token in prompt:
            if not 0 <= token < self.vocab_size:
                raise EngineError(f"token id {token} is outside the vocabulary")

    # --- the engine's thread --------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed:
            self._receive()
            self._waiting = [s for s in self._waiting if not s.cancelled]
            self._running = [s for s in self._running if not s.cancelled]
            while self._waiting and len(self._running) < self._max_batch:
                self._admit(self._waiting.pop(0))
            self._guarded(self._prefill, [s for s in self._running if s.next_token is None][:1])
            self._guarded(self._decode, [s for s in self._running if s.next_token is not None])
        self._receive()
        self._prefixes.close()
        for sequence in (*self._waiting, *self._running):
            self._end(sequence, EngineError("the engine was closed"))

    def _receive(self) -> None:
        """Take what came in; when there is nothing to do, wait for it."""
        idle = not self._waiting and not self._running and not self._closed
        with_pause = idle
        while True:
            try:
                item = self._inbox.get(block=with_pause)
            except queue.Empty:
                return
            with_pause = False
            if item is not None:
                self._waiting.append(item)

    def _guarded(self, work: Callable[[list[_Sequence]], None], sequences: list[_Sequence]) -> None:
        """Do a piece of work; if it fails, the sequences in it fail and the engine goes on."""
        if not sequences:
            return
        try:
            work(sequences)
        except Exception as error:
            log.exception("the model failed")
            for sequence in sequences:
                self._end(sequence, EngineError(f"the model failed: {error}"))

    def _admit(self, sequence: _Sequence) -> None:
        self._running.append(sequence)
        self._guarded(self._start, [sequence])

    def _start(self, sequences: list[_Sequence]) -> None:
        (sequence,) = sequences
        # At least one token must be read: its logits choose the first token of the reply.
        sequence.position, sequence.state = self._prefixes.longest(sequence.name[:-1])
        sequence.cached = sequence.position
        sequence.save_points = self._save_points(sequence.prompt)
        sequence.generator = torch.Generator().manual_seed(sequence.sampling.seed)
        sequence.send(Prefill(sequence.cached, len(sequence.prompt), sequence.cached))

    def _save_points(self, prompt: list[int]) -> list[int]:
        """Where the prompt's state is kept: ends of messages, the last one always."""
        ends = [at + 1 for at, token in enumerate(prompt) if token == self._end_token]
        points: list[int] = []
        for end in ends:
            if end - (points[-1] if points else 0) >= self._save_every or end == ends[-1]:
                points.append(end)
        return points

    def _prefill(self, sequences: list[_Sequence]) -> None:
        """Read one span of a prompt.

        Spans end at the end of each message, whether its state is kept or not: how a prompt is cut
        decides how its sums are rounded, so only the same cuts give the same state, bit for bit,
        when reading begins at one that was kept.
        """
        (sequence,) = sequences
        start = sequence.position
        end = min(start + self._prefill_span, len(sequence.prompt))
        if self._end_token in sequence.prompt[start:end]:
            end = sequence.prompt.index(self._end_token, start) + 1
        tokens, seen = sequence.prompt[start:end], self._see(sequence, start, end)
        if seen is None:
            logits = self._model.extend(sequence.state, tokens)
        else:
            logits = self._model.extend(sequence.state, tokens, seen)
        sequence.position = end
        sequence.send(Prefill(end, len(sequence.prompt), sequence.cached))
        if end in sequence.save_points:
            self._prefixes.keep(sequence.name[:end], sequence.state)
        if end == len(sequence.prompt):
            self._emit(sequence, logits)

    def _see(self, sequence: _Sequence, start: int, end: int) -> Tensor | None:
        """What stands in the place of images in a span of the prompt; None where there are none.

        An image goes through the tower when its first token is read, whole; a long one is kept
        until its last.
        """
        parts: list[Tensor] = []
        for image in sequence.images:
            picture, tokens = image.picture, range(image.first, image.first + image.picture.tokens)
            first, last = max(start, tokens.start), min(end, tokens.stop)
            if first >= last:
                continue
            if sequence.seen is None or sequence.seen[0] is not image:
                sequence.seen = image, self._model.see(picture.patches(), picture.grid)
            parts.append(sequence.seen[1][first - tokens.start : last - tokens.start])
            if last == tokens.stop:
                sequence.seen = None
        return torch.cat(parts) if parts else None

    def _decode(self, sequences: list[_Sequence]) -> None:
        """Read the last token of each sequence and choose the next."""
        tokens = [sequence.next_token for sequence in sequences if sequence.next_token is not None]
        logits = self._model.step([sequence.state for sequence in sequences], tokens)
        for sequence, row in zip(sequences, logits, strict=True):
            self._emit(sequence, row)

    def _emit(self, sequence: _Sequence, logits: Tensor) -> None:
        token = sample(logits[: self.vocab_size], sequence.sampling, sequence.generator)
        if sequence.next_token is not None:
            sequence.read.append(sequence.next_token)
        sequence.next_token = token
        sequence.completion += 1
        if not sequence.send(token):
            return
        stopped = token == self._end_token
        if stopped or sequence.completion == sequence.max_tokens:
            # The state has read all but the last token.
            self._prefixes.keep(sequence.name + sequence.read, sequence.state)
            self._prefixes.settle()  # who has the reply can count on the states
            usage = Usage(len(sequence.prompt), sequence.cached, sequence.completion)
            self._end(sequence, Finished("stop" if stopped else "length", usage))

    def _end(self, sequence: _Sequence, item: Finished | EngineError) -> None:
        # First its place is free, then whoever waits learns of it: `load` is never behind.
        self._running = [other for other in self._running if other is not sequence]
        sequence.send(item)
        sequence.cancelled = True


@dataclass(slots=True, eq=False)
class _Sequence:
    """A request under way. All but `cancelled` belongs to the engine's thread."""

    prompt: list[int]
    images: Sequence[PlacedImage]
    max_tokens: int
    sampling: Sampling
    deliver: Callable[[Item | EngineError], None]
    cancelled: bool = False
    state: Any = None
    position: int = 0
    """Tokens of the prompt that the state has read."""
    cached: int = 0
    save_points: list[int] = field(default_factory=list)
    generator: torch.Generator | None = None
    next_token: int | None = None
    """Sampled, not yet read into the state; None while the prompt is being read."""
    read: list[int] = field(default_factory=list)
    """Tokens of the reply that the state has read."""
    completion: int = 0
    seen: tuple[PlacedImage, Tensor] | None = None
    """The image whose tokens are being read, and what the tower made of it."""
    name: list[int] = field(init=False)
    """What prefixes of the prompt are known by: its ids, and for images what they show.

    The placeholders of two images of one size are the same ids.
    """

    def __post_init__(self) -> None:
        self.name = list(self.prompt)
        for image in self.images:
            self.name[image.start : image.end] = image.picture.words(image.end - image.start)

    def send(self, item: Item | EngineError) -> bool:
        """Hand an item to whoever waits; false when nobody does any more."""
        if not self.cancelled:
            try:
                self.deliver(item)
            except RuntimeError:  # its event loop is closed
                self.cancelled = True
        return not self.cancelled


class _Prefixes:
    """States at places where a sequence can be resumed: recent ones in memory, all in the store."""

    def __init__(self, model: SequenceModel, store: StateStore | None, kept: int) -> None:
        self._model = model
        self._store = store
        self._kept = kept
        self._recent: OrderedDict[tuple[int, str], State] = OrderedDict()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="states")
        self._writing: deque[Future[bool]] = deque()

    def longest(self, tokens: list[int]) -> tuple[int, Any]:
        """The longest known prefix of the tokens and a state of one's own after it."""
        lengths = sorted({length for length, _ in self._recent if length <= len(tokens)})
        keys = zip(lengths, prefix_hashes(tokens, lengths), strict=True)
        known = [key for key in keys if key in self._recent]
        in_memory = known[-1][0] if known else 0
        if self._store is not None:
            stored = self._store.positions(tokens)
            if stored and stored[-1] > in_memory:
                found = self._store.longest(tokens)
                if found is not None and found.position > in_memory:
                    try:
                        return found.position, self._model.state_from_tensors(found.tensors)
                    except StateMismatchError as error:
                        log.warning("ignoring a stored state: %s", error)
        if not known:
            return 0, self._model.new_state()
        self._recent.move_to_end(known[-1])
        return in_memory, self._recent[known[-1]].fork()

    def keep(self, tokens: list[int], state: State) -> None:
        """Remember the state after the tokens; it is stored in the background, see `settle`."""
        (digest,) = prefix_hashes(tokens, [len(tokens)])
        kept = state.fork()
        self._recent[len(tokens), digest] = kept
        self._recent.move_to_end((len(tokens), digest))
        while len(self._recent) > self._kept:
            self._recent.popitem(last=False)
        if self._store is not None:
            self.settle(_UNWRITTEN - 1)
            self._writing.append(self._writer.submit(self._store.save, tokens, kept.to_tensors()))

    def settle(self, left: int = 0) -> None:
        """Wait until all states but so many are stored."""
        while len(self._writing) > left:
            self._writing.popleft().result()

    def close(self) -> None:
        """Store what is to be stored, and end the thread that does it."""
        self._writer.shutdown()


def open_engine(
    folder: Path,
    *,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
    states: Path | None = None,
    max_batch: int = 4,
) -> tuple[Engine, Tokenizer]:
    """Load a checkpoint with its `tiktoken.model` and start an engine on it.

    Args:
        folder: the checkpoint.
        dtype: precision of the weights; None leaves it as the checkpoint has it.
        states: folder of the state store; None keeps states in memory only.

    Raises `ConfigError`, `TokenizerError` or `CheckpointError` naming the file at fault.
    """
    from .checkpoint import load_model
    from .config import ConfigError, K3Config

    config = K3Config.from_pretrained(folder)
    tokenizer = Tokenizer.from_file(folder)
    tokenizer.check(config.text_config.vocab_size, config.eos_token_id)
    if config.vision_config and config.media_placeholder_token_id != tokenizer.media_pad_id:
        raise ConfigError(
            f"{folder / 'config.json'}: media_placeholder_token_id is "
            f"{config.media_placeholder_token_id}; the vocabulary has it at {tokenizer.media_pad_id}"
        )
    model = load_model(folder, dtype, device)
    model.prepare_decode()
    store = None
    if states is not None:
        store = StateStore(states, fingerprint_states(folder, model.dtype))
    engine = Engine(
        model,
        end_token=config.eos_token_id,
        vocab_size=tokenizer.vocab_size,
        window=config.text_config.max_position_embeddings,
        store=store,
        max_batch=max_batch,
        sees=config.vision_config is not None,
        defaults=Defaults.of_checkpoint(folder),
    )
    return engine, tokenizer
