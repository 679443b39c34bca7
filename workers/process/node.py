"""The cores, threads, memory policy and ring of a rank, set up in an order that places memory on its node.

The order is cores, memory policy, thread team, ring. Later allocations (weights, KV cache, scratch) are therefore on
the node without further action, and are verified to be there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from numaserve.kernels import Team
from numaserve.shm_comm import Board, Progress, Ring
from numaserve.workers.interface.protocol import Launch
from numaserve.workers.process import numa

# A query of every page of a large model would take seconds; a sample of this size is sufficient.
_SAMPLED_PAGES = 1024  # a fraction of a millisecond: a step may wait for it

_LONGEST_DEADLINE_S = 86400


@dataclass
class NodeContext:
    """A rank's cores, threads and ring. `ring` is None with one rank, `masks` is None except on rank 0."""

    node: int
    team: Team
    ring: Ring | None
    masks: Board | None = None

    @classmethod
    def enter(cls, launch: Launch, lifeline_fd: int = -1) -> NodeContext:
        """Move the calling process to its node. `lifeline_fd` is a pipe whose write end the front end holds.

        Raises `OSError` when a core may not be used, `RingError` when the ring's segment, the mask board or the
        progress board is not the intended one.
        """
        node = launch.nodes[launch.rank]
        numa.bind_memory_to(node)
        progress = Progress(launch.progress_fd, launch.progress_nonce) if launch.progress_fd >= 0 else None
        team = Team(launch.cpus[launch.rank], progress, launch.rank)
        ring = None
        if launch.world_size > 1:
            ring = Ring(launch.ring_fd, launch.rank, launch.ring_nonce, launch.world_size)
            ring.set_deadline(launch.step_deadline_s)
            if min(map(min, launch.cpus)) < 0:  # threads that are not pinned
                ring.share_cores()
            if progress is not None:
                ring.leave_verdict(lifeline_fd)
            offset, nbytes = ring.part_range(launch.rank)
            numa.bind_range(ring.base_address + offset, nbytes, node)
            ring.prefault()
        if launch.rank == 0:  # the other ranks have the same kernel: once is enough
            numa.warn_of_refusal()
        reads_masks = launch.rank == 0 and launch.mask_fd >= 0
        masks = Board(launch.mask_fd, launch.mask_nonce) if reads_masks else None
        return cls(node=node, team=team, ring=ring, masks=masks)

    def set_deadline(self, seconds: float) -> None:
        """Limit each wait for another rank to `seconds`, unless a front end that exists judges the ranks.

        Raises `ValueError` for a deadline that is out of range, on every rank.
        """
        if not 0 < seconds <= _LONGEST_DEADLINE_S:
            raise ValueError(f"a step's deadline must be above 0 and at most {_LONGEST_DEADLINE_S} s, not {seconds}")
        if self.ring is not None:
            self.ring.set_deadline(seconds)

    @property
    def memory_bound(self) -> bool:
        """True if the kernel keeps the rank's memory on its node."""
        return not numa.refusal()

    def misplaced_pages(self, ranges: Iterable[tuple[int, int]]) -> int:
        """Return the number of memory pages of ``(address, nbytes)`` on other nodes, extrapolated from a sample."""
        return numa.misplaced_pages(ranges, self.node, sample=_SAMPLED_PAGES)
