"""The configuration of a K3 model: Moonshot's `config.json`, read, checked and written.

Field names are those of the published file. Layer lists in the file count from 1; everything in
this package counts from 0, so use `TextConfig.is_mla`. No torch here.

Source: the released `config.json`; Kimi K3 report, table 1.
"""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

RELEASED = Path(__file__).with_name("k3_config.json")
"""The configuration of the released 2.8T model."""

Positive = Annotated[int, Field(gt=0)]


class ConfigError(ValueError):
    """A `config.json` that cannot be used; the message names the file and the field."""


class _Section(BaseModel):
    # Published files carry fields for other programs ("auto_map", "use_cache"): keep them, so that
    # a configuration is written back as it was read.
    model_config = ConfigDict(frozen=True, extra="allow", strict=True)


class LinearAttnConfig(_Section):
    """Kimi Delta Attention, and which layers use it."""

    num_heads: Positive
    head_dim: Positive
    """K = V, the width of a head."""
    short_conv_kernel_size: Annotated[int, Field(ge=2)] = 4
    gate_lower_bound: Annotated[float, Field(ge=-5.0, lt=0.0)] = -5.0
    """Lowest log-decay of one step; -5 keeps a 16-token tile inside float32 (report, 2.1.1)."""
    use_full_rank_gate: Literal[True] = True
    full_attn_layers: tuple[Positive, ...]
    """Layers with MLA, counted from 1."""
    kda_layers: tuple[Positive, ...]
    """Layers with KDA, counted from 1."""


class WeightQuantization(_Section):
    num_bits: Literal[4]
    type: Literal["float"]
    strategy: Literal["group"]
    group_size: Literal[32]
    symmetric: Literal[True] = True
    scale_dtype: Literal["torch.uint8"] = "torch.uint8"


class QuantizationGroup(_Section):
    weights: WeightQuantization
    input_activations: None = None


class QuantizationConfig(_Section):
    """Expert weights as MXFP4: the only scheme K3 is published in."""

    quant_method: Literal["compressed-tensors"]
    format: Literal["mxfp4-pack-quantized"]
    config_groups: dict[str, QuantizationGroup]


class TextConfig(_Section):
    """The language model."""

    model_type: Literal["kimi_linear"]
    vocab_size: Positive
    hidden_size: Positive
    num_hidden_layers: Positive
    num_attention_heads: Positive
    intermediate_size: Positive
    """Width of the dense GLU in the first layers."""
    hidden_act: Literal["situ"]
    activation_situ_beta: Annotated[float, Field(gt=0)]
    activation_situ_linear_beta: Annotated[float, Field(gt=0)] | None
    rms_norm_eps: Annotated[float, Field(gt=0)] = 1e-5
    mla_latent_norm_eps: Annotated[float, Field(gt=0)] = 1e-6
    """Epsilon of the two norms inside MLA; the reference code leaves it at its class default."""
    initializer_range: Annotated[float, Field(gt=0)] = 0.02
    max_position_embeddings: Positive
    tie_word_embeddings: Literal[False] = False

    num_experts: Positive
    num_experts_per_token: Positive
    num_shared_experts: Positive
    moe_intermediate_size: Positive
    routed_expert_hidden_size: Positive
    """Width of the latent that routed experts read and write."""
    latent_moe_use_norm: Literal[True] = True
    moe_router_activation_func: Literal["sigmoid"] = "sigmoid"
    moe_renormalize: Literal[True] = True
    routed_scaling_factor: float = 1.0
    first_k_dense_replace: Annotated[int, Field(ge=0)]
    """The first layers use one dense GLU in place of experts."""
    moe_layer_freq: Literal[1] = 1
    num_expert_group: Literal[1] = 1
    topk_group: Literal[1] = 1

    q_lora_rank: Positive
    kv_lora_rank: Positive
    qk_nope_head_dim: Positive
    qk_rope_head_dim: Positive
    """Key dimensions shared by all heads; never rotated in K3."""
    v_head_dim: Positive
    mla_use_nope: Literal[True] = True
    mla_use_output_gate: Literal[True] = True

    attn_res_block_size: Positive
    """Decoder layers in one block of the Attention Residuals."""
    num_nextn_predict_layers: Literal[0] = 0
    linear_attn_config: LinearAttnConfig
    quantization_config: QuantizationConfig | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        mla = self.linear_attn_config.full_attn_layers
        kda = self.linear_attn_config.kda_layers
        if sorted((*mla, *kda)) != list(range(1, self.num_hidden_layers + 1)):
            raise ValueError(
                "linear_attn_config.full_attn_layers and kda_layers must together name each layer "
                f"from 1 to num_hidden_layers ({self.num_hidden_layers}) once"
            )
        if self.num_experts_per_token > self.num_experts:
            raise ValueError(
                f"num_experts_per_token ({self.num_experts_per_token}) "
                f"is larger than num_experts ({self.num_experts})"
            )
        if self.quantization_config is not None:
            for field in ("routed_expert_hidden_size", "moe_intermediate_size"):
                if getattr(self, field) % 32:
                    raise ValueError(f"{field} must be a multiple of 32 for MXFP4 experts")
        return self

    @cached_property
    def _mla_layers(self) -> frozenset[int]:
        return frozenset(layer - 1 for layer in self.linear_attn_config.full_attn_layers)

    def is_mla(self, layer: int) -> bool:
        """Whether `layer` (from 0) uses full attention; all others use KDA."""
        return layer in self._mla_layers

    def is_dense(self, layer: int) -> bool:
        """Whether `layer` (from 0) has one dense GLU in place of experts."""
        return layer < self.first_k_dense_replace

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def latent_size(self) -> int:
        """Values that MLA caches per token and layer."""
        return self.kv_lora_rank + self.qk_rope_head_dim


