"""An engine that replies with a fixed text, to test the HTTP layer alone."""

from __future__ import annotations

import asyncio
import codecs
import time
from array import array
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np
from numaserve.server.app.application import ApiContext, ApiLimits
from numaserve.server.engine.clock import Clock
from numaserve.server.engine.overview import Branch, Overview, Prefixes, WorkerState
from numaserve.server.engine.types import (
    Busy,
    EndReason,
    EngineError,
    GenerationChunk,
    Load,
    NotReady,
)
from numaserve.server.generation.purpose import Generates, Purpose
from numaserve.server.http.auth.key_file import ApiKey
from numaserve.server.http.auth.keys import ApiKeys
from numaserve.server.http.browser_rules import BrowserRules
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.scheduler.client import Client
from numaserve.server.scheduler.request import Pooling, Request
from numaserve.workers.interface.protocol import Ceilings, OperationProfile, RankProfile, TokenLogprobs
from numaserve.workers.interface.vectors import SparseEntries, encoded_rows

from tests.support.byte_tokenizer import EOS, VOCAB, ByteTokenizer

CONTEXT = 200
LETTERS = "".join(chr(ord("a") + number % 26) for number in range(2 * CONTEXT))  # a text that is too long
EMBEDDING_SIZE = 4
MODEL = "tiny/bytes"
REPLY = "Hé 世界!"
OPERATION = OperationProfile("linear", "bf16", calls=60, ns=900, wait_ns=0, weight_bytes=50, bytes=100, flops=200)

OVERVIEW = Overview(
    state="serving",
    running=3,
    waiting=1,
    max_running=8,
    max_waiting=16,
    longest_wait_s=0.5,
    page_size=32,
    pages_free=5,
    pages_cached=2,
    pages_active=1,
    prefix_query_tokens=100,
    prefix_hit_tokens=64,
    prompt_tokens=100,
    generation_tokens=9,
    retractions=0,
    restarts=0,
    steps=2,
    prefixes=Prefixes(3, [Branch(-1, 2, used=True), Branch(0, 1, used=False)], complete=True),
    workers=[WorkerState(rank, rank, 4, "avx512", 2**30, 2**29, 2**31, 0) for rank in range(2)],
)


class FakeStream:
    """One token a chunk, each sequence in turn; a sequence's text is held back until a character is whole."""

    def __init__(self, engine: FakeEngine, requests: Sequence[Request]) -> None:
        self._engine = engine
        self._closed = asyncio.Event()
        self._waiting = deque(FakeSequence(engine, index, request) for index, request in enumerate(requests))

    def __aiter__(self) -> FakeStream:
        return self

    async def __anext__(self) -> GenerationChunk:
        if not self._waiting:
            raise StopAsyncIteration
        sequence = self._waiting[0]
        await asyncio.sleep(self._engine.delay)
        if self._engine.pause_after is not None and sequence.sent >= self._engine.pause_after:
            await self._closed.wait()
            raise StopAsyncIteration
        if self._engine.fail_after is not None and sequence.sent >= self._engine.fail_after:
            raise self._engine.failure
        chunk = sequence.next()
        self._waiting.popleft()
        if chunk.finish_reason is None:
            self._waiting.append(sequence)
        return chunk

    async def aclose(self) -> None:
        self._engine.aborted += [sequence.request.request_id for sequence in self._waiting]
        self._waiting.clear()
        self._closed.set()


class FakeSequence:
    def __init__(self, engine: FakeEngine, index: int, request: Request) -> None:
        self.request = request
        self.sent = 0
        self._engine = engine
        self._index = index
        self._tokens = [*engine.reply.encode(), EOS]
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def next(self) -> GenerationChunk:
        if self.request.pooling is not None:
            self.sent += 1
            return self._pooled()
        token = self._tokens[self.sent]
        reason: EndReason | None = None
        if token in self.request.stop_token_ids:
            reason = "stop"
        elif self.sent + 1 == min(self.request.max_new_tokens, len(self._tokens)):
            reason = "length"
        text = self._decoder.decode(bytes([token]) if token < 256 else b"")
        chunk = GenerationChunk(self._index, text, [token], finish_reason=reason)
        if reason == "stop":
            chunk.stop_reason = self._engine.stop_reason
        if reason is not None:
            chunk.predicted = self._engine.predicted
        if self.request.sampling.logprobs >= 0:
            chunk.logprobs = [self._logprobs(token)]
        if named := self.request.sampling.token_ids_logprob:
            chunk.token_logprobs = [[-0.25 for _ in named]]
        if self.sent == 0:
            chunk.cached_tokens = self._engine.cached_tokens
            if self.request.prompt_logprobs:
                chunk.prompt_logprobs = [self._logprobs(token) for token in self.request.prompt[1:]]
        self.sent += 1
        return chunk

    def _pooled(self) -> GenerationChunk:
        cached = self._engine.cached_tokens
        return GenerationChunk(self._index, finish_reason="stop", cached_tokens=cached, embedding=self._vector())

    def _vector(self) -> bytes:
        """The numbers 3, 4 and then how many tokens there are, as often as there are dimensions. Sparse: 3 for token 1
        and how many there are for token 3. A vector of a token: 3, 4 and its place."""
        count, pooling = len(self.request.prompt), self.request.pooling or Pooling()
        if pooling.form == "sparse":
            return SparseEntries.of_vector(np.array([0, 3, -1, count], np.float32)).encoded()
        if pooling.form == "tokens":
            return encoded_rows(np.array([[3, 4, *[place] * 6] for place in range(1, count)], np.float32))
        values = [3.0, 4.0, *[count] * (self._engine.dimensions - 2)]
        return array("f", values[: self._engine.dimensions]).tobytes()

    def _logprobs(self, token: int) -> TokenLogprobs:
        top = self.request.sampling.logprobs
        return TokenLogprobs(token, -0.5, [token, *range(top - 1)][:top], [-0.5, *[float("-inf")] * (top - 1)][:top])


