"""The sequences that run: each has a slot, and pages for its tokens."""

from bisect import insort

from numaserve.server.scheduler.disk.tier import DiskTier
from numaserve.server.scheduler.kv_cache import KVCache
from numaserve.server.scheduler.prefix_waits import PrefixWaits
from numaserve.server.scheduler.queue.levels import Levels
from numaserve.server.scheduler.queue.queue import WaitingQueue
from numaserve.server.scheduler.sequence import SchedulerConfig, Sequence, SequenceState


class RunningSet:
    """The running sequences: which may begin, and which give way.

    All sequences have an order: by `Levels`, then by turn, the number of the first admission. With one client that is
    the order of arrival. A page that is lacking is taken from the cache, and then from the last in that order. The
    first in the queue takes slots and pages from sequences of a higher level than its own: from the client that holds
    most for its weight. They stay at a higher level than it has, so they do not take them back.

    Nothing deadlocks. The sequence of the lowest turn is its client's first, hence at level 0, and comes before all
    others: no page that is lacking is taken from it, none is of a lower level, and if it waits it is the first in the
    queue. It alone has room for its whole length (`Scheduler.add` sees to that), so it ends, and another one is the
    lowest.
    """

    def __init__(
        self, config: SchedulerConfig, kv: KVCache, waiting: WaitingQueue, disk: DiskTier | None = None
    ) -> None:
        self._config = config
        self._kv = kv
        self._disk = disk
        self._waiting = waiting
        self.running: list[Sequence] = []  # in order of turns
        self.before_images: list[Sequence] = []  # of these, the sequences that have rows of images to compute
        self.free_slots = list(range(config.capacity.max_slots - 1, -1, -1))
        self.retractions = 0
        self._turns = 0
        self._levels = Levels(config)
        self._prefix_waits = None if kv.anchors is None else PrefixWaits(config, kv, waiting)

    def ranked(self) -> list[Sequence]:
        """Return the running sequences, the first to give way last; by turn where none has to."""
        if self._waiting.clients > 1 and not self._kv.can_grow(len(self.running)):
            return self._levels.ranked()
        return list(self.running)

    def newcomer(self) -> Sequence | None:
        """Return the next sequence to admit; None when none waits or there is no slot."""
        if not self._waiting or len(self.running) == self._config.max_running:
            return None
        return self._first_waiting()

    def admit(self, seq: Sequence) -> bool:
        """Give a sequence that waits a slot and pages; False, and nothing done, when it has to wait on."""
        # One page per running sequence is left over: else it would be retracted as soon as the others grow. Whole
        # prompts never grow.
        headroom = 0 if self._config.whole_prompts else len(self.running)
        if seq.position.pending or not self._kv.admit(seq, headroom):
            return False
        self._waiting.take_out(seq)
        if not seq.has_begun:
            self._waiting.begun(seq)
            seq.turn = self._turns
            self._turns += 1
        insort(self.running, seq, key=lambda each: each.turn)
        if seq.request.images:
            self.before_images.append(seq)
        self._levels.add(seq)
        seq.state = SequenceState.RUNNING
        seq.slot = self.free_slots.pop()
        return True

    def make_room(self) -> None:
        """Retract sequences of clients that hold more than that of the first in the queue, if it then can run.

        To be called before anything is planned: pages that a plan in the making names must not change hands. Whole
        prompts are not retracted, since each running one ends with the answer to a plan in flight.
        """
        if self._config.whole_prompts:
            self._free_planned()
            return
        if self._prefix_waits is not None:
            self._prefix_waits.settle()
            self._first_waiting()  # even if it finds no slot, a mark is made where its prefix ends
        if self._waiting.clients < 2:
            return
        first = self._waiting.first(self._levels)
        if first is None or first.position.pending:
            return
        higher = self._levels.higher_than(self._levels.of(first))
        if not higher:
            return
        for_pages = self._kv.count_to_retract(higher, first, headroom=len(self.running))
        for_slots = len(self.running) + 1 - self._config.max_running
        if for_pages is not None and for_slots <= len(higher):
            for seq in higher[: max(for_pages, for_slots)]:
                self._retract(seq)

    def grow(self, seq: Sequence, ranked: list[Sequence]) -> list[int] | None:
        """Return pages for the next position, at the cost of the last of `ranked`; None when `seq` itself had to go."""
        while (pages := self._kv.grow(seq)) is None:
            victim = ranked.pop()
            self._retract(victim)
            if victim is seq:
                return None
        self._levels.grown(seq, len(pages))
        return pages

    def grow_for_drafts(self, seq: Sequence, drafts: int) -> tuple[list[int], int]:
        """Return pages for draft tokens after the next position, and the number that find a place. No sequence gives
        way for them."""
        pages, found = self._kv.grow_for_drafts(seq, drafts, headroom=len(self.running))
        self._levels.grown(seq, len(pages))
        return pages, found

    def pass_images(self) -> None:
        """Note which sequences have computed all rows of their images."""
        ends = [(seq, seq.request.images[-1].end) for seq in self.before_images]
        self.before_images = [seq for seq, end in ends if seq.position.next < end]

    def suspend(self, seq: Sequence) -> None:
        """Send a sequence back to the queue with all its tokens."""
        self.leave(seq)
        seq.state = SequenceState.WAITING
        self._waiting.put_back(seq)

    def leave(self, seq: Sequence) -> None:
        """Take slot and pages from a sequence."""
        self.running.remove(seq)
        if seq in self.before_images:
            self.before_images.remove(seq)
        self._levels.remove(seq)
        self._kv.release(seq)
        self.free_slots.append(seq.slot)
        seq.slot = -1

    def _free_planned(self) -> None:
        """Free the pages of all running sequences, each of which an earlier plan computes whole."""
        for seq in self.running:
            self._levels.grown(seq, -len(seq.pages))
            self._kv.free_planned(seq)

    def _first_waiting(self) -> Sequence | None:
        """Return the first sequence in the queue whose prefix no other is computing, and which need not wait for the
        disk."""
        while (first := self._waiting.first(self._levels)) is not None and self._is_set_aside(first):
            pass
        return first

    def _is_set_aside(self, first: Sequence) -> bool:
        if self._prefix_waits is not None and self._prefix_waits.begins(first, self.running, self._turns):
            return True
        return self._disk is not None and self._disk.begins(first, headroom=len(self.running))

    def _retract(self, seq: Sequence) -> None:
        self.suspend(seq)
        self.retractions += 1
