"""The level of a sequence: how much its client holds before it comes."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from numaserve.server.scheduler.sequence import SchedulerConfig, Sequence


@dataclass(slots=True)
class _Held:
    """The sequences and pages that a client holds."""

    running: list[Sequence] = field(default_factory=list)  # its sequences, in order of turns
    pages: int = 0  # of all of them


class Levels:
    """The levels of sequences, as those that run come, grow and go.

    A client's own sequences have an order: they begin by `Sequence.place`, and stay in the order of their `turn`. The
    level of one is what those before it hold, of the slots or of the pages, whichever is the greater fraction, over the
    client's weight: 0 for a client's first, close to 1 for the last of a client that holds everything. To serve by
    levels is to serve clients in rounds, as deficit round robin does (Shreedhar and Varghese, 1995), with what is held
    in the place of what is sent. The greater fraction is the dominant share of Ghodsi et al. (2011).

    Who sends one request after the other is at level 0 with each of them, whatever it has had before: nobody is made to
    pay for time that nobody else wanted.

    The holdings of clients are kept up to date, since levels are needed for each sequence that begins. Each level is
    computed from them, since one more page changes many levels.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self._slots, self._pages = config.max_running, config.capacity.num_pages
        self._held: dict[str, _Held] = {}  # of clients that hold something

    def add(self, seq: Sequence) -> None:
        """Take in a sequence that runs from now on, with its turn and its pages."""
        held = self._held.setdefault(seq.request.client.name, _Held())
        insort(held.running, seq, key=_turn)
        held.pages += len(seq.pages)

    def grown(self, seq: Sequence, pages: int) -> None:
        """Count new pages of a sequence that runs."""
        self._held[seq.request.client.name].pages += pages

    def remove(self, seq: Sequence) -> None:
        """Forget a sequence that ran, before it loses its pages."""
        held = self._held[seq.request.client.name]
        held.running.remove(seq)
        held.pages -= len(seq.pages)
        if not held.running:
            del self._held[seq.request.client.name]

    def of(self, seq: Sequence) -> float:
        """The level of a sequence, whether it runs or waits."""
        held = self._held.get(seq.request.client.name)
        if held is None:
            return 0.0
        if not seq.has_begun:
            return self._level(seq, len(held.running), held.pages)
        before = held.running[: bisect_left(held.running, seq.turn, key=_turn)]
        return self._level(seq, len(before), sum(len(each.pages) for each in before))

    def ranked(self) -> list[Sequence]:
        """Return the running sequences by level and then by turn: the first to give way is the last."""
        return [seq for _, _, seq in sorted(each for held in self._held.values() for each in self._places(held))]

    def higher_than(self, level: float) -> list[Sequence]:
        """Return the running sequences of a higher level than `level`: the first to give way is the first."""
        several = [held for held in self._held.values() if len(held.running) > 1]  # a client's first is at level 0
        higher = [each for held in several for each in self._places(held) if each[0] > level]
        return [seq for _, _, seq in sorted(higher, reverse=True)]

    def _places(self, held: _Held) -> Iterator[tuple[float, int, Sequence]]:
        """Level and turn of each sequence of a client."""
        pages = 0
        for slots, seq in enumerate(held.running):
            yield self._level(seq, slots, pages), seq.turn, seq
            pages += len(seq.pages)

    def _level(self, seq: Sequence, slots: int, pages: int) -> float:
        return max(slots / self._slots, pages / self._pages) / seq.request.client.weight


def _turn(seq: Sequence) -> int:
    return seq.turn
