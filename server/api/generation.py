"""The sequences of one HTTP request while they run: admitted together, merged into one stream, closed together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from numaserve.server.api.access_log import RequestRecord
from numaserve.server.engine.types import (
    EndReason,
    EngineProtocol,
    GenerationChunk,
    GenerationRequest,
    GenerationStream,
)


class Generation:
    """Iterates over (choice index, chunk) of all sequences as they come, and counts tokens for usage and log."""

    def __init__(
        self,
        streams: list[GenerationStream],
        prompt_lengths: Sequence[int],
        record: RequestRecord,
        *,
        drop_output: bool,
    ) -> None:
        self._streams = streams
        self._record = record
        self._drop_output = drop_output
        self._per_prompt = len(streams) // len(prompt_lengths)
        self._prompt_lengths = prompt_lengths
        self._running = len(streams)
        self._completion_tokens = [0] * len(streams)
        # Of each prompt's first sequence: its siblings find the whole prompt in the cache because it put it there.
        self._cached_tokens = [0] * len(prompt_lengths)
        record.prompt_tokens = sum(prompt_lengths)

    @classmethod
    async def admit(
        cls,
        engine: EngineProtocol,
        prompts: Sequence[Sequence[GenerationRequest]],
        record: RequestRecord,
        *,
        drop_output: bool = False,
    ) -> Generation:
        """Admit the sequences of every prompt, all or none. Raises what `EngineProtocol.admit` raises.

        With `drop_output` the chunks come without their text and tokens: only the prompt was to be scored.
        """
        streams: list[GenerationStream] = []
        try:
            for requests in prompts:
                for request in requests:
                    # One by one: a comprehension would lose those admitted before the one that is refused.
                    streams.append(engine.admit(request))
        except BaseException:
            await _close(streams)
            raise
        return cls(streams, [len(requests[0].prompt) for requests in prompts], record, drop_output=drop_output)

    def usage(self) -> dict[str, object]:
        """OpenAI's `usage`. A prompt counts once whatever `n` is."""
        usage = _usage(sum(self._prompt_lengths), sum(self._completion_tokens))
        return {**usage, "prompt_tokens_details": {"cached_tokens": sum(self._cached_tokens)}}

    def usage_so_far(self, index: int, *, begins: bool = False) -> dict[str, object]:
        """What vLLM tells with each chunk of a sequence when it is asked to: that sequence's usage until then."""
        return _usage(self._prompt_lengths[index // self._per_prompt], 0 if begins else self._completion_tokens[index])

    async def chunks(self) -> AsyncGenerator[tuple[int, GenerationChunk], None]:
        """Chunks of all sequences; those of one in order. Raises `GenerationFailed`; the others are aborted then."""
        try:
            async with aclosing(_merge(self._streams)) as merged:
                async for index, chunk in merged:
                    yield index, self._count(index, chunk)
        except Exception:
            self._record.finish_reason = "error"
            self._running = 0
            raise
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Abort what still runs."""
        if self._running:
            self._record.finish_reason = "abort"
        self._record.output_tokens = sum(self._completion_tokens)
        self._record.cached_tokens = sum(self._cached_tokens)
        await _close(self._streams)

    def _count(self, index: int, chunk: GenerationChunk) -> GenerationChunk:
        if chunk.finish_reason is not None:
            self._running -= 1
            self._record.finish_reason = chunk.finish_reason
        if index % self._per_prompt == 0:
            prompt = index // self._per_prompt
            self._cached_tokens[prompt] = max(self._cached_tokens[prompt], chunk.cached_tokens)
        if chunk.token_ids:
            self._record.saw_output()
        if self._drop_output:
            reason: EndReason | None = "length" if chunk.finish_reason else None
            return replace(chunk, text="", token_ids=[], logprobs=[], finish_reason=reason)
        self._completion_tokens[index] += len(chunk.token_ids)
        return chunk


def _usage(prompt_tokens: int, completion_tokens: int) -> dict[str, object]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


async def _close(streams: Sequence[GenerationStream]) -> None:
    for stream in streams:
        await stream.aclose()


async def _merge(streams: Sequence[GenerationStream]) -> AsyncGenerator[tuple[int, GenerationChunk], None]:
    if len(streams) == 1:  # the usual case needs neither tasks nor a queue
        async for chunk in streams[0]:
            yield 0, chunk
        return
    # Bounded, so that what a slow client has not read waits in the engine, in one place.
    queue: asyncio.Queue[tuple[int, GenerationChunk | Exception | None]] = asyncio.Queue(maxsize=len(streams))

    async def pump(index: int, stream: GenerationStream) -> None:
        end: Exception | None = None
        try:
            async for chunk in stream:
                await queue.put((index, chunk))
        except Exception as error:
            end = error
        await queue.put((index, end))

    tasks = [asyncio.create_task(pump(index, stream)) for index, stream in enumerate(streams)]
    try:
        running = len(streams)
        while running:
            index, item = await queue.get()
            if isinstance(item, GenerationChunk):
                yield index, item
            elif item is None:
                running -= 1
            else:
                raise item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
