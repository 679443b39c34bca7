"""The level of a sequence: how much its client holds before it comes."""

from collections.abc import Iterable

from numaserve.server.scheduler.sequence import SchedulerConfig, Sequence


class Levels:
    """The levels of sequences, as things stand when this is made.

    A client's own sequences have an order: they begin by `Sequence.place`, and stay in the order of their `turn`. The
    level of one is what those before it hold, of the slots or of the pages, whichever is the greater fraction, over the
    client's weight: 0 for a client's first, close to 1 for the last of a client that holds everything. To serve by
    levels is to serve clients in rounds, as deficit round robin does (Shreedhar and Varghese, 1995), with what is held
    in the place of what is sent. The greater fraction is the dominant share of Ghodsi et al. (2011).

    Who sends one request after the other is at level 0 with each of them, whatever it has had before: nobody is made to
    pay for time that nobody else wanted.
    """

    def __init__(self, running: Iterable[Sequence], config: SchedulerConfig) -> None:
        """`running` comes in order of turns."""
        self._config = config
        self._of: dict[Sequence, float] = {}
        self._held: dict[str, tuple[int, int]] = {}  # slots and pages of a client
        for seq in running:
            slots, pages = self._held.get(seq.client.name, (0, 0))
            self._of[seq] = self._level(seq, slots, pages)
            self._held[seq.client.name] = slots + 1, pages + len(seq.pages)

    def of(self, seq: Sequence) -> float:
        """The level of a sequence, whether it runs or waits."""
        if seq in self._of:
            return self._of[seq]
        if not seq.has_begun:
            return self._level(seq, *self._held.get(seq.client.name, (0, 0)))
        before = [each for each in self._of if each.client.name == seq.client.name and each.turn < seq.turn]
        return self._level(seq, len(before), sum(len(each.pages) for each in before))

    def ranked(self) -> list[Sequence]:
        """Those that run, by level and then by turn: who has to give way comes last."""
        return sorted(self._of, key=lambda seq: (self._of[seq], seq.turn))

    def _level(self, seq: Sequence, slots: int, pages: int) -> float:
        return max(slots / self._config.max_running, pages / self._config.num_pages) / seq.client.weight
