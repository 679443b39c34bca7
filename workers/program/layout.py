"""The places of the buffers of a forward pass: in one arena, or, for collectives, in the ring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from numaserve.workers.program.buffers import Buffer, Persistent
from numaserve.workers.program.ops.base import Operation
from numaserve.workers.program.ops.rows import Keep

ALIGNMENT = 4096

Place = tuple[int, int, int]  # bytes offset in the arena, elements from row to row, number of the collective or -1


@dataclass(frozen=True)
class Lifetime:
    """The operations, by index, from the first that touches a buffer to the last."""

    first: int
    last: int

    def meets(self, other: Lifetime) -> bool:
        """Whether both are alive at some operation."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class Layout:
    """The place of each buffer that has memory of its own, the bytes of the arena, and the number of a step's
    collectives."""

    places: Mapping[Buffer, Place]
    arena_bytes: int
    collectives: int

    def place(self, buffer: Buffer) -> Place:
        """The place of a buffer, or of a part of a buffer."""
        offset, ld, collective = self.places[buffer.whole]
        return offset + buffer.begin, ld, collective


def layout(operations: Sequence[Operation]) -> Layout:
    """Lay out the buffers of `operations`. Collectives are numbered in the order in which they are written first."""
    lives = lifetimes(operations)
    written = [buffer.whole for operation in operations for buffer in operation.writes]
    collectives = dict.fromkeys(buffer for buffer in written if buffer.collective)
    numbers = {buffer: index for index, buffer in enumerate(collectives)}
    offsets = _offsets({buffer: life for buffer, life in lives.items() if not buffer.collective})
    places = {buffer: (0, buffer.ld, number) for buffer, number in numbers.items()}
    places |= {buffer: (offset, buffer.ld, -1) for buffer, offset in offsets.items()}
    arena = max((_aligned(offset + buffer.nbytes) for buffer, offset in offsets.items()), default=0)
    return Layout(places, arena, len(numbers))


def lifetimes(operations: Sequence[Operation]) -> dict[Buffer, Lifetime]:
    """The lifetime of each buffer that has memory of its own, in the order in which they are touched first."""
    found: dict[Buffer, Lifetime] = {}
    end = len(operations) - 1
    for index, operation in enumerate(operations):
        for buffer in operation.buffers:
            stays = isinstance(buffer, Persistent)
            last = end if stays or isinstance(operation, Keep) else index  # rows are kept until after the step
            before = found.get(buffer.whole, Lifetime(0 if stays else index, index))
            found[buffer.whole] = Lifetime(before.first, max(before.last, last))
    return found


def _offsets(lives: Mapping[Buffer, Lifetime]) -> dict[Buffer, int]:
    """Offsets such that buffers that are alive together do not overlap.

    Largest first, each at the lowest offset that is free for its whole lifetime: within a few percent of the optimum on
    such straight-line programs (Pisarchyk and Lee, 2020, "greedy by size").
    """
    offsets: dict[Buffer, int] = {}
    for buffer in sorted(lives, key=lambda each: each.nbytes, reverse=True):
        rivals = [placed for placed in offsets if lives[placed].meets(lives[buffer])]
        offset = 0
        for rival in sorted(rivals, key=offsets.__getitem__):
            if offset + buffer.nbytes <= offsets[rival]:
                break
            offset = max(offset, _aligned(offsets[rival] + rival.nbytes))
        offsets[buffer] = offset
    return offsets


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
