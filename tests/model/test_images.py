"""Images against the formulas of scaling and compositing in float64, and through the engine."""

from __future__ import annotations

import ast
import base64
import io
import json
import math
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unabridged.cli import main
from unabridged.model.chat.tokenizer import Tokenizer, write_ranks
from unabridged.model.checkpoint import save_model
from unabridged.model.config import ConfigError, K3Config
from unabridged.model.converse import ChatRequest, RequestError, prepare
from unabridged.model.engine import open_engine
from unabridged.model.images import ImageError, read_image, read_part, scaled_size
from unabridged.model.k3 import K3
from unabridged.model.state_store import entries


def noise(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    """Smooth enough that scaling means something, and with hard edges."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (height // 8 + 1, width // 8 + 1, channels), dtype=np.uint8)
    return np.kron(coarse, np.ones((8, 8, 1), np.uint8))[:height, :width]


def encoded(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def image_part(data: bytes) -> dict[str, Any]:
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def user(*content: Any) -> dict[str, Any]:
    parts = [{"type": "text", "text": c} if isinstance(c, str) else c for c in content]
    return {"role": "user", "content": parts}


def bicubic(length: int, target: int, rows: int) -> np.ndarray:
    """The matrix that scales down by a cubic (a = -1/2) as wide as the step; its first rows."""
    step = length / target
    centres = (np.arange(rows)[:, None] + 0.5) * step
    x = np.abs((np.arange(length) + 0.5 - centres) / step)
    near, far = 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
    weights = np.where(x < 1, near, np.where(x < 2, far, 0.0))
    return weights / weights.sum(1, keepdims=True)


def whole(patches: torch.Tensor, grid: tuple[int, int, int]) -> np.ndarray:
    """The plane that the patches were cut from, patch by patch, in the levels of a file."""
    _, rows, columns = grid
    plane = np.zeros((rows * 14, columns * 14, 3))
    for n, patch in enumerate(patches.double().numpy()):
        y, x = n // columns * 14, n % columns * 14
        plane[y : y + 14, x : x + 14] = (patch.transpose(1, 2, 0) * 0.5 + 0.5) * 255
    return plane


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_a_small_image_is_only_padded_and_cut(kind: str) -> None:
    pixels = noise(30, 57)
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, kind, lossless=True)
    picture = read_image(file.getvalue())
    assert (picture.width, picture.height, picture.tokens) == (57, 30, 2 * 3)
    assert picture.grid == (1, 4, 6)
    patches = picture.patches()
    assert patches.shape == (24, 3, 14, 14)
    assert patches.dtype == torch.float32
    plane = whole(patches, picture.grid)
    np.testing.assert_allclose(plane[:30, :57], pixels, atol=1e-4)
    assert np.abs(plane[30:]).max() < 1e-4  # black, which the tower reads as -1
    assert np.abs(plane[:, 57:]).max() < 1e-4


def test_a_large_image_is_scaled_by_the_cubic() -> None:
    pixels = noise(60, 7500, seed=1)  # longer than the tower's positions reach
    picture = read_image(encoded(pixels))
    assert scaled_size(7500, 60) == (7168, 57)
    across = bicubic(7500, 7168, 100) @ pixels.transpose(1, 0, 2).reshape(7500, -1).astype(float)
    across = across.clip(0, 255).reshape(100, 60, 3).transpose(1, 0, 2)
    wanted = np.tensordot(bicubic(60, 57, 57), across, 1).clip(0, 255)
    difference = np.abs(picture.pixels[:, :100] - wanted)
    assert difference.max() <= 2.0  # PIL rounds to whole levels after each side
    assert difference.mean() < 0.4


@given(st.integers(1, 20_000), st.integers(1, 20_000))
@settings(max_examples=100, deadline=None)
def test_sizes_stay_within_the_tower(width: int, height: int) -> None:
    w, h = scaled_size(width, height)
    assert 1 <= w <= min(width, 7168)
    assert 1 <= h <= min(height, 7168)
    # Whole patches are counted before scaling, rounded down: 1.6 % more than the limit can come.
    assert (w // 14) * (h // 14) <= 65_536 * (129 / 128) ** 2
    if (width // 14) * (height // 14) <= 65_536 and max(width, height) <= 7168:
        assert (w, h) == (width, height)


@pytest.mark.parametrize(
    ("size", "wanted"),
    # The formula by hand: sqrt(65536 / (285 * 214)) = 1.0366, so no change; sqrt(65536 / 571**2).
    [
        ((4000, 3000), (4000, 3000)),
        ((8000, 8000), (int(8000 * 256 / 571), int(8000 * 256 / 571))),
        ((1, 9000), (1, 7168)),
        ((14, 14), (14, 14)),
    ],
)
def test_sizes_by_hand(size: tuple[int, int], wanted: tuple[int, int]) -> None:
    assert scaled_size(*size) == wanted


def test_sizes_are_those_of_transformers() -> None:
    """Its processor of the model before K3, given K3's limits; its module needs torchvision."""
    found = PathFinder.find_spec("transformers")
    assert found is not None
    assert found.submodule_search_locations is not None
    source = Path(
        found.submodule_search_locations[0], "models/kimi_k25/image_processing_kimi_k25.py"
    )
    tree = ast.parse(source.read_bytes())
    tree.body = [n for n in tree.body if getattr(n, "name", "") == "navit_resize"]
    names: dict[str, Any] = {"math": math}
    exec(compile(tree, str(source), "exec"), names)
    rng = np.random.default_rng(5)
    for width, height in rng.integers(1, 20_000, (2_000, 2)).tolist():
        (h, w), _ = names["navit_resize"](height, width, 14, 2, 65_536, 512)
        assert scaled_size(width, height) == (w, h)


def test_transparent_parts_lie_on_a_chessboard() -> None:
    pixels = np.concatenate([noise(40, 40, 3, seed=2), np.zeros((40, 40, 1), np.uint8)], -1)
    pixels[:, 10:20, 3] = 255
    pixels[:, 20:30, 3] = 100
    picture = read_image(encoded(pixels))
    for y in range(40):
        for x in range(40):
            board = 255 if (y // 8 + x // 8) % 2 == 0 else 180
            alpha = int(pixels[y, x, 3])
            for c in range(3):
                mixed = (alpha * int(pixels[y, x, c]) + (255 - alpha) * board) / 255
                assert picture.pixels[y, x, c] == math.floor(mixed + 1e-9)


def test_colour_under_full_transparency_does_not_bleed() -> None:
    hidden = [np.zeros((16, 7400, 4), np.uint8) for _ in range(2)]
    for pixels, colour in zip(hidden, (0, 255), strict=True):
        pixels[:, ::2] = (colour, colour, colour, 0)
        pixels[:, 1::2] = (10, 200, 30, 255)
    one, other = (read_image(encoded(pixels)).pixels for pixels in hidden)
    assert np.array_equal(one, other)


@pytest.mark.parametrize(
    ("pixels", "level"),
    [
        (np.full((20, 20), 77, np.uint8), 77),
        (np.full((20, 20), 77 * 256 + 200, np.uint16), 77),
    ],
    ids=["grey", "sixteen bits"],
)
def test_grey_images(pixels: np.ndarray, level: int) -> None:
    assert set(read_image(encoded(pixels)).pixels.ravel()) == {level}


def test_the_first_frame_of_several_and_a_palette_with_transparency() -> None:
    file = io.BytesIO()
    first = PIL.Image.new("RGB", (20, 20), (255, 0, 0))
    first.save(file, "GIF", save_all=True, append_images=[PIL.Image.new("RGB", (20, 20))])
    assert set(map(tuple, read_image(file.getvalue()).pixels.reshape(-1, 3))) == {(255, 0, 0)}
    file = io.BytesIO()
    PIL.Image.new("P", (8, 8), 0).save(file, "PNG", transparency=b"\0")
    assert set(read_image(file.getvalue()).pixels.ravel()) == {255}


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "image"}, "no `image_url`"),
        ({"image_url": {"url": 3}}, "no `image_url`"),
        ({"image_url": {"url": "https://example.com/a.png"}}, "nothing is fetched"),
        ({"image_url": "data:image/png"}, "only data: URLs"),
        ({"image_url": "data:image/png;base64,AA=B!"}, "not base64"),
        ({"image_url": "data:text/plain,hello"}, "no sound PNG, JPEG, WEBP, GIF file"),
        ({"image_url": "data:image/svg+xml,<svg/>"}, "no sound PNG"),
    ],
)
def test_what_is_no_image_is_named(part: dict[str, Any], message: str) -> None:
    with pytest.raises(ImageError, match=message):
        read_part(part)


