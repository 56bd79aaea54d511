"""How vLLM turns the messages of a request into a prompt of K3's.

vLLM's own K3 renderer reads a message anew before it renders it, and so an argument string of an
earlier call does not come back as the model wrote it. Here messages are rendered as they arrived.
"""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.renderers.inputs.preprocess import parse_dec_only_prompt
from vllm.renderers.kimi_k3 import KimiK3Renderer
from vllm.renderers.params import ChatParams

from ..chat.tokenizer import TokenizerError
from ..chat.xtml import XtmlError


class K3Renderer(KimiK3Renderer):
    """Messages to token ids, text only."""

    def render_messages(self, messages: list[Any], params: ChatParams) -> tuple[list[Any], Any]:
        conversation = [_plain(message) for message in messages]
        return conversation, parse_dec_only_prompt(self._apply_chat_template(conversation, params))

    async def render_messages_async(
        self, messages: list[Any], params: ChatParams
    ) -> tuple[list[Any], Any]:
        conversation = [_plain(message) for message in messages]
        ids = await self._apply_chat_template_async(conversation, params)
        return conversation, parse_dec_only_prompt(ids)

    def _apply_chat_template(
        self, conversation: list[dict[str, Any]], params: ChatParams
    ) -> list[int]:
        for number, message in enumerate(conversation):
            parts = message.get("content")
            for at, part in enumerate(parts if isinstance(parts, list) else ()):
                if part.get("type") in ("image", "image_url"):
                    raise VLLMValidationError(
                        f"messages[{number}]: content[{at}] is an image; this model reads text only",
                        parameter="messages",
                    )
        try:
            return super()._apply_chat_template(conversation, params)
        except (XtmlError, TokenizerError) as error:
            raise VLLMValidationError(str(error), parameter="messages") from None


def _plain(value: Any) -> Any:
    """A message as its JSON was: request models hold lists that are read when they are asked for."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [_plain(item) for item in value]
    return value
