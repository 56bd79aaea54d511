"""A small byte-pair vocabulary in which a name is the same tokens wherever it stands.

K3's pre-tokeniser joins a word with the one character before it, so ` total`, `"total` and
`/total` could become three different tokens, and copying a name from code into an argument would
mean translating it. Here no token mixes letters with anything else: a word is cut into the same
pieces after a space, a quote, a slash or an underscore. The exception is a short list of words
that code and prose are full of and names hardly begin with; they take their space along. Digits
stand alone.

The result is an ordinary `tiktoken.model`: `model.chat.tokenizer` reads it and knows nothing of
this.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from ..chat.render import render
from ..chat.tokenizer import write_ranks
from . import copying

SPACED = (
    "role", "key", "type", "tool", "index", "and", "def", "path", "return", "self", "tests",
    "file", "what", "call", "unittest", "import", "text", "more", "this", "data", "never",
    "holds", "says", "files", "numbers", "above", "stands", "with", "mean", "lines", "pass",
    "than", "occurrence", "repository", "things", "that", "finish", "user", "here", "task",
    "whole", "agent", "only", "work", "instructions", "reach", "small", "coding", "asks",
    "command", "output", "changing", "propose", "then", "follows", "when", "session", "began",
    "Each", "exactly", "declares", "gives", "manifest", "Later", "changes", "yours", "others",
    "results", "notes", "they", "outrank", "these", "frames", "instruction", "whatever", "bytes",
    "ignores", "mentioned", "code", "matching", "first", "plus", "times", "value", "comes",
    "most", "item", "False", "True", "None", "class", "from", "else", "elif", "assert", "raise",
    "right", "values", "entries", "least", "items", "default", "within", "approved",
    "occurrences", "Stay", "Where", "Now",
)  # fmt: skip
"""Words that may carry the space before them: of the chat format, of Python, of the harness."""

# What a token may hold, in the terms of K3's own pre-tokeniser: letters of one word (upper case,
# then lower), one digit, a run of blanks, line ends or marks. Underscores and slashes, which stand
# inside names and paths, join nothing but themselves; `.py` ends so many paths that it is one.
_PIECES = "|".join(
    (
        r"\p{Lu}*\p{Ll}+|\p{Lu}+|\p{L}+",
        r"\p{N}",
        r"_+|/|\.py(?!\p{L})",
        r" ?[^\s\p{L}\p{N}_/]+[\r\n]*",
        r"\s*[\r\n]+|\s+(?!\S)|\s",
    )
)


def learn(texts: Iterable[str], size: int) -> list[bytes]:
    """The tokens in rank order: the 256 bytes, the merges, last the words with a space.

    Args:
        texts: what the model will read.
        size: the most tokens, without the 256 reserved ids that `Tokenizer` adds.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(SPACED),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    ids = tokenizer.get_vocab()
    byte_of = _bytes_of_characters()
    tokens = [bytes(byte_of[c] for c in token) for token in sorted(ids, key=ids.__getitem__)]
    single = sorted(token for token in tokens if len(token) == 1)
    merged = [token for token in tokens if len(token) > 1]
    whole = set(merged)  # a word that is not one token cannot be merged with its space
    spaced = [b" " + word.encode() for word in SPACED if word.encode() in whole]
    return single + merged + spaced


def _bytes_of_characters() -> dict[str, int]:
    """Byte-level BPE writes each byte as a printable character; this is the way back."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(256 + n): byte for n, byte in enumerate(others)
    }


# --- the vocabulary of K3-nano -------------------------------------------------------------------

_FIXED_TIMES = 60
"""The tools, system text and preamble stand in every session, but are given once in the texts."""
_COPIES = 1500
_LIBRARY_FILES, _LIBRARY_CHARACTERS = 120, 30_000


def texts_of(files: Iterable[Path], per_file: int) -> Iterator[str]:
    """What K3-nano's vocabulary is learnt from: sessions, Python's library, and copying.

    Args:
        files: of sessions, see `corpus`.
        per_file: how many of each; long texts that came before are skipped.
    """
    seen: set[str] = set()
    fixed: list[str] = []
    for file in files:
        with file.open("rb") as lines:
            for line in islice(lines, per_file):
                session = json.loads(line)
                for segment in render(
                    session["messages"], tools=session["tools"], generation_prefix=False
                ):
                    text = segment.text
                    if segment.control or text in seen:
                        continue
                    if len(text) > 200:
                        seen.add(text)
                        if text.startswith(("# Tools", "<preamble>")) and len(fixed) < 2:
                            fixed.append(text)
                    yield text
    yield from fixed * _FIXED_TIMES
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:_LIBRARY_FILES]:
        yield path.read_bytes().decode("utf-8", "ignore")[:_LIBRARY_CHARACTERS]
    rng = random.Random(0)
    for _ in range(_COPIES):
        for kind in copying.TEXTS:
            yield "".join(part.text for part in kind(copying.Names(rng)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Learn a vocabulary from session files, as K3-nano's was."""
    parser = argparse.ArgumentParser(prog="vocabulary", description=main.__doc__)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="sessions, *.jsonl")
    parser.add_argument("--per-file", type=int, default=500, metavar="N")
    parser.add_argument("--size", type=int, default=1792, metavar="N")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    options = parser.parse_args(arguments)
    write_ranks(learn(texts_of(options.files, options.per_file), options.size), options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
