"""Requests with many prompts that only need the end of each answer: an embedding or a score."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import cast

from fastapi import Request
from numaserve.server.engine.types import Admits, GenerationChunk, GenerationRequest, PlaceProtocol
from numaserve.server.generation.asked import Asked, Prompt, Texts, total_tokens
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.generation import Generation
from numaserve.server.generation.prompts import prompts_of
from numaserve.server.generation.sampling import generation_requests
from numaserve.server.generation.start import check_ready
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


@dataclass(frozen=True)
class Inputs:
    """The inputs of a request: their number, and the function that makes prompts of them."""

    count: int
    read: Callable[[], Awaitable[Asked]]


async def ends_of(context: ApiContext, request: Request, asked: Asked | Inputs, request_id: str) -> Ends:
    """Run every prompt once and wait for all.

    A request is admitted whole, or refused before anything is computed. Many prompts run in waves, which leaves space
    in the queue for other clients.

    Raises what `start` raises, and `GenerationFailed`.
    """
    check_ready(context)
    inputs = asked if isinstance(asked, Inputs) else _inputs(asked)
    many = _Many(context, inputs, request_id, record_of(request))
    return await until_disconnect(request, many.run())


def _inputs(asked: Asked) -> Inputs:
    async def read() -> Asked:
        return asked

    return Inputs(len(cast(Texts, asked.input).prompts), read)


@dataclass
class _Many:
    context: ApiContext
    inputs: Inputs
    request_id: str
    record: RequestRecord

    async def run(self) -> Ends:
        """Admit the request, tokenize and run its prompts."""
        count, wave = self.inputs.count, max(1, min(_WAVE, self.context.limits.max_sequences // 2))
        if count <= wave:
            prompts, requests = await self._prepared()
            return Ends(await self._wave(self.context.engine, prompts, requests), self.record.prompt_tokens)
        with _place(self.context) as place:
            prompts, requests = await self._prepared()
            place.expect([len(prompt.tokens) for prompt in prompts])
            return Ends(await self._waves(place, wave, prompts, requests), self.record.prompt_tokens)

    async def _prepared(self) -> tuple[list[Prompt], list[list[GenerationRequest]]]:
        asked = await self.inputs.read()
        if self.context.log_prompts:
            self.record.prompt = cast(Texts, asked.input).prompts
        prompts = await prompts_of(self.context, asked)
        self.record.prompt_tokens = total_tokens(prompts)
        if asked.vector_form == "tokens":
            _check_vectors(self.context, asked.input.param, self.record.prompt_tokens)
        # All requests are made before the first one runs: errors are found before anything is computed.
        return prompts, [
            generation_requests(self.context, asked, prompt, f"{self.request_id}-{index}", client=CALLER.get())
            for index, prompt in enumerate(prompts)
        ]

    async def _waves(
        self, place: PlaceProtocol, size: int, prompts: Sequence[Prompt], requests: Sequence[list[GenerationRequest]]
    ) -> list[GenerationChunk]:
        chunks: list[GenerationChunk] = []
        cached = 0
        for first in range(0, len(prompts), size):
            part = slice(first, first + size)
            async with place.turn(self.record.time_left):
                chunks += await self._wave(place, prompts[part], requests[part])
            cached += self.record.cached_tokens
        self.record.cached_tokens = cached
        return chunks

    async def _wave(
        self, admits: Admits, prompts: Sequence[Prompt], requests: Sequence[list[GenerationRequest]]
    ) -> list[GenerationChunk]:
        generation = Generation.admit(admits, prompts, requests, self.record)
        last: dict[int, GenerationChunk] = {}
        async with aclosing(generation.chunks()) as chunks:
            async for chunk in chunks:
                last[chunk.index] = chunk.of_engine
        return [last[index] for index in range(len(prompts))]


@contextmanager
def _place(context: ApiContext) -> Iterator[PlaceProtocol]:
    place = context.engine.place(CALLER.get())
    try:
        yield place
    finally:
        place.leave()


def _check_vectors(context: ApiContext, param: str, tokens: int) -> None:
    most = context.limits.multivector_tokens
    if tokens > most:
        message = f"The inputs have {tokens} tokens together, and a request for vectors of tokens may have {most}. "
        raise bad_request(message + "Send fewer inputs at once.", param, "too_many_vectors")