@dataclass
class FakePlace:
    """A place in a queue that is never full."""

    engine: FakeEngine

    def expect(self, prompts: Sequence[int]) -> None:
        pass

    def turn(self, timeout_s: float | None) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def admit(self, requests: Sequence[Request]) -> FakeStream:
        return self.engine.admit(requests)

    def leave(self) -> None:
        self.engine.places -= 1


@dataclass
class FakeEngine:
    """Replies with `reply` to everything; the fields make it misbehave."""

    reply: str = REPLY
    dimensions: int = EMBEDDING_SIZE
    ready: bool = True
    alive: bool = True
    idle: bool = True
    refusal: Exception | None = None
    failure: Exception = field(default_factory=lambda: EngineError("unused"))
    fail_after: int | None = None
    pause_after: int | None = None
    delay: float = 0.0  # seconds before each chunk
    cached_tokens: int = 0
    stop_reason: str | None = None  # of what ends by itself
    predicted: tuple[int, int] = (0, 0)  # of each sequence
    places: int = 0  # that are taken
    admitted: list[Request] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)

    def admit(self, requests: Sequence[Request]) -> FakeStream:
        if self.refusal is not None:
            raise self.refusal
        self.admitted += requests
        return FakeStream(self, requests)

    def place(self, client: Client) -> FakePlace:
        if self.refusal is not None:
            raise self.refusal
        self.places += 1
        return FakePlace(self)

    def is_ready(self) -> bool:
        return self.ready

    def takes_requests(self) -> bool:
        return self.ready

    def is_alive(self) -> bool:
        return self.alive

    async def flush_cache(self) -> bool:
        return self.idle

    def load(self) -> Load:
        return Load(running=3, waiting=1, tokens_used=64, token_capacity=256)

    def server_info(self) -> dict[str, object]:
        return {"tp": 2, "workers": [{"rank": rank, "pid": 0} for rank in range(2)]}

    def overview(self) -> Overview:
        return OVERVIEW

    async def profile(self, *, ceilings: bool = False) -> list[RankProfile]:
        if ceilings and not self.idle:
            raise Busy("Requests are running.")
        if not self.ready:
            raise NotReady("The server is loading.")
        return [
            RankProfile(
                7, rank, 2, 9, 1000, [OPERATION], Ceilings("fake", 1, 1e9, {"bf16": 1e12}) if ceilings else None
            )
            for rank in range(2)
        ]


def make_context(
    engine: FakeEngine,
    *,
    keys: Sequence[str | ApiKey] = (),
    clock: Clock = time.monotonic,
    max_body_bytes: int = 2**20,
    max_sequences: int = 512,
    body_timeout_seconds: float = 60.0,
    log_prompts: bool = False,
    strict_fields: bool = False,
    tokenizer_info: bool = True,
    sse_ping_seconds: float = 15.0,
    browsers: BrowserRules | None = None,
    ui: bool = True,
    purpose: Purpose | None = None,
    context_length: int = CONTEXT,
    takes_predictions: bool = False,
) -> ApiContext:
    """A context over `engine` and byte tokens."""
    return ApiContext(
        engine=engine,
        tokenizer=ByteTokenizer(),
        metrics=Metrics(MODEL),
        model_name=MODEL,
        model_path="/models/tiny",
        version="1.2.3",
        limits=ApiLimits(context_length, VOCAB, max_sequences, max_body_bytes, body_timeout_seconds),
        api_keys=_api_keys(keys, clock) if keys else None,
        log_prompts=log_prompts,
        strict_fields=strict_fields,
        tokenizer_info=tokenizer_info,
        sse_ping_seconds=sse_ping_seconds,
        browsers=browsers or BrowserRules(),
        ui=ui,
        purpose=purpose or Generates(),
        takes_predictions=takes_predictions,
    )


def _api_keys(keys: Sequence[str | ApiKey], clock: Clock) -> ApiKeys:
    return ApiKeys([ApiKey(key) if isinstance(key, str) else key for key in keys], clock)


def outcomes(context: ApiContext, reason: str) -> float:
    """How often `reason` was counted."""
    labels = {"model_name": MODEL, "reason": reason}
    value = context.metrics.registry.get_sample_value("numaserve_request_outcomes_total", labels)
    assert value is not None
    return value
