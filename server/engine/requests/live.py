"""A live request: from its admission to its one end, and from token ids to chunks of text."""

from __future__ import annotations

from collections.abc import Callable

from numaserve.server.common.finish_reasons import EndReason, FinishReason
from numaserve.server.engine.requests.stream import Stream
from numaserve.server.engine.types import (
    EngineError,
    GenerationChunk,
    GenerationFailed,
    RequestTimedOut,
)
from numaserve.server.engine.views.traces import TRACE_PARENT, SequenceTrace, TraceSink
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.scheduler.sequence import Sequence, SequenceUpdate
from numaserve.server.tokenizer.detokenizer import IncrementalDetokenizer
from numaserve.server.tokenizer.stop import StopMatcher
from numaserve.server.tokenizer.types import TokenizerProtocol
from numaserve.workers.interface.protocol import TokenLogprobs

_NAN = (
    "The model returned logits that are not numbers (NaN) for this request. The same tokens give the same result "
    "again: change the prompt. Other requests are not affected."
)


class LiveRequest:
    """Detokenizes the output of sequence `index`, detects its end and feeds the stream. It ends exactly once, in
    `_end`.

    At the end, `trace` (if given) and then `on_end` are called. `now` is always the monotonic clock in seconds.
    """

    def __init__(
        self,
        sequence: Sequence,
        tokenizer: TokenizerProtocol,
        metrics: Metrics,
        stream: Stream,
        *,
        index: int,
        now: float,
        on_end: Callable[[LiveRequest], None],
        trace: TraceSink | None = None,
    ) -> None:
        self.request = request = sequence.request
        self.sequence = sequence
        self.admitted_at = now
        self.ended = False
        self._stream = stream
        self._index = index
        self._metrics = metrics
        self._on_end = on_end
        self._trace = trace
        self._parent = "" if trace is None else TRACE_PARENT.get()
        self._detokenizer = IncrementalDetokenizer(tokenizer, request.skip_special_tokens, request.shown_tokens)
        self._stops = StopMatcher(request.stop) if request.stop else None
        self._generated = self._predicted = 0
        self._scheduled_at = self._first_token_at = self._last_token_at = now
        self._prompt_logprobs: list[TokenLogprobs] = []

    def scheduled(self, now: float) -> None:
        """Note that the request left the queue for the first time."""
        self._scheduled_at = now
        self._metrics.request_scheduled(queue_seconds=now - self.admitted_at, prompt_tokens=self.sequence.prompt_len)

    def replay(self, now: float) -> None:
        """Replay output that was generated elsewhere, one chunk for each token, up to a possible end of the request."""
        for token in self.request.generated:
            chunk = GenerationChunk(self._index, token_ids=[token], replayed=True)
            self._generated += 1
            self._add_text(chunk, token)
            if chunk.finish_reason is not None:
                chunk.replayed = False  # the client has not seen the end yet
                self._end(chunk.finish_reason, now, chunk)
                return
            self._stream.push(chunk)

    def advance(self, update: SequenceUpdate, now: float) -> None:
        """Process an update of the sequence by a step; the request may end here."""
        if update.nan:
            self._metrics.nan_logits()
            self.fail(GenerationFailed(_NAN), now)
            return
        if update.prompt_logprobs:
            self._prompt_logprobs += update.prompt_logprobs
        token = update.token
        if token is None and not update.finished:
            return  # a chunk of the prompt; its logprobs wait for the first output chunk
        chunk = GenerationChunk(self._index, cached_tokens=self.sequence.cached_tokens or 0)
        if self._prompt_logprobs:
            chunk.prompt_logprobs, self._prompt_logprobs = self._prompt_logprobs, []
        if token is not None:
            self._count_token(now)
            self._predicted += update.drafter == "prediction"
            chunk.token_ids.append(token)
            if update.logprobs is not None:
                chunk.logprobs.append(update.logprobs)
            if self.request.sampling.token_ids_logprob:
                chunk.token_logprobs.append(list(update.token_logprobs))
            self._add_text(chunk, token)
        if update.finished and chunk.finish_reason is None:
            chunk.embedding = update.embedding
            self._flush_text(chunk, "length" if self.request.pooling is None else "stop")
        if chunk.finish_reason is None:
            self._stream.push(chunk)
        else:
            chunk.predicted = self._predicted, self.sequence.position.rejected["prediction"]
            self._end(chunk.finish_reason, now, chunk)

    def drop(self, message: str, now: float) -> None:
        """End the request because its constraint allowed no continuation; `message` is for the client."""
        if not self.ended:
            self._metrics.dropped()
        self.fail(GenerationFailed(message), now)

    def fail(self, error: EngineError, now: float) -> None:
        """End the request with an error."""
        self._end("timeout" if isinstance(error, RequestTimedOut) else "error", now, error)

    def abort(self, now: float) -> None:
        """End the request because its client left."""
        self._end("abort", now, None)

    def _end(self, reason: FinishReason, now: float, last: GenerationChunk | EngineError | None) -> None:
        if self.ended:
            return
        self.ended = True
        self._metrics.request_finished(reason, e2e_seconds=now - self.admitted_at)
        if self._computed:
            self._metrics.output_finished(tokens=self._computed, decode_seconds=now - self._first_token_at)
        if self.request.adapter is not None:
            self._metrics.adapter_finished(
                self.request.adapter.name, prompt_tokens=self.sequence.prompt_len, generated=self._computed
            )
        if isinstance(last, GenerationChunk):
            self._stream.push(last)
        elif last is not None:
            self._stream.fail(last)
        if self._trace is not None:
            self._trace(self._told(reason, now))
        self._on_end(self)

    @property
    def _computed(self) -> int:
        """The number of tokens that were generated here."""
        return max(0, self._generated - len(self.request.generated))

    def _told(self, reason: FinishReason, now: float) -> SequenceTrace:
        return SequenceTrace(
            request_id=self.request.request_id,
            parent=self._parent,
            admitted=self.admitted_at,
            scheduled=self._scheduled_at if self.sequence.has_begun else None,
            first_token=self._first_token_at if self._computed else None,
            ended=now,
            prompt_tokens=self.sequence.prompt_len,
            cached_tokens=self.sequence.cached_tokens or 0,
            output_tokens=self._computed,
            reason=reason,
        )

    def _count_token(self, now: float) -> None:
        if self._computed:
            self._metrics.inter_token(now - self._last_token_at)
        else:
            self._first_token_at = now
            self._metrics.first_token(since_admitted=now - self.admitted_at, since_scheduled=now - self._scheduled_at)
        self._generated += 1
        self._last_token_at = now

    def _add_text(self, chunk: GenerationChunk, token: int) -> None:
        # A constrained sequence has an early stop token only where its constraint allowed nothing else.
        may_stop = self._generated >= self.request.min_new_tokens or self.request.matcher is not None
        if may_stop and token in self.request.stop_token_ids:
            # The text before the stop token; the stop token's own text is included on request only.
            self._flush_text(chunk, "stop", self._detokenizer.push(token) if self.request.include_stop else "")
            if chunk.stop_reason is None:
                chunk.stop_reason = token
            return
        text = self._detokenizer.push(token)
        if self._stops is None or self._generated < self.request.min_new_tokens:
            chunk.text = text
            return
        chunk.text, chunk.stop_reason = self._stops.push(text)
        if chunk.stop_reason is not None:
            chunk.finish_reason = "stop"
            chunk.text += str(chunk.stop_reason) if self.request.include_stop else ""

    def _flush_text(self, chunk: GenerationChunk, reason: EndReason, last: str = "") -> None:
        chunk.finish_reason = reason
        text = last + self._detokenizer.flush()
        if self._stops is None:
            chunk.text += text
            return
        out, stop = self._stops.push(text)
        chunk.text += out
        if stop is None:
            chunk.text += self._stops.flush()
        else:
            chunk.finish_reason, chunk.stop_reason = "stop", stop
