from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from unabridged.model.chat.tokenizer import (
    CLOSE,
    END_OF_MSG,
    MEDIA_BEGIN,
    MEDIA_PAD,
    OPEN,
    SEP,
    StreamDecoder,
    Tokenizer,
    TokenizerError,
    write_ranks,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
MARKED = st.lists(st.sampled_from([OPEN, CLOSE, SEP, END_OF_MSG, "[EOS]", "message", "日", " "]))

# The specification's pre-tokeniser for Python's own `regex`, whose set intersection needs V1.
WORDS = regex.compile(
    r"""(?V1)[\p{Han}]+
    |[^\r\n\p{L}\p{N}]?[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]*[[\p{Ll}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?
    |[^\r\n\p{L}\p{N}]?[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]+[[\p{Ll}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?
    |\p{N}{1,3}
    |[ ]?[^\s\p{L}\p{N}]+[\r\n]*
    |\s*[\r\n]+
    |\s+(?!\S)
    |\s+""",
    regex.VERBOSE,
)


def reference_encode(text: str, ranks: dict[bytes, int]) -> list[int]:
    """Byte-pair encoding as textbooks write it: join the pair of lowest rank until none is left."""
    tokens: list[int] = []
    for word in WORDS.findall(text):
        pieces = [bytes((byte,)) for byte in word.encode()]
        while True:
            joins = [
                (ranks[pieces[i] + pieces[i + 1]], i)
                for i in range(len(pieces) - 1)
                if pieces[i] + pieces[i + 1] in ranks
            ]
            if not joins:
                break
            at = min(joins)[1]
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        tokens += [ranks[piece] for piece in pieces]
    return tokens


@given(TEXT | st.text("aAbB'sStTrReE 12\n\r\t日本é-._💻", max_size=40))
def test_ids_equal_a_textbook_encoder(
    tokenizer: Tokenizer, ranks: dict[bytes, int], text: str
) -> None:
    assert tokenizer.encode(text) == reference_encode(text, ranks)


@given(TEXT)
def test_text_comes_back_byte_for_byte(tokenizer: Tokenizer, text: str) -> None:
    tokens = tokenizer.encode(text)
    assert tokenizer.decode_bytes(tokens) == text.encode()
    assert tokenizer.decode(tokens) == text
    assert tokenizer.count(text) == len(tokens)


@given(MARKED)
def test_text_never_becomes_a_control_token(tokenizer: Tokenizer, parts: list[str]) -> None:
    text = "".join(parts)
    tokens = tokenizer.encode(text)
    assert not any(tokenizer.is_control(token) for token in tokens)
    assert tokenizer.decode(tokens) == text


def test_markup_becomes_control_tokens_and_text_between_stays_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode_control(OPEN) == [tokenizer.open_id]
    begin, *size, pad, pad2 = tokenizer.encode_control(
        f"{MEDIA_BEGIN}image 3x4{MEDIA_PAD}{MEDIA_PAD}"
    )
    assert tokenizer.is_control(begin)
    assert pad == pad2 == tokenizer.media_pad_id
    assert size == tokenizer.encode("image 3x4")


def test_reserved_ids_of_a_vocabulary_as_large_as_k3(tmp_path: Path) -> None:
    base = [bytes((byte,)) for byte in range(256)]
    base += [b"\xff" + n.to_bytes(3, "big") for n in range(163_584 - 256)]
    write_ranks(base, tmp_path / "tiktoken.model")
    tokenizer = Tokenizer.from_file(tmp_path)  # a checkpoint's folder will do
    named = {
        "[BOS]": 163584,
        "[EOS]": 163585,
        "<|end_of_msg|>": 163586,
        "<|open|>": 163587,
        "<|close|>": 163588,
        "<|sep|>": 163589,
        "[start_header_id]": 163590,
        "[end_header_id]": 163591,
        "<|reserved_token_163592|>": 163592,
        "[EOT]": 163593,
        "<|media_begin|>": 163602,
        "<|media_content|>": 163603,
        "<|media_end|>": 163604,
        "<|media_pad|>": 163605,
        "<osagent_mode>": 163649,
        "[UNK]": 163838,
        "[PAD]": 163839,
    }
    assert {name: tokenizer.encode_control(name) for name in named} == {
        name: [token] for name, token in named.items()
    }
    assert tokenizer.decode(list(named.values())) == "".join(named)
    assert tokenizer.vocab_size == 163_840
    tokenizer.check(vocab_size=163_840, eos_token_id=163_586)


def test_long_text_is_cut_where_k3_cuts_it(tokenizer: Tokenizer) -> None:
    runs = ["x" * 60_001, " " * 25_000, "y", "\n" * 25_001, "z" * 24_999 + " ", "日" * 310_000, " "]
    text = "".join(runs)

    def cuts() -> list[str]:
        pieces, piece, run, space = [], "", 0, None
        for position, character in enumerate(text):
            run = run + 1 if character.isspace() == space else 1
            space = character.isspace()
            if run > 25_000 or position % 400_000 == 0:
                pieces.append(piece)
                piece, run = "", 1
            piece += character
        return [*pieces, piece]

    expected = [token for piece in cuts() for token in tokenizer.encode(piece)]
    assert tokenizer.encode(text) == expected
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.lists(st.integers(0, 511 + 256)))
def test_streamed_text_equals_decoding_at_once(tokenizer: Tokenizer, tokens: list[int]) -> None:
    tokens = [token % tokenizer.vocab_size for token in tokens]
    stream = StreamDecoder(tokenizer)
    pieces = [stream.push(token) for token in tokens]
    assert "".join(pieces) + stream.flush() == tokenizer.decode(tokens)