def test_every_cut_of_a_file_is_refused_or_read_whole() -> None:
    data = encoded(np.random.default_rng(3).integers(0, 256, (20, 20, 3), dtype=np.uint8))
    wanted, refused = read_image(data).pixels, 0
    for end in range(0, len(data), 7):
        try:
            assert np.array_equal(read_image(data[:end]).pixels, wanted)
        except ImageError:
            refused += 1
    assert refused >= (len(data) - 24) // 7  # only checksums and the empty last chunk can miss


def test_a_file_that_claims_to_be_huge_is_refused_unread() -> None:
    data = bytearray(encoded(noise(30, 30)))
    import zlib

    data[16:24] = (60_000).to_bytes(4) + (60_000).to_bytes(4)
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4)
    with pytest.raises(ImageError, match="more than 80,000,000 pixels"):
        read_image(bytes(data))


# --- through the engine ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def seeing(
    tmp_path_factory: pytest.TempPathFactory,
    make_config: Any,
    make_model: Any,
    small_vision: dict[str, Any],
    ranks: dict[bytes, int],
    tokenizer: Tokenizer,
) -> tuple[Path, K3]:
    """A checkpoint of a small model with a vision tower, and the model."""
    folder = tmp_path_factory.mktemp("seeing")
    document = make_config(vocab_size=tokenizer.vocab_size).to_dict()
    config = K3Config.from_dict(
        document
        | {
            "vision_config": small_vision,
            "eos_token_id": tokenizer.end_of_msg_id,
            "media_placeholder_token_id": tokenizer.media_pad_id,
        }
    )
    model = make_model(config)
    save_model(model, folder)
    write_ranks(sorted(ranks, key=ranks.__getitem__), folder / "tiktoken.model")
    return folder, model


