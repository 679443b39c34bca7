"""The axes along which ranks divide a model. Pure functions of sizes and of the ranks' *shares*.

A rank's share is its number of cores. Attention is divided by KV head, each with its group of query heads, or by query
head; an MLP in units of 32 columns, the kernels' tiles, or of a checkpoint's groups; the vocabulary in units of 16
rows; what makes latents in units of 32. Several ranks may hold a KV head, and divide its query heads. With *expert
parallelism* routed experts are not cut: each is on one rank.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import lcm
from typing import Literal

_GROUP = 32  # columns at whose multiples a checkpoint's groups can be divided

# The query heads and the KV heads of each rank.
HeadRanges = list[tuple[range, range]]


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
    """Query heads, which go where their KV head is. `cuts_groups`: see `split_heads`."""

    kv_heads: int
    cuts_groups: bool = False

    def divide(self, shares: Sequence[int], *, cut: int, expert_parallel: bool) -> list[range]:
        """See the class."""
        return [query for query, _ in split_heads(self.count, self.kv_heads, shares, cuts_groups=self.cuts_groups)]


@dataclass(frozen=True)
class KvHeads(Axis):
    """KV heads, each with a group of the query heads. `cuts_groups`: see `split_heads`."""

    query_heads: int
    cuts_groups: bool = False

    def divide(self, shares: Sequence[int], *, cut: int, expert_parallel: bool) -> list[range]:
        """See the class. Several ranks can have the same KV head."""
        return [kv for _, kv in split_heads(self.query_heads, self.count, shares, cuts_groups=self.cuts_groups)]


@dataclass(frozen=True)
class BorrowingHeads(Axis):
    """Query heads that read the KV heads of another model, the lender, and go where these are.

    Where ranks divide the lender's query heads of a KV head, they divide these in the same proportion. A rank may get
    none.
    """

    lender: QueryHeads

    def divide(self, shares: Sequence[int], *, cut: int, expert_parallel: bool) -> list[range]:
        """See the class."""
        whole = split_heads(self.count, self.lender.kv_heads, shares)
        lent = split_heads(self.lender.count, self.lender.kv_heads, shares, cuts_groups=self.lender.cuts_groups)
        if [kv for _, kv in whole] == [kv for _, kv in lent]:
            return [query for query, _ in whole]
        # A bound between two KV heads stays there: it is a multiple of the lender's group.
        stops = [(2 * query.stop * self.count + self.lender.count) // (2 * self.lender.count) for query, _ in lent]
        return [range(*bounds) for bounds in zip([0, *stops], stops, strict=False)]


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


def attention_heads(query_heads: int, kv_heads: int, value_dim: int) -> tuple[QueryHeads, KvHeads]:
    """Return the axes of attention over keys and values of heads, with values of `value_dim` dimensions.

    Ranks can divide the query heads of a KV head where the output projection's groups of columns allow it.
    """
    cuts = value_dim % _GROUP == 0
    return QueryHeads("query_heads", query_heads, kv_heads, cuts), KvHeads("kv_heads", kv_heads, query_heads, cuts)


def split_heads(query_heads: int, kv_heads: int, shares: Sequence[int], *, cuts_groups: bool = False) -> HeadRanges:
    """Return the contiguous query heads of each rank, and the KV heads that these read.

    Each KV head goes to one rank with its group of query heads; several ranks divide a group only where there are
    fewer KV heads than ranks. Both ranges are empty on a rank only where there are more ranks than query heads to
    divide.

    `cuts_groups`: groups are divided wherever this makes the largest part smaller, in proportion to the shares. No
    rank then has more KV heads than the fullest rank has without it: the fullest rank decides how many tokens the KV
    cache holds.
    """
    whole = _split_groups(query_heads, kv_heads, shares)
    if not cuts_groups or query_heads < len(shares):
        return whole
    cut = _cut_groups(whole, query_heads, query_heads // kv_heads, shares)
    return cut if cut is not None and _largest(cut, shares) < _largest(whole, shares) else whole


def _split_groups(query_heads: int, kv_heads: int, shares: Sequence[int]) -> HeadRanges:
    group = query_heads // kv_heads
    world = len(shares)
    if kv_heads >= world:
        kv_ranges = _ranges(apportion(kv_heads, shares, minimum=1), 1, kv_heads)
        return [(range(kv.start * group, kv.stop * group), kv) for kv in kv_ranges]
    heads: HeadRanges = []
    for kv_head, ranks in enumerate(_ranges(apportion(world, [1] * kv_heads), 1, world)):
        parts = apportion(group, [shares[rank] for rank in ranks], minimum=1)
        for query in _ranges(parts, 1, group):
            first = kv_head * group
            heads.append(
                (range(first + query.start, first + query.stop), range(kv_head, kv_head + (1 if query else 0)))
            )
    return heads


def _cut_groups(whole: HeadRanges, count: int, group: int, shares: Sequence[int]) -> HeadRanges | None:
    """Return even ranges of `count` query heads whose largest part is as small as possible, or None where no part can
    be smaller than the largest one of `whole`."""
    most_kv, largest = max(len(kv) for _, kv in whole), _largest(whole, shares)
    loads = {Fraction(part, share) for share in set(shares) for part in range(1, count + 1)}
    for load in sorted(each for each in loads if Fraction(count, sum(shares)) <= each < largest):
        caps = [max(1, load.numerator * share // load.denominator) for share in shares]
        # The lowest bound before each rank from which it and the later ranks can hold all other heads.
        lowest = [count]
        for cap in reversed(caps):
            lowest.append(max(lowest[-1] - cap, (-(-lowest[-1] // group) - most_kv) * group))
        if lowest.pop() <= 0:
            bounds = _even_bounds(caps, lowest[::-1], most_kv, group, shares)
            return [(range(a, b), range(a // group, -(-b // group))) for a, b in pairwise(bounds)]
    return None


def _even_bounds(
    caps: Sequence[int], lowest: Sequence[int], most_kv: int, group: int, shares: Sequence[int]
) -> tuple[int, ...]:
    """Return the bounds of parts of 1 to `caps` query heads and at most `most_kv` KV heads that have the least sum of
    squares for each core, the lower rank with the larger part. Parts must end at `lowest` or later."""
    unit = lcm(*shares)
    # The cost of parts that end at a head, and their bounds, negated to find the largest of equal ones.
    found: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, (0,))}
    for later, (cap, low, share) in zip(
        range(len(caps) - 1, -1, -1), zip(caps, lowest, shares, strict=True), strict=True
    ):
        reached: dict[int, tuple[int, tuple[int, ...]]] = {}
        for start, (cost, bounds) in found.items():
            high = min(start + cap, (start // group + most_kv) * group, lowest[-1] - later)
            for stop in range(max(start + 1, low), high + 1):
                to = cost + (stop - start) ** 2 * (unit // share), (*bounds, -stop)
                reached[stop] = min(reached.get(stop, to), to)
        found = reached
    return tuple(-bound for bound in found[lowest[-1]][1])


def _largest(heads: HeadRanges, shares: Sequence[int]) -> Fraction:
    """Return the most query heads that a rank has for each core."""
    return max(Fraction(len(query), share) for (query, _), share in zip(heads, shares, strict=True))


def _ranges(parts: Sequence[int], unit: int, total: int) -> list[range]:
    ranges: list[range] = []
    start = 0
    for part in parts:
        stop = start + part
        ranges.append(range(min(start * unit, total), min(stop * unit, total)))
        start = stop
    return ranges
