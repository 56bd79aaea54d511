"""The entry point that vLLM loads in each of its processes.

It adds our K3 model, our tokenizer and nothing else; it changes how vLLM sees a checkpoint of the
type `kimi_k3` only where our model serves it: on CPUs, or where `UNABRIDGED_VLLM_MODEL=unabridged`
asks for it. Elsewhere vLLM's own K3 stays in charge.
"""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

from __future__ import annotations

import logging
import os
from importlib.metadata import version as distribution_version

from .installation import supported, unsupported, version

log = logging.getLogger("vllm.unabridged")

CHOICE = "UNABRIDGED_VLLM_MODEL"
"""Environment variable: `unabridged` or `vllm`, whose K3 model to use."""
TOKENIZER_MODE = "unabridged_k3"
_PACKAGE = __package__


def register() -> None:
    """Register with vLLM. May be called again, and in any process."""
    release = version() or distribution_version("vllm")
    if not supported(release):
        # vLLM only logs what a plugin raises, so this is the place to say it.
        log.error("unabridged: not loaded: %s", unsupported(release))
        return
    from vllm.model_executor.models import ModelRegistry
    from vllm.renderers.registry import RENDERER_REGISTRY
    from vllm.tokenizers.registry import TokenizerRegistry

    if TOKENIZER_MODE not in TokenizerRegistry.tokenizers:
        TokenizerRegistry.register(TOKENIZER_MODE, f"{_PACKAGE}.tokenizer", "K3Tokenizer")
        RENDERER_REGISTRY.register(TOKENIZER_MODE, f"{_PACKAGE}.renderer", "K3Renderer")
    if not takes_over():
        return
    from .arch_config import ARCHITECTURE, convert_with_ours

    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(ARCHITECTURE, f"{_PACKAGE}.model:{ARCHITECTURE}")
    convert_with_ours()


def takes_over() -> bool:
    """Whether checkpoints of K3 are served by our model."""
    from vllm.platforms import current_platform

    choice = os.environ.get(CHOICE, "")
    if choice not in ("", "unabridged", "vllm"):
        log.error("unabridged: %s is %r; it can be unabridged or vllm", CHOICE, choice)
    return choice == "unabridged" or (choice != "vllm" and current_platform.is_cpu())
