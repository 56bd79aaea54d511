"""A random K3 of ours, written as a checkpoint, against another implementation that reads it.

The other one is NVIDIA NeMo AutoModel's pure-torch port. It says that it follows Moonshot's code,
and shares nothing with ours. What is compared: logits of whole models (KDA and MLA layers, latent
experts unpacked from MXFP4 by its own code, shared experts, block AttnRes, SiTU), images included
(vision tower, projector, placement).

Its KDA kernel, short convolution and gated norm are Triton programs that no CPU runs: in their
places stand fla-core's naive recurrence and a few lines of plain torch each, below.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
from types import ModuleType
from typing import Any

import PIL.Image
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unabridged.model.checkpoint import Checkpoint, load_model, save_model
from unabridged.model.config import K3Config
from unabridged.model.engine import Engine, PlacedImage
from unabridged.model.images import read_image
from unabridged.model.k3 import K3
from unabridged.model.sampling import Sampling

pytestmark = pytest.mark.referee

PLACEHOLDER = 7


def theirs(name: str) -> Any:
    """A module of the other implementation; only `make referee` installs it."""
    return importlib.import_module(f"nemo_automodel.components.models.kimi_k3.{name}")


class Convolution(nn.Conv1d):
    """A causal convolution of each channel, then SiLU."""

    def __init__(self, hidden_size: int, kernel_size: int, activation: str, **_: Any) -> None:
        assert activation == "silu"
        super().__init__(
            hidden_size,
            hidden_size,
            kernel_size,
            groups=hidden_size,
            bias=False,
            padding=kernel_size - 1,
        )

    def forward(self, x: Tensor, **_: Any) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return F.silu(super().forward(x.mT)[..., : x.shape[1]].mT), None


class GatedNorm(nn.Module):
    """RMSNorm of a head, times the sigmoid of its gate."""

    def __init__(self, hidden_size: int, eps: float, activation: str, **_: Any) -> None:
        assert activation == "sigmoid"
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(hidden_size)), eps

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        norm = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
        return norm * self.weight * torch.sigmoid(gate)


def naive(fla: ModuleType) -> Any:
    """fla-core's recurrence in the form of its kernel."""

    def kernel(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **options: Any
    ) -> tuple[Tensor, None]:
        assert options["use_qk_l2norm_in_kernel"]
        q, k = F.normalize(q, dim=-1, eps=1e-6), F.normalize(k, dim=-1, eps=1e-6)
        return fla.naive_recurrent_kda(q, k, v, g, beta)[0], None

    return kernel


@pytest.fixture(scope="module")
def nemo(fla: ModuleType) -> ModuleType:
    """The other implementation's multimodal module, its kernels replaced."""
    model = theirs("model")
    model._require_fla = lambda: None
    model.ShortConvolution, model.FusedRMSNormGated = Convolution, GatedNorm
    model.chunk_kda = naive(fla)
    return theirs("multimodal")


@pytest.fixture(scope="module", params=[True, False], ids=["packed", "plain"])
def pair(
    request: pytest.FixtureRequest,
    make_config: Any,
    make_model: Any,
    small_vision: dict[str, Any],
    nemo: ModuleType,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[K3, Any]:
    """Our model and theirs, both read from the checkpoint that ours was written to."""
    ids = {"pad_token_id": 0, "bos_token_id": 0}
    document = make_config(quantized=request.param, **ids).to_dict()
    changes = {"vision_config": small_vision, "media_placeholder_token_id": PLACEHOLDER} | ids
    config = K3Config.from_dict(document | changes | {"dtype": "float32"})
    folder = tmp_path_factory.mktemp("referee")
    save_model(make_model(config, dtype=torch.float32), folder)
    checkpoint = Checkpoint.open(folder)

    settings = theirs("config").KimiK3Config.from_pretrained(folder)
    settings.text_config.dtype = torch.float32
    settings.vision_config._attn_implementation = "eager"
    model = nemo.KimiK3ForConditionalGeneration(settings)
    tensors = model.state_dict_adapter.from_hf({n: checkpoint.read(n) for n in checkpoint.tensors})
    wide = {n: t.float() if t.is_floating_point() else t for n, t in tensors.items()}
    result = model.float().load_state_dict(wide, strict=False)
    assert result.unexpected_keys == []
    assert result.missing_keys == []
    return load_model(folder, torch.float32), model.eval()


@torch.no_grad()
def test_logits_are_theirs(pair: tuple[K3, Any]) -> None:
    ours, other = pair
    tokens = torch.randint(8, 512, (2, 150), generator=torch.Generator().manual_seed(1))
    got, wanted = ours(tokens), other(tokens).logits
    assert float(wanted.std()) > 0.5
    torch.testing.assert_close(got, wanted, atol=5e-4, rtol=0)


@torch.no_grad()
def test_images_are_seen_alike(pair: tuple[K3, Any]) -> None:
    ours, other = pair
    torch.manual_seed(2)
    grids = [(1, 4, 6), (1, 6, 8)]
    patches = torch.randn(sum(t * h * w for t, h, w in grids), 3, 14, 14)
    rows = [h // 2 * (w // 2) for _, h, w in grids]
    before, between, after = torch.randint(8, 512, (3, 9)).split(1)
    image = torch.tensor([[PLACEHOLDER]])

    wanted = other(
        torch.cat([before, image, between, image, after], 1),
        pixel_values=patches,
        grid_thws=torch.tensor(grids),
    ).logits
    features = ours.mm_projector(ours.vision_tower(patches, grids))
    spread = [before, image.repeat(1, rows[0]), between, image.repeat(1, rows[1]), after]
    got = ours(torch.cat(spread, 1), image_features=features)
    assert got.shape == wanted.shape
    torch.testing.assert_close(got, wanted, atol=5e-4, rtol=0)
    blank = ours(torch.cat(spread, 1), image_features=torch.zeros_like(features))
    assert float((blank - got).abs().max()) > 0.1  # the images matter


async def test_the_engine_says_of_an_image_what_they_say(pair: tuple[K3, Any]) -> None:
    ours, other = pair
    file = io.BytesIO()
    PIL.Image.effect_noise((130, 90), 80).convert("RGB").save(file, "PNG")
    picture = read_image(file.getvalue())
    before, after = torch.randint(8, 512, (2, 9)).tolist()

    said: list[int] = []
    with torch.no_grad():
        for _ in range(3):
            logits = other(
                torch.tensor([[*before, PLACEHOLDER, *after, *said]]),
                pixel_values=picture.patches(),
                grid_thws=torch.tensor([picture.grid]),
            ).logits
            said.append(int(logits[0, -1].argmax()))

    prompt = [*before, *[PLACEHOLDER] * picture.tokens, *after]
    image = PlacedImage(picture, len(before), len(before), len(before) + picture.tokens)
    engine = Engine(ours, end_token=1, vocab_size=512, window=4096, prefill_span=11, sees=True)
    generation = engine.generate(prompt, 3, Sampling(temperature=0), [image])
    assert [item async for item in generation if isinstance(item, int)] == said
    engine.close()
