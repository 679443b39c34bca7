"""Time of work that threads share a node's memory for: a fluid model.

Each thread reads at the rate that one core reaches at most. While the threads that still read would need more than the
node's bandwidth together, they share it equally. A thread that has finished leaves its part to the others.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from numaserve.workers.planning.simulation.counting import Work


@dataclass(frozen=True)
class Rates:
    """Rates of a node and of one core, in bytes and operations per second."""

    node_read: float
    core_read: float
    core_moved: float
    core_flops: float

    def own_seconds(self, work: Work) -> float:
        """Seconds of a core's own work: operations, and activations, which lie in caches."""
        return work.flops / self.core_flops + work.moved / self.core_moved

    def alone_seconds(self, work: Work, threads: int) -> float:
        """Seconds of work while `threads` threads read."""
        return max(self.own_seconds(work), work.memory / min(self.core_read, self.node_read / threads))


def read_seconds(nbytes: Sequence[int], rates: Rates) -> list[float]:
    """Return when each thread has read its bytes, in seconds from the start of all."""
    ends, now, done = [0.0] * len(nbytes), 0.0, 0
    for finished, thread in enumerate(sorted(range(len(nbytes)), key=nbytes.__getitem__)):
        rate = min(rates.core_read, rates.node_read / (len(nbytes) - finished))
        now += (nbytes[thread] - done) / rate
        done = nbytes[thread]
        ends[thread] = now
    return ends


def handed_out(items: Sequence[Work], threads: int, rates: Rates) -> list[Work]:
    """Return the work of each thread where items are handed out: to each thread one, then to whichever is free."""
    loads = [Work(0, 0, 0, 0)] * threads
    free = [(0.0, thread) for thread in range(threads)]
    for item in items:
        now, thread = heapq.heappop(free)
        loads[thread] = loads[thread].plus(item)
        heapq.heappush(free, (now + rates.alone_seconds(item, threads), thread))
    return loads


def thread_seconds(threads: Sequence[Work], rates: Rates) -> list[float]:
    """Return when each thread has done its work, in seconds from the start of all. It computes while it reads."""
    reads = read_seconds([work.memory for work in threads], rates)
    return [max(read, rates.own_seconds(work)) for read, work in zip(reads, threads, strict=True)]
