"""Waiting sequences whose prefix a running sequence is computing."""

from typing import NamedTuple

from numaserve.server.scheduler.cache.mark_kinds import MarkKind
from numaserve.server.scheduler.cache.marks import Marks
from numaserve.server.scheduler.kv_cache import KVCache
from numaserve.server.scheduler.marking import WORTH_PAGES
from numaserve.server.scheduler.queue.queue import WaitingQueue
from numaserve.server.scheduler.sequence import SchedulerConfig, Sequence


class _Wait(NamedTuple):
    seq: Sequence
    computing: Sequence
    marks: Marks  # of `computing`, which has others once it was released
    position: int

    @property
    def is_over(self) -> bool:
        return self.computing.marks is not self.marks or self.computing.position.computed >= self.position


class PrefixWaits:
    """Sets sequences aside while a running one computes a prefix of theirs, and wants a mark where it ends.

    Pages of a prompt can be shared as soon as they are planned, states only where there is a mark. Without waiting, all
    sequences of the same system prompt that come together would compute it. The queue sets aside who waits: others may
    overtake it, since it may be a while.

    Only the first in the queue is looked at, and the next one once it waits. A sequence further back may find that the
    end of its prefix was passed without a mark. Then it computes the prefix again, and others wait for its mark.

    Nothing deadlocks: waiting sequences wait for running ones, and these for none. One that runs has all pages of its
    prompt, and each plan computes some of a prompt. So it comes to the position in a bounded number of plans, or is
    released (ended, aborted, retracted), which ends the wait as well.

    A sequence does not wait indefinitely. Each wait is for a longer prefix than all waits before, and a prompt has a
    bounded number of prefixes. After a retraction or a death of the workers, the sequence also waits again for the same
    prefix, but only for sequences whose turn came before the first wait for it. The number of these sequences is
    bounded, and each of them ends (see `RunningSet`).
    """

    def __init__(self, config: SchedulerConfig, kv: KVCache, waiting: WaitingQueue) -> None:
        self._size = config.page_size
        self._kv = kv
        self._waiting = waiting
        self._waits: list[_Wait] = []

    def settle(self) -> None:
        """Let those go on that have waited long enough."""
        over = [each for each in self._waits if each.is_over]
        if over:
            self._waits = [each for each in self._waits if not each.is_over]
        for each in over:
            self._waiting.prefix_is_there(each.seq)

    def begins(self, seq: Sequence, running: list[Sequence], turns: int) -> bool:
        """Set the first sequence of the queue aside if its prefix is being computed; False if it need not wait.

        `turns` is the next turn to be given out.
        """
        pages, computing = 0, None
        for other in running:
            shared = self._to_come(seq, other)
            if shared > pages:
                pages, computing = shared, other
        if computing is None or computing.marks is None:
            return False
        if pages * self._size < self._kv.reusable(seq) + WORTH_PAGES * self._size:
            return False
        position = pages * self._size
        if position > seq.waited_to:
            seq.waited_to, seq.waits_below = position, turns
        computing.marks.want(position, MarkKind.PREFIX)
        self._waits.append(_Wait(seq, computing, computing.marks, position))
        self._waiting.set_aside(seq)
        return True

    def _to_come(self, seq: Sequence, other: Sequence) -> int:
        """Return the number of pages that both have at the beginning, if `other` has not computed all of them and `seq`
        may wait for it; otherwise 0."""
        size, at = self._size, other.position
        if other.request.scope != seq.request.scope or at.remaining <= 1:
            return 0
        pages = min(self._kv.max_cached_pages(seq), len(other.keys) // size)
        ours, theirs = seq.keys, other.keys
        parts = range(0, pages * size, size)
        shared = next((part for part in parts if ours[part : part + size] != theirs[part : part + size]), pages * size)
        shared = self._kv.whole_pages(seq, shared // size) * size
        may_wait = shared > seq.waited_to or other.turn < seq.waits_below
        return shared // size if shared > at.computed and may_wait else 0
