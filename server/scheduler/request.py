"""A request for one sequence, from its admission on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from numaserve.server.scheduler.adapter import Adapter
from numaserve.server.scheduler.cache.scope import CacheScope
from numaserve.server.scheduler.client import EVERYBODY, Client
from numaserve.server.scheduler.images import PlacedTile
from numaserve.server.scheduler.matcher import TokenMatcher
from numaserve.workers.interface.protocol import SamplingParams, VectorForm


@dataclass(frozen=True)
class Pooling:
    """The embedding of a prompt, in place of tokens."""

    form: VectorForm = "whole"
    second_text: int = 0  # position of the first token of type 1, of a pair of texts; 0: there is none


@dataclass(frozen=True)
class Request:
    """One sequence to generate, or to pool. OpenAI's `n` is n of these with different seeds.

    The sequence holds its request, and each reader finds the field there: a new field needs no line in between.
    """

    request_id: str  # the client's, for logs and traces; not a key
    prompt: Sequence[int]  # token ids, never empty
    sampling: SamplingParams
    max_new_tokens: int  # 0: the prompt is computed (for its logprobs or its embedding) and nothing is sampled
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()  # includes the end-of-sequence ids unless ignore_eos is set
    prompt_logprobs: bool = False
    skip_special_tokens: bool = True
    include_stop: bool = False  # keep the stop string or token in the text
    shown_tokens: frozenset[int] = frozenset()  # special tokens that appear in the text nevertheless
    cache_salt: str = ""  # within the cache group of its client, see `scope`
    pooling: Pooling | None = None  # return an embedding and no token: `max_new_tokens` is 0
    client: Client = EVERYBODY
    priority: int = 0  # among the requests of the same client only: lower begins earlier
    timeout_s: float | None = None  # from admission on, queued or not; None: no limit
    drafters: frozenset[str] | None = None  # allowed drafters; None: all of the server
    prediction: Sequence[int] = ()  # the output that the client expects
    generated: tuple[int, ...] = ()  # tokens that the output begins with: they were generated elsewhere
    matcher: Callable[[], TokenMatcher] | None = None  # makes the constraint of this sequence; not in the event loop
    adapter: Adapter | None = None  # None: the model alone
    images: tuple[PlacedTile, ...] = ()  # of the prompt, ascending; the features of a tile stand for as many tokens
    # The scope of the prefixes and texts that the sequence finds, and leaves to others. It is made once, because the
    # radix tree reads it at each attempt to admit the sequence.
    scope: CacheScope = field(init=False)

    def __post_init__(self) -> None:
        scope = CacheScope(self.client.cache_group, self.cache_salt, self.adapter)
        object.__setattr__(self, "scope", scope)
