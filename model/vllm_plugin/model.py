"""K3's language model for vLLM: the layers of `model/k3.py` over vLLM's pages.

Nothing of the mathematics is written again. A step of the engine holds new tokens of several
sequences, one after the other, which is what our layers take; their states are views of vLLM's
pages. A pipeline stage holds consecutive layers and receives what the depth mixture of those before
it has gathered: the sums of finished blocks and the running sum. A tensor-parallel rank holds the
parts that `shards` names.
"""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig
from vllm.distributed import (
    get_pp_group,
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    tensor_model_parallel_all_reduce,
)
from vllm.distributed.utils import get_pp_indices
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.mamba.mamba_utils import MambaStateCopyFuncCalculator
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from vllm.model_executor.models.interfaces import HasInnerState, IsHybrid, SupportsPP
from vllm.sequence import IntermediateTensors

from ..attn_res import BlockResiduals
from ..checkpoint import canonical
from ..config import K3Config
from ..k3 import DecoderLayer, depth_keys, kept_in_float32, run_layers
from ..norm import RMSNorm
from ..skeleton import skeleton
from . import shards
from .arch_config import expands
from .expanded_mla import ExpandedMLA, HeadPages
from .kda_backend import KDAPages, state_dtypes, state_shapes
from .latent_backend import LatentPages

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_WARM_UP = 512
"""Tokens of a sequence where vLLM runs the model to see what it takes."""
_EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(w[123])\.weight(_packed|_scale)?")
_IGNORED = ("vision_tower.", "mm_projector.")


class WeightsError(ValueError):
    """A checkpoint that does not fit its configuration; the message names tensors."""


class Stage(nn.Module):
    """The layers of one pipeline stage, with the ends of the model where they are its ends."""

    def __init__(self, config: K3Config, first: int, last: int) -> None:
        super().__init__()
        text = config.text_config
        packed = text.quantization_config is not None
        layers = {str(i): DecoderLayer(text, i, packed) for i in range(first, last)}
        self.layers = nn.ModuleDict(layers)
        if last == text.num_hidden_layers:
            self.output_attn_res_norm = RMSNorm(text.hidden_size, text.rms_norm_eps)
            self.output_attn_res_proj = nn.Linear(text.hidden_size, 1, bias=False)
            self.norm = RMSNorm(text.hidden_size, text.rms_norm_eps)


