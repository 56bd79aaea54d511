"""Bytes of a file as text: which encoding, which line endings, and how to show them faithfully.

Nothing here rewrites a file. An encoding is certain when the bytes prove it (a BOM, valid UTF-8)
and guessed otherwise; bytes that do not decode are shown as `\\xE9`, never as U+FFFD.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

_BOMS = (  # the four bytes of UTF-32LE begin like those of UTF-16LE, so the longer come first
    (codecs.BOM_UTF32_LE, "utf-32-le", "UTF-32LE with BOM"),
    (codecs.BOM_UTF32_BE, "utf-32-be", "UTF-32BE with BOM"),
    (codecs.BOM_UTF8, "utf-8", "UTF-8 with BOM"),
    (codecs.BOM_UTF16_LE, "utf-16-le", "UTF-16LE with BOM"),
    (codecs.BOM_UTF16_BE, "utf-16-be", "UTF-16BE with BOM"),
)

# In order of preference when the bytes fit several equally well.
_LEGACY = {
    "cp1252": "CP1252",
    "gb18030": "GBK",
    "cp932": "Shift-JIS",
    "euc_jp": "EUC-JP",
    "euc_kr": "EUC-KR",
    "big5": "Big5",
    "cp1251": "CP1251",
    "koi8_r": "KOI8-R",
    "cp1250": "CP1250",
}
_SAMPLE_BYTES = 64 * 1024
_ALIKE = 0.05
"""Two proposals whose measured disorder differs by less cannot be told apart."""

_FEW = 4
"""Fewer bytes beyond ASCII say nothing about the encoding."""

_CONTROLS = bytes(set(range(32)) - set(b"\t\n\r\f\b\x1b")) + b"\x7f"
_HIGH = re.compile(rb"[\x80-\xff]")
_SPACE = re.compile(rb"[ \n]")
_BESIDE = 200
_MULTIBYTE = re.compile(
    rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}"
)


@dataclass(frozen=True)
class Encoding:
    """How a file's bytes stand for text."""

    codec: str
    """Python's name of the codec, without BOM handling."""
    label: str
    """For people."""
    bom: bytes = b""
    """Kept at the start of the file and never part of its text."""
    guessed: bool = False
    """The bytes fit, but do not prove it."""
    rivals: tuple[str, ...] = ()
    """Codecs that fit as well as this guess."""
    damaged: bool = False
    """Some bytes do not decode; they are shown as `\\xE9`."""

    @property
    def lf(self) -> bytes:
        """A line feed in this encoding."""
        return "\n".encode(self.codec)

    @property
    def cr(self) -> bytes:
        """A carriage return in this encoding."""
        return "\r".encode(self.codec)

    @property
    def unit(self) -> int:
        """Bytes of one code unit; every character starts at a multiple of it."""
        return len(self.lf)

    def decode(self, data: bytes) -> str:
        """Text of a part of a file (BOM already left out), with escapes for what is no text."""
        return data.decode(self.codec, "unabridged-escape")

    def encode(self, text: str) -> bytes:
        """Bytes of a text. Raises UnicodeEncodeError when a character does not exist here."""
        return text.encode(self.codec)

    def doubt(self, added: str) -> str:
        """Why characters that are new in the file cannot be written; empty when they can.

        Bytes that the file holds already are right in any case; only new ones rest on the guess.
        """
        for char in sorted(set(added)):
            if char.isascii():
                continue
            if self.damaged:
                return f"the file holds bytes that are not {self.codec.upper()}"
            for rival in self.rivals:
                if char.encode(self.codec).decode(rival, "replace") != char:
                    return f"{char!r} is written differently in {self.label} and {rival}"
        return ""


UTF8 = Encoding("utf-8", "UTF-8")


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    wrong = error.object[error.start : error.end]
    return "".join(f"\\x{byte:02X}" for byte in wrong), error.end


codecs.register_error("unabridged-escape", _escape)


def detect(data: bytes) -> Encoding | None:
    """Encoding of a whole file's bytes, or None when they are not text."""
    for bom, codec, label in _BOMS:
        if data.startswith(bom):
            return Encoding(codec, label, bom, damaged=not _decodes(data[len(bom) :], codec))
    if b"\0" in data:
        return _utf16_without_bom(data)
    if _decodes(data, "utf-8"):
        return UTF8
    if _is_binary(data):
        return None
    return _legacy(data) or Encoding("utf-8", "UTF-8 with bytes that are not UTF-8", damaged=True)


def _decodes(data: bytes, codec: str) -> bool:
    try:
        data.decode(codec)
    except UnicodeDecodeError:
        return False
    return True


def _is_binary(data: bytes) -> bool:
    """More than one byte in twenty is a control character that no text has."""
    sample = data[:_SAMPLE_BYTES]
    return len(sample) - len(sample.translate(None, _CONTROLS)) > len(sample) / 20


def _utf16_without_bom(data: bytes) -> Encoding | None:
    """Printable text of which at least one character in eight is ASCII, half of it NUL."""
    if len(data) % 2:
        return None
    nul_first, nul_second = data[::2].count(0), data[1::2].count(0)
    codec, label = (
        ("utf-16-le", "UTF-16LE") if nul_second > nul_first else ("utf-16-be", "UTF-16BE")
    )
    if max(nul_first, nul_second) * 16 < len(data) or not _decodes(data, codec):
        return None
    if all(char.isprintable() or char in "\t\n\r\f\u3000" for char in data.decode(codec)):
        return Encoding(codec, f"{label} without BOM", guessed=True)
    return None


