"""Kimi K3: the parts, assembled.

A decoder layer mixes tokens (KDA, or gated MLA in the layers the configuration names), then
channels (experts, or one dense GLU in the first layers). There is no residual stream: each of the
two sublayers reads a mixture of earlier outputs (`attn_res`). Modules are named as the tensors of
the released checkpoint, so that a state dict reads like it.

Source: Kimi K3 report, section 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .attn_res import BlockResiduals
from .config import K3Config, TextConfig
from .kda import KDAState, KimiDeltaAttention, compiled_kda_step
from .mla import GatedMLA, LatentCache
from .moe import StableLatentMoE
from .norm import RMSNorm
from .situ import SituMLP
from .state import SequenceState
from .vision import Grid, Projector, VisionTower

if TYPE_CHECKING:
    from .decode_kernel import Decoder

PREFILL_SPAN = 2048
"""Tokens of a prompt that go through all layers together."""
_FEW = 64
"""In-flight tokens up to which AttnRes reads its bank once per block (see `BlockResiduals`)."""

_FLOAT32 = ("A_log", "dt_bias", "conv1d.weight", "o_norm.weight", "e_score_correction_bias")


def kept_in_float32(name: str) -> bool:
    """Whether the checkpoint holds this tensor in float32 whatever the model's precision."""
    return name.endswith(_FLOAT32)


class DecoderLayer(nn.Module):
    """One layer: a token mixer and a channel mixer, each with its norm and its AttnRes query."""

    def __init__(self, config: TextConfig, index: int, packed_experts: bool) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.block = config.attn_res_block_size
        self.starts_block = index % self.block == 0
        self.self_attention_res_norm = RMSNorm(hidden, eps)
        self.self_attention_res_proj = nn.Linear(hidden, 1, bias=False)
        self.input_layernorm = RMSNorm(hidden, eps)
        self.self_attn = GatedMLA(config) if config.is_mla(index) else KimiDeltaAttention(config)
        self.mlp_res_norm = RMSNorm(hidden, eps)
        self.mlp_res_proj = nn.Linear(hidden, 1, bias=False)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        if config.is_dense(index):
            self.mlp = SituMLP(config, config.intermediate_size)
        else:
            self.block_sparse_moe = StableLatentMoE(config, packed_experts)

    @property
    def channel_mixer(self) -> nn.Module:
        return self.mlp if hasattr(self, "mlp") else self.block_sparse_moe


class Backbone(nn.Module):
    """Token ids to hidden states."""

    def __init__(self, config: TextConfig, packed_experts: bool) -> None:
        super().__init__()
        self.config = config
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.embed_tokens = nn.Embedding(config.vocab_size, hidden)
        self.layers = nn.ModuleList(
            DecoderLayer(config, i, packed_experts) for i in range(config.num_hidden_layers)
        )
        self.output_attn_res_norm = RMSNorm(hidden, eps)
        self.output_attn_res_proj = nn.Linear(hidden, 1, bias=False)
        self.norm = RMSNorm(hidden, eps)

    def forward(
        self,
        embeddings: Tensor,
        lengths: Sequence[int],
        states: Sequence[SequenceState] | None = None,
    ) -> Tensor:
        """Run all layers.

        Args:
            embeddings: [N, hidden], the new tokens of several sequences, one after the other.
            lengths: how many of them belong to each sequence.
            states: what came before in each, updated in place (but for their `tokens`).

        Returns:
            [N, hidden], after the final norm.
        """
        layers = [layer for layer in self.layers if isinstance(layer, DecoderLayer)]
        own = None
        if states is not None:
            own = [[state.layers[i] for state in states] for i in range(len(layers))]
        keys = self.keys()
        h = BlockResiduals(embeddings, self.config.rms_norm_eps)
        run_layers(layers, keys, h, lengths, own)
        return self.norm(h.read(keys[-1]))

    def keys(self) -> Tensor:
        """`depth_keys` of all reads, [2 layers + 1, hidden]."""
        layers = [layer for layer in self.layers if isinstance(layer, DecoderLayer)]
        return depth_keys(layers, self.output_attn_res_norm, self.output_attn_res_proj)


