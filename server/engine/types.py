"""The engine as the HTTP layer sees it: requests, chunks, errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from numaserve.server.common.finish_reasons import EndReason
from numaserve.server.engine.masks.matcher import TokenMatcher
from numaserve.server.engine.overview import Overview
from numaserve.server.scheduler.cache.scope import CacheScope, cache_scope
from numaserve.server.scheduler.client import EVERYBODY, Client
from numaserve.workers.interface.protocol import RankProfile, SamplingParams, TokenLogprobs


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


class Busy(EngineError):
    """The call is only possible while nothing runs: HTTP 409."""


class GenerationFailed(EngineError):
    """The request was admitted and could not be completed: HTTP 500, or an error event in a stream."""


class RequestTimedOut(EngineError):
    """The time that the request was given has passed: HTTP 504, or an error event in a stream."""

    def __init__(self) -> None:
        super().__init__("The request did not finish within its time limit and was ended.")


class Aborted(EngineError):
    """The client has asked for the end of the request, in another one."""

    def __init__(self) -> None:
        super().__init__("The request was aborted.")


@dataclass(frozen=True)
class GenerationRequest:
    """One sequence to generate. OpenAI's `n` is n of these with different seeds."""

    request_id: str
    prompt: list[int]  # token ids, never empty
    sampling: SamplingParams
    max_new_tokens: int
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()  # end-of-sequence ids are in here unless ignore_eos
    prompt_logprobs: bool = False
    skip_special_tokens: bool = True
    include_stop: bool = False  # what ends the text is a part of it
    shown_tokens: frozenset[int] = frozenset()  # special tokens that are in the text all the same
    cache_salt: str = ""  # within the cache group of its client, see `scope`
    pool: bool = False  # its embedding is wanted and no token: `max_new_tokens` is 0
    client: Client = EVERYBODY
    priority: int = 0  # among the requests of its client, whom alone it concerns: lower begins earlier
    timeout_s: float | None = None  # from its admission on, in the queue or not; None: no limit
    drafters: frozenset[str] | None = None  # that may guess its tokens; None: all that the server has
    prediction: Sequence[int] = ()  # what the client thinks that the output will be
    generated: tuple[int, ...] = ()  # tokens that the output begins with: it was generated that far elsewhere
    matcher: Callable[[], TokenMatcher] | None = None  # makes the constraint of this sequence; not in the event loop

    @property
    def scope(self) -> CacheScope:
        """The requests that it shares cached prefixes and drafts with."""
        return cache_scope(self.client.cache_group, self.cache_salt)


@dataclass
class GenerationChunk:
    """The addition of one step to sequence `index` of those admitted together.

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
    stop_reason: int | str | None = None  # the token id or string that ended it
    cached_tokens: int = 0  # prompt tokens that came from the prefix cache
    replayed: bool = False  # of the request's `generated`: nothing was computed
    predicted: tuple[int, int] = (0, 0)  # on the last chunk: tokens that the prediction guessed right, and wrong
    embedding: bytes = b""  # on the only chunk of a sequence that is pooled: fp32, little-endian, of the hidden size


@dataclass(frozen=True)
class Load:
    """The load of the engine now."""

    running: int  # sequences
    waiting: int
    tokens_used: int  # of the KV cache, in whole pages of running sequences
    token_capacity: int


class GenerationStream(Protocol):
    """The chunks of sequences admitted together, as they come; those of one in order."""

    def __aiter__(self) -> GenerationStream: ...

    async def __anext__(self) -> GenerationChunk:
        """The next chunk. Ends when each sequence has had one with a `finish_reason`, or raises `GenerationFailed`."""

    async def aclose(self) -> None:
        """Abort the sequences that have not ended; their pages are free within a step. Works before the first chunk was
        asked for (a plain async generator's ``aclose`` would run none of its body then), and more than once."""


class EngineProtocol(Protocol):
    """The engine as the HTTP layer sees it."""

    def admit(self, requests: Sequence[GenerationRequest]) -> GenerationStream:
        """Admit the sequences of one client, all or none. Raises `QueueFull`, `NotReady` or `RequestTooLong`."""

    def is_ready(self) -> bool:
        """Whether requests are served now (loaded, not restarting, not draining)."""

    def takes_requests(self) -> bool:
        """Whether requests are admitted now: while they are served, and while the workers are being replaced."""

    def is_alive(self) -> bool:
        """False only when the engine has given up for good."""

    async def flush_cache(self) -> bool:
        """Forget cached prefixes that no request uses; False when a request was running and nothing was done."""

    def load(self) -> Load:
        """The load now, for GET /v1/loads."""

    def server_info(self) -> dict[str, object]:
        """Configuration, topology, versions and live counters, for GET /server_info."""

    def overview(self) -> Overview:
        """The queue, the pages, the tree of prefixes and the workers now, for GET /machine."""

    async def profile(self, *, ceilings: bool = False) -> list[RankProfile]:
        """Figures of each rank's steps since it was loaded, by rank. Raises `NotReady`.

        With `ceilings` each also measures what its node allows, for some tenths of a second between steps: raises
        `Busy` while a request runs.
        """
