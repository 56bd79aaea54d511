"""A small byte-level vocabulary, trained here (the real one is Moonshot's), and a model to play."""

from __future__ import annotations

import importlib.util
import socket
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.machinery import PathFinder
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
import torch
import uvicorn

from unabridged.model.chat.tokenizer import Tokenizer, write_ranks
from unabridged.model.checkpoint import save_model
from unabridged.model.config import K3Config
from unabridged.model.engine import Engine
from unabridged.model.k3 import K3
from unabridged.model.server import application

# Test processes run side by side: threads of their own would only wait for each other.
torch.set_num_threads(1)

_SAMPLE = (
    'message role="system" type="tool-declare" role="user" role="assistant" tool="name" index="1" '
    'think response tools call argument key="city" type="string" json object number boolean null '
    "<|open|> <|close|> <|sep|> <|end_of_msg|> def return self import class for in if else the and "
    "日本語の本 日本 你好世界 你好 naïve café Ünïcödé 👩‍💻 🎉🎉 don't we're I'll 123 456 12 == != -> \n\n    "
) * 3


def train_ranks(sample: str, merges: int) -> dict[bytes, int]:
    """Plain byte-pair training: join the commonest pair, again and again."""
    ranks = {bytes((byte,)): byte for byte in range(256)}
    words = Counter(tuple(bytes((b,)) for b in f" {word}".encode()) for word in sample.split(" "))
    for _ in range(merges):
        pairs: Counter[tuple[bytes, bytes]] = Counter()
        for word, count in words.items():
            for pair in pairwise(word):
                pairs[pair] += count
        if not pairs:
            break
        left, right = max(pairs, key=lambda pair: (pairs[pair], pair))
        ranks[left + right] = len(ranks)
        joined: Counter[tuple[bytes, ...]] = Counter()
        for word, count in words.items():
            pieces: list[bytes] = []
            for piece in word:
                if pieces and pieces[-1] == left and piece == right:
                    pieces[-1] = left + right
                else:
                    pieces.append(piece)
            joined[tuple(pieces)] += count
        words = joined
    return ranks


@pytest.fixture(scope="session")
def ranks() -> dict[bytes, int]:
    return train_ranks(_SAMPLE, 256)


@pytest.fixture(scope="session")
def tokenizer(ranks: dict[bytes, int]) -> Tokenizer:
    return Tokenizer(ranks)


class Playback:
    """A model for the tests of what stands around a model: it says what it is told to say.

    `say(tokens)` gives the next id after the tokens read so far, so everything is exact, and
    `read` counts what was really read.
    """

    def __init__(self, vocab_size: int, say: Callable[[list[int]], int]) -> None:
        self.vocab_size = vocab_size
        self.say = say
        self.read = 0
        self.batches: list[int] = []
        self.alive: weakref.WeakSet[PlaybackState] = weakref.WeakSet()

    def _state(self, tokens: list[int]) -> PlaybackState:
        state = PlaybackState(self, tokens)
        self.alive.add(state)
        return state

    def new_state(self) -> PlaybackState:
        return self._state([])

    def state_from_tensors(self, tensors: dict[str, torch.Tensor]) -> PlaybackState:
        return self._state(tensors["tokens"].tolist())

    def extend(
        self,
        state: PlaybackState,
        tokens: Sequence[int],
        image_features: torch.Tensor | None = None,
    ) -> torch.Tensor:
        assert image_features is None
        self.read += len(tokens)
        state.tokens += tokens
        logits = torch.zeros(self.vocab_size)
        logits[self.say(state.tokens)] = 50.0
        return logits

    def step(self, states: Sequence[PlaybackState], tokens: Sequence[int]) -> torch.Tensor:
        self.batches.append(len(states))
        rows = [self.extend(s, [t]) for s, t in zip(states, tokens, strict=True)]
        return torch.stack(rows)

    def see(self, patches: torch.Tensor, grid: tuple[int, int, int]) -> torch.Tensor:
        raise AssertionError("it has no eyes")


class PlaybackState:
    def __init__(self, model: Playback, tokens: list[int]) -> None:
        self.model = model
        self.tokens = tokens

    def fork(self) -> PlaybackState:
        return self.model._state(list(self.tokens))

    def to_tensors(self) -> dict[str, torch.Tensor]:
        return {"tokens": torch.tensor(self.tokens, dtype=torch.int32)}


@pytest.fixture(scope="session")
def playback() -> type[Playback]:
    return Playback