class VisionConfig(_Section):
    """The vision tower and its projector."""

    patch_size: Positive = 14
    init_pos_emb_height: Positive = 64
    init_pos_emb_width: Positive = 64
    init_pos_emb_time: Positive = 4
    vt_num_hidden_layers: Positive
    vt_num_attention_heads: Positive
    vt_hidden_size: Positive
    vt_intermediate_size: Positive
    qkv_hidden_size: Positive
    merge_kernel_size: tuple[Positive, Positive] = (2, 2)
    mm_hidden_size: Positive
    text_hidden_size: Positive
    projector_ln_eps: Annotated[float, Field(gt=0)] = 1e-5


class K3Config(_Section):
    """A whole `config.json`."""

    model_type: Literal["kimi_k3"]
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Precision of the weights that are not kept in float32 by design."""
    bos_token_id: int | None = None
    eos_token_id: int
    pad_token_id: int | None = None
    tie_word_embeddings: Literal[False] = False
    media_placeholder_token_id: int | None = None
    text_config: TextConfig
    vision_config: VisionConfig | None = None

    @classmethod
    def from_dict(cls, data: dict[str, Any], source: str = "config") -> Self:
        """Check a parsed `config.json`.

        Raises:
            ConfigError: naming `source` and each field that is missing or out of range.
        """
        model_type = data.get("model_type")
        if model_type != "kimi_k3":
            raise ConfigError(
                f"{source}: model_type is {model_type!r}; only 'kimi_k3' can be read here"
            )
        try:
            # The document came from JSON, where a tuple is a list and 4.0 may be written 4.
            return cls.model_validate_json(json.dumps(data))
        except ValidationError as error:
            raise ConfigError(f"{source}: " + "; ".join(_problems(error))) from None

    @classmethod
    def from_pretrained(cls, path: str | Path) -> Self:
        """Read `config.json`, given its path or the folder it lies in.

        Raises:
            ConfigError: no such file, not JSON, or a field that cannot be used.
        """
        file = Path(path)
        if file.is_dir():
            file /= "config.json"
        try:
            data = json.loads(file.read_bytes())
        except OSError as error:
            raise ConfigError(f"{file}: {error.strerror or error}") from None
        except ValueError as error:
            raise ConfigError(f"{file}: not JSON ({error})") from None
        if not isinstance(data, dict):
            raise ConfigError(f"{file}: expected a JSON object")
        return cls.from_dict(data, str(file))

    @classmethod
    def released(cls) -> Self:
        """The configuration of the released 2.8T model."""
        return cls.from_pretrained(RELEASED)

    def to_dict(self) -> dict[str, Any]:
        """The document that `from_dict` reads, fields of other programs included."""
        return self.model_dump(mode="json", exclude_unset=True)

    def save(self, path: str | Path) -> None:
        """Write `config.json` into the folder `path`."""
        text = json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"
        (Path(path) / "config.json").write_bytes(text.encode())


def _problems(error: ValidationError) -> list[str]:
    """One readable line for each fault, led by the dotted name of its field."""
    lines: list[str] = []
    for fault in error.errors(include_url=False):
        field = ".".join(str(part) for part in fault["loc"])
        message = fault["msg"].removeprefix("Value error, ")
        if fault["type"] == "missing":
            message = "is missing"
        elif "input" in fault and isinstance(fault["input"], str | int | float | bool | None):
            message += f" (found {fault['input']!r})"
        lines.append(f"{field}: {message}" if field else message)
    return lines