def _legacy(data: bytes) -> Encoding | None:
    """A proposal for bytes that are neither UTF-8 nor UTF-16, if one fits every byte."""
    sample = _sample(data)
    wrong = _MULTIBYTE.sub(b"", sample).translate(None, bytes(range(128)))
    if sum(1 for _ in _MULTIBYTE.finditer(sample)) > len(wrong):
        return None  # UTF-8 with a few wrong bytes, not another encoding
    from charset_normalizer import from_bytes  # costs 50 ms, seldom needed

    found: dict[str, float] = {}
    for match in from_bytes(sample, cp_isolation=list(_LEGACY), enable_fallback=False):
        for codec in match.could_be_from_charset:
            if codec in _LEGACY and _decodes(data, codec):
                found.setdefault(codec, round(match.chaos, 3))
    if "cp1252" in found:
        found.pop("cp1250", None)  # the same letters for the most part, and far rarer
    order = list(_LEGACY)
    ranked = sorted(found, key=lambda codec: (found[codec], order.index(codec)))
    if not ranked:
        return None
    best, *others = ranked
    label = _LEGACY[best]
    if best == "cp1252" and not re.search(rb"[\x80-\x9f]", data):
        best, label = "latin-1", "Latin-1"
    least = found[ranked[0]]
    if len(data.translate(None, bytes(range(128)))) < _FEW:
        others = [codec for codec in order if codec != ranked[0] and _decodes(data, codec)]
        return Encoding(best, label, guessed=True, rivals=tuple(others))
    rivals = tuple(codec for codec in others if found[codec] - least < _ALIKE)
    return Encoding(best, label, guessed=True, rivals=rivals)


def _sample(data: bytes) -> bytes:
    """Different pieces of lines that hold bytes beyond ASCII: what tells encodings apart."""
    pieces: dict[bytes, None] = {}
    size = at = 0
    while size < _SAMPLE_BYTES and (high := _HIGH.search(data, at)):
        start = max(at, data.rfind(b"\n", at, high.start()) + 1, high.start() - _BESIDE)
        # No byte of a longer character is a space or a line feed, so none is cut in half.
        rest = _SPACE.search(data, high.end() + _BESIDE)
        newline = data.find(b"\n", high.end(), rest.start() if rest else len(data))
        at = newline if newline >= 0 else rest.start() if rest else len(data)
        piece = data[start:at][:_SAMPLE_BYTES]
        size += len(piece) if piece not in pieces else 1
        pieces[piece] = None
    return b"\n".join(pieces)


@dataclass(frozen=True)
class Endings:
    """How the lines of a text end."""

    lf: int
    crlf: int
    cr: int
    final: bool
    """Whether the last line has an ending (true for an empty text)."""

    @property
    def separator(self) -> str:
        """What separates lines when they are numbered: a lone CR only where there is no LF."""
        return "\r" if self.cr and not self.lf and not self.crlf else "\n"

    @property
    def mixed(self) -> bool:
        """Whether lines end in different ways."""
        return (self.lf > 0) + (self.crlf > 0) + (self.cr > 0) > 1

    @property
    def only(self) -> str | None:
        """The ending of every line, or None when there is none or more than one."""
        if self.mixed:
            return None
        return "\n" if self.lf else "\r\n" if self.crlf else "\r" if self.cr else None

    def describe(self) -> str:
        """For people: `LF`, `CRLF`, `CR`, `no line ending` or what is mixed."""
        counts = {"LF": self.lf, "CRLF": self.crlf, "CR": self.cr}
        kinds = [f"{count} {kind}" for kind, count in counts.items() if count]
        if self.mixed:
            return f"mixed line endings ({', '.join(kinds)})"
        return f"{kinds[0].split()[1]} line endings" if kinds else "no line ending"


def endings(text: str) -> Endings:
    """Count the line endings of a text."""
    crlf = text.count("\r\n")
    return Endings(
        lf=text.count("\n") - crlf,
        crlf=crlf,
        cr=text.count("\r") - crlf,
        final=not text or text[-1] in "\r\n",
    )


def line_separator(data: bytes, encoding: Encoding) -> str:
    """`Endings.separator` of a whole file, without decoding it where that is not needed."""
    if encoding.unit == 1:
        return "\n" if b"\n" in data or b"\r" not in data else "\r"
    return endings(encoding.decode(data[len(encoding.bom) :])).separator


def count_separators(data: bytes, start: int, end: int, encoding: Encoding, separator: str) -> int:
    """Number of line separators in a part of a file that begins and ends between characters."""
    if encoding.unit == 1:
        return data.count(separator.encode(), start, end)
    return encoding.decode(data[start:end]).count(separator)


def split_lines(text: str, separator: str) -> list[str]:
    """Lines with their endings; only `separator` ends a line."""
    lines = [line + separator for line in text.split(separator)]
    lines[-1] = lines[-1][: -len(separator)]
    return lines if lines[-1] else lines[:-1]


def bare(line: str) -> str:
    """A line without its ending, a carriage return inside it shown as `\\r`."""
    return line.removesuffix("\n").removesuffix("\r").replace("\r", "\\r")


def numbered(lines: list[str], first: int) -> str:
    """Lines with their numbers from `first`, a tab between."""
    return "\n".join(f"{number:>6}\t{bare(line)}" for number, line in enumerate(lines, first))


def plural(count: int, one: str, many: str = "") -> str:
    """`1 line`, `2 lines`, `3,000 matches`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
