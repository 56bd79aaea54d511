"""K3's tokenizer and chat format for vLLM: `model/chat` in the form that vLLM asks for.

A checkpoint's own `tiktoken.model` is all that is needed: no code of the checkpoint is run. Tokens
as text are their bytes as Latin-1, one character a byte, so that text split within a character
comes together again.
"""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import BatchEncoding
from vllm.tokenizers.protocol import TokenizerLike

from ..chat.render import render
from ..chat.tokenizer import RESERVED, Tokenizer
from ..chat.xtml import encode
from ..sampling import Defaults


class K3Tokenizer(TokenizerLike):
    """What vLLM calls a tokenizer."""

    @classmethod
    def from_pretrained(
        cls, path_or_repo_id: str | Path, *args: Any, truncation_side: str = "left", **_: Any
    ) -> K3Tokenizer:
        """Read `tiktoken.model` and the settings of a checkpoint's folder.

        Raises `TokenizerError`, or `ConfigError` for the settings.
        """
        own = Tokenizer.from_file(path_or_repo_id)
        defaults = Defaults.of_checkpoint(Path(path_or_repo_id))
        return cls(own, str(path_or_repo_id), truncation_side, defaults.effort)

    def __init__(
        self, tokenizer: Tokenizer, name: str, truncation_side: str, effort: str | None
    ) -> None:
        self._own = tokenizer
        self._effort = effort
        self.name_or_path = name
        self._side = truncation_side
        base = range(tokenizer.base_size)
        self._tokens = [tokenizer.decode_bytes([i]).decode("latin-1") for i in base]
        reserved = range(tokenizer.base_size, tokenizer.vocab_size)
        self._added = {tokenizer.decode([i]): i for i in reserved}
        self._tokens += self._added
        self._ids = {token: i for i, token in enumerate(self._tokens)}

    is_fast = True
    """Text of tokens is the text of their bytes: no separate handling of added ones."""
    max_chars_per_token = property(lambda self: max(map(len, self._tokens)))
    truncation_side = property(lambda self: self._side)
    vocab_size = property(lambda self: self._own.vocab_size)
    max_token_id = property(lambda self: self._own.vocab_size - 1)
    bos_token_id = property(lambda self: self._own.base_size)
    eos_token_id = property(lambda self: self._own.end_of_msg_id)
    pad_token_id = property(lambda self: self._own.base_size + RESERVED - 1)
    all_special_ids = property(lambda self: list(self._added.values()))
    all_special_tokens = property(lambda self: list(self._added))

    def __len__(self) -> int:
        return self._own.vocab_size

    def num_special_tokens_to_add(self) -> int:
        return 0

    def get_vocab(self) -> dict[str, int]:
        return dict(self._ids)

    def get_added_vocab(self) -> dict[str, int]:
        return dict(self._added)

    def encode(
        self,
        text: str,
        truncation: bool | None = None,
        max_length: int | None = None,
        add_special_tokens: bool = True,
    ) -> list[int]:
        """Ids of a bare text, names of control tokens becoming those tokens, as vLLM expects.

        Conversations do not come this way: see `apply_chat_template`.
        """
        ids = self._own.encode_control(text)
        if truncation and max_length is not None and len(ids) > max_length:
            ids = ids[-max_length:] if self._side == "left" else ids[:max_length]
        return ids

    def __call__(
        self,
        text: str | list[str],
        text_pair: str | None = None,
        add_special_tokens: bool = True,
        truncation: bool = False,
        max_length: int | None = None,
    ) -> BatchEncoding:
        if isinstance(text, str):
            return BatchEncoding({"input_ids": self.encode(text, truncation, max_length)})
        return BatchEncoding({"input_ids": [self.encode(t, truncation, max_length) for t in text]})

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], tools: Any = None, **settings: Any
    ) -> list[int]:
        """Ids of a conversation, content never becoming a control token.

        Raises `XtmlError` or `TokenizerError` for what K3's format has no words for.
        """
        segments = render(
            messages,
            tools=tools,
            thinking=settings.get("thinking", True),
            effort=settings.get("thinking_effort") or self._effort,
            tool_choice=settings.get("tool_choice"),
            response_format=settings.get("response_format"),
            generation_prefix=settings.get("add_generation_prompt", True),
        )
        return encode(segments, self._own)

    def convert_tokens_to_ids(self, tokens: str | list[str]) -> Any:
        if isinstance(tokens, str):
            return self._ids.get(tokens)
        return [self._ids.get(token) for token in tokens]

    def convert_ids_to_tokens(
        self, ids: Sequence[int], skip_special_tokens: bool = False
    ) -> list[str]:
        return [self._tokens[i] for i in self._shown(ids, skip_special_tokens)]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return "".join(tokens).encode("latin-1").decode("utf-8", errors="replace")

    def decode(self, ids: Sequence[int] | int, skip_special_tokens: bool = False) -> str:
        ids = [ids] if isinstance(ids, int) else ids
        return self._own.decode(list(self._shown(ids, skip_special_tokens)))

    def _shown(self, ids: Iterable[int], skip_special_tokens: bool) -> Iterable[int]:
        """Ids that have text: a padded vocabulary has more, which an untrained model may emit."""
        limit = self._own.base_size if skip_special_tokens else self._own.vocab_size
        return (i for i in ids if i < limit)
