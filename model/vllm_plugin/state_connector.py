"""The state store behind vLLM's prefix cache: what it restores survives the process.

vLLM resumes a K3 sequence only at a boundary whose KDA state it still holds. This connector saves
that state, and the latents before it, into the store of `model/state_store.py` at the end of a
prompt (at its last block boundary), and brings it back when a prompt begins so: in this process or
another, on any machine that sees the same folder. Entries of a single rank have the form of
`SequenceState.to_tensors`: the embedded engine and vLLM read each other's.

The scheduler's side decides, from the names of the files; the workers' side reads and writes, in
threads of its own. A load that fails is told to vLLM, which computes those tokens instead.
"""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from ..state_store import DEFAULT_MAX_BYTES, StateStore, default_root, fingerprint_states
from .kda_backend import KDAPages
from .latent_backend import LatentPages

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

log = logging.getLogger("vllm.unabridged.states")

SAVE_EVERY = 256
"""Fewest tokens between two places of a prompt where its state is kept."""
GROWTH = 1 / 32
"""And this part of the prefix before: an entry holds all its latents, so a long prefix is written
again only when it has grown by so much."""
_QUEUED = 4
"""Saves that may wait for the disk; each holds its state in memory. Later ones are left out."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A prefix to load or to save."""

    request: str
    tokens: list[int]
    """All of the prefix; its length is a multiple of the block size."""
    blocks: tuple[list[int], ...]
    """The request's blocks in each group of layers."""
    held: int = 0
    """Tokens at the front whose latents vLLM holds: those blocks are other requests' too."""


@dataclass(slots=True)
class Work(KVConnectorMetadata):
    """What the workers are to do in one step."""

    loads: list[Transfer] = field(default_factory=list)
    saves: list[Transfer] = field(default_factory=list)


class StateStoreConnector(KVConnectorBase_V1, SupportsHMA):
    """vLLM makes one for the scheduler and one for each worker.

    `kv_connector_extra_config` may give `root` (the store's folder), `max_bytes`, `save_every`
    and `growth`.
    """

    _cache_hit_source = CacheHitSource.DISK

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        if not vllm_config.cache_config.enable_prefix_caching:
            raise ValueError(
                "the state store needs vLLM's prefix caching: it keeps no boundary else"
            )
        settings = self._kv_transfer_config.kv_connector_extra_config
        known = {"root", "max_bytes", "save_every", "growth"}
        if unknown := sorted(set(settings) - known):
            raise ValueError(
                f"kv_connector_extra_config: {unknown[0]} is not one of {sorted(known)}"
            )
        self._block = vllm_config.cache_config.block_size
        parallel = vllm_config.parallel_config
        self._ranks = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
        root = Path(settings.get("root") or default_root())
        fingerprint = fingerprint_states(
            Path(vllm_config.model_config.model),
            vllm_config.model_config.dtype,
            *_split(vllm_config),
        )
        max_bytes = int(settings.get("max_bytes", DEFAULT_MAX_BYTES))

        def store(rank: int) -> StateStore:
            return StateStore(
                root, fingerprint, max_bytes=max_bytes, rank=rank, world_size=self._ranks
            )

        self._save_every = int(settings.get("save_every", SAVE_EVERY))
        self._growth = float(settings.get("growth", GROWTH))
        if role is KVConnectorRole.SCHEDULER:
            self._stores = [store(rank) for rank in range(self._ranks)]
            self._work = Work()
            self._requests: dict[str, Request] = {}
            self._held: dict[str, int] = {}
            self._failed: set[str] = set()
            """Requests whose load failed: they are computed."""
        else:
            self._store = store(parallel.rank)
            self._layers = _Layers(vllm_config, kv_cache_config, self._block)
            self._threads = ThreadPoolExecutor(1, "state-load"), ThreadPoolExecutor(1, "state-save")
            self._loading: dict[str, Future[bool]] = {}
            self._saving: list[Future[bool]] = []

    # --- the scheduler's side -------------------------------------------------------------------

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int, bool]:
        """How many tokens beyond those that vLLM holds the store can give."""
        if not _is_plain(request) or request.request_id in self._failed:
            return 0, False
        # The last token of the prompt is computed in any case: its logits are wanted.
        longest = (request.num_tokens - 1) // self._block * self._block
        positions = [p for p in self._stored(request, longest) if p > num_computed_tokens]
        if not positions:
            return 0, False
        self._held[request.request_id] = num_computed_tokens
        return positions[-1] - num_computed_tokens, True

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        held = self._held.pop(request.request_id, 0)
        if num_external_tokens:
            tokens = list(request.all_token_ids[: held + num_external_tokens])
            load = Transfer(request.request_id, tokens, blocks.get_block_ids(), held)
            self._work.loads.append(load)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Work:
        work, self._work = self._work, Work()
        computed = {
            new.req_id: new.num_computed_tokens for new in scheduler_output.scheduled_new_reqs
        }
        cached = scheduler_output.scheduled_cached_reqs
        computed |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for name, scheduled in scheduler_output.num_scheduled_tokens.items():
            request = self._requests.get(name)
            if request is not None and self._is_worth_saving(request, computed[name] + scheduled):
                assert self._kv_cache_manager is not None
                blocks = self._kv_cache_manager.get_block_ids(name)
                tokens = list(request.all_token_ids[: computed[name] + scheduled])
                work.saves.append(Transfer(name, tokens, blocks))
        return work

    def _is_worth_saving(self, request: Request, end: int) -> bool:
        """Whether a step that ends there leaves a state that a later prompt will want."""
        boundary = request.num_prompt_tokens // self._block * self._block
        if end != boundary or not _is_plain(request):
            return False
        # What could not be loaded is written anew.
        stored = [] if request.request_id in self._failed else self._stored(request, end)
        before = stored[-1] if stored else 0
        return end - before >= max(self._save_every, self._growth * end)

    def _stored(self, request: Request, longest: int) -> list[int]:
        """Lengths up to `longest` of the request's prefixes that every rank can load."""
        tokens = request.all_token_ids[:longest]
        everywhere = set(range(0, longest + 1, self._block))
        for store in self._stores:
            everywhere &= set(store.positions(tokens))
        return sorted(everywhere)

    def on_new_request(self, request: Request) -> None:
        self._requests[request.request_id] = request

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        self._requests.pop(request.request_id, None)
        self._held.pop(request.request_id, None)
        self._failed.discard(request.request_id)
        return False, None

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        self._failed |= connector_output.failed_recving

    # --- the workers' side ----------------------------------------------------------------------

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Begin to read what this step asks for, beside the model's work."""
        # Never within the step: vLLM moves a boundary's state to the next block before it would
        # be there.
        work = self._get_connector_metadata()
        assert isinstance(work, Work)
        for load in work.loads:
            self._loading[load.request] = self._threads[0].submit(self._load, load)

    def _load(self, load: Transfer) -> bool:
        """Read a prefix into its blocks. False when it cannot be had, and why is logged."""
        try:
            found = self._store.load(load.tokens, len(load.tokens))
            if found is None:
                return False
            self._layers.write(load, found.tensors)
        except Exception:
            log.exception("cannot restore a prefix of %d tokens; computing it", len(load.tokens))
            return False
        return True

    def wait_for_save(self) -> None:
        """Copy the states that this step left, and write them in the background."""
        work = self._get_connector_metadata()
        assert isinstance(work, Work)
        self._saving = [save for save in self._saving if not save.done()]
        for save in work.saves:
            if len(self._saving) >= _QUEUED:
                log.warning(
                    "the disk is behind: a prefix of %d tokens is not kept", len(save.tokens)
                )
                continue
            tensors = self._layers.read(save)
            self._saving.append(self._threads[1].submit(self._store.save, save.tokens, tensors))

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        ended = {name for name, load in self._loading.items() if load.done()}
        failed = {name for name in ended if not self._loading.pop(name).result()}
        return KVConnectorTransferResults(finished_recving=ended, failed_recving=failed)

    def shutdown(self) -> None:
        """Wait until what was saved is on the disk."""
        if self.role is KVConnectorRole.WORKER:
            for threads in self._threads:
                threads.shutdown()

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for: loads end before their request is scheduled."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **_: Any) -> None:
        """Nothing to do by layer: a state is saved when the step has ended."""


