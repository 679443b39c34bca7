"""A drafter whose layers read the KV cache of the served model (Gemma 4's assistants)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.windows import Window
from numaserve.workers.layers.axes import Axis, Columns, KvHeads, QueryHeads
from numaserve.workers.layers.block import Block, rank_shape
from numaserve.workers.layers.caches import NumberedCaches, Paged, read_by
from numaserve.workers.layers.decoder import Decoder
from numaserve.workers.layers.mixers.attention import Attention
from numaserve.workers.layers.parameters import MatrixParameter, Parameter, Source, Split, whole
from numaserve.workers.layers.predictor import HIDDEN_STATES
from numaserve.workers.program.caches import CacheIndex, CacheKind

if TYPE_CHECKING:
    from numaserve.workers.layers.partition import Partition, RankPart
    from numaserve.workers.program.recording.builder import ProgramBuilder
    from numaserve.workers.program.setup import RankShape


@dataclass(frozen=True)
class Assistant(Decoder):
    """A small decoder that drafts for another one, of `served_hidden` columns.

    Its input is the served model's embedding of a token, and a hidden state: the served model's for the token before,
    or its own for the draft token before. It keeps nothing. All draft tokens of a step attend to the tokens that the
    served model has computed, from the position of the first one.
    """

    served_hidden: int = field(kw_only=True)

    @property
    def borrows(self) -> bool:
        """See `Decoder`."""
        return True

    @cached_property
    def joined(self) -> Axis:
        """The concatenated columns of embedding and hidden state, which ranks divide."""
        return Columns("assistant_input", 2 * self.served_hidden)

    @cached_property
    def into(self) -> MatrixParameter:
        """Makes the residual stream of both."""
        source = Source("pre_projection", (self.embedding.hidden, 2 * self.served_hidden), "nextn.pre_projection")
        return MatrixParameter((whole(source),), Split(self.joined))

    @cached_property
    def out(self) -> MatrixParameter:
        """Makes the hidden state for the next draft token, whole on every rank."""
        source = Source("post_projection", (self.served_hidden, self.embedding.hidden), "nextn.post_projection")
        return MatrixParameter((whole(source),))

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield from (self.into, self.out)

    def scratch_columns(self, part: RankPart) -> int:
        """The columns of its blocks, and of both inputs and the result."""
        return super().scratch_columns(part) + 6 * self.served_hidden

    def drafting_for(self, served: Decoder) -> Assistant:
        """Return the assistant with the KV heads of the served model. Raises `OperatorError` for a model that it was
        not made for."""
        if (served.embedding.hidden, served.embedding.vocabulary) != (self.served_hidden, self.embedding.vocabulary):
            raise OperatorError(
                f"--draft-model: the assistant drafts for a model with {self.served_hidden} columns and "
                f"{self.embedding.vocabulary} tokens, not {served.embedding.hidden} and "
                f"{served.embedding.vocabulary}: choose the assistant of the served model"
            )
        return replace(self, blocks=tuple(_drafting_for(block, served) for block in self.blocks))

    def check_ranks(self, partition: Partition) -> None:
        """See `Decoder`. A rank reads its KV heads with its query heads."""
        for attention in map(attention_of, self.blocks):
            if not all(partition.ranges(attention.queries)):
                raise OperatorError(
                    f"--draft-model: the assistant has too few query heads ({attention.query_heads}) for "
                    f"{partition.world_size} ranks: lower --tp, or leave the draft model out"
                )


@dataclass(frozen=True)
class Drafting:
    """An assistant as the Program of a rank, next to the rank's part of the served model."""

    assistant: Assistant
    served: Decoder
    served_part: RankPart

    def shape(self, part: RankPart) -> RankShape:
        """The sizes that its Program is made for: the kinds of caches of the served model, for its own heads."""
        readers = {number_of(each, self.served): each for each in map(attention_of, self.assistant.blocks)}
        kinds = tuple(
            _read_by(kind, readers[number], part) if number in readers else kind
            for number, kind in enumerate(self.served.layer_caches(self.served_part).caches)
        )
        return rank_shape(part, self.assistant.embedding, NumberedCaches(kinds, (), ()))

    def forward(self, b: ProgramBuilder, part: RankPart) -> None:
        """Append its forward pass; the hidden states are given from outside, and its own are kept for there."""
        assistant, embedding = self.assistant, self.served.embedding
        token, hidden = embedding.forward(b, self.served_part), b.given(HIDDEN_STATES, assistant.served_hidden)
        both = b.columns(b.norms_beside([(token, None, 0.0), (hidden, None, 0.0)]), part.along(assistant.joined))
        residual = b.summed(b.linear_partial(both, part.matrix(assistant.into)))
        caches = self.served.layer_caches(self.served_part).caches
        for block in assistant.blocks:
            number = number_of(attention_of(block), self.served)
            block.forward(b, part, residual, CacheIndex(number, caches[number].layers - 1))
        x = assistant.norm.forward(b, part, residual)
        assert assistant.head is not None  # noqa: S101  pooled models have no draft model
        assistant.head.forward(b, part, x)
        b.keep(HIDDEN_STATES, b.rounded(b.linear(x, part.matrix(assistant.out))))


def attention_of(block: Block) -> Attention:
    """Return the attention of an assistant's layer."""
    assert isinstance(block.attention, Attention)  # noqa: S101  its family makes no others
    return block.attention


def number_of(attention: Attention, served: Decoder) -> int:
    """Return the number of the kind of cache that a layer of an assistant reads."""
    found = [cache for cache in _kinds(served) if _span(cache) == (attention.head_dim, attention.mask.window)]
    if not found:
        raise OperatorError(
            f"--draft-model: no layer of the served model has a cache of {attention.head_dim} dimensions and a window "
            f"of {attention.mask.window} tokens: choose the assistant of the served model"
        )
    return _kinds(served).index(found[0])


def _kinds(served: Decoder) -> Sequence[Paged]:
    """Return the kinds of caches in the order of their numbers."""
    return list(dict.fromkeys(cache for cache in served.keeps if isinstance(cache, Paged)))


def _span(cache: Paged) -> tuple[int, int | None]:
    return cache.dim, cache.window


def _drafting_for(block: Block, served: Decoder) -> Block:
    """Return a block with the KV heads of the cache that it reads. Assistants of large models state others. Its query
    heads go where ranks have these KV heads."""
    attention = attention_of(block)
    cache = _kinds(served)[number_of(attention, served)]
    assert isinstance(cache.queries, QueryHeads)  # noqa: S101  served models have caches of their own
    assert isinstance(cache.keys, KvHeads)  # noqa: S101
    heads = cache.keys.count
    if attention.query_heads % heads:
        raise OperatorError(
            f"--draft-model: {attention.query_heads} query heads of the assistant cannot share {heads} KV heads of the "
            "served model: choose the assistant of the served model"
        )
    return replace(block, attention=replace(attention, kv_heads=heads, lender=(cache.queries, cache.keys)))


def _read_by(kind: CacheKind, attention: Attention, part: RankPart) -> CacheKind:
    """Return a kind of cache for the query heads of an assistant's layer. They do not attend to the token at their
    position: their window has one token less."""
    tokens = kind.window.tokens
    window = Window(tokens - 1) if tokens > 1 else kind.window
    query, kv = part.along(attention.queries), part.along(attention.keys)
    heads = read_by(kind.heads, query, kv, attention.query_heads // attention.kv_heads)
    return replace(kind, heads=heads, window=window)