class UnabridgedK3ForCausalLM(nn.Module, HasInnerState, IsHybrid, SupportsPP):
    """The model as vLLM's registry wants it."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        parallel, dtype = vllm_config.parallel_config, vllm_config.model_config.dtype
        if parallel.enable_expert_parallel:
            raise ValueError(
                "Unabridged's K3 model shares every expert among the tensor-parallel ranks; "
                "start vLLM without --enable-expert-parallel"
            )
        self.config = config = read_config(vllm_config)
        text = config.text_config
        self.rank, self.ranks = (
            get_tensor_model_parallel_rank(),
            get_tensor_model_parallel_world_size(),
        )
        shards.check(text, self.ranks)
        stage = get_pp_group()
        self.first, self.last = get_pp_indices(
            text.num_hidden_layers, stage.rank_in_group, stage.world_size
        )
        self.is_first, self.is_last = stage.is_first_rank, stage.is_last_rank

        with skeleton():
            self.model = Stage(config, self.first, self.last)
            if expands():
                for i in filter(text.is_mla, range(self.first, self.last)):
                    self.model.layers[str(i)].self_attn = ExpandedMLA(text)
        self._allocate(dtype)
        if self.ranks > 1:
            for name, module in self.model.named_modules():
                if shards.is_summed(name):
                    module.register_forward_hook(_sum_over_ranks)
        # Outside of the stage's modules, whose tensors are ours: these are vLLM's own.
        if self.is_first:
            self.embed_tokens = VocabParallelEmbedding(
                text.vocab_size, text.hidden_size, params_dtype=dtype
            )
        if self.is_last:
            self.lm_head = ParallelLMHead(text.vocab_size, text.hidden_size, params_dtype=dtype)
        self.logits_processor = LogitsProcessor(text.vocab_size)

        self.pages: list[KDAPages | LatentPages | HeadPages] = []
        for i in range(self.first, self.last):
            name = f"model.layers.{i}.self_attn"
            if text.is_mla(i) and expands():
                self.pages.append(HeadPages(text, vllm_config, name, self.ranks))
            else:
                pages = LatentPages if text.is_mla(i) else KDAPages
                self.pages.append(pages(text, vllm_config, name))
        self.hidden_size, self.eps = text.hidden_size, text.rms_norm_eps
        self.sources = -(-self.first // text.attn_res_block_size)
        """Finished blocks before this stage, the embedding counted as one."""

    def _allocate(self, dtype: torch.dtype) -> None:
        """Give the stage's tensors memory: of the whole, the part that this rank holds."""
        heads = self.config.text_config.linear_attn_config.num_heads
        for path, module in self.model.named_modules():
            own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
            for name, whole in own:
                full = f"{path}.{name}"
                part = shards.shard(full, whole, self.rank, self.ranks, heads)
                wanted = dtype if part.is_floating_point() else part.dtype
                tensor = torch.empty(
                    part.shape, dtype=torch.float32 if kept_in_float32(full) else wanted
                )
                if isinstance(whole, nn.Parameter):
                    setattr(module, name, nn.Parameter(tensor, requires_grad=False))
                else:
                    module.register_buffer(name, tensor)
            for count in ("heads",):
                if hasattr(module, count):
                    setattr(module, count, getattr(module, count) // self.ranks)

    # --- what vLLM asks before there is a model -------------------------------------------------

    @classmethod
    def get_mamba_state_shape_from_config(cls, vllm_config: VllmConfig) -> tuple[Any, ...]:
        return state_shapes(read_config(vllm_config).text_config, vllm_config)

    @classmethod
    def get_mamba_state_dtype_from_config(cls, vllm_config: VllmConfig) -> tuple[Any, ...]:
        return state_dtypes(vllm_config)

    @classmethod
    def get_mamba_state_copy_func(cls) -> tuple[Any, ...]:
        return MambaStateCopyFuncCalculator.kda_state_copy_func()

    def make_empty_intermediate_tensors(
        self, batch_size: int, dtype: torch.dtype, device: torch.device
    ) -> IntermediateTensors:
        """What a stage before this one would send."""
        names = ["prefix", *(f"bank.{i}" for i in range(self.sources))]
        shape = (batch_size, self.hidden_size)
        return IntermediateTensors(
            {n: torch.zeros(shape, dtype=dtype, device=device) for n in names}
        )

    # --- a step ---------------------------------------------------------------------------------

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        return self.embed_tokens(input_ids)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor | IntermediateTensors:
        """Read the step's tokens: [tokens, hidden], or what the next stage needs."""
        if self.is_first:
            if inputs_embeds is None:
                assert input_ids is not None
                inputs_embeds = self.embed_input_ids(input_ids)
            h = BlockResiduals(inputs_embeds, self.eps)
        else:
            assert intermediate_tensors is not None
            h = BlockResiduals(intermediate_tensors["prefix"], self.eps)
            h.bank = [intermediate_tensors[f"bank.{i}"] for i in range(self.sources)]
        layers = [layer for layer in self.model.layers.values() if isinstance(layer, DecoderLayer)]
        output = ()
        if self.is_last:
            output = (self.model.output_attn_res_norm, self.model.output_attn_res_proj)
        keys = depth_keys(layers, *output)
        assert h.prefix is not None
        lengths, states = self._states(len(h.prefix))
        run_layers(layers, keys, h, lengths, states)
        if self.is_last:
            return self.model.norm(h.read(keys[-1]))
        assert h.prefix is not None
        return IntermediateTensors(
            {"prefix": h.prefix} | {f"bank.{i}": source for i, source in enumerate(h.bank)}
        )

    def _states(self, tokens: int) -> tuple[list[int], list[Sequence[Any]] | None]:
        """How many tokens belong to each sequence, and for each layer their states."""
        steps = get_forward_context().attn_metadata
        if steps is None:  # a trial run
            full, rest = divmod(tokens, _WARM_UP)
            return [_WARM_UP] * full + [rest] * (rest > 0), None
        assert isinstance(steps, dict)
        lengths = [tokens]  # layers that attend by themselves do not ask
        states: list[Sequence[Any]] = []
        for i, pages in enumerate(self.pages, self.first):
            if isinstance(pages, HeadPages):
                states.append([pages])
                continue
            step = steps[f"model.layers.{i}.self_attn"]
            lengths = step.lengths
            states.append(pages.states(step) if isinstance(pages, KDAPages) else pages.caches(step))
        return lengths, states

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        return self.logits_processor(self.lm_head, hidden_states)

    # --- weights --------------------------------------------------------------------------------

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Take what is this rank's from a checkpoint with Moonshot's names.

        Raises:
            WeightsError: naming tensors that are missing, unknown, or of the wrong shape.
        """
        own = {f"model.{name}": t for name, t in self.model.state_dict(keep_vars=True).items()}
        vllm_own = {
            f"{name}.weight": module.weight
            for name in ("embed_tokens", "lm_head")
            if (module := getattr(self, name, None)) is not None
        }
        heads = self.config.text_config.linear_attn_config.num_heads
        left = {n: len(t) if _is_stacked(n) else 1 for n, t in own.items()}
        left |= dict.fromkeys(vllm_own, 1)
        for stored, tensor in weights:
            name = canonical(stored).removeprefix("language_model.")
            if name.startswith(_IGNORED) or self._is_elsewhere(name):
                continue
            if (end := name.removeprefix("model.")) in vllm_own:
                vllm_own[end].weight_loader(vllm_own[end], tensor)
                left[end] -= 1
                continue
            expert = _EXPERT.fullmatch(name)
            key = name if expert is None else f"{expert[1]}.{expert[3]}{expert[4] or ''}"
            if key not in own:
                raise WeightsError(f"{stored} is in the checkpoint, but not in this model")
            target = own[key] if expert is None else own[key][int(expert[2])]
            part = shards.shard(name, tensor, self.rank, self.ranks, heads)
            if part.shape != target.shape:
                raise WeightsError(
                    f"{stored} is {list(tensor.shape)} in the checkpoint; "
                    f"rank {self.rank} of {self.ranks} wants {list(target.shape)} of it"
                )
            target.data.copy_(part)
            left[key] -= 1
        if missing := [name for name, count in left.items() if count > 0]:
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            raise WeightsError(f"the checkpoint has no {', '.join(missing[:5])}{more}")
        return set(left)

    def _is_elsewhere(self, name: str) -> bool:
        """Whether another stage holds this tensor."""
        if (layer := re.match(r"model\.layers\.(\d+)\.", name)) is not None:
            return not self.first <= int(layer[1]) < self.last
        if name.startswith("model.embed_tokens."):
            return not self.is_first
        return not self.is_last


def read_config(vllm_config: VllmConfig) -> K3Config:
    """The checkpoint's own `config.json`, checked as everywhere.

    vLLM's reading of it has lost fields and filled in others.
    """
    model = vllm_config.model_config
    document, _ = PretrainedConfig.get_config_dict(model.model, revision=model.revision)
    return K3Config.from_dict(document, f"{model.model}/config.json")


def _is_stacked(name: str) -> bool:
    return re.search(r"\.experts\.w[123](_packed|_scale)?$", name) is not None


def _sum_over_ranks(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return tensor_model_parallel_all_reduce(output)
