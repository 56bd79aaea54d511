"""Where training starts: a model that already looks back.

Copying takes two steps that must meet: find the place where this token stood before, and take the
token after it. From random weights the pair is found late, by accident; a small model on a small
budget finds it never. So the weights begin with it:

- In every KDA layer, half of the heads take their keys from the token before and their queries
  from the token itself, through one projection: they return what followed the last time.
- The other half read the token itself, with values from the token before. What they say goes to
  a quarter of the width that token vectors leave empty.
- MLA reads its shared key from that quarter and makes its query of the token itself, so that each
  head finds all places that followed the same token, at any distance. The head of the model reads
  what the first MLA layer writes of the token found there.

Nothing is tied or fixed: training may move all of it, and has to learn what to do with what is
found. All other matrices start at random with variance 1 / inputs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..k3 import K3, DecoderLayer
from ..kda import KimiDeltaAttention
from ..mla import GatedMLA
from ..moe import Experts

SLOWEST, FASTEST = 5e-4, 0.25
"""Log-decays a step, in magnitude: a memory of 2,000 tokens to one of 4."""
SHARPNESS = 10.0
"""Scale of the query with which MLA looks for the token before."""
LOUDNESS = 3.0
"""Scale of what MLA writes: the token it found has to be heard beside the token itself."""
ROW = 0.5
"""Length of the head's row of each token."""

_WRITERS = ("o_proj", "down_proj", "routed_expert_up_proj")
"""What a layer writes with; `routed_expert_down_proj` reads."""


@torch.no_grad()
def initialise(model: K3) -> None:
    """Set start values, in place, from torch's own random numbers."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            if name.endswith("_res_proj"):  # depth mixing starts as a plain average
                nn.init.zeros_(module.weight)
            elif name.endswith("lm_head"):
                nn.init.normal_(module.weight, std=0.02)
            else:
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
        elif isinstance(module, Experts):
            for weight in module.parameters():
                nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)
    backbone = model.language_model.model
    vectors = backbone.embed_tokens.weight
    width = vectors.shape[1]
    free = width // 4
    nn.init.normal_(vectors)
    vectors[:, -free:] = 0
    said: Tensor | None = None
    finder: GatedMLA | None = None
    for name, module in backbone.named_modules():
        if (
            name.endswith(_WRITERS)
            and isinstance(module, nn.Linear)
            and module.out_features == width
        ):
            module.weight[-free:] = 0
    for layer in backbone.layers:
        assert isinstance(layer, DecoderLayer)
        mixer = layer.self_attn
        if isinstance(mixer, KimiDeltaAttention):
            first = said is None
            code = _look_back(mixer, free)
            said = code if first else said
        elif said is not None:
            _find(mixer, said, free)
            if finder is None:
                finder = mixer
    if finder is not None:
        _say(model, finder)


def _look_back(layer: KimiDeltaAttention, free: int) -> Tensor:
    """Start values of a KDA layer; how it says which token stood before, [free, hidden]."""
    layer.dt_bias.uniform_(math.log(SLOWEST / 5), math.log(FASTEST / 5))
    layer.k_proj.weight.copy_(layer.q_proj.weight)
    # Which tap each head of [heads, head_dim, kernel] reads: 0 is the token itself.
    heads = torch.arange(layer.heads)
    finds = heads % 2 == 0
    layer.dt_bias.view(layer.heads, layer.head_dim)[~finds] = 0  # forget: half of -5 a step
    taps = {
        layer.q_conv1d: torch.zeros_like(heads),
        layer.k_conv1d: finds.long(),
        layer.v_conv1d: (~finds).long(),
    }
    for convolution, back in taps.items():
        weight = convolution.weight.view(layer.heads, layer.head_dim, layer.kernel)
        weight.normal_(std=0.02)
        weight[heads, :, layer.kernel - 1 - back] += 1.0
    # The reading heads write to the free quarter, and only they do.
    out = layer.o_proj.weight.view(-1, layer.heads, layer.head_dim)  # [hidden, heads, head_dim]
    out[-free:, finds] = 0
    out[:-free, ~finds] = 0
    reading = out[-free:, ~finds].flatten(1)  # [free, heads/2 head_dim]
    nn.init.orthogonal_(reading)
    out[-free:, ~finds] = reading.view(free, -1, layer.head_dim)
    values = layer.v_proj.weight.view(layer.heads, layer.head_dim, -1)[~finds].flatten(0, 1)
    return reading @ values


def _say(model: K3, finder: GatedMLA) -> None:
    """Let the head read what an MLA layer writes when it looks at a token."""
    latent = finder.kv_a_proj_with_mqa.weight[: finder.latent]
    expand = finder.kv_b_proj.weight.view(finder.heads, -1, finder.latent)
    values = expand[:, finder.nope :].flatten(0, 1)  # [heads value, latent]
    written = finder.o_proj.weight @ values @ latent  # [hidden, hidden]
    rows = model.language_model.model.embed_tokens.weight @ written.mT
    rows *= ROW / rows.norm(dim=1, keepdim=True)
    model.language_model.lm_head.weight.copy_(rows)


def _find(layer: GatedMLA, said: Tensor, free: int) -> None:
    """Start values of an MLA layer; see the module's text."""
    width = min(layer.shared, free)
    key = layer.kv_a_proj_with_mqa.weight[layer.latent :]  # [shared, hidden]
    key.zero_()
    key[:width, key.shape[1] - free : key.shape[1] - free + width] = torch.eye(width)
    query = layer.q_b_proj.weight.view(layer.heads, -1, layer.q_b_proj.in_features)
    made = said[:width] @ torch.linalg.pinv(layer.q_a_proj.weight)  # [width, q_lora_rank]
    layer.o_proj.weight.mul_(LOUDNESS)
    query[:, layer.nope : layer.nope + width] = SHARPNESS * made / made.norm(dim=1, keepdim=True)
