"""Requests with many prompts that only need the end of each answer: an embedding or a score."""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import cast

from fastapi import Request
from numaserve.server.engine.types import Admits, GenerationChunk, PlaceProtocol
from numaserve.server.generation.answer_size import AnswerSize
from numaserve.server.generation.asked import Asked, Prompt, Texts, total_tokens
from numaserve.server.generation.chosen import adapter_of
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.generation import Generation
from numaserve.server.generation.prompts import prompts_of
from numaserve.server.generation.sampling import generation_requests
from numaserve.server.generation.start import check_ready
from numaserve.server.http.access_log import RequestRecord, record_of
from numaserve.server.http.disconnect import until_disconnect
from numaserve.server.http.spool import Spool, spool_of
from numaserve.server.scheduler.adapter import Adapter
from numaserve.server.scheduler.request import Request as EngineRequest
from numaserve.server.text.caller import CALLER

_WAVE = 256


@dataclass(frozen=True)
class Ends:
    """The result of each prompt of a request, and the number of tokens of all prompts."""

    prompts: int
    prompt_tokens: int
    _spool: Spool

    def __iter__(self) -> Iterator[bytes]:
        """Yield the vector of each prompt, in order; of a prompt with a token, its log-probabilities as doubles."""
        return map(self._spool.record, range(self.prompts))


@dataclass(frozen=True)
class Inputs:
    """The inputs of a request: their number, the field that has them, and the function that makes prompts of them."""

    count: int
    param: str
    read: Callable[[], Awaitable[Asked]]


async def ends_of(
    context: ApiContext, request: Request, asked: Asked | Inputs, request_id: str, size: AnswerSize
) -> Ends:
    """Run every prompt once and wait for all. `size` is that of the answer.

    A request is admitted whole, or refused before anything is computed. Many prompts run in waves, which leaves space
    in the queue for other clients.

    Raises what `start` raises, `GenerationFailed`, and `ApiError` for an answer that is too large.
    """
    check_ready(context)
    inputs = asked if isinstance(asked, Inputs) else _inputs(asked)
    many = _Many(context, inputs, request_id, size, record_of(request), spool_of(request.scope))
    return await until_disconnect(request, many.run())


def _inputs(asked: Asked) -> Inputs:
    async def read() -> Asked:
        return asked

    return Inputs(len(cast(Texts, asked.input).prompts), asked.input.param, read)


@dataclass
class _Many:
    context: ApiContext
    inputs: Inputs
    request_id: str
    size: AnswerSize
    record: RequestRecord
    spool: Spool
    adapter: Adapter | None = None  # once the inputs are read; the same for all waves

    async def run(self) -> Ends:
        """Admit the request, tokenize and run its prompts."""
        count, wave = self.inputs.count, max(1, min(_WAVE, self.context.limits.max_sequences // 2))
        self._check()
        if count <= wave:
            asked, prompts = await self._read()
            await self._wave(self.context.engine, asked, prompts)
        else:
            with _place(self.context) as place:
                asked, prompts = await self._read()
                place.expect([len(prompt.tokens) for prompt in prompts])
                await self._waves(place, wave, asked, prompts)
        await self.spool.complete()
        return Ends(count, self.record.prompt_tokens, self.spool)

    def _check(self, tokens: int = 0) -> None:
        """Check the size of the answer, and reserve its space."""
        self.size.check(self.context.limits, self.inputs.param, self.inputs.count, tokens)
        self.spool.reserve(self.size.kept(self.inputs.count, tokens))

    async def _read(self) -> tuple[Asked, list[Prompt]]:
        asked = await self.inputs.read()
        self.adapter = adapter_of(self.context, asked)
        if self.adapter is not None:
            self.record.model = self.adapter.name
        if self.context.log_prompts:
            self.record.prompt = cast(Texts, asked.input).prompts
        prompts = await prompts_of(self.context, asked)
        self.record.prompt_tokens = total_tokens(prompts)
        self._check(self.record.prompt_tokens)
        # Errors are found before anything is computed: what the longest prompt may have, all may.
        self._requests(asked, max(prompts, key=lambda prompt: len(prompt.tokens)), 0)
        return asked, prompts

    def _requests(self, asked: Asked, prompt: Prompt, index: int) -> list[EngineRequest]:
        request_id = f"{self.request_id}-{index}"
        return generation_requests(self.context, asked, prompt, request_id, client=CALLER.get(), adapter=self.adapter)

    async def _waves(self, place: PlaceProtocol, size: int, asked: Asked, prompts: Sequence[Prompt]) -> None:
        cached = 0
        for first in range(0, len(prompts), size):
            async with place.turn(self.record.time_left):
                await self._wave(place, asked, prompts[first : first + size], first)
            cached += self.record.cached_tokens
        self.record.cached_tokens = cached

    async def _wave(self, admits: Admits, asked: Asked, prompts: Sequence[Prompt], first: int = 0) -> None:
        requests = [self._requests(asked, prompt, index) for index, prompt in enumerate(prompts, first)]
        generation = Generation.admit(admits, prompts, requests, self.record)
        async with aclosing(generation.chunks()) as chunks:
            async for chunk in chunks:
                if chunk.finish_reason is not None:
                    await self.spool.keep(first + chunk.index, _end(chunk.of_engine))


@contextmanager
def _place(context: ApiContext) -> Iterator[PlaceProtocol]:
    place = context.engine.place(CALLER.get())
    try:
        yield place
    finally:
        place.leave()


def _end(chunk: GenerationChunk) -> bytes:
    return chunk.embedding or array("d", chunk.token_logprobs[0]).tobytes()
