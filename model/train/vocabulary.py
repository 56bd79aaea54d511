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

from collections.abc import Iterable

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
