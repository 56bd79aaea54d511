"""One route more for vLLM's server: the card of a model says what it keeps.

A client that sees `unabridged.state_store` may send a repository as a request of its own, so that
its state is saved at that boundary. vLLM loads this only where `VLLM_PLUGINS` names it.
"""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from vllm.entrypoints.openai.models.api_router import show_available_models


class StateStoreCard:
    """vLLM's endpoint plugin."""

    name = "unabridged"
    required_tasks = None

    def attach_router(self, app: FastAPI) -> None:
        @app.get("/v1/models")
        async def models(raw_request: Request) -> JSONResponse:
            answer: Any = await show_available_models(raw_request)
            return JSONResponse(with_card(bytes(answer.body), raw_request.app.state.keeps_states))

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        transfer = getattr(args, "kv_transfer_config", None) or {}  # as parsed, or its JSON
        settings = transfer if isinstance(transfer, dict) else vars(transfer)
        state.keeps_states = settings.get("kv_connector") == "StateStoreConnector"


def with_card(body: bytes, keeps_states: bool) -> Any:
    """vLLM's list of models, with our line in each card."""
    document = json.loads(body)
    for card in document["data"]:
        card["unabridged"] = {"state_store": keeps_states}
    return document
