"""Where training starts: a model that already looks back.

Copying takes two steps that must meet: note what stood before each token, and find the place where
the same stood before. From random weights the pair is found late, by accident; a small model on a
small budget finds it never. So the weights begin with it:

- In the first KDA layer, heads note the token before, the one before that, and so on as far as the
  convolutions reach: they read themselves, with values from some tokens back, and forget at once.
  The notes go to a quarter of the width that token vectors leave empty and no other layer writes.
- MLA takes its shared key from the notes, and its query from the token itself and its own notes,
  one place on. So each head finds what followed when the last few tokens were the same, at any
  distance. The head of the model reads what the first MLA layer writes of the token found there.
- Where the same few tokens stand in several places, what came before them has to tell. If there is
  a head to spare, it keeps a bag of some ten tokens: one key for all, reached through an element of
  the token vectors that is always 1, and little written at a time, so that older tokens fade. MLA
  also compares its own bag with that of each place.
- Or the latest of the places is meant, and without positions nothing says which that is. A second
  head to spare keeps a bag that fades over some hundred tokens. Such bags are the more alike the
  nearer two places are, and hardly at all beyond a few hundred tokens: a sense of what is recent.
- The other heads of KDA layers find on a shorter range: keys from the token before, queries from
  the token itself, through one projection.

Nothing is tied or fixed: training may move all of it, and has to learn when to copy and from
where. All other matrices start at random with variance 1 / inputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..k3 import K3, DecoderLayer
from ..kda import KimiDeltaAttention
from ..mla import GatedMLA
from ..moe import Experts

SLOWEST, FASTEST = 5e-4, 0.25
"""Log-decays a step, in magnitude: a memory of 2,000 tokens to one of 4."""
NOTE = 1.5
"""Scale of a note beside token vectors of variance 1."""
WANTED = (1.5, 3.0, 2.0)
"""How much the query minds that the token, the one before, and the one before that are the same."""
SHARPNESS = 3.0
"""Scale of the whole query."""
ALIKE = (6.0, 8.0)
"""How much the query minds that the bags are alike, by bag."""
LATE = 0.5
"""How much of a token enters a bag at once; as much enters with the next token."""
FADING = (0.14, 0.012)
"""Share of a bag that each new token takes the place of, by bag."""
LOUDNESS = 3.0
"""Scale of what MLA writes: the token it found has to be heard beside the token itself."""
ROW = 0.5
"""Length of the head's row of each token."""

_WRITERS = ("o_proj.weight", ".down_proj.weight", "routed_expert_up_proj.weight")
"""What a layer writes with."""


