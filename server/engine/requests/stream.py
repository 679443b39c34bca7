"""The chunks of the sequences of one client on their way from the step loop to the HTTP layer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from numaserve.server.engine.types import EngineError, GenerationChunk


class Stream:
    """Implements `GenerationStream` for so many `sequences`. One producer, the step loop, which never waits; one
    consumer.

    It is not an `asyncio.Queue`, because its end has to be told from its chunks, and not bounded, because a sequence
    is: by its output length. A stream for each sequence, merged behind, was rejected: what a client has not read would
    wait in two places, and a task of each sequence would do nothing but carry chunks.

    `on_close` is called when the consumer leaves before the end.
    """

    def __init__(self, sequences: int, on_close: Callable[[], None]) -> None:
        self._running = sequences
        self._chunks: deque[GenerationChunk] = deque()
        self._failed = False
        self._error: EngineError | None = None  # until it has been raised
        self._waiter: asyncio.Future[None] | None = None
        self._on_close = on_close

    def push(self, chunk: GenerationChunk) -> None:
        """Hand over a chunk; one with a `finish_reason` is its sequence's last. Behind a failure none counts."""
        if self._failed:
            return
        self._chunks.append(chunk)
        if chunk.finish_reason is not None:
            self._running -= 1
        self._wake()

    def fail(self, error: EngineError) -> None:
        """End with the first error, after the chunks that are already there."""
        if not self._failed:
            self._failed = True
            self._error = error
            self._wake()

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> GenerationChunk:
        """The next chunk."""
        while not self._chunks:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if self._failed or not self._running:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._chunks.popleft()

    async def aclose(self) -> None:
        """Stop the sequences that have not ended."""
        self._chunks.clear()
        self._error = None
        # Who is called refers to this stream: kept, both would stay until a full collection of garbage.
        on_close, self._on_close = self._on_close, _nothing
        if self._running:
            self._running = 0
            on_close()
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def _nothing() -> None:
    """Nobody is to be called any more."""