class Actor(Playback):
    """Answers a conversation with the markup that `lines` gives for its last user message."""

    def __init__(self, tokenizer: Tokenizer, lines: dict[str, str]) -> None:
        super().__init__(tokenizer.vocab_size, self._next)
        self._tokenizer = tokenizer
        self._lines = {ask: tokenizer.encode_control(reply) for ask, reply in lines.items()}
        self._opening = tokenizer.encode_control("<|open|>think<|sep|>")

    def _next(self, tokens: list[int]) -> int:
        # Positions after the last opening of a think channel: the reply so far.
        width = len(self._opening)
        at = next(
            (
                n
                for n in range(len(tokens), width - 1, -1)
                if tokens[n - width : n] == self._opening
            ),
            None,
        )
        if at is None:
            return 0  # in the middle of a prompt; nobody looks
        heard = self._tokenizer.decode(tokens[:at]).rsplit('role="user"<|sep|>', 1)[-1]
        reply = self._lines[heard.split("<|close|>")[0]]
        return reply[len(tokens) - at] if len(tokens) - at < len(reply) else 0


@pytest.fixture(scope="session")
def actor() -> type[Actor]:
    return Actor


@pytest.fixture(scope="session")
def fla() -> ModuleType:
    """fla-core's `ops/kda/naive.py` alone: its package needs triton."""
    found = PathFinder.find_spec("fla")
    assert found is not None
    assert found.submodule_search_locations is not None
    file = Path(found.submodule_search_locations[0]) / "ops/kda/naive.py"
    spec = importlib.util.spec_from_file_location("fla_kda_naive", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def small_config(quantized: bool = False, **changes: Any) -> K3Config:
    """Nine layers that have every feature: a partial block, the extra MLA, a narrow latent."""
    document = K3Config.released().to_dict()
    text = document["text_config"]
    del document["vision_config"]
    if not quantized:
        del text["quantization_config"]
        document["dtype"] = "float32"
    document["eos_token_id"] = 1
    text |= {
        "vocab_size": 512,
        "hidden_size": 256,
        "num_hidden_layers": 9,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "intermediate_size": 512,
        "num_experts": 16,
        "num_experts_per_token": 4,
        "moe_intermediate_size": 64,
        "routed_expert_hidden_size": 128,
        "q_lora_rank": 64,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "attn_res_block_size": 4,
        "max_position_embeddings": 4096,
    }
    text["linear_attn_config"] |= {
        "num_heads": 4,
        "head_dim": 64,
        "full_attn_layers": [4, 8, 9],
        "kda_layers": [1, 2, 3, 5, 6, 7],
    }
    text |= changes
    return K3Config.from_dict(document)


def small_model(config: K3Config, seed: int = 0, **settings: Any) -> K3:
    """A model of random weights that are large enough for every part to matter."""
    torch.manual_seed(seed)
    model = K3(config, **settings)
    for name, tensor in model.state_dict().items():
        if name.endswith("e_score_correction_bias"):
            tensor.uniform_(-0.1, 0.1)
        elif name.endswith("A_log"):
            tensor.uniform_(-1, 1)
        elif tensor.dtype == torch.uint8:
            tensor.random_(118, 122) if name.endswith("scale") else tensor.random_(0, 256)
        elif tensor.dim() == 1:
            tensor.add_(torch.randn_like(tensor) * 0.2)
        elif "conv1d" not in name:
            tensor.normal_(std=0.1 if "res_proj" in name else 1.25 * tensor.shape[-1] ** -0.5)
    return model.eval()


@pytest.fixture(scope="session")
def make_config() -> Any:
    return small_config


@pytest.fixture(scope="session")
def small_vision() -> dict[str, Any]:
    """The released vision configuration with small numbers, for `make_config`'s width."""
    return K3Config.released().to_dict()["vision_config"] | {
        "init_pos_emb_height": 6,
        "init_pos_emb_width": 8,
        "vt_num_hidden_layers": 2,
        "vt_num_attention_heads": 3,
        "vt_hidden_size": 32,
        "vt_intermediate_size": 64,
        "qkv_hidden_size": 48,
        "mm_hidden_size": 32,
        "text_hidden_size": 256,
    }


@pytest.fixture(scope="session")
def make_model() -> Any:
    return small_model


class Served:
    """A real server on a real port, in a thread of its own."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, **options: Any) -> None:
        self.engine = engine
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        app = application(engine, tokenizer, "k3-test", **options)
        self.server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        self.thread = threading.Thread(
            target=self.server.run, kwargs={"sockets": [self.socket]}, daemon=True
        )
        self.thread.start()
        while not self.server.started:
            time.sleep(0.005)

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join(10)
        self.engine.close()

    def post(self, body: Any, **options: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=120, **options)


@pytest.fixture(scope="session")
def over_http() -> type[Served]:
    return Served


@pytest.fixture(scope="session")
def checkpoint(
    tmp_path_factory: pytest.TempPathFactory,
    make_config: Any,
    make_model: Any,
    ranks: dict[bytes, int],
    tokenizer: Tokenizer,
) -> Path:
    """A whole checkpoint of the small model, with its vocabulary."""
    folder = tmp_path_factory.mktemp("checkpoint")
    config = make_config(vocab_size=tokenizer.vocab_size)
    config = config.model_copy(update={"eos_token_id": tokenizer.end_of_msg_id})
    save_model(make_model(config), folder)
    write_ranks(sorted(ranks, key=ranks.__getitem__), folder / "tiktoken.model")
    return folder
