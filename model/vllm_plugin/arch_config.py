"""What vLLM is told of a `kimi_k3` checkpoint that our model serves.

vLLM decides by model type that a model uses its own MLA kernels and its own quantised layers. Ours
does neither: it brings its latent backend and keeps its experts packed itself. Saying so here, for
this model type alone, leaves every other model of the process as it was (`VLLM_MLA_DISABLE` would
not).
"""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

from vllm.transformers_utils.model_arch_config_convertor import (
    MODEL_ARCH_CONFIG_CONVERTORS,
    ModelArchConfigConvertorBase,
)

ARCHITECTURE = "UnabridgedK3ForCausalLM"


class K3ArchConfig(ModelArchConfigConvertorBase):
    """Our model, without vLLM's MLA and without vLLM's quantisation."""

    def get_architectures(self) -> list[str]:
        self.hf_config.architectures = [ARCHITECTURE]  # vLLM looks there too, later
        return [ARCHITECTURE]

    def get_quantization_config(self) -> dict[str, Any] | None:
        return None

    def is_deepseek_mla(self) -> bool:
        return False


def convert_with_ours() -> None:
    """Have vLLM read `kimi_k3` configurations with this."""
    MODEL_ARCH_CONFIG_CONVERTORS["kimi_k3"] = K3ArchConfig
