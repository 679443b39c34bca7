"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Request
from fastapi.responses import Response
from numaserve.server.api.answers import Frame, check_servable, check_text_length, record_of, wants_usage
from numaserve.server.api.chat_schema import ChatRequest, Message, TemplateArguments
from numaserve.server.api.context import ApiContext
from numaserve.server.api.errors import bad_request
from numaserve.server.api.generation import Generation
from numaserve.server.api.logprobs import TokenNames, chat_logprobs
from numaserve.server.api.sampling import Wanted, generation_requests, output_limit
from numaserve.server.api.streaming import json_response, respond
from numaserve.server.engine.types import GenerationChunk
from numaserve.server.tokenizer.types import ChatTemplateError
from numaserve.workers.protocol import TokenLogprobs


def chat_router(context: ApiContext) -> APIRouter:
    """The route of this file."""
    router = APIRouter(tags=["generation"])

    @router.post("/v1/chat/completions")
    async def create_chat_completion(body: ChatRequest, request: Request) -> Response:
        check_servable(context, body.model)
        record = record_of(request)
        prompt = await render(context, body.messages, body.chat_template_kwargs)
        if context.log_prompts:
            record.prompt = [message.for_template() for message in body.messages]
        limit = output_limit(len(prompt), body.output_limit, None, context.limits.context_length, "messages")
        wanted = Wanted(limit, (body.top_logprobs or 0) if body.logprobs else -1)
        answer = _ChatAnswer(context, body)
        requests = generation_requests(context, body, prompt, wanted, answer.id)
        generation = await Generation.admit(context.engine, [requests], record)
        return await respond(request, answer, generation, stream=body.stream is True)

    return router


async def render(
    context: ApiContext,
    messages: list[Message],
    arguments: TemplateArguments | None = None,
    *,
    add_generation_prompt: bool = True,
) -> list[int]:
    """Token ids of a conversation, by the model's own template, in a thread. Raises `ApiError`."""
    check_text_length(context, sum(len(message.content) for message in messages), "messages")
    allowed = {} if arguments is None else arguments.model_dump(exclude_none=True)
    try:
        prompt = await asyncio.to_thread(
            context.tokenizer.render_chat,
            [message.for_template() for message in messages],
            add_generation_prompt=add_generation_prompt,
            **allowed,
        )
    except ChatTemplateError as error:
        raise bad_request(f"The chat template does not take these messages: {error}", "messages") from error
    if not prompt:
        raise bad_request("The chat template makes an empty prompt of these messages.", "messages")
    return prompt


class _ChatAnswer:
    """Writes the chunks of a generation in the shape of chat."""

    def __init__(self, context: ApiContext, body: ChatRequest) -> None:
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        self._frame = Frame.new(context, "chatcmpl", kind)
        self._names = TokenNames(context.tokenizer)
        self._choices = body.n or 1
        self._with_logprobs = body.logprobs is True
        self._with_usage = wants_usage(body)

    @property
    def id(self) -> str:
        """The answer's id."""
        return self._frame.id

    async def complete(self, generation: Generation) -> Response:
        """The whole answer at once."""
        texts: list[list[str]] = [[] for _ in range(self._choices)]
        logprobs: list[list[TokenLogprobs]] = [[] for _ in range(self._choices)]
        reasons: list[str | None] = [None] * self._choices
        async with aclosing(generation.chunks()) as chunks:
            async for index, chunk in chunks:
                texts[index].append(chunk.text)
                logprobs[index] += chunk.logprobs
                reasons[index] = chunk.finish_reason or reasons[index]
        choices: list[dict[str, object]] = [
            {
                "index": index,
                "message": {"role": "assistant", "content": "".join(texts[index]), "refusal": None},
                "logprobs": self._logprobs(logprobs[index]),
                "finish_reason": reasons[index],
            }
            for index in range(self._choices)
        ]
        return json_response(self._frame.wrap(choices, usage=generation.usage()))

    async def stream(self, generation: Generation) -> AsyncGenerator[object, None]:
        """The chunks: per choice one with the role, then its text, then one with the reason; at last usage."""
        started: set[int] = set()
        async with aclosing(generation.chunks()) as chunks:
            async for index, chunk in chunks:
                if index not in started:
                    started.add(index)
                    yield self._chunk(index, {"role": "assistant", "content": "", "refusal": None})
                if chunk.text or (self._with_logprobs and chunk.logprobs):
                    yield self._content(index, chunk)
                if chunk.finish_reason is not None:
                    yield self._chunk(index, {}, finish_reason=chunk.finish_reason)
        if self._with_usage:
            yield self._frame.wrap([], usage=generation.usage())

    def _content(self, index: int, chunk: GenerationChunk) -> dict[str, object]:
        return self._chunk(index, {"content": chunk.text}, self._logprobs(chunk.logprobs))

    def _logprobs(self, tokens: list[TokenLogprobs]) -> dict[str, object] | None:
        return chat_logprobs(self._names, tokens) if self._with_logprobs else None

    def _chunk(
        self,
        index: int,
        delta: dict[str, object],
        logprobs: dict[str, object] | None = None,
        finish_reason: str | None = None,
    ) -> dict[str, object]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return self._frame.wrap([choice], usage=None) if self._with_usage else self._frame.wrap([choice])
