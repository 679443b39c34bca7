"""The search for the sequence that kills the workers."""

from collections.abc import Iterable
from typing import NamedTuple

from numaserve.server.scheduler.sequence import Sequence, SequenceState
from numaserve.server.scheduler.step import InFlight


class Finding(NamedTuple):
    """The result of one death of the workers."""

    convicted: Sequence | None  # it alone was left, and the workers died of it once more
    put_down: bool  # to sequences that the workers had died of before


class Suspects:
    """Distinguishes a sequence that kills the workers from workers that die of something else.

    The sequences of a plan in flight are suspects when the workers die, with the positions that were planned and not
    answered. One is cleared when these have been answered, or when none of them was in flight as the workers died
    again: a long prompt that is computed once more from its beginning is no likelier to be the cause than any other.
    All resume together at first: most deaths are no sequence's fault, and then no sequence waits longer than the
    workers.

    If they die once more with suspects in flight, half of these resume, on trial, with all that are no suspects, and
    the other half is held back until the trial is over: by a death, after which the search goes on in that half, or
    because each of them was cleared, after which it goes on in what is held. A suspect that was alone on trial, or the
    only one from the start, is convicted as the workers die of it again. So one among n sequences is found after at
    most ceil(log2(n)) + 2 deaths; to try each by itself would take n. Deaths from outside convict no sequence as
    long as steps are answered in between.
    """

    def __init__(self) -> None:
        self._positions: dict[Sequence, range] = {}  # of suspects: those at which they may kill
        self._trial: list[Sequence] = []
        self._tries_one = False  # the trial began with one sequence
        self._held: list[list[Sequence]] = []  # the half to try next is the last
        self._first = 0  # the number of suspects when the search began
        self._answered: dict[Sequence, int] = {}  # positions answered since the last death with the sequence in flight

    @property
    def held(self) -> list[Sequence]:
        """The sequences that must not run now."""
        return [seq for group in self._held for seq in group if _is_live(seq)]

    def answered(self, seq: Sequence, end: int) -> None:
        """Note that the positions of a sequence before `end` were answered."""
        if end > self._answered.get(seq, 0):
            self._answered[seq] = end

    def is_suspect(self, seq: Sequence) -> bool:
        """Return whether workers may have died of a sequence, and it was not cleared since."""
        return _is_live(seq) and self._answered.get(seq, 0) < self._positions.get(seq, range(0)).stop

    def forget(self, seq: Sequence) -> None:
        """Forget a sequence that has ended. It must not keep its request until the next death."""
        self._answered.pop(seq, None)
        if self._positions.pop(seq, None) is not None:
            self._trial = [each for each in self._trial if each is not seq]
            self._held = [[each for each in group if each is not seq] for group in self._held]

    def died(self, plans: Iterable[InFlight]) -> Finding:
        """Note a death of the workers while `plans` were in flight, which changes `held`."""
        ends = {seq: end for plan in plans for seq, end in plan.ends.items() if _is_live(seq)}
        in_flight = {seq: range(self._answered.get(seq, 0), end) for seq, end in ends.items()}
        both = {seq: _common(planned, self._positions.get(seq, range(0))) for seq, planned in in_flight.items()}
        again = [seq for seq, positions in both.items() if positions]
        tried = [seq for seq in again if seq in self._trial] or again
        kept = {seq: self._positions[seq] for seq in self.held}
        self._positions = kept | {seq: both[seq] or planned for seq, planned in in_flight.items()}
        for seq in in_flight:
            self._answered.pop(seq, None)
        was_alone = (self._tries_one and tried == self._trial) or self._first == 1
        self._trial = []
        if not again:
            self._first = len(in_flight)
        if len(tried) == 1 and was_alone:
            self._held = []
            del self._positions[tried[0]]
            return Finding(tried[0], put_down=True)
        if tried:
            self._try_half_of(tried)
        return Finding(None, put_down=bool(tried))

    def next_on_trial(self) -> list[Sequence]:
        """Return the sequences of `held` that may run now: all that were on trial have been cleared or have ended."""
        if any(self.is_suspect(seq) for seq in self._trial):
            return []
        while self._held:
            group = [seq for seq in self._held.pop() if _is_live(seq)]
            if group:
                self._try_half_of(group)
                return list(self._trial)
        return []

    def _try_half_of(self, group: Iterable[Sequence]) -> None:
        suspects = sorted(group, key=lambda seq: seq.arrival)
        half = -(-len(suspects) // 2)
        self._trial, self._tries_one = suspects[:half], half == 1
        if suspects[half:]:
            self._held.append(suspects[half:])


def _common(some: range, others: range) -> range:
    return range(max(some.start, others.start), min(some.stop, others.stop))


def _is_live(seq: Sequence) -> bool:
    return seq.state is not SequenceState.FINISHED
