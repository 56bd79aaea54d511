"""Images: from what a client sends to the patches that the vision tower reads.

An image is scaled down until its patches fit the tower (never up), set on a chessboard where it
is transparent, padded to whole tokens with black, and cut into 14 x 14 patches. A token stands
for two by two patches. Only `data:` URLs are read: nothing is fetched.

Source: the released preprocessor's constants; Kimi K3 report, section 2.4.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import math
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes

from .chat.xtml import Image

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image as Pixels
    from torch import Tensor

PATCH: Final = 14
TOKEN: Final = 2 * PATCH
"""Side of the square that one token stands for, in pixels."""
MAX_PATCHES: Final = 65_536
"""Patches of one image, before two by two become a token."""
MAX_SIDE: Final = 512 * PATCH
"""Longest side after scaling, in pixels: the tower's positions end there."""
FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF")
MAX_PIXELS: Final = 80_000_000
"""Of an image as sent; a small file can claim to be larger than memory."""

_SQUARE = 8  # the chessboard under transparent images, in pixels of the scaled image
_LIGHT, _DARK = 255, 180


class ImageError(ValueError):
    """An image that cannot be read; the message says why."""


@dataclass(frozen=True, slots=True)
class Picture(Image):
    """An image of a conversation, ready for the tower."""

    pixels: np.ndarray
    """uint8 [height, width, 3], scaled, not padded."""
    digest: bytes
    """SHA-256 of what the tower will see and of the size as sent."""

    @property
    def grid(self) -> tuple[int, int, int]:
        """Frames (one), rows and columns of patches."""
        height, width, _ = self.pixels.shape
        return 1, _padded(height) // PATCH, _padded(width) // PATCH

    def patches(self) -> Tensor:
        """What the tower reads, float32 [rows columns, 3, 14, 14], row by row, within -1 ... 1."""
        import torch
        from torch.nn import functional as F

        height, width, _ = self.pixels.shape
        _, rows, columns = self.grid
        below, right = rows * PATCH - height, columns * PATCH - width
        plane = F.pad(torch.from_numpy(self.pixels), (0, 0, 0, right, 0, below))
        cut = plane.view(rows, PATCH, columns, PATCH, 3).permute(0, 2, 4, 1, 3)
        return (cut.reshape(-1, 3, PATCH, PATCH).float() / 255 - 0.5) / 0.5

    def words(self, count: int) -> list[int]:
        """Numbers that stand for this very image where tokens name a prefix; none is a token id."""
        drawn = array("I", hashlib.shake_256(self.digest).digest(4 * count))
        return [word | 1 << 31 for word in drawn]


def read_part(part: Any) -> Picture:
    """The image of a message's part in OpenAI's form: `{"image_url": {"url": "data:..."}}`.

    Raises `ImageError`.
    """
    source = part.get("image_url") if isinstance(part, dict) else None
    url = source.get("url") if isinstance(source, dict) else source
    if not isinstance(url, str):
        raise ImageError("it has no `image_url` with a `url`")
    return read_image(_from_data_url(url))


def read_image(data: bytes) -> Picture:
    """Read a PNG, JPEG, WebP or GIF file, of the last its first frame. Raises `ImageError`."""
    import numpy as np
    import PIL.Image

    try:
        with PIL.Image.open(io.BytesIO(data), formats=FORMATS) as file:
            width, height = file.size
            if width * height > MAX_PIXELS:
                raise PIL.Image.DecompressionBombError
            size = scaled_size(width, height)
            pixels = _flat(_eight_bits(file).resize(size, PIL.Image.Resampling.BICUBIC))
    except PIL.Image.DecompressionBombError as error:
        raise ImageError(f"it has more than {MAX_PIXELS:,} pixels") from error
    except (OSError, SyntaxError, ValueError) as error:
        told = f": {error}" if not isinstance(error, PIL.UnidentifiedImageError) else ""
        raise ImageError(f"it is no sound {', '.join(FORMATS)} file{told}") from error
    told = np.array([width, height, *pixels.shape[:2]], "<u8").tobytes()
    tokens = _padded(size[0]) // TOKEN * (_padded(size[1]) // TOKEN)
    digest = hashlib.sha256(told + pixels.tobytes()).digest()
    return Picture(width, height, tokens, pixels, digest)


def scaled_size(width: int, height: int) -> tuple[int, int]:
    """Width and height at which the tower reads an image, before padding."""
    patches = max(1, width // PATCH) * max(1, height // PATCH)
    scale = min(1.0, math.sqrt(MAX_PATCHES / patches), MAX_SIDE / width, MAX_SIDE / height)
    return (
        min(max(1, int(width * scale)), MAX_SIDE),
        min(max(1, int(height * scale)), MAX_SIDE),
    )


def _padded(side: int) -> int:
    return -(-side // TOKEN) * TOKEN


def _eight_bits(file: Pixels) -> Pixels:
    """RGB, or RGBA where something is transparent. PIL then scales colours times their alpha."""
    import numpy as np
    import PIL.Image

    if file.mode.startswith("I"):  # 16-bit grey, which PIL would clip rather than scale
        return PIL.Image.fromarray((np.asarray(file) >> 8).astype(np.uint8)).convert("RGB")
    return file.convert("RGBA" if file.has_transparency_data else "RGB")


def _flat(image: Pixels) -> np.ndarray:
    """uint8 [height, width, 3]; transparent parts over the chessboard, rounded down."""
    import numpy as np

    pixels = np.array(image)
    if image.mode == "RGB":
        return pixels
    height, width, _ = pixels.shape
    odd = (np.arange(height)[:, None] // _SQUARE + np.arange(width) // _SQUARE) % 2
    board = np.where(odd, _DARK, _LIGHT)[..., None]
    colour, alpha = pixels[..., :3].astype(np.int64), pixels[..., 3:].astype(np.int64)
    return ((alpha * colour + (255 - alpha) * board) // 255).astype(np.uint8)


def _from_data_url(url: str) -> bytes:
    head, comma, body = url.partition(",")
    if not head.lower().startswith("data:") or not comma:
        raise ImageError("only data: URLs are read here; nothing is fetched")
    if not head.lower().endswith(";base64"):
        return unquote_to_bytes(body)
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error as error:
        raise ImageError(f"its data: URL is not base64 ({error})") from None
