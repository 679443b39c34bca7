"""Requests with many prompts that only need the end of each answer: an embedding or a score."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from fastapi import Request
from numaserve.server.engine.types import GenerationChunk, GenerationRequest
from numaserve.server.generation.asked import Asked, Prompt, Texts, total_tokens
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.generation import Generation
from numaserve.server.generation.prompts import prompts_of
from numaserve.server.generation.sampling import generation_requests
from numaserve.server.generation.start import check_model, check_ready
from numaserve.server.http.access_log import RequestRecord, record_of
from numaserve.server.http.disconnect import until_disconnect
from numaserve.server.http.errors import bad_request
from numaserve.server.text.caller import CALLER

_WAVE = 256


@dataclass(frozen=True)
class Ends:
    """The last chunk of each prompt, in order, and the tokens of all prompts."""

    chunks: list[GenerationChunk]
    prompt_tokens: int


async def ends_of(context: ApiContext, request: Request, asked: Asked, request_id: str) -> Ends:
    """Run every prompt once and wait for all. Raises what `start` raises, and `GenerationFailed`.

    Prompts are admitted in waves. A client's thousand documents may therefore exceed the queue, and leave space in it
    for other clients.
    """
    check_model(context, asked.model)
    check_ready(context)
    record = record_of(request)
    if context.log_prompts:
        record.prompt = asked.input.prompts if isinstance(asked.input, Texts) else asked.input.conversation.messages
    return await until_disconnect(request, _all(context, asked, request_id, record))


async def _all(context: ApiContext, asked: Asked, request_id: str, record: RequestRecord) -> Ends:
    prompts = await prompts_of(context, asked)
    record.prompt_tokens = total_tokens(prompts)
    if asked.vector_form == "tokens":
        _check_vectors(context, asked.input.param, record.prompt_tokens)
    # All requests are made before the first one runs: errors are found before anything is computed.
    requests = [
        generation_requests(context, asked, prompt, f"{request_id}-{index}", client=CALLER.get())
        for index, prompt in enumerate(prompts)
    ]
    size = max(1, min(_WAVE, context.limits.max_sequences // 2))
    chunks: list[GenerationChunk] = []
    cached = 0
    for first in range(0, len(prompts), size):
        part = slice(first, first + size)
        chunks += await _wave(context, prompts[part], requests[part], record)
        cached += record.cached_tokens
    record.cached_tokens = cached
    return Ends(chunks, record.prompt_tokens)


def _check_vectors(context: ApiContext, param: str, tokens: int) -> None:
    most = context.limits.multivector_tokens
    if tokens > most:
        message = f"The inputs have {tokens} tokens together, and a request for vectors of tokens may have {most}. "
        raise bad_request(message + "Send fewer inputs at once.", param, "too_many_vectors")


async def _wave(
    context: ApiContext, prompts: Sequence[Prompt], requests: Sequence[list[GenerationRequest]], record: RequestRecord
) -> list[GenerationChunk]:
    generation = Generation.admit(context.engine, prompts, requests, record)
    last: dict[int, GenerationChunk] = {}
    async with aclosing(generation.chunks()) as chunks:
        async for chunk in chunks:
            last[chunk.index] = chunk.of_engine
    return [last[index] for index in range(len(prompts))]
