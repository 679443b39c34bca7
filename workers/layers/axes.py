"""The axes along which ranks divide a model. Pure functions of sizes and of the ranks' *shares*.

A rank's share is its number of cores. Attention is divided by KV head, each with its group of query heads; an MLP in
units of 32 columns, the kernels' tiles, or of a checkpoint's groups; the vocabulary in units of 16 rows; what makes
latents in units of 32. Fewer KV heads than ranks: a KV head is held by several ranks, which divide its query heads.
With *expert parallelism* routed experts are not cut: each is on one rank.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Axis(ABC):
    """One thing of a model that ranks divide. Equal axes are divided alike."""

    name: str
    count: int  # units that are not cut any further

    @abstractmethod
    def divide(self, shares: Sequence[int], *, cut: int, expert_parallel: bool) -> list[range]:
        """The part of each rank, contiguous and in order; parts may be empty.

        `cut` is what the checkpoint's groups make of the unit of columns.
        """


@dataclass(frozen=True)
class QueryHeads(Axis):
    """Query heads, which go where their KV head is."""

    kv_heads: int

    def divide(self, shares: Sequence[int], *, cut: int, expert_parallel: bool) -> list[range]:
        """See the class."""
        return [query for query, _ in split_heads(self.count, self.kv_heads, shares)]


@dataclass(frozen=True)
class KvHeads(Axis):
    """KV heads, each with a group of the query heads."""

    query_heads: int

    def divide(self, shares: Sequence[int], *, cut: int, expert_parallel: bool) -> list[range]:
        """See the class. Several ranks have the same one where there are fewer heads than ranks."""
        return [kv for _, kv in split_heads(self.query_heads, self.count, shares)]


@dataclass(frozen=True)
class Units(Axis):
    """Rows that are divided in units of `unit` of them."""

    unit: int = 1

    def divide(self, shares: Sequence[int], *, cut: int, expert_parallel: bool) -> list[range]:
        """See the class."""
        return split(self.count, shares, self.unit)


@dataclass(frozen=True)
class Columns(Axis):
    """The columns of an MLP, cut where the checkpoint's groups allow it."""

    def divide(self, shares: Sequence[int], *, cut: int, expert_parallel: bool) -> list[range]:
        """See the class."""
        return split(self.count, shares, cut)


@dataclass(frozen=True)
class ExpertAxis(Axis):
    """Routed experts (`of` "experts"), or the columns of each ("columns"): ranks divide one of the two."""

    of: Literal["experts", "columns"]

    def divide(self, shares: Sequence[int], *, cut: int, expert_parallel: bool) -> list[range]:
        """See the class."""
        if expert_parallel != (self.of == "experts"):
            return [range(self.count)] * len(shares)
        return split(self.count, shares, 1 if self.of == "experts" else cut)


# What a rank must save to read at least, in bytes of a layer, so that an exchange pays: several microseconds.
LEAST_SAVED = 2 << 20


@dataclass(frozen=True)
class RouterRows(Axis):
    """The rows of a router, of `row_bytes` each. Every rank needs every logit: ranks divide the rows of a large router
    and exchange logits, and each have the whole of a small one."""

    row_bytes: int

    def divide(self, shares: Sequence[int], *, cut: int, expert_parallel: bool) -> list[range]:
        """See the class."""
        saved = self.count * self.row_bytes * (len(shares) - 1) // len(shares)
        if saved < LEAST_SAVED:
            return [range(self.count)] * len(shares)
        return split(self.count, shares, 32)


def apportion(count: int, shares: Sequence[int], minimum: int = 0) -> list[int]:
    """Divide `count` indivisible things in proportion to `shares` (largest remainder, the lower rank first), each part
    at least `minimum` where `count` allows it."""
    if not shares or min(shares) <= 0:
        raise ValueError("each rank needs at least one core")
    if count < minimum * len(shares):
        minimum = 0
    total = sum(shares)
    # Remainders are compared as integers: floats would make the split depend on rounding.
    parts = [max(minimum, count * share // total) for share in shares]
    while (missing := count - sum(parts)) != 0:
        step = 1 if missing > 0 else -1
        candidates = [rank for rank, part in enumerate(parts) if step > 0 or part > minimum]
        best = max(candidates, key=lambda rank: (step * (count * shares[rank] - parts[rank] * total), -step * rank))
        parts[best] += step
    return parts


def split(total: int, shares: Sequence[int], unit: int) -> list[range]:
    """Contiguous ranges that cover `range(total)`, cut at multiples of `unit`, in proportion to `shares`."""
    return _ranges(apportion(-(-total // unit), shares), unit, total)


def split_heads(query_heads: int, kv_heads: int, shares: Sequence[int]) -> list[tuple[range, range]]:
    """Each rank's query heads and KV heads. Both are empty on a rank only where there are more ranks than query heads
    to divide."""
    group = query_heads // kv_heads
    world = len(shares)
    if kv_heads >= world:
        kv_ranges = _ranges(apportion(kv_heads, shares, minimum=1), 1, kv_heads)
        return [(range(kv.start * group, kv.stop * group), kv) for kv in kv_ranges]
    heads: list[tuple[range, range]] = []
    for kv_head, ranks in enumerate(_ranges(apportion(world, [1] * kv_heads), 1, world)):
        parts = apportion(group, [shares[rank] for rank in ranks], minimum=1)
        for query in _ranges(parts, 1, group):
            first = kv_head * group
            heads.append(
                (range(first + query.start, first + query.stop), range(kv_head, kv_head + (1 if query else 0)))
            )
    return heads


def _ranges(parts: Sequence[int], unit: int, total: int) -> list[range]:
    ranges: list[range] = []
    start = 0
    for part in parts:
        stop = start + part
        ranges.append(range(min(start * unit, total), min(stop * unit, total)))
        start = stop
    return ranges
