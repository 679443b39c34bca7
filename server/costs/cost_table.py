"""The work of a step: the bytes and operations that follow from its shape."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from numaserve.workers.interface.protocol import OperationTerms

NUM_TERMS = 5
# 1, bytes and flops of weights, bytes of KV cache and states, flops of attention.
Terms = tuple[float, float, float, float, float]
NO_TERMS: Terms = (0.0, 0.0, 0.0, 0.0, 0.0)
Attention = tuple[tuple[int, int, int], ...]  # window, bytes of a position, flops of a pair
Experts = tuple[tuple[int, int, int], ...]  # how many there are and a token chooses, and bytes of all


class LowRank(Protocol):
    """A LoRA adapter of a sequence. Adapters are compared by identity."""

    @property
    def mean_rank(self) -> float:
        """The rank of an adapter of all matrices that has as many values."""


def summed(parts: Iterable[Terms]) -> Terms:
    """The terms of work that is done one after the other."""
    one, weights, products, kv_bytes, kv_flops = map(sum, zip(NO_TERMS, *parts, strict=True))
    return one, weights, products, kv_bytes, kv_flops


@dataclass(frozen=True)
class CostTable:
    """The work of all operations of a rank, from its description."""

    weight_bytes: int = 0
    token_flops: float = 0.0
    adapter_bytes: int = 0  # of an adapter of rank 1
    adapter_flops: float = 0.0
    logit_bytes: int = 0  # of weights that only rows of logits need
    logit_flops: float = 0.0
    logit_adapter_bytes: int = 0
    logit_adapter_flops: float = 0.0
    experts: Experts = ()
    attention: Attention = ()
    sequence_bytes: int = 0  # of states
    logit_experts: Experts = ()  # of layers that only rows of logits need
    logit_attention: Attention = ()

    @classmethod
    def of(cls, operations: Collection[OperationTerms]) -> CostTable:
        """The table of those operations."""
        of_all = [each for each in operations if not each.of_logits]
        of_logits = [each for each in operations if each.of_logits]
        return cls(
            *_products(of_all),
            *_products(of_logits),
            _experts(of_all),
            _attention(of_all),
            sum(each.sequence_bytes for each in operations),
            _experts(of_logits),
            _attention(of_logits),
        )

    @classmethod
    def of_slowest(cls, ranks: Sequence[Collection[OperationTerms]]) -> CostTable:
        """The table of the rank that multiplies most for a token: the others wait for it."""
        return max(map(cls.of, ranks), key=lambda table: (table.token_flops, table.weight_bytes), default=cls())

    def begin(self) -> StepWork:
        """The work of a new plan."""
        return StepWork(self)

    @property
    def is_empty(self) -> bool:
        """True if it describes no operation."""
        return self.token_flops == 0.0


class StepWork:
    """The work of a plan in the making."""

    def __init__(self, table: CostTable) -> None:
        self._table = table
        self._tokens = 0
        self._rows = 0
        self._adapted = _AdaptedRows()  # new tokens
        self._adapted_logits = _AdaptedRows()
        self._kv_bytes = 0
        self._kv_flops = 0

    @property
    def tokens(self) -> int:
        """New tokens of all sequences: rows of most products."""
        return self._tokens

    def add(self, start: int, count: int, rows: int = 0, *, times: int = 1, adapter: LowRank | None = None) -> None:
        """Add `count` new tokens of a sequence from position `start` on, and as many rows of logits; of `times` such
        sequences."""
        self._tokens += times * count
        self._rows += times * rows
        if adapter is not None:
            self._adapted.add(adapter, times * count)
            self._adapted_logits.add(adapter, times * rows)
        nbytes, flops = self._of_sequence(start, count, rows)
        self._kv_bytes += times * nbytes
        self._kv_flops += times * flops

    def lengthen(self, start: int, count: int, times: int = 1, *, adapter: LowRank | None = None) -> None:
        """Add a token, with a row of logits, after `count` tokens of a sequence from position `start` on; with `times`
        -1 remove it."""
        self._tokens += times
        self._rows += times
        if adapter is not None:
            self._adapted.add(adapter, times)
            self._adapted_logits.add(adapter, times)
        seen = start + count + 1
        for window, position_bytes, pair_flops in (*self._table.attention, *self._table.logit_attention):
            self._kv_bytes += times * position_bytes
            self._kv_flops += times * pair_flops * (min(window, seen) if window else seen)

    def terms(self, start: int = 0, count: int = 0, rows: int = 0, *, adapter: LowRank | None = None) -> Terms:
        """The terms of all that was added, and of that as it would be if `count` more tokens were added, too."""
        nbytes, flops = self._of_sequence(start, count, rows) if count else (0, 0)
        ranks, row_ranks = self._adapted.ranks(adapter, count)
        logit_ranks, logit_row_ranks = self._adapted_logits.ranks(adapter, rows)
        table, tokens, rows = self._table, self._tokens + count, self._rows + rows
        weights = float(table.weight_bytes + (table.logit_bytes if rows else 0))
        for num_experts, top_k, of_all in table.experts:
            weights += of_all * (1.0 - (1.0 - top_k / num_experts) ** tokens)
        for num_experts, top_k, of_all in table.logit_experts:
            weights += of_all * (1.0 - (1.0 - top_k / num_experts) ** rows)
        weights += table.adapter_bytes * ranks + table.logit_adapter_bytes * logit_ranks
        products = table.token_flops * tokens + table.logit_flops * rows
        products += table.adapter_flops * row_ranks + table.logit_adapter_flops * logit_row_ranks
        return 1.0, weights, products, float(self._kv_bytes + nbytes), float(self._kv_flops + flops)

    def _of_sequence(self, start: int, count: int, rows: int) -> tuple[int, int]:
        table = self._table
        nbytes, flops = _attended(table.attention, start, count)
        if rows and table.logit_attention:
            more_bytes, more_flops = _attended(table.logit_attention, start + count - rows, rows)
            nbytes, flops = nbytes + more_bytes, flops + more_flops
        return nbytes + table.sequence_bytes, flops


class _AdaptedRows:
    """The rows of a step that have adapters."""

    def __init__(self) -> None:
        self._adapters = set[LowRank]()
        self._ranks = 0.0  # of the distinct adapters
        self._row_ranks = 0.0  # of the adapters of all rows

    def add(self, adapter: LowRank, rows: int) -> None:
        """Add `rows` rows with an adapter; remove them if it is negative."""
        self._ranks, self._row_ranks = self.ranks(adapter, rows)
        if rows:
            self._adapters.add(adapter)

    def ranks(self, adapter: LowRank | None, rows: int) -> tuple[float, float]:
        """Return the sums of ranks, of distinct adapters and of the adapters of rows, with `rows` more rows."""
        if adapter is None or not rows:
            return self._ranks, self._row_ranks
        more = 0.0 if adapter in self._adapters else adapter.mean_rank
        return self._ranks + more, self._row_ranks + rows * adapter.mean_rank


def _products(operations: Collection[OperationTerms]) -> tuple[int, float, int, float]:
    """Return bytes and flops of products, and of adapters of rank 1."""
    return (
        sum(each.weight_bytes for each in operations),
        sum((each.row_flops for each in operations), 0.0),
        sum(each.adapter_bytes for each in operations),
        sum((each.adapter_flops for each in operations), 0.0),
    )


def _experts(operations: Collection[OperationTerms]) -> Experts:
    found: dict[tuple[int, int], int] = {}
    for each in operations:
        if each.expert_bytes:
            choice = each.num_experts, each.top_k
            found[choice] = found.get(choice, 0) + each.expert_bytes
    return tuple((*choice, nbytes) for choice, nbytes in found.items())


def _attention(operations: Collection[OperationTerms]) -> Attention:
    found: dict[int, tuple[int, int]] = {}
    for each in operations:
        if each.pair_flops:
            position, pair = found.get(each.window, (0, 0))
            found[each.window] = position + each.position_bytes, pair + each.pair_flops
    return tuple((window, *each) for window, each in found.items())


def _attended(attention: Attention, start: int, count: int) -> tuple[int, int]:
    """Return bytes and flops of attention for `count` tokens from position `start` on."""
    nbytes = flops = 0
    for window, position_bytes, pair_flops in attention:
        seen = window or start + count
        growing = min(max(seen - start, 0), count)  # tokens that see everything before them
        nbytes += position_bytes * (start + count - max(start - seen + 1, 0))
        flops += pair_flops * (growing * start + growing * (growing + 1) // 2 + (count - growing) * seen)
    return nbytes, flops
