"""Requests to a simulated service, and the truth about their sequences."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from numaserve.server.scheduler.adapter import Adapter
from numaserve.server.scheduler.cache.scope import CacheScope
from numaserve.server.scheduler.client import EVERYBODY, Client
from numaserve.server.scheduler.images import PlacedTile
from numaserve.server.scheduler.request import Pooling
from numaserve.server.scheduler.sequence import Sequence
from numaserve.workers.interface.protocol import SampledToken, SamplingParams, TokenLogprobs

from tests.support.sequences import sequence
from tests.support.simulated_features import SimulatedImageStore

VOCABULARY = 3
NAN_TOKEN = 3  # never sampled; logits from its position on are not numbers
EMBEDDING = b"\0\0\x80?"


@dataclass
class Request:
    """A request, and the truth about its sequence."""

    seed: int
    prompt: list[int]
    max_new_tokens: int
    salt: str = ""
    prompt_logprobs: bool = False
    penalties: bool = False
    stop_after: int | None = None  # tokens after which the caller finds a stop token
    client: Client = EVERYBODY
    priority: int = 0
    drafters: frozenset[str] | None = None
    pictures: Mapping[int, int] = field(default_factory=dict)  # of tiles, by their first positions
    rows_per_tile: int = 0
    adapter: Adapter | None = None
    pooled: bool = False
    name: str = ""

    received: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)
        self.prompt_len = len(self.prompt)
        self.digests: list[int] = []
        self.tiles: dict[int, Hashable] = {
            start: (self.scope.without_adapter, picture) for start, picture in self.pictures.items()
        }
        of_tiles = [(start, row) for start in self.pictures for row in range(self.rows_per_tile)]
        rows = {start + row: (self.pictures[start], row) for start, row in of_tiles}
        self.adapter_digest = "" if self.adapter is None else str(self.adapter.load_id)
        # Not of the string: that differs from process to process.
        digest = hash((*self.adapter_digest.encode(), *self.scope.digest.encode()))
        for position in range(len(self.prompt) + self.max_new_tokens):
            digest = hash((digest, rows.get(position, self.tokens[position])))
            self.digests.append(digest)
            if position >= len(self.prompt) - 1:
                self.tokens.append(hash((digest, self.seed)) % VOCABULARY)

    @property
    def scope(self) -> CacheScope:
        return CacheScope(self.client.cache_group, self.salt, self.adapter)

    @property
    def is_answered(self) -> bool:
        """Whether the whole answer has come."""
        return self.ends == ["length"] and self.received == self.tokens[self.prompt_len : -1]

    def is_nan(self, position: int) -> bool:
        """Whether the logits of `position` are not numbers."""
        return NAN_TOKEN in self.prompt[: position + 1]

    def row(self, position: int) -> TokenLogprobs:
        return TokenLogprobs(self.tokens[position], -1.0)

    def sampled(self, position: int) -> SampledToken:
        return SampledToken(self.tokens[position])

    def embedding(self) -> bytes:
        return EMBEDDING

    def placed(self, store: SimulatedImageStore) -> tuple[PlacedTile, ...]:
        """New tiles of the prompt, which nobody else holds."""
        digests = {start: bytes([picture]) * 32 for start, picture in self.pictures.items()}
        tiles = {
            start: store.write(self.tiles[start], digest, self.seed, self.rows_per_tile)
            for start, digest in digests.items()
        }
        return tuple(PlacedTile(start, tile) for start, tile in tiles.items())

    def sequence(self, images: tuple[PlacedTile, ...] = ()) -> Sequence:
        sampling = SamplingParams(seed=self.seed, repetition_penalty=1.5 if self.penalties else 1.0)
        return sequence(
            self.name or str(self.seed),
            self.prompt,
            sampling,
            self.max_new_tokens,
            prompt_logprobs=self.prompt_logprobs,
            cache_salt=self.salt,
            client=self.client,
            priority=self.priority,
            drafters=self.drafters,
            images=images,
            adapter=self.adapter,
            pooling=Pooling() if self.pooled else None,
        )