def run_layers(
    layers: Sequence[DecoderLayer],
    keys: Tensor,
    h: BlockResiduals,
    lengths: Sequence[int],
    states: Sequence[Sequence[Any]] | None,
) -> None:
    """Run consecutive layers: all, or a stage of a pipeline.

    Args:
        keys: of these layers' reads (see `depth_keys`).
        h: what the layers before left; updated in place.
        lengths: how many of the tokens belong to each sequence.
        states: for each layer, what came before in each sequence; updated in place.
    """
    assert h.prefix is not None
    few = len(h.prefix) <= _FEW and not torch.is_grad_enabled()
    for i, layer in enumerate(layers):
        x = h.read(keys[2 * i])
        if layer.starts_block:
            h.close_block(keys[2 * i + 1 : 2 * (i + layer.block) + 1] if few else None)
        own = None if states is None else states[i]
        h.write(layer.self_attn(layer.input_layernorm(x), lengths, own))
        x = h.read(keys[2 * i + 1])
        h.write(layer.channel_mixer(layer.post_attention_layernorm(x)))


def depth_keys(layers: Sequence[DecoderLayer], *output: nn.Module) -> Tensor:
    """Query times gain of every read of the depth mixture, in order: [reads, hidden].

    Args:
        output: norm and projection of the read after the last layer, if it is wanted.
    """
    modules: list[Any] = []
    for layer in layers:
        modules += [layer.self_attention_res_norm, layer.self_attention_res_proj]
        modules += [layer.mlp_res_norm, layer.mlp_res_proj]
    modules += output
    norms = [module.weight for module in modules[::2]]
    queries = [module.weight for module in modules[1::2]]
    return torch.stack(norms).float() * torch.cat(queries).float()


class LanguageModel(nn.Module):
    """The backbone and the head that scores the next token."""

    def __init__(self, config: TextConfig, packed_experts: bool) -> None:
        super().__init__()
        self.model = Backbone(config, packed_experts)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)


