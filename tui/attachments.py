"""What a message is made of: its words, and the images that they name."""

from __future__ import annotations

from pathlib import Path

from ..agent.events import ImagePart, Part, TextPart
from ..agent.run_cli import read_image

IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tiff", ".heic")
"""What is taken for an image by its name; which of them can be sent, their bytes decide."""


def parts_of(text: str, root: Path) -> tuple[Part, ...]:
    """The parts of a message. Raises ConfigError for an image that cannot be sent."""
    images: list[ImagePart] = []
    for word in text.split():
        name = word.removeprefix("@").strip("'\"")
        if name.lower().endswith(IMAGES):
            path = root / Path(name).expanduser()
            if path.is_file():
                images.append(read_image(path))
    return (TextPart(text=text), *images)
