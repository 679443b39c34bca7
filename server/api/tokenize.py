"""POST /tokenize and /detokenize, in vLLM's shapes."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter
from fastapi.responses import Response
from numaserve.server.api.answers import check_model, check_text_length
from numaserve.server.api.chat import render
from numaserve.server.api.chat_schema import Message, TemplateArguments
from numaserve.server.api.context import ApiContext
from numaserve.server.api.sampling import check_token_ids
from numaserve.server.api.schemas import ShortText, Strict, Text, TokenId, conflict
from numaserve.server.api.streaming import json_response
from pydantic import Field, model_validator


class TokenizeRequest(Strict):
    """A text, or a conversation as the chat endpoint would render it."""

    model: ShortText | None = None
    prompt: Text | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=65536)] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    chat_template_kwargs: TemplateArguments | None = None
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one_of_two(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise conflict("prompt", "exactly one of 'prompt' and 'messages' is needed")
        return self


class DetokenizeRequest(Strict):
    """Token ids to turn back into text."""

    model: ShortText | None = None
    tokens: list[TokenId]
    skip_special_tokens: bool = False


def tokenize_router(context: ApiContext) -> APIRouter:
    """The routes of this file."""
    router = APIRouter(tags=["tokens"])

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