@torch.no_grad()
def initialise(model: K3) -> None:
    """Set start values, in place, from torch's own random numbers."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            if name.endswith("_res_proj"):  # depth mixing starts as a plain average
                nn.init.zeros_(module.weight)
            else:
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
        elif isinstance(module, Experts):
            for weight in module.parameters():
                nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)
    backbone = model.language_model.model
    vectors = backbone.embed_tokens.weight
    room = _room(model)
    nn.init.normal_(vectors)
    vectors[:, room.vectors :] = 0
    if room.bags:
        vectors[:, room.one] = 1
    for name, weight in backbone.named_parameters():
        if name.endswith(_WRITERS):
            weight[room.vectors :] = 0
    code: Tensor | None = None
    finder: GatedMLA | None = None
    for layer in backbone.layers:
        assert isinstance(layer, DecoderLayer)
        mixer = layer.self_attn
        if isinstance(mixer, KimiDeltaAttention):
            _look_back(mixer)
            if code is None:
                code = _take_notes(mixer, room)
                for bag in range(room.bags):
                    _keep_bag(mixer, room, bag)
        elif code is not None:
            _find(mixer, code, room)
            finder = finder or mixer
    if finder is not None:
        _say(model, finder)


@dataclass(frozen=True)
class _Room:
    """How the width is shared out: token vectors, then what only the circuit writes."""

    hidden: int
    notes: int
    """Elements of all notes together, at the end."""
    bags: int
    """How many bags there are; without any there is no element that is 1."""
    bag: int
    """Elements of a bag. They stand before the notes."""

    @property
    def bags_at(self) -> int:
        return self.hidden - self.notes - self.bags * self.bag

    @property
    def one(self) -> int:
        return self.bags_at - 1

    @property
    def vectors(self) -> int:
        return self.one if self.bags else self.bags_at


def _room(model: K3) -> _Room:
    layers = [layer.self_attn for layer in model.language_model.model.layers]
    hidden = model.language_model.model.embed_tokens.weight.shape[1]
    kda = next((layer for layer in layers if isinstance(layer, KimiDeltaAttention)), None)
    mla = next((layer for layer in layers if isinstance(layer, GatedMLA)), None)
    if kda is None or mla is None or kda.heads <= kda.kernel:
        return _Room(hidden, hidden // 4, 0, 0)
    bags = min(kda.heads - kda.kernel, len(FADING))
    bag = min(mla.shared // 4, kda.head_dim // 2)
    return _Room(hidden, min(hidden // 4, mla.shared - bags * bag), bags, bag)


def _look_back(layer: KimiDeltaAttention) -> None:
    """Every other head finds what followed the same token; decays are spread."""
    layer.dt_bias.uniform_(math.log(SLOWEST / 5), math.log(FASTEST / 5))
    layer.k_proj.weight.copy_(layer.q_proj.weight)
    heads = torch.arange(layer.heads)
    _read(layer.q_conv1d, 0 * heads)
    _read(layer.k_conv1d, 1 - heads % 2)
    _read(layer.v_conv1d, 0 * heads)


def _read(convolution: nn.Conv1d, back: Tensor) -> None:
    """Let each head read the token so many tokens back: [heads], 0 is the token itself."""
    kernel = convolution.kernel_size[0]
    weight = convolution.weight.view(len(back), -1, kernel)
    weight.normal_(std=0.02)
    weight[torch.arange(len(back)), :, kernel - 1 - back] += 1.0


def _take_notes(layer: KimiDeltaAttention, room: _Room) -> Tensor:
    """Let head n note the token n back; the code of a token in a note, [size, hidden]."""
    back = torch.arange(layer.heads) % layer.kernel
    notes = back > 0
    _read(layer.k_conv1d, (~notes).long())
    _read(layer.v_conv1d, back)
    layer.dt_bias.view(layer.heads, layer.head_dim)[notes] = 0  # half of -5 a step
    values = layer.v_proj.weight.view(layer.heads, layer.head_dim, -1)
    values[notes] = values[1].clone()  # one code for all notes, so that they can be compared
    size = room.notes // int(back.max())
    code = nn.init.orthogonal_(torch.empty(size, layer.head_dim)) * NOTE
    out = layer.o_proj.weight.view(-1, layer.heads, layer.head_dim)  # [hidden, heads, head_dim]
    out[:, notes] = 0
    for head in notes.nonzero().flatten().tolist():
        place = room.hidden - room.notes + size * (int(back[head]) - 1)
        out[place : place + size, head] = code
    return code @ values[1]


def _keep_bag(layer: KimiDeltaAttention, room: _Room, bag: int) -> None:
    """Let a head, counted from the last, keep a bag of the last tokens' codes."""
    at = layer.heads - 1 - bag
    head = slice(at * layer.head_dim, (at + 1) * layer.head_dim)
    for convolution in (layer.q_conv1d, layer.k_conv1d, layer.v_conv1d):
        convolution.weight[head] = 0
        convolution.weight[head, 0, -1] = 1
    # A token before its own place counts less: there it is what is to be said, not what tells.
    layer.v_conv1d.weight[head, 0, -2:] = LATE
    for projection in (layer.q_proj, layer.k_proj):
        projection.weight[head] = 0
        projection.weight[head.start, room.one] = 2
    layer.dt_bias[head] = math.log(SLOWEST / 5)
    layer.b_proj.weight[at] = 0
    layer.b_proj.weight[at, room.one] = math.log(FADING[bag] / (1 - FADING[bag]))
    # Codes have the same sign more often than not (SiLU): leave out what all bags have in common.
    code = torch.randn(room.bag, layer.head_dim)
    code = nn.init.orthogonal_(code - code.mean(1, keepdim=True))
    code = code - code.mean(1, keepdim=True)
    out = layer.o_proj.weight
    out[:, head] = 0
    place = room.bags_at + bag * room.bag
    out[place : place + room.bag, head] = code * NOTE


def _find(layer: GatedMLA, code: Tensor, room: _Room) -> None:
    """Let every head look for the place whose notes are this token and its own notes, and whose
    bags are like its own."""
    size, hidden = code.shape
    begin = hidden - room.notes
    notes = min(room.notes, layer.shared, layer.q_a_proj.out_features) // size
    if notes == 0:
        return  # too narrow to tell notes apart: it learns from a random start
    width = notes * size
    key = layer.kv_a_proj_with_mqa.weight[layer.latent :]  # [shared, hidden]
    key.zero_()
    key[:width, begin : begin + width] = torch.eye(width)
    wanted = torch.zeros(notes, size, hidden)
    wanted[0] = code / code.norm(dim=1, keepdim=True)
    for n in range(1, notes):
        place = begin + size * (n - 1)
        wanted[n, :, place : place + size] = torch.eye(size)
    scale = torch.tensor([*WANTED, *[WANTED[-1]] * notes][:notes])
    layer.q_a_proj.weight[:width] = (wanted * scale[:, None, None]).flatten(0, 1)
    strength = torch.full((width,), SHARPNESS)
    if room.bags:
        end = width + room.bags * room.bag
        bags = torch.zeros(end - width, hidden)
        bags[:, room.bags_at : room.bags_at + end - width] = torch.eye(end - width)
        key[width:end] = bags
        layer.q_a_proj.weight[width:end] = bags
        alike = torch.tensor(ALIKE[: room.bags]).repeat_interleave(room.bag)
        strength = torch.cat([strength, alike])
        width = end
    query = layer.q_b_proj.weight.view(layer.heads, -1, layer.q_b_proj.in_features)
    query[:, layer.nope : layer.nope + width] = 0
    query[:, layer.nope : layer.nope + width, :width] = strength.diag()
    layer.o_proj.weight.mul_(LOUDNESS)


def _say(model: K3, finder: GatedMLA) -> None:
    """Let the head read what an MLA layer writes when it looks at a token."""
    latent = finder.kv_a_proj_with_mqa.weight[: finder.latent]
    expand = finder.kv_b_proj.weight.view(finder.heads, -1, finder.latent)
    values = expand[:, finder.nope :].flatten(0, 1)  # [heads value, latent]
    written = finder.o_proj.weight @ values @ latent  # [hidden, hidden]
    rows = model.language_model.model.embed_tokens.weight @ written.mT
    rows *= ROW / rows.norm(dim=1, keepdim=True)
    model.language_model.lm_head.weight.copy_(rows)
