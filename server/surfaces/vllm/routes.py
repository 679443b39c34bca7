"""Routes that vLLM has in addition to OpenAI's: probes, load and cache, for operators."""

from fastapi import APIRouter
from fastapi.responses import Response
from numaserve.server.generation.context import ApiContext
from numaserve.server.http.errors import not_ready
from numaserve.server.surfaces.openapi import errors
from numaserve.server.surfaces.operations.info import flush
from numaserve.server.surfaces.service_models import Flushed, ServerLoad, Status, TokenizerInfo
from numaserve.server.surfaces.streaming import json_response


def vllm_router(context: ApiContext) -> APIRouter:
    """Return the routes of this module."""
    router = APIRouter(tags=["operation"])

    @router.get("/ping", response_model=Status, responses=errors(503))
    @router.post("/ping", response_model=Status, responses=errors(503))
    # The first matching route answers and determines the allowed methods; the document has an entry for each method.
    @router.api_route("/ping", methods=["GET", "POST"], include_in_schema=False)
    async def ping() -> Response:
        """Return 200 when the server accepts requests, otherwise 503, as SageMaker requires."""
        if context.engine.is_ready():
            return json_response({"status": "ok"})
        error = not_ready("The server is loading, restarting or shutting down.")
        error.refusal = None  # a probe asks for no tokens
        raise error

    @router.get("/load", response_model=ServerLoad, responses=errors())
    async def load() -> Response:
        """Return the number of running and waiting sequences, in vLLM's format."""
        now = context.engine.load()
        return json_response({"server_load": now.running + now.waiting})

    @router.post("/reset_prefix_cache", response_model=Flushed, responses=errors(409))
    async def reset_prefix_cache() -> Response:
        """Clear the prefix cache, under vLLM's name; returns 409 while requests are running."""
        return await flush(context)

    if context.tokenizer_info:
        # Only if the operator enables it, as in vLLM: a chat template may be the operator's own.
        @router.get("/tokenizer_info", response_model=TokenizerInfo, responses=errors())
        async def tokenizer_info() -> Response:
            """Return the tokenizer's sizes and special tokens, and the chat template."""
            return json_response(_tokenizer_info(context))

    return router


def _tokenizer_info(context: ApiContext) -> dict[str, object]:
    tokenizer = context.tokenizer
    bos, eos = tokenizer.bos_token_id, sorted(tokenizer.eos_token_ids)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "vocab_size": context.vocab_size,
        "model_max_length": context.limits.context_length,
        "bos_token": None if bos is None else tokenizer.token_text(bos),
        "eos_token": tokenizer.token_text(eos[0]) if eos else None,
        "chat_template": tokenizer.chat_template or None,
    }
