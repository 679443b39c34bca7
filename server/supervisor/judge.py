"""Distinguishes ranks that hang from ranks that are late, from successive looks at them.

A deadline by the clock takes a starved rank for a dead one: among 15 runnable tasks a core, a barrier can take 45 ms
and a step of 100 barriers 4.5 s. Between two looks a rank is therefore in one of three states:

- It progresses: it has passed a barrier. Its deadline begins again, however long the step takes.
- It is starved: a thread that others wait for was runnable, and waited for a processor. This time does not count.
- It hangs: it has passed no barrier in the time in which it could run, or it did not want to run. This time counts. A
  loop in a kernel uses processor time. A stopped process, a deadlock and a dead disk leave every thread unrunnable.

Threads that wait for another thread or rank say nothing: they spin, or yield the processor and seem to wait for it. One
of them may lack the processor to see that its wait has ended. Such a thread has not run between the looks, and counts
while every thread waits.

Starvation alone never ends a wait, whatever its duration. New workers would be starved too, and the KV cache would be
lost. The log and a metric report it instead. A hang under starvation is found after the deadline in processor time.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from numaserve.server.supervisor.cpu_time import ThreadTime

_NO_THREADS: Mapping[int, ThreadTime] = {}


@dataclass(frozen=True)
class RankLook:
    """A look at a rank."""

    barriers: int = 0  # passed since its launch
    waiting: frozenset[int] = frozenset()  # ids of threads that wait for another thread or rank
    threads: Mapping[int, ThreadTime] = field(default_factory=lambda: _NO_THREADS)  # by id; empty: not read


class Verdict(NamedTuple):
    """The result of a look."""

    progressed: bool  # since the look before
    excused_s: float  # seconds that do not count without progress; negative where less is excused than before
    elapsed_s: float  # since the look before
    starved_s: Mapping[int, float]  # by rank, the longest wait of a thread for a processor, in seconds


class Judge:
    """The judge of ranks that owe an answer."""

    def __init__(self) -> None:
        self._at = 0.0
        self._ranks: Mapping[int, RankLook] = {}
        self._waits: dict[tuple[int, int], float] = {}  # of each rank and thread, in seconds since the last progress
        self._excused_s = 0.0

    def begin(self) -> None:
        """Forget the looks: the ranks have answered, or owe another answer."""
        self._ranks, self._waits, self._excused_s = {}, {}, 0.0

    def look(self, at: float, ranks: Mapping[int, RankLook]) -> Verdict:
        """Compare a look at the time `at`, in seconds, with the look before. The first look excuses nothing."""
        before, elapsed = self._ranks, at - self._at
        self._at, self._ranks = at, ranks
        pairs = {rank: (before[rank], now) for rank, now in ranks.items() if rank in before}
        starved = dict.fromkeys(pairs, 0.0)
        # Signed, and summed up from the last progress on: the kernel may report processor time a second late.
        for (rank, thread), wait in _waits(pairs, elapsed):
            starved[rank] = max(starved[rank], wait)
            self._waits[rank, thread] = self._waits.get((rank, thread), 0.0) + wait
        if any(now.barriers != then.barriers for then, now in pairs.values()):
            self._waits, self._excused_s = {}, 0.0
            return Verdict(True, 0.0, elapsed, starved)
        already, self._excused_s = self._excused_s, max(0.0, max(self._waits.values(), default=0.0))
        return Verdict(False, self._excused_s - already, elapsed, starved)


def _waits(pairs: Mapping[int, tuple[RankLook, RankLook]], elapsed: float) -> Iterator[tuple[tuple[int, int], float]]:
    """Yield the seconds that each thread that counts waited for a processor, by rank and thread."""
    threads = [
        _Thread(rank, thread, then.threads[thread], time, thread in then.waiting & now.waiting)
        for rank, (then, now) in pairs.items()
        for thread, time in now.threads.items()
        if thread in then.threads
    ]
    if any(each.is_stopped for each in threads):  # its group waits for it
        return
    works = any(each.is_runnable and not each.waits for each in threads)
    for each in threads:
        if not each.waits or not (works or each.has_run):
            yield (each.rank, each.thread), each.starved_s(elapsed)


class _Thread(NamedTuple):
    """A thread at two looks."""

    rank: int
    thread: int
    then: ThreadTime
    now: ThreadTime
    waits: bool  # for another thread or rank, at both looks

    @property
    def is_runnable(self) -> bool:
        return "R" in (self.then.state, self.now.state)

    @property
    def is_stopped(self) -> bool:
        return self.now.state in "Tt"

    @property
    def has_run(self) -> bool:
        return self.now.ran_s > self.then.ran_s

    def starved_s(self, elapsed: float) -> float:
        """Return the part of the `elapsed` seconds that the thread waited for a processor.

        A thread that is runnable at both looks ran or waited all the time. The kernel's own count lacks a wait that
        goes on, but has the short waits of a thread that sleeps in between.
        """
        if self.then.state == self.now.state == "R":
            return elapsed - (self.now.ran_s - self.then.ran_s)
        return min(max(0.0, self.now.waited_s - self.then.waited_s), elapsed)
