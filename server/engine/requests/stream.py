"""The chunks of the sequences of one client on their way from the step loop to the HTTP layer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from numaserve.server.engine.types import EngineError, GenerationChunk


class Stream:
    """Implements `GenerationStream` for a number of `sequences`, with one producer and one consumer. The producer, the
    step loop, never waits.

    An `asyncio.Queue` was rejected, because the stream's end must be distinct from its chunks. The stream is not
    bounded, because a sequence is bounded by its output length. A stream for each sequence, merged later, was rejected
    too: unread chunks would wait in two places, and each sequence would need a task that only carries chunks.

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
        """Add a chunk; one with a `finish_reason` is its sequence's last. Chunks after a failure are ignored."""
        if self._failed:
            return
        self._chunks.append(chunk)
        if chunk.finish_reason is not None:
            self._running -= 1
        self._wake()

    def fail(self, error: EngineError) -> None:
        """End the stream with the first error, after the chunks that are already queued."""
        if not self._failed:
            self._failed = True
            self._error = error
            self._wake()

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> GenerationChunk:
        """Return the next chunk."""
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
        # The callback's owner refers to this stream: if the callback stayed, both would live until a full garbage
        # collection.
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
    """Do nothing, in place of a callback that is no longer needed."""