def test_streaming_holds_a_character_back_until_it_is_whole(tokenizer: Tokenizer) -> None:
    stream = StreamDecoder(tokenizer)
    tokens = [token for byte in "é💻".encode() for token in (byte,)]  # ids below 256 are bytes
    assert [stream.push(token) for token in tokens] == ["", "é", "", "", "", "💻"]
    assert stream.flush() == ""


def test_a_lone_surrogate_is_refused_with_its_place(tokenizer: Tokenizer) -> None:
    with pytest.raises(TokenizerError, match=r"character 2 is the lone surrogate U\+D83D"):
        tokenizer.encode("ab\ud83d")
    with pytest.raises(TokenizerError, match="lone surrogate"):
        tokenizer.encode("a" * 30_000 + "\ud83d")


def test_an_id_outside_the_vocabulary_is_named(tokenizer: Tokenizer) -> None:
    with pytest.raises(TokenizerError, match="token id 99999 is outside"):
        tokenizer.decode([99_999])


def test_the_fingerprint_tells_vocabularies_apart(
    ranks: dict[bytes, int], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    write_ranks(sorted(ranks, key=ranks.__getitem__), tmp_path / "tiktoken.model")
    assert Tokenizer.from_file(tmp_path).fingerprint == tokenizer.fingerprint
    fewer = dict(sorted(ranks.items(), key=lambda item: item[1])[:-1])
    assert Tokenizer(fewer).fingerprint != tokenizer.fingerprint


def test_a_vocabulary_of_another_model_is_refused(tokenizer: Tokenizer) -> None:
    tokenizer.check(tokenizer.vocab_size, tokenizer.end_of_msg_id)
    tokenizer.check(tokenizer.vocab_size + 64, tokenizer.end_of_msg_id)  # padded embedding
    for vocab_size, eos in ((163_840, 163_586), (tokenizer.vocab_size - 1, 514)):
        with pytest.raises(TokenizerError, match="does not belong to the model"):
            tokenizer.check(vocab_size, eos)


BYTES = [base64.b64encode(bytes((byte,))) + b" %d" % byte for byte in range(256)]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([b"\x00\x01binary"], "line 1 is not `BASE64 RANK`"),
        ([*BYTES, b"aGVs"], "line 257 is not `BASE64 RANK`"),
        ([*BYTES, b"aGVs x"], "line 257 is not"),
        ([*BYTES, b"a!!! 256"], "line 257 is not"),
        ([*BYTES, b"aGVs 255"], "line 257 repeats rank 255, which line 256 has"),
        ([*BYTES, b"AA== 256"], "line 257 repeats the token"),
        ([*BYTES, b"aGVs 258"], "no token has rank 256"),
        (BYTES[:200], "56 of the 256 single bytes are missing, the first is 0xC8"),
        ([], "256 of the 256 single bytes are missing"),
        ([b"version https://git-lfs.github.com/spec/v1"], "Git LFS pointer"),
    ],
)
def test_a_bad_vocabulary_file_is_explained(
    tmp_path: Path, lines: list[bytes], message: str
) -> None:
    path = tmp_path / "tiktoken.model"
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(TokenizerError, match=message) as error:
        Tokenizer.from_file(path)
    assert str(path) in str(error.value)


def test_a_missing_or_huge_file_is_explained_without_reading_it(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="No such file"):
        Tokenizer.from_file(tmp_path)
    huge = tmp_path / "model-00001-of-000096.safetensors"
    with huge.open("wb") as file:
        file.truncate(2**34)
    with pytest.raises(TokenizerError, match="too large"):
        Tokenizer.from_file(huge)


def test_the_chat_package_loads_without_torch() -> None:
    code = (
        "import sys, unabridged.model.chat.parse; "
        "print({'torch', 'tiktoken', 'numpy'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "set()\n", result.stderr