class K3(nn.Module):
    """The whole model.

    Args:
        config: any size; the nano model is these classes with small numbers.
        dtype: precision of the weights that are not kept in float32 by design.
        packed_experts: hold experts as the checkpoint does (MXFP4, not trainable). Default: what
            the configuration says.
    """

    def __init__(
        self,
        config: K3Config,
        dtype: torch.dtype = torch.float32,
        packed_experts: bool | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        text = config.text_config
        if packed_experts is None:
            packed_experts = text.quantization_config is not None
        self.language_model = LanguageModel(text, packed_experts)
        if config.vision_config is not None:
            self.vision_tower = VisionTower(config.vision_config)
            self.mm_projector = Projector(config.vision_config)
        self.init_weights()
        self.set_dtype(dtype)
        self._decoder: Decoder | None = None

    @torch.no_grad()
    def init_weights(self) -> None:
        """Start values of matrices; each part has set its own special parameters."""
        std = self.config.text_config.initializer_range
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=std)
                if name.endswith("_res_proj"):  # depth mixing starts as a plain average
                    nn.init.zeros_(module.weight)

    def set_dtype(self, dtype: torch.dtype) -> None:
        """Convert all weights but those that stay float32 by design and packed experts."""
        for name, tensor in [*self.named_parameters(), *self.named_buffers()]:
            if tensor.is_floating_point() and not kept_in_float32(name):
                tensor.data = tensor.data.to(dtype)

    @property
    def dtype(self) -> torch.dtype:
        return self.language_model.lm_head.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.language_model.lm_head.weight.device

    def forward(
        self,
        tokens: Tensor,
        lengths: Sequence[int] | None = None,
        states: Sequence[SequenceState] | None = None,
        image_features: Tensor | None = None,
    ) -> Tensor:
        """Logits of every token.

        Args:
            tokens: [B, T], or [N] packed sequences with `lengths`. Ids in [0, vocab).
            lengths: how many tokens belong to each sequence; each starts afresh.
            states: what came before in each sequence, updated in place (inference only).
            image_features: [M, hidden] from `mm_projector`, for the M media placeholders in order.

        Returns:
            [B, T, vocab] or [N, vocab].
        """
        if lengths is None:
            rows, T = (1, len(tokens)) if tokens.dim() == 1 else tokens.shape
            lengths = [T] * rows
        hidden = self.hidden(tokens.flatten(), lengths, states, image_features)
        return self.language_model.lm_head(hidden).view(*tokens.shape, -1)

    def hidden(
        self,
        tokens: Tensor,
        lengths: Sequence[int],
        states: Sequence[SequenceState] | None = None,
        image_features: Tensor | None = None,
    ) -> Tensor:
        """What the head reads, [N, hidden], for packed tokens [N]; see `forward`."""
        backbone = self.language_model.model
        embeddings = backbone.embed_tokens(tokens)
        if image_features is not None:
            places = tokens == self.config.media_placeholder_token_id
            embeddings = embeddings.masked_scatter(
                places[:, None], image_features.to(embeddings.dtype)
            )
        hidden = backbone(embeddings, lengths, states)
        if states is not None:
            for state, own in zip(states, tokens.split(list(lengths)), strict=True):
                state.tokens.extend(own.tolist())
        return hidden

    # --- inference, one sequence or several at a time -------------------------------------------

    def new_state(self) -> SequenceState:
        """The state before the first token."""
        layers: list[KDAState | LatentCache] = []
        for layer in self.language_model.model.layers:
            assert isinstance(layer, DecoderLayer)
            layers.append(layer.self_attn.new_state(self.dtype))
        return SequenceState(layers)

    def state_from_tensors(self, tensors: Mapping[str, Tensor]) -> SequenceState:
        """The state that `SequenceState.to_tensors` described, bit for bit.

        Raises:
            StateMismatchError: the tensors belong to another model.
        """
        state = self.new_state()
        state.load_tensors(tensors)
        return state

    @torch.no_grad()
    def see(self, patches: Tensor, grid: Grid) -> Tensor:
        """What stands in the place of one image's placeholders, [M, hidden]; see `VisionTower`."""
        patches = patches.to(self.device, self.vision_tower.patch_embed.proj.weight.dtype)
        return self.mm_projector(self.vision_tower(patches, [grid]))

    @torch.no_grad()
    def extend(
        self,
        state: SequenceState,
        tokens: Sequence[int],
        image_features: Tensor | None = None,
    ) -> Tensor:
        """Read tokens into the state, in place; logits after the last, [vocab].

        Long prompts go through in spans of 2,048 tokens, so that memory does not grow with them.
        `image_features` [M, hidden] are for the M media placeholders among the tokens, in order.
        """
        if not tokens:
            raise ValueError("there is no token to read")
        ids = self._ids(tokens)
        hidden = torch.empty(0)
        for span in ids.split(PREFILL_SPAN):
            seen = None
            if image_features is not None:
                places = int((span == self.config.media_placeholder_token_id).sum())
                seen, image_features = image_features[:places], image_features[places:]
            hidden = self.hidden(span, [len(span)], [state], seen)
        return self.language_model.lm_head(hidden[-1])

    @torch.no_grad()
    def step(self, states: Sequence[SequenceState], tokens: Sequence[int]) -> Tensor:
        """Read one token into each of several states, in place; logits, [B, vocab]."""
        if len(states) != len(tokens):
            raise ValueError(f"{len(tokens)} tokens for {len(states)} sequences")
        ids = self._ids(tokens)
        if self._decoder is not None:
            return self._decoder.step(states, tokens)
        return self.language_model.lm_head(self.hidden(ids, [1] * len(states), states))

    def prepare_decode(self) -> None:
        """Decode by one call a token where the model is small enough; weights then stay as is."""
        from .decode_kernel import decoder

        self._decoder = decoder(self)

    def compile_decode(self) -> None:
        """Decode with the compiled KDA step; the first steps then take some seconds."""
        for module in self.modules():
            if isinstance(module, KimiDeltaAttention):
                module.step = compiled_kda_step()

    def _ids(self, tokens: Sequence[int]) -> Tensor:
        ids = torch.tensor(tokens, dtype=torch.long)
        vocab = self.config.text_config.vocab_size
        if outside := [t for t in (int(ids.min()), int(ids.max())) if not 0 <= t < vocab]:
            raise ValueError(f"token id {outside[0]} is outside the vocabulary of {vocab}")
        return ids.to(self.device)
