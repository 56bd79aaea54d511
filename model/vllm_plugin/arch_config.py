"""What vLLM is told of a `kimi_k3` checkpoint that our model serves.

vLLM decides by model type that a model uses its own MLA kernels and its own quantised layers. Ours
does neither: it brings its latent backend, or keeps the keys and values of every head, and keeps its
experts packed itself. Saying so here, for this model type alone, leaves every other model of the
process as it was (`VLLM_MLA_DISABLE` would not).
"""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

from __future__ import annotations

import os
from typing import Any

from vllm.transformers_utils.model_arch_config_convertor import (
    MODEL_ARCH_CONFIG_CONVERTORS,
    ModelArchConfigConvertorBase,
)

ARCHITECTURE = "UnabridgedK3ForCausalLM"
MLA_CHOICE = "UNABRIDGED_VLLM_MLA"
"""Environment variable: `latent` or `mha`, what of MLA layers is kept."""
_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""That vLLM's kernel on CPUs takes."""


def expands() -> bool:
    """Whether keys and values are kept. Raises ValueError for a word that says neither."""
    choice = os.environ.get(MLA_CHOICE) or "latent"
    if choice not in ("latent", "mha"):
        raise ValueError(f"{MLA_CHOICE} is {choice!r}; it can be latent or mha")
    return choice == "mha"


def head_size(wanted: int) -> int:
    """The size that heads of so many values are filled up to with zeros, which change nothing."""
    return next((size for size in _HEAD_SIZES if size >= wanted), wanted)


class K3ArchConfig(ModelArchConfigConvertorBase):
    """Our model, without vLLM's MLA and without vLLM's quantisation."""

    def get_architectures(self) -> list[str]:
        self.hf_config.architectures = [ARCHITECTURE]  # vLLM looks there too, later
        return [ARCHITECTURE]

    def get_quantization_config(self) -> dict[str, Any] | None:
        return None

    def is_deepseek_mla(self) -> bool:
        return False

    def get_head_size(self) -> int:
        text = self.hf_text_config
        if not expands():
            return super().get_head_size()
        return head_size(max(text.qk_nope_head_dim + text.qk_rope_head_dim, text.v_head_dim))

    def get_total_num_kv_heads(self) -> int:
        if not expands():
            return super().get_total_num_kv_heads()
        return self.hf_text_config.num_attention_heads


def convert_with_ours() -> None:
    """Have vLLM read `kimi_k3` configurations with this."""
    MODEL_ARCH_CONFIG_CONVERTORS["kimi_k3"] = K3ArchConfig
