"""The sequences that wait, by whose they are."""

import math
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from numaserve.server.scheduler.queue.fair_clock import FairClock
from numaserve.server.scheduler.queue.levels import Levels
from numaserve.server.scheduler.sequence import Sequence

# Later requests of its client that may overtake a request, for each unit by which these are more urgent: none waits
# without end, however many urgent ones come.
PLACES_A_PRIORITY = 64

_Place = tuple[int, float, int, Sequence]  # the sequence's turn, its client's turn to begin one, and its arrival


@dataclass(slots=True)
class _Share:
    """The state of a client that has sequences."""

    waiting: list[Sequence] = field(default_factory=list)  # in the client's own order
    live: int = 0  # that wait, run or are held back
    arrivals: int = 0
    start: float = 0.0  # of its turn to begin a sequence
    place: _Place | None = None  # of the first that waits, in the line of all clients


class WaitingQueue:
    """Each client has a queue of its own, and nobody else's place depends on how long it is.

    Within a queue come first those that have begun, by turn, and then the others in order of arrival, but for their
    priority. Among clients the next one is who holds least for its weight (see `Levels`), then who has begun, then
    whose turn to begin a sequence is next by a `FairClock`, whose turns are one sequence long.

    Another such clock, whose turns last the tokens that are computed, chooses the prompt of the next chunk. These
    tokens do not show how long a slot is held: if sequences began by them, a client that has had a chunk of a long
    prompt would wait for hundreds of newcomers with short ones.

    No sequence waits without end, though clients may come without end. A sequence that is its client's first is at
    level 0. Those that have begun come before it there, by turn, and they end. Of the others come before it only
    clients whose turn begins earlier. Each of them has one sequence more until its next turn, and newcomers have theirs
    later with each sequence that begins, by one over all weights, which are bounded as requests are
    (`server/engine/admission/`): in the end all turns begin later than that which waits. A sequence that is not its
    client's first becomes it, since those before it end.
    """

    def __init__(self) -> None:
        self._shares: dict[str, _Share] = {}
        self._waiting = 0
        self.aside: set[Sequence] = set()  # those that await their mask, or their prefix
        self._line: list[_Place] = []  # the first of each client, in order
        self._beginnings = FairClock()
        self._prompts = FairClock()

    def __len__(self) -> int:
        return self._waiting

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.aside
        for share in self._shares.values():
            yield from share.waiting

    @property
    def clients(self) -> int:
        """The number of clients that have sequences, waiting or not."""
        return len(self._shares)

    def live_of(self, client: str) -> int:
        """The number of a client's sequences, waiting or not."""
        share = self._shares.get(client)
        return share.live if share else 0

    def enter(self, seq: Sequence) -> None:
        """Take in a sequence that is new."""
        share = self._shares.setdefault(seq.request.client.name, _Share())
        for clock in (self._beginnings, self._prompts):
            clock.enter(seq.request.client.name, seq.request.client.weight)
        seq.place = share.arrivals + PLACES_A_PRIORITY * seq.request.priority
        share.arrivals += 1
        share.live += 1
        self.put_back(seq)

    def put_back(self, seq: Sequence) -> None:
        """Queue a sequence that was taken out, or set it aside while it awaits its mask or its prefix."""
        if seq.awaits_mask or seq.awaits_prefix:
            self.aside.add(seq)
            return
        share = self._shares[seq.request.client.name]
        if not share.waiting:
            share.start = self._beginnings.start(seq.request.client.name)
        insort(share.waiting, seq, key=_own_order)
        self._waiting += 1
        self._line_up(share)

    def take_out(self, seq: Sequence) -> None:
        """Remove a sequence that waits, because it runs now, is held back, or leaves."""
        if seq in self.aside:
            self.aside.remove(seq)
            return
        share = self._shares[seq.request.client.name]
        share.waiting.remove(seq)
        self._waiting -= 1
        self._line_up(share)

    def set_aside(self, seq: Sequence) -> None:
        """Set a sequence of the queue aside until its prefix is there (`prefix_is_there`)."""
        seq.awaits_prefix = True
        self.take_out(seq)
        self.put_back(seq)

    def prefix_is_there(self, seq: Sequence) -> None:
        """Let a sequence wait for no prefix any more. It may have ended, or be held back, meanwhile."""
        seq.awaits_prefix = False
        if seq in self.aside:
            self.take_out(seq)
            self.put_back(seq)

    def leave(self, seq: Sequence) -> None:
        """Forget a sequence, which does not wait any more."""
        share = self._shares[seq.request.client.name]
        share.live -= 1
        if not share.live:
            del self._shares[seq.request.client.name]
            for clock in (self._beginnings, self._prompts):
                clock.leave(seq.request.client.name)

    def first(self, levels: Levels) -> Sequence | None:
        """The next sequence to run; None when nobody waits."""
        first, lowest = None, math.inf
        for *_, seq in self._line:
            level = levels.of(seq)
            if level < lowest:
                first, lowest = seq, level
            if not level:
                break  # as nobody is of a lower one, only those are looked at whose clients hold something
        return first

    def begun(self, seq: Sequence) -> None:
        """Count the turn in which a sequence, which was taken out, begins for the first time."""
        self._beginnings.took(seq.request.client.name, 1)
        share = self._shares[seq.request.client.name]
        share.start = self._beginnings.start(seq.request.client.name)
        self._line_up(share)

    def next_prompt(self, prompts: list[Sequence], newcomer: Sequence | None) -> Sequence | None:
        """The sequence whose prompt has the next turn: one of `prompts`, which run, or else the `newcomer`."""
        firsts: dict[str, Sequence] = {}
        for seq in prompts:
            firsts.setdefault(seq.request.client.name, seq)
        if newcomer is not None:
            firsts.setdefault(newcomer.request.client.name, newcomer)
        return min(
            firsts.values(),
            key=lambda seq: (self._prompts.start(seq.request.client.name), seq is not newcomer, seq.turn),
            default=None,
        )

    def computed(self, seq: Sequence, tokens: float) -> None:
        """Count the tokens of the turn that `next_prompt` has given to this sequence. Runs of the vision tower count as
        the tokens that take as long."""
        self._prompts.took(seq.request.client.name, tokens)

    def _line_up(self, share: _Share) -> None:
        """Put the first of a client that waits into its place among those of all clients."""
        if share.place is not None:
            del self._line[bisect_left(self._line, share.place)]
        first = share.waiting[0] if share.waiting else None
        share.place = None if first is None else (first.turn, share.start, first.arrival, first)
        if share.place is not None:
            insort(self._line, share.place)


def _own_order(seq: Sequence) -> tuple[int, int, int]:
    return seq.turn, seq.place, seq.arrival
