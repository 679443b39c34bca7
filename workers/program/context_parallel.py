"""The minimum length of a sequence whose latents ranks divide; see kernels/runtime/attention/context_parallel.h."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from numaserve.workers.program.buffers import PARTIAL_EXTRA, Buffer
from numaserve.workers.program.caches import Heads

_BF16, _FP32 = 2, 4
# Bytes that a rank could have read while two collectives wait for the slowest one.
_MEETING_BYTES = 1 << 20
# The exchange goes through another rank's memory, latents lie in one's own: a byte of it counts as this many.
_EXCHANGE_COST = 2


@dataclass(frozen=True)
class ContextParallel:
    """The division of sequences by a Program, the same on all ranks."""

    head_bounds: list[int]  # world size + 1 boundaries of the ranks' heads
    from_tokens: int  # length of a sequence, for each new token of it, from which on it is divided
    max_rows: int  # new tokens of a step whose sequences can be

    @property
    def heads(self) -> int:
        """The number of heads of all ranks together."""
        return self.head_bounds[-1]

    def divides(self, start: int, count: int, before: int) -> bool:
        """Whether a sequence with `count` new tokens from position `start` on is divided, after others of the step with
        `before` new tokens."""
        return start + count >= self.from_tokens * count and before + count <= self.max_rows


def context_parallel(own: Heads, slot_bytes: int, from_tokens: int | None) -> ContextParallel | None:
    """Return the division of latents among ranks, of which one has the heads `own`. None where a rank has no heads and
    no cache. `from_tokens` None: from the length where dividing moves fewer bytes. `slot_bytes` are those of the ring.
    """
    bounds = own.bounds
    if len(bounds) < 3 or any(begin == end for begin, end in pairwise(bounds)):
        return None
    max_rows = slot_bytes // Buffer(bounds[-1], own.value_dim + PARTIAL_EXTRA, _FP32).nbytes
    if from_tokens is None:
        from_tokens = _break_even(bounds, own.dim, own.value_dim)
    return ContextParallel(list(bounds), from_tokens, max_rows)


def _break_even(head_bounds: Sequence[int], head_dim: int, value_dim: int) -> int:
    """Return the length from which a rank saves more by reading fewer latents than it exchanges for one token."""
    world, heads = len(head_bounds) - 1, head_bounds[-1]
    own = max(end - begin for begin, end in pairwise(head_bounds))
    queries = (own + 2 * heads) * head_dim * _BF16  # own ones are written, all read and written
    results = (heads + world * own) * (value_dim + PARTIAL_EXTRA) * _FP32  # all heads' are written, own ones' read
    saved = head_dim * _BF16 * (world - 1) / world
    return int((_EXCHANGE_COST * (queries + results) + _MEETING_BYTES) / saved) + 1