@torch.no_grad()
def say(model: K3, tokenizer: Tokenizer, messages: list[Any], count: int) -> list[int]:
    """The likeliest tokens, each from a forward pass over everything: no engine, no state."""
    prompt, images, _ = prepare(ChatRequest(messages), tokenizer, 4096, sees=True)
    patches = torch.cat([image.picture.patches() for image in images])
    features = model.mm_projector(
        model.vision_tower(patches, [image.picture.grid for image in images])
    )
    tokens = list(prompt)
    for _ in range(count):
        logits = model(torch.tensor(tokens), image_features=features)[-1]
        tokens.append(int(logits[: tokenizer.vocab_size].argmax()))
    return tokens[len(prompt) :]


def test_images_take_their_place_in_a_prompt(tokenizer: Tokenizer) -> None:
    first, second = (image_part(encoded(noise(h, 60))) for h in (30, 90))
    call = {"type": "function", "function": {"name": "read", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "tool_calls": [call | {"id": "a"}, call | {"id": "b"}]},
        # Results are put in the order of their calls; their images go along.
        {"role": "tool", "tool_call_id": "b", "content": [second]},
        {"role": "tool", "tool_call_id": "a", "content": [first]},
    ]
    prompt, images, _ = prepare(ChatRequest(messages), tokenizer, 4096, sees=True)
    assert [image.picture.height for image in images] == [30, 90]
    for image in images:
        text = tokenizer.decode(prompt[image.start : image.end])
        pads = "<|media_pad|>" * image.picture.tokens
        size = f"60x{image.picture.height}"
        assert text == f"<|media_begin|>image {size}<|media_content|>{pads}<|media_end|>"
        assert prompt[image.first : image.first + image.picture.tokens] == (
            [tokenizer.media_pad_id] * image.picture.tokens
        )
    assert prompt.count(tokenizer.media_pad_id) == sum(i.picture.tokens for i in images)


def test_a_bad_image_is_named_by_its_place(tokenizer: Tokenizer) -> None:
    request = ChatRequest([user("look"), user("at", image_part(b"nothing"))])
    with pytest.raises(RequestError, match=r"messages\[1\]: content\[1\]: the image: it is no"):
        prepare(request, tokenizer, 4096, sees=True)


