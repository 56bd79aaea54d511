"""XTML, the markup K3 reads and writes: elements whose brackets are control tokens.

    <|open|>tag key="value"<|sep|> … <|close|>tag<|sep|>

A conversation is rendered to segments, and each segment is encoded **on its own**: control
segments may become reserved ids, all others are ordinary text. So nothing a user, a file or a
tool wrote can forge structure, and an attribute is four encodings (` key`, `="`, `value`, `"`)
because joining them would give other ids than the ones K3 was trained on.
(Specification, sections 11.2 and 11.3.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .tokenizer import CLOSE, END_OF_MSG, OPEN, SEP, Tokenizer


class XtmlError(ValueError):
    """A conversation that XTML cannot express; the message names the field."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image of the conversation: its original size in pixels and how many tokens it takes."""

    width: int
    height: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a prompt that is encoded on its own."""

    text: str
    control: bool = False
    """Markup: names of control tokens in `text` become those tokens."""
    generated: bool = False
    """The model writes this itself after the generation prefix: the mask of a training loss."""
    image: Image | None = None
    """The image that this segment is the place of."""


@dataclass(frozen=True, slots=True)
class Tag:
    """What stands between `<|open|>` or `<|close|>` and `<|sep|>`."""

    name: str
    attributes: dict[str, str]


def open_tag(name: str, *attributes: tuple[str, str | int]) -> list[Segment]:
    """Segments of `<|open|>name key="value" …<|sep|>`."""
    segments = [Segment(OPEN, control=True), Segment(name)]
    for key, value in attributes:
        segments += [Segment(f" {key}"), Segment('="')]
        segments += text(escape(str(value)))
        segments.append(Segment('"'))
    segments.append(Segment(SEP, control=True))
    return segments


def close_tag(name: str) -> list[Segment]:
    """Segments of `<|close|>name<|sep|>`."""
    return [Segment(CLOSE, control=True), Segment(name), Segment(SEP, control=True)]


def end_of_message() -> list[Segment]:
    """Segments of `<|close|>message<|sep|><|end_of_msg|>`."""
    return [*close_tag("message"), Segment(END_OF_MSG, control=True)]


def text(value: str) -> list[Segment]:
    """One ordinary segment, or none for the empty text."""
    return [Segment(value)] if value else []


def escape(value: str) -> str:
    """Attribute escaping; `<` and `>` are literal because brackets are tokens here."""
    return value.replace("&", "&amp;").replace('"', "&quot;")


def unescape(value: str) -> str:
    """The reverse of `escape`."""
    return value.replace("&quot;", '"').replace("&amp;", "&")


_TAG = re.compile(r'([a-z]+)((?: [^\s="]+="[^"]*")*)')
_ATTRIBUTE = re.compile(r' ([^\s="]+)="([^"]*)"')


def read_tag(source: str) -> Tag | None:
    """Read the text of a tag; None when it is not one (an attribute given twice included)."""
    match = _TAG.fullmatch(source)
    if match is None:
        return None
    pairs = _ATTRIBUTE.findall(match[2])
    attributes = {key: unescape(value) for key, value in pairs}
    return Tag(match[1], attributes) if len(attributes) == len(pairs) else None


def encode(segments: Iterable[Segment], tokenizer: Tokenizer) -> list[int]:
    """Token ids of a rendered conversation. There is no `[BOS]`."""
    return encode_with_mask(segments, tokenizer)[0]


def encode_with_mask(
    segments: Iterable[Segment], tokenizer: Tokenizer
) -> tuple[list[int], list[bool]]:
    """Token ids, and for each whether the model is to write it (see `Segment.generated`)."""
    tokens: list[int] = []
    mask: list[bool] = []
    for segment in segments:
        encode_piece = tokenizer.encode_control if segment.control else tokenizer.encode
        piece = encode_piece(segment.text)
        tokens += piece
        mask += [segment.generated] * len(piece)
    return tokens, mask