class _Layers:
    """A worker's layers: between the pages of a prefix and the tensors of an entry."""

    def __init__(self, vllm_config: VllmConfig, caches: KVCacheConfig, block: int) -> None:
        layers = vllm_config.compilation_config.static_forward_context
        self._block = block
        self._layers: list[tuple[int, str, KDAPages | LatentPages]] = []
        """Group, name of the entry's tensors, pages."""
        for group, spec in enumerate(caches.kv_cache_groups):
            for name in spec.layer_names:
                pages = layers[name]
                if not isinstance(pages, KDAPages | LatentPages):
                    raise ValueError(
                        f"the state store cannot keep the state of {name}: it is not one of "
                        "Unabridged's layers"
                    )
                number = name.split(".layers.")[1].split(".")[0]
                self._layers.append((group, f"layers.{number}", pages))

    def read(self, save: Transfer) -> dict[str, Tensor]:
        """Copies of what the prefix left, and its tokens."""
        count = len(save.tokens) // self._block
        tensors = {"tokens": torch.tensor(save.tokens, dtype=torch.int32)}
        for group, name, pages in self._layers:
            own = save.blocks[group][:count]
            if isinstance(pages, KDAPages):
                state = pages.state(own[-1]).fork()
                tensors[f"{name}.S"], tensors[f"{name}.tail"] = state.S, state.tail
            else:
                tensors[f"{name}.latents"] = pages.rows[own].flatten(0, 1)
        return tensors

    def write(self, load: Transfer, tensors: Mapping[str, Tensor]) -> None:
        """Put the prefix where the request's next step will look for it."""
        count, held = len(load.tokens) // self._block, load.held // self._block
        for group, name, pages in self._layers:
            own = load.blocks[group][:count]
            if isinstance(pages, KDAPages):
                state = pages.state(own[-1])
                state.S.copy_(tensors[f"{name}.S"])
                state.tail.copy_(tensors[f"{name}.tail"])
            else:
                rows = tensors[f"{name}.latents"].view(count, self._block, -1)
                pages.rows[own[held:]] = rows[held:].to(pages.rows.device)


def _split(vllm_config: VllmConfig) -> tuple[int, int]:
    parallel = vllm_config.parallel_config
    return parallel.tensor_parallel_size, parallel.pipeline_parallel_size


def _is_plain(request: Request) -> bool:
    """Whether the tokens alone decide a request's state, and anybody may share it."""
    return not (request.lora_request or request.mm_features or request.cache_salt)
