"""Tensor parallelism for the model's own modules: which part of which tensor a rank holds.

A rank holds some heads of KDA and MLA, some columns of each GLU (of every expert too), and all of
what is small: norms, low-rank inputs, the router, depth mixing. What a rank computes from its part
of an output projection, or with its part of the experts, is summed over the ranks.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..config import TextConfig

if TYPE_CHECKING:
    from torch import Tensor

_ROWS = re.compile(
    r"(?:^|\.)(?:self_attn\.(?:(?:[qkvgb]|f_b|q_b|kv_b)_proj|[qkv]_conv1d)\.weight"
    r"|self_attn\.(?:dt_bias|A_log)"
    r"|(?:gate|up)_proj\.weight"
    r"|experts\.w[13](?:_packed|_scale)?"
    r"|experts\.\d+\.w[13]\.weight(?:_packed|_scale)?)$"
)
"""Cut along the output: axis -2 of a matrix, the only axis of a vector."""
_COLUMNS = re.compile(
    r"(?:^|\.)(?:self_attn\.o_proj\.weight|down_proj\.weight"
    r"|experts\.w2(?:_packed|_scale)?"
    r"|experts\.\d+\.w2\.weight(?:_packed|_scale)?)$"
)
"""Cut along the input, the last axis: the rank's product is one summand of the whole."""
_SUMMED = re.compile(r"(?:^|\.)(?:self_attn\.o_proj|(?:mlp|shared_experts)\.down_proj|experts)$")
"""Modules whose outputs are summed over the ranks."""


class ShardError(ValueError):
    """A model that cannot be cut into so many parts; the message names the number at fault."""


def check(config: TextConfig, ranks: int) -> None:
    """Raises `ShardError` unless every cut is even, and whole for the groups of MXFP4."""
    numbers = {
        "num_attention_heads": config.num_attention_heads,
        "linear_attn_config.num_heads": config.linear_attn_config.num_heads,
        "intermediate_size": config.intermediate_size,
        "moe_intermediate_size": config.moe_intermediate_size,
    }
    for name, number in numbers.items():
        group = 32 if name == "moe_intermediate_size" and config.quantization_config else 1
        if number % (group * ranks):
            whole = f" in whole groups of {group}" if group > 1 else ""
            raise ShardError(
                f"{name} is {number}, which {ranks} ranks cannot share evenly{whole}; "
                "use a smaller tensor-parallel size"
            )


def shard(name: str, tensor: Tensor, rank: int, ranks: int, heads: int) -> Tensor:
    """The part of a tensor that a rank holds: a view.

    Args:
        name: of the module's parameter or of the checkpoint's tensor, from the layer on.
        tensor: the whole.
        heads: KDA heads in all, for `A_log`, which is stored padded.
    """
    if ranks == 1:
        return tensor
    if _ROWS.search(name):
        if name.endswith("A_log"):
            tensor = tensor[:heads]
        axis = 0 if tensor.dim() == 1 or "conv1d" in name else tensor.dim() - 2
    elif _COLUMNS.search(name):
        axis = tensor.dim() - 1
    else:
        return tensor
    return tensor.chunk(ranks, axis)[rank]


def is_summed(module: str) -> bool:
    """Whether the outputs of the module with this name are summed over the ranks."""
    return _SUMMED.search(module) is not None
