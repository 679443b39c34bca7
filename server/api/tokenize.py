"""POST /tokenize and /detokenize, in vLLM's shapes."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from fastapi.responses import Response
from numaserve.server.api.answers import check_model, check_text_length
from numaserve.server.api.body.route import body_route
from numaserve.server.api.chat import render
from numaserve.server.api.context import ApiContext
from numaserve.server.api.sampling import check_token_ids
from numaserve.server.api.streaming import json_response
from numaserve.server.api.tokenize_schema import DetokenizeRequest, TokenizeRequest


def tokenize_router(context: ApiContext) -> APIRouter:
    """The routes of this file."""
    router = APIRouter(tags=["tokens"], route_class=body_route(context.bodies))

    @router.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> Response:
        check_model(context, body.model)
        tokens = await _tokens(context, body)
        answer: dict[str, object] = {
            "count": len(tokens),
            "max_model_len": context.limits.context_length,
            "tokens": tokens,
        }
        if body.return_token_strs:
            answer["token_strs"] = [context.tokenizer.token_text(token) for token in tokens]
        return json_response(answer)

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> Response:
        check_model(context, body.model)
        check_token_ids(body.tokens, context.vocab_size, "tokens")
        decode = context.tokenizer.decode
        text = await asyncio.to_thread(decode, body.tokens, skip_special_tokens=body.skip_special_tokens)
        return json_response({"prompt": text})

    return router


async def _tokens(context: ApiContext, body: TokenizeRequest) -> list[int]:
    if body.messages is not None:
        return await render(
            context, body.messages, body.chat_template_kwargs, add_generation_prompt=body.add_generation_prompt
        )
    text = body.prompt or ""
    check_text_length(context, len(text), "prompt")
    encode = context.tokenizer.encode
    return await asyncio.to_thread(encode, text, add_special_tokens=body.add_special_tokens)
