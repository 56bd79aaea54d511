"""Text of models, tools and files, made safe to show. It is data: nothing in it acts."""

from __future__ import annotations

import re

from rich.cells import cell_len, chop_cells

# CSI, OSC (ended by BEL or ST), and the other escapes of terminals.
_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[PX^_][^\x1b]*\x1b\\|\x1b[@-Z\\-_]"
)
_JOINER = "\u200d"


def safe(text: str) -> str:
    """Printable text: what a terminal would obey is spelled out, `\\x1b` for an escape.

    Newlines stay, tabs become spaces. Invisible and reordering characters are spelled out as well,
    so that what a person approves is what they see.
    """
    if text.isascii() and text.isprintable():
        return text
    text = text.replace("\r\n", "\n").expandtabs(4)
    if text.replace("\n", "").isprintable():
        return text
    return "".join(map(_shown, text))


def _shown(char: str) -> str:
    if char == "\n" or char == _JOINER or char.isprintable():
        return char
    code = ord(char)
    return (
        f"\\x{code:02x}"
        if code < 0x100
        else f"\\u{code:04x}"
        if code < 0x10000
        else f"\\U{code:08x}"
    )


def plain(output: str) -> str:
    """Output of a command: colours and cursor movements left out, the rest `safe`.

    A carriage return starts its line anew, as progress bars want it.
    """
    text = _SEQUENCE.sub("", output).replace("\r\n", "\n")
    if "\r" in text:
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return safe(text)


def one_line(text: str, width: int) -> str:
    """The text in one line of at most `width` cells."""
    flat = " ".join(safe(text[: width * 8]).split())
    if cell_len(flat) <= width:
        return flat
    return chop_cells(flat, max(width - 1, 1))[0].rstrip() + "…"


def count(number: int) -> str:
    """A count in few characters: 950, 12.3k, 1.05M."""
    if number < 1000:
        return str(number)
    if number < 999_950:
        return f"{number / 1000:.1f}k"
    return f"{number / 1e6:.2f}M"


def duration(seconds: float) -> str:
    """Seconds for a person: 0.4 s, 12 s, 3 min 5 s."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def money(usd: float | None) -> str:
    """US dollars; `no price` where it is not known."""
    if usd is None:
        return "no price"
    return f"${usd:.4f}" if usd < 0.1 else f"${usd:.2f}"


def several(number: int, what: str) -> str:
    """A number of things: 1 file, 12 files."""
    return f"{number:,} {what}{'s' * (number != 1)}"
