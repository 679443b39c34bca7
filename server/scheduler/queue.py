"""The sequences that wait, by whose they are."""

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from numaserve.server.scheduler.levels import Levels
from numaserve.server.scheduler.sequence import Sequence

# A request may be overtaken by so many later ones of its client for each unit by which these are more urgent: none
# waits for ever, however many urgent ones come.
PLACES_A_PRIORITY = 64


@dataclass(slots=True)
class _Share:
    """What is known of a client that has sequences."""

    weight: float
    turn_end: float  # where its next turn to compute a prompt begins, unless time has passed that
    waiting: list[Sequence] = field(default_factory=list)  # in the client's own order
    live: int = 0  # that wait, run or are held back
    arrivals: int = 0
    computed: float = 0.0  # tokens of prompts over the weight, from the highest count on that there was at first


class WaitingQueue:
    """Each client has a queue of its own, and nobody else's place depends on how long it is.

    Within a queue come first those that have begun, by turn, and then the others in order of arrival, but for their
    priority. Among clients the next one is who holds least for its weight (see `Levels`), then who has begun, then who
    has computed fewer tokens of prompts for its weight.

    A newcomer starts with the count of whoever has the highest: those who were there before, whose counts are no
    higher, do not wait for all newcomers that may still come.

    Whose prompt the next chunk is of is decided by start-time fair queueing (Goyal et al. 1996): the earliest turn is
    next, it lasts its tokens over the weight, and the time is where the newest turn began. Only newcomers start later
    than at that time, by the tokens since then over all weights, or those without end would hold up who is ahead of it.
    To start them with the highest count would hold them up for the whole of a long prompt, once a client of small
    weight has raised that by a few tokens.

    Nobody waits for ever, though clients may come without end. A sequence that is its client's first is at level 0.
    Those that have begun come before it there, by turn, and of the others only clients whose count is lower, which
    newcomers' are not, and who raise it with each turn. One that is not first becomes it, since those before it end.
    """

    def __init__(self) -> None:
        self._shares: dict[str, _Share] = {}
        self._waiting = 0
        self._highest = 0.0
        self._time = 0.0
        self._newcomers_start = 0.0

    def __len__(self) -> int:
        return self._waiting

    def __iter__(self) -> Iterator[Sequence]:
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
        share = self._shares.get(seq.client.name)
        if share is None:
            share = self._shares[seq.client.name] = _Share(seq.client.weight, self._newcomers_start)
        seq.place = share.arrivals + PLACES_A_PRIORITY * seq.priority
        share.arrivals += 1
        share.live += 1
        share.computed = max(share.computed, self._highest)
        self.put_back(seq)

    def put_back(self, seq: Sequence) -> None:
        """Queue a sequence that was taken out."""
        insort(self._shares[seq.client.name].waiting, seq, key=_own_order)
        self._waiting += 1

    def take_out(self, seq: Sequence) -> None:
        """Remove a sequence that waits, because it runs now, is held back, or leaves."""
        self._shares[seq.client.name].waiting.remove(seq)
        self._waiting -= 1

    def leave(self, seq: Sequence) -> None:
        """Forget a sequence, which does not wait any more."""
        share = self._shares[seq.client.name]
        share.live -= 1
        if not share.live:
            del self._shares[seq.client.name]

    def first(self, levels: Levels) -> Sequence | None:
        """The next sequence to run; None when nobody waits."""
        firsts = [share.waiting[0] for share in self._shares.values() if share.waiting]
        if len(firsts) == 1:
            return firsts[0]
        return min(firsts, key=lambda seq: (levels.of(seq), seq.turn, self._computed(seq), seq.arrival), default=None)

    def next_prompt(self, prompts: list[Sequence], newcomer: Sequence | None) -> Sequence | None:
        """The sequence whose prompt has the next turn: one of `prompts`, which run, or else the `newcomer`."""
        firsts: dict[str, Sequence] = {}
        for seq in prompts:
            firsts.setdefault(seq.client.name, seq)
        if newcomer is not None:
            firsts.setdefault(newcomer.client.name, newcomer)
        return min(
            firsts.values(),
            key=lambda seq: (self._turn_start(seq), seq is not newcomer, seq.turn),
            default=None,
        )

    def computed(self, seq: Sequence, tokens: int) -> None:
        """Count the tokens of the turn that `next_prompt` has given to this sequence."""
        share = self._shares[seq.client.name]
        self._time = self._turn_start(seq)
        share.turn_end = self._time + tokens / seq.client.weight
        weights = sum(each.weight for each in self._shares.values())
        self._newcomers_start = max(self._newcomers_start, self._time) + tokens / weights
        share.computed += tokens / seq.client.weight
        self._highest = max(self._highest, share.computed)

    def _turn_start(self, seq: Sequence) -> float:
        return max(self._time, self._shares[seq.client.name].turn_end)

    def _computed(self, seq: Sequence) -> float:
        return self._shares[seq.client.name].computed


def _own_order(seq: Sequence) -> tuple[int, int, int]:
    return seq.turn, seq.place, seq.arrival
