"""The engine's interface to the HTTP layer: requests, chunks and errors."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from numaserve.server.common.finish_reasons import EndReason
from numaserve.server.engine.overview import Overview
from numaserve.server.scheduler.client import Client
from numaserve.server.scheduler.request import Request
from numaserve.workers.interface.protocol import RankProfile, TokenLogprobs


class EngineError(Exception):
    """A request that the engine could not serve; the message is meant for the client."""


class QueueFull(EngineError):
    """The queue is full: HTTP 429. `retry_after` is in whole seconds."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NotReady(EngineError):
    """The server is loading, restarting or draining: HTTP 503."""


class RequestTooLong(EngineError):
    """Prompt and output do not fit the context or the KV cache: HTTP 400."""


class AdapterGone(EngineError):
    """The adapter of the request was unloaded before the request was admitted: HTTP 404."""

    def __init__(self, name: str) -> None:
        super().__init__(f"The model '{name}' does not exist any more: its LoRA adapter was unloaded.")


class Busy(EngineError):
    """A call that is only possible while no request runs: HTTP 409."""


class GenerationFailed(EngineError):
    """The request was admitted and could not be completed: HTTP 500, or an error event in a stream."""


class RequestTimedOut(EngineError):
    """The time limit of the request has passed: HTTP 504, or an error event in a stream."""

    def __init__(self) -> None:
        super().__init__("The request did not finish within its time limit and was ended.")


class Aborted(EngineError):
    """A request that its client aborted by another request."""

    def __init__(self) -> None:
        super().__init__("The request was aborted.")


@dataclass
class GenerationChunk:
    """The output of one step for sequence `index` of those admitted together.

    `text` may be empty while bytes of a character or a possible stop string are held back. `token_ids` and `logprobs`
    are those of the step.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)  # on the first chunk, for positions 1..
    # Log-probabilities of the tokens that `SamplingParams.token_ids_logprob` names, for each of `token_ids`.
    token_logprobs: list[list[float]] = field(default_factory=list)
    finish_reason: EndReason | None = None
    stop_reason: int | str | None = None  # the token id or string that ended the sequence
    cached_tokens: int = 0  # prompt tokens that came from the prefix cache
    replayed: bool = False  # from the request's `generated`: nothing was computed
    predicted: tuple[int, int] = (0, 0)  # on the last chunk: accepted and rejected draft tokens of the prediction
    embedding: bytes = b""  # on the only chunk of a pooled sequence, in the form of its `Pooling`


@dataclass(frozen=True)
class Load:
    """The current load of the engine."""

    running: int  # sequences
    waiting: int
    tokens_used: int  # of the KV cache, in whole pages of running sequences
    token_capacity: int


class GenerationStream(Protocol):
    """The chunks of sequences admitted together, in order of arrival; the chunks of one sequence are in order."""

    def __aiter__(self) -> GenerationStream: ...

    async def __anext__(self) -> GenerationChunk:
        """Return the next chunk, until each sequence has had one with a `finish_reason`. Raises `GenerationFailed`."""

    async def aclose(self) -> None:
        """Abort the sequences that have not ended; their pages are free within a step.

        May be called more than once, and before the first chunk was requested, when a plain async generator's
        ``aclose`` would run none of its body.
        """


class Admits(Protocol):
    """The engine, or a place in it."""

    def admit(self, requests: Sequence[Request]) -> GenerationStream:
        """Admit the sequences of one client, all or none. Raises `QueueFull`, `NotReady` or `RequestTooLong`."""


class PlaceProtocol(Admits, Protocol):
    """The place of a request with more prompts than the queue takes at once, until it leaves.

    Its prompts are admitted in turns, and a full queue refuses none of them.
    """

    def expect(self, prompts: Sequence[int]) -> None:
        """Count the work of prompts of these numbers of tokens."""

    def turn(self, timeout_s: float | None) -> AbstractAsyncContextManager[None]:
        """Wait until this request may admit prompts; clients take turns. Raises `RequestTimedOut`."""

    def leave(self) -> None:
        """Give the place up."""


class EngineProtocol(Admits, Protocol):
    """The interface of the engine for the HTTP layer."""

    def place(self, client: Client) -> PlaceProtocol:
        """Return a place for a request with more prompts than the queue takes at once. Raises `QueueFull` or
        `NotReady`."""

    def is_ready(self) -> bool:
        """Return whether requests are served now (loaded, not restarting, not draining)."""

    def takes_requests(self) -> bool:
        """Return whether requests are admitted now: while the server serves or the workers are being replaced."""

    def is_alive(self) -> bool:
        """Return False only when the engine has permanently given up."""

    async def flush_cache(self) -> bool:
        """Drop the cached prefixes that no request uses. Return False, with nothing dropped, if a request was
        running."""

    def load(self) -> Load:
        """Return the current load, for GET /v1/loads."""

    def server_info(self) -> dict[str, object]:
        """Return the configuration, topology, versions and live counters, for GET /server_info."""

    def overview(self) -> Overview:
        """Return the current state of the queue, the pages, the prefix tree and the workers, for GET /machine."""

    async def profile(self, *, ceilings: bool = False) -> list[RankProfile]:
        """Return figures of each rank's steps since the rank was loaded, by rank. Raises `NotReady`.

        With `ceilings` each rank also measures the limits of its node, for some tenths of a second between steps.
        Raises `Busy` while a request runs.
        """
