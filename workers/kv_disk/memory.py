"""The memory of a rank's caches that records are copied from and to."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from numaserve.workers.interface.protocol import DiskRecord

MemoryRange = tuple[int, int]  # address and bytes


class RecordError(ValueError):
    """A record that names memory which the rank does not have."""


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

    def at(self, index: int) -> MemoryRange:
        """Return the memory of a piece. Raises `RecordError` for a piece that does not exist."""
        if not 0 <= index < self.number:
            raise RecordError(f"the record names piece {index} of a cache that has {self.number}")
        return self.address + index * self.nbytes, self.nbytes


class TailMemory(NamedTuple):
    """The memory of a window table's pages."""

    layers: Sequence[Pieces]
    most: int  # pages that a sequence needs to continue


class CacheMemory(NamedTuple):
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

    def ranges(self, record: DiskRecord) -> list[MemoryRange]:
        """Return the memory of a record, in the order of its payload. Raises `RecordError` for a record that names
        memory which the rank does not have."""
        if not record.is_anchor:
            return [layer.at(record.page) for layer in self.pages]
        return list(self._of_anchor(record))

    def _of_anchor(self, record: DiskRecord) -> Iterator[MemoryRange]:
        if len(record.tails) != len(self.tails):
            raise RecordError(f"the record has {len(record.tails)} tails, but the model has {len(self.tails)} windows")
        for layer in self.snapshots:
            yield layer.at(record.snapshot)
        for tail, pages in zip(self.tails, record.tails, strict=True):
            if len(pages) > tail.most:
                raise RecordError(f"the record has a tail of {len(pages)} pages; the longest one has {tail.most}")
            yield from (layer.at(page) for page in pages for layer in tail.layers)


def _bytes_of(layers: Sequence[Pieces]) -> int:
    return sum(layer.nbytes for layer in layers)