def test_over_http_images_are_seen_and_told_apart(
    seeing: tuple[Path, K3], tokenizer: Tokenizer, over_http: Any, tmp_path: Path
) -> None:
    folder, model = seeing
    pictures = [image_part(encoded(noise(100, 200, seed=seed))) for seed in range(2)]
    talks = [[user("What?", picture)] for picture in pictures]
    wanted = [say(model, tokenizer, talk, 2) for talk in talks]
    assert wanted[0] != wanted[1]

    def ask(served: Any, talk: list[Any]) -> tuple[str, int]:
        body = {"model": "k3-test", "messages": talk, "temperature": 0, "max_tokens": 2}
        answer = served.post(body).json()
        said = answer["choices"][0]["message"]["reasoning_content"]
        return said, answer["usage"]["cached_tokens"]

    engine, own = open_engine(folder, states=tmp_path / "states")
    engine._prefill_span = 20  # shorter than an image's 32 tokens
    served = over_http(engine, own)
    try:
        said = [ask(served, talk) for talk in talks]
        again = ask(served, talks[0])
    finally:
        served.close()
    assert [text for text, _ in said] == [own.decode(tokens) for tokens in wanted]
    assert said[1][1] < again[1]  # the two begin alike, and part where the image begins
    assert again[0] == said[0][0]
    assert len(entries(tmp_path / "states")) >= 4

    served = over_http(*open_engine(folder, states=tmp_path / "states"))
    try:  # begins at a state that the first engine stored
        assert ask(served, talks[1]) == (said[1][0], again[1])
    finally:
        served.close()


def test_a_second_turn_does_not_look_again(
    seeing: tuple[Path, K3], tokenizer: Tokenizer, over_http: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = seeing
    looked: list[tuple[int, int, int]] = []
    see = K3.see

    def counted(self: K3, patches: torch.Tensor, grid: tuple[int, int, int]) -> torch.Tensor:
        looked.append(grid)
        return see(self, patches, grid)

    monkeypatch.setattr(K3, "see", counted)
    engine, own = open_engine(folder)
    served = over_http(engine, own)
    try:
        talk = [user("one", image_part(encoded(noise(30, 60))))]
        for more in ("two", "three"):
            body = {"model": "k3-test", "messages": talk, "temperature": 0, "max_tokens": 2}
            assert served.post(body).status_code == 200
            talk = [*talk, user(more)]
        body["messages"] = [*talk, user(image_part(encoded(noise(90, 30))))]
        assert served.post(body).status_code == 200
    finally:
        served.close()
    assert looked == [(1, 4, 6), (1, 8, 4)]


def test_an_image_on_the_command_line(
    seeing: tuple[Path, K3],
    tokenizer: Tokenizer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, model = seeing
    data = encoded(noise(50, 90))
    (tmp_path / "a.png").write_bytes(data)
    words = ["model", "chat", "--weights", str(folder), "--no-states", "--temperature", "0"]
    words += [
        "--max-tokens",
        "2",
        "--image",
        str(tmp_path / "a.png"),
        "--prompt",
        "What?",
        "--json",
    ]
    assert main(words) == 0
    reasoning = json.loads(capsys.readouterr().out)["message"]["reasoning_content"]
    said = say(model, tokenizer, [user(image_part(data), "What?")], 2)
    assert reasoning == tokenizer.decode(said)


def test_a_model_without_a_tower_refuses_in_plain_words(checkpoint: Path, over_http: Any) -> None:
    served = over_http(*open_engine(checkpoint))
    try:
        body = {"model": "k3-test", "messages": [user("What?", image_part(encoded(noise(9, 9))))]}
        answer = served.post(body)
    finally:
        served.close()
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert message == "messages[0]: content[1] is an image; this model reads text only"


def test_a_vocabulary_with_another_placeholder_is_refused(
    seeing: tuple[Path, K3], tmp_path: Path
) -> None:
    folder, model = seeing
    other = model.config.model_copy(update={"media_placeholder_token_id": 7})
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "config.json").unlink()
    other.save(tmp_path)
    with pytest.raises(ConfigError, match="media_placeholder_token_id is 7"):
        open_engine(tmp_path)
