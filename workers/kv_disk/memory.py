"""The memory of a rank's caches that records are copied from and to."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from numaserve.workers.interface.protocol import DiskRecord

MemoryRange = tuple[int, int]  # address and bytes


class RecordError(ValueError):
    """A record that cannot be moved: it names memory which the rank does not have."""


def bytes_of(ranges: Iterable[MemoryRange]) -> int:
    """Return the bytes of memory ranges together."""
    return sum(nbytes for _, nbytes in ranges)


class Pieces(NamedTuple):
    """Equal pieces of memory, one after another."""

    address: int
    nbytes: int  # of a piece
    number: int

    @classmethod
    def of(cls, memory: MemoryRange, number: int) -> "Pieces":
        """Return the `number` pieces that some memory consists of."""
        address, nbytes = memory
        return cls(address, nbytes // max(number, 1), number)


class TailMemory(NamedTuple):
    """The memory of a window table's pages."""

    layers: Sequence[Pieces]
    most: int  # pages that a sequence needs to continue


@dataclass(frozen=True)
class CacheMemory:
    """The memory of all caches of a rank: of the served model, and of the drafter's own Programs."""

    pages: Sequence[Pieces]  # of the common page table
    snapshots: Sequence[Pieces]
    tails: Sequence[TailMemory]

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, of all layers."""
        return _bytes_of(self.pages)

    @property
    def anchor_bytes(self) -> int:
        """The most bytes of an anchor; 0: the model has no anchors besides its pages."""
        return _bytes_of(self.snapshots) + sum(tail.most * _bytes_of(tail.layers) for tail in self.tails)

    @property
    def lacks_snapshots(self) -> bool:
        """Whether a sequence has states of which no snapshots are stored, without which it cannot continue."""
        return any(layer.number == 0 for layer in self.snapshots)

    @property
    def has_anchors(self) -> bool:
        """Whether pages alone do not continue a sequence."""
        return bool(self.snapshots or self.tails)

    def check(self, record: DiskRecord) -> None:
        """Raise `RecordError` for a record that names memory which the rank does not have."""
        if not record.is_anchor:
            _check((record.page,), self._num_pages, "page")
            return
        if self.snapshots:
            _check((record.snapshot,), self._num_snapshots, "snapshot")
        if len(record.tails) != len(self.tails):
            raise RecordError(f"the record has {len(record.tails)} tails, but the model has {len(self.tails)} windows")
        for tail, num_pages, pages in zip(self.tails, self._tail_pages, record.tails, strict=True):
            if len(pages) > tail.most:
                raise RecordError(f"the record has a tail of {len(pages)} pages; the longest one has {tail.most}")
            _check(pages, num_pages, "page of a window")

    def ranges(self, record: DiskRecord) -> list[MemoryRange]:
        """Return the memory of a record that `check` has passed, in the order of its payload."""
        if not record.is_anchor:
            page = record.page
            return [(address + page * nbytes, nbytes) for address, nbytes, _ in self.pages]
        snapshot = record.snapshot
        found = [(address + snapshot * nbytes, nbytes) for address, nbytes, _ in self.snapshots]
        for tail, pages in zip(self.tails, record.tails, strict=True):
            found += [(address + page * nbytes, nbytes) for page in pages for address, nbytes, _ in tail.layers]
        return found

    @cached_property
    def _num_pages(self) -> int:
        return _number_of(self.pages)

    @cached_property
    def _num_snapshots(self) -> int:
        return _number_of(self.snapshots)

    @cached_property
    def _tail_pages(self) -> list[int]:
        return [_number_of(tail.layers) for tail in self.tails]


def _bytes_of(layers: Sequence[Pieces]) -> int:
    return sum(layer.nbytes for layer in layers)


def _number_of(layers: Sequence[Pieces]) -> int:
    return min((layer.number for layer in layers), default=0)


def _check(numbers: Iterable[int], end: int, what: str) -> None:
    for number in numbers:
        if not 0 <= number < end:
            raise RecordError(f"the record names {what} {number}; the rank has {end}")
