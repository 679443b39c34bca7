"""The sequences of one HTTP request while they run: admitted, counted and closed together."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace

from numaserve.server.common.finish_reasons import EndReason, FinishReason
from numaserve.server.engine.types import (
    Aborted,
    Admits,
    GenerationChunk,
    GenerationStream,
    RequestTimedOut,
)
from numaserve.server.generation.answer.reading import AnswerReader, Chunk
from numaserve.server.generation.asked import Prompt, total_tokens
from numaserve.server.http.access_log import RequestRecord
from numaserve.server.scheduler.request import Request

_REASONS: dict[type[Exception], FinishReason] = {Aborted: "abort", RequestTimedOut: "timeout"}


@dataclass(frozen=True)
class Usage:
    """The token counts of an answer."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0  # prompt tokens from the prefix cache
    reasoning_tokens: int = 0  # completion tokens that were reasoning
    predicted: tuple[int, int] | None = None  # accepted and rejected draft tokens of the prediction, if there is one


class Generation:
    """Iterates over the chunks of all sequences as they come, and counts tokens for usage and log.

    A chunk's `index` is the index of its choice: sample i of prompt p has index p * n + i.
    """

    def __init__(
        self,
        stream: GenerationStream,
        prompts: Sequence[Prompt],
        per_prompt: int,
        record: RequestRecord,
        readers: Sequence[AnswerReader] | None,
        *,
        drop_output: bool,
    ) -> None:
        self.prompts = prompts
        self._readers = readers
        self._stream = stream
        self._record = record
        self._drop_output = drop_output
        self._per_prompt = per_prompt
        self._running = len(prompts) * per_prompt
        self._aborted = False
        self.replaying = False  # whether the last chunk repeats output that a client has had before
        self._on_close: Callable[[], None] = lambda: None
        self._predicted = 0, 0
        self._completion_tokens = [0] * self._running
        # Each prompt's first sequence counts: its siblings find the whole prompt in the cache because it put it there.
        self._cached_tokens = [0] * len(prompts)

    @classmethod
    def admit(
        cls,
        engine: Admits,
        prompts: Sequence[Prompt],
        requests: Sequence[Sequence[Request]],
        record: RequestRecord,
        readers: Sequence[AnswerReader] | None = None,
        *,
        drop_output: bool = False,
    ) -> Generation:
        """Admit the sequences of every prompt, all or none.

        Raises what `Admits.admit` raises, and `RequestTimedOut` where the request's time has already passed.
        `readers` parse the answers; without readers, all of an answer is text. With `drop_output` the chunks come
        without text and tokens: the request only scores the prompt.
        """
        admitted = [request for each in requests for request in each]
        left = record.time_left
        if left is not None:
            if left <= 0:
                raise RequestTimedOut
            admitted = [replace(request, timeout_s=left) for request in admitted]
        stream = engine.admit(admitted)
        return cls(stream, prompts, len(requests[0]), record, readers, drop_output=drop_output)

    def when_closed(self, call: Callable[[], None]) -> None:
        """Set the function that is called at the end, once or more often."""
        self._on_close = call

    def completion_tokens(self) -> int:
        """Return the number of tokens of all sequences until now."""
        return sum(self._completion_tokens)

    def usage(self) -> Usage:
        """Return the token counts of the whole answer."""
        thought = sum(reader.thought_tokens for reader in self._readers or ())
        predicted = self._predicted if any(prompt.prediction for prompt in self.prompts) else None
        return Usage(total_tokens(self.prompts), self.completion_tokens(), sum(self._cached_tokens), thought, predicted)

    def usage_so_far(self, index: int, *, begins: bool = False) -> Usage:
        """Return the token counts of sequence `index` until now; with `begins`, before its first token."""
        prompt = self.prompts[index // self._per_prompt]
        return Usage(len(prompt.tokens), 0 if begins else self._completion_tokens[index])

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """Yield the chunks of all sequences; the chunks of one sequence are in order.

        Raises `GenerationFailed` and `Aborted`; the other sequences are aborted then.
        """
        try:
            async for chunk in self._stream:
                self._count(chunk)
                self.replaying = chunk.replayed
                if chunk.finish_reason is not None and self._readers is not None:
                    await self._readers[chunk.index].prepare(chunk)
                yield self._read(chunk)
            if self._aborted:
                raise Aborted
        except Exception as error:
            self._record.finish_reason = _REASONS.get(type(error), "error")
            self._running = 0
            raise
        finally:
            await self.aclose()

    async def abort(self) -> None:
        """End the running sequences; the reader of `chunks` gets `Aborted`."""
        self._aborted = self._running > 0
        await self._stream.aclose()

    async def aclose(self) -> None:
        """Abort the running sequences."""
        self._on_close()
        if self._running:
            self._record.finish_reason = "abort"
        self._record.cached_tokens = sum(self._cached_tokens)
        await self._stream.aclose()

    def _read(self, chunk: GenerationChunk) -> Chunk:
        if self._drop_output:
            reason: EndReason | None = "length" if chunk.finish_reason else None
            return Chunk(chunk.index, "", replace(chunk, token_ids=[], logprobs=[]), reason)
        return Chunk.unread(chunk) if self._readers is None else self._readers[chunk.index].read(chunk)

    def _count(self, chunk: GenerationChunk) -> None:
        index = chunk.index
        if chunk.finish_reason is not None:
            self._running -= 1
            self._record.finish_reason = chunk.finish_reason
            (right, wrong), (more_right, more_wrong) = self._predicted, chunk.predicted
            self._predicted = right + more_right, wrong + more_wrong
        if index % self._per_prompt == 0:
            prompt = index // self._per_prompt
            self._cached_tokens[prompt] = max(self._cached_tokens[prompt], chunk.cached_tokens)
        if chunk.token_ids:
            self._record.saw_output()
        if not self._drop_output:
            self._completion_tokens[index] += len(chunk.token_ids)
            self._record.output_tokens += len(chunk.token_ids)
