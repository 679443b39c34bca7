"""The number of draft tokens that the workers' drafter makes: chosen for all sequences together, pass by pass."""

from itertools import islice

from numaserve.server.costs.cost_model import CostModel
from numaserve.server.speculation.decode import Decode
from numaserve.server.speculation.gain import DECLINES, MEMORY, UNKNOWN, Gain
from numaserve.server.speculation.reports import Draft
from numaserve.server.speculation.worker_reading import WorkerReading, pass_terms, reading_before_drafts
from numaserve.workers.interface.drafters import WorkerDrafter
from numaserve.workers.interface.protocol import TO_BE_DRAFTED

_DEEPEST = 8  # most draft tokens of a sequence in a step
BLIND = 3  # the same while no step time is known, and of draft tokens that are only tried
_MEMORY_OF_ALL = 0.02  # weight of the last draft token among the draft tokens of all sequences
_FORGOTTEN = 0.01  # part of a low acceptance rate that each step without draft tokens removes
_TRIED = 4  # most sequences that only try draft tokens
_SOON, _LATE = 32, 1024  # steps without a gain until draft tokens are tried: at first, and at most


class WorkerDrafts:
    """The acceptance rates of the workers' drafter, and the draft tokens that pay.

    The front end's drafters cost nothing and come first. One pass of the workers' drafter reads all of its weights, for
    one sequence or for all. The number of draft tokens is therefore chosen pass by pass: every sequence that may gain
    by one more draft token takes part in the pass.
    """

    def __init__(self, drafter: WorkerDrafter, costs: CostModel, *, page_size: int, shares_pages: bool) -> None:
        """Begin without any experience. `costs` are those of the drafter. Pages of `page_size` tokens are found by
        other sequences if `shares_pages`."""
        self._drafter = drafter
        self._costs = costs
        self._page_size = page_size
        self._shares_pages = shares_pages
        self._rates: dict[Decode, tuple[float, int]] = {}  # and the step in which the rate was observed
        self._of_all = UNKNOWN
        self._steps = 0
        self._patience = _SOON
        self._waited = 0

    def may_draft(self, seq: Decode) -> bool:
        """Return whether the drafter may draft for a sequence: masks after tokens that only workers know do not
        exist."""
        request = seq.request
        return not request.sampling.masked and (request.drafters is None or self._drafter.name in request.drafters)

    def draft(self, depth: int) -> Draft:
        """Return placeholders for draft tokens."""
        drafter = self._drafter
        return Draft((TO_BE_DRAFTED,) * depth, drafter.name, by_workers=True, reads=drafter.reads_drafts)

    def reading(self, step_id: int) -> WorkerReading:
        """Return the part of the drafter in a step in the making."""
        return WorkerReading(
            self._costs,
            self._page_size,
            its_turn=step_id % self._page_size == 0,
            shares_pages=self._shares_pages,
            most_unread=self._drafter.most_unread,
            reads_prompts=self._drafter.reads_prompts,
        )

    def rate(self, seq: Decode) -> float:
        """Return the acceptance rate of a sequence.

        A new sequence does not inherit a low rate, and a low rate recovers: draft tokens that are not made are not seen
        to be accepted.
        """
        usual = max(UNKNOWN, self._of_all)
        rate, seen = self._rates.get(seq, (usual, self._steps))
        return rate if rate >= usual else usual - (usual - rate) * (1.0 - _FORGOTTEN) ** (self._steps - seen)

    def expected(self, seq: Decode, depth: int = _DEEPEST) -> float:
        """Return the expected number of accepted tokens among the first `depth` draft tokens."""
        rate = self.rate(seq)
        return sum(rate**each for each in range(1, depth + 1))

    def answered(self, seq: Decode, accepted: int, verified: int) -> None:
        """Note that the first `accepted` of `verified` draft tokens were accepted."""
        for was_accepted in [True] * accepted + [False] * (accepted < verified):
            before = self.rate(seq)
            self._rates[seq] = before + MEMORY * (was_accepted - before), self._steps
            self._of_all += _MEMORY_OF_ALL * (was_accepted - self._of_all)

    def is_due(self, *, pays: bool) -> bool:
        """Return whether the step in the making should try draft tokens although none `pays`.

        Costs and acceptance rates are only observed when draft tokens are made: a bad start would be final.
        """
        if pays:
            self._patience, self._waited = _SOON, 0
            return False
        self._waited += 1
        return self._waited >= self._patience

    def tried(self, rooms: dict[Decode, int], limit: int) -> dict[Decode, int]:
        """Return draft tokens to try, of the few sequences of which the drafter has read most."""
        few = sorted(rooms, key=lambda seq: seq.position.next - seq.position.drafter_read)[:_TRIED]
        depths = blind_depths({seq: rooms[seq] for seq in few}, limit)
        if depths:
            self._patience, self._waited = min(2 * self._patience, _LATE), 0
        return depths

    def step_ended(self) -> None:
        """Note that a step has ended: observed rates are one step older."""
        self._steps += 1

    def forget(self, seq: Decode) -> None:
        """Forget a sequence that has ended."""
        self._rates.pop(seq, None)

    def depths(self, gain: Gain, rooms: dict[Decode, int], limit: int, least: float) -> tuple[dict[Decode, int], float]:
        """Return the number of draft tokens of each sequence that pay, without zeros, and the tokens per second.

        `rooms` has the most draft tokens of each sequence; `limit` is the most of all. Draft tokens with a lower
        acceptance rate than `least` pay for no row. All that were considered are added to `gain`.
        """
        best, chosen, depths, declines = gain.rate, dict[Decode, int](), dict[Decode, int](), 0
        readings = {seq: reading_before_drafts(seq, _DEEPEST) for seq in rooms}
        rates = {seq: self.rate(seq) for seq in rooms}
        level = sorted(rooms, key=rates.__getitem__, reverse=True)
        for depth in range(1, _DEEPEST + 1):
            level = [seq for seq in level if depth <= rooms[seq] and rates[seq] ** depth > least][: max(0, limit)]
            if not level or declines == DECLINES:
                break
            limit -= len(level)
            for seq in level:
                gain.add(seq, depth, rates[seq] ** depth)
            gain.drafting(self._costs.predict(pass_terms(self._costs, [readings[seq] for seq in level], depth - 1)))
            depths |= dict.fromkeys(level, depth)
            rate = gain.rate
            declines = declines + 1 if rate <= best else 0
            if rate > best:
                best, chosen = rate, dict(depths)
        return chosen, best


def blind_depths(rooms: dict[Decode, int], limit: int) -> dict[Decode, int]:
    """Return a few draft tokens of each sequence, or of the first ones that `limit` allows, whatever they cost."""
    each = min(BLIND, max(1, limit // max(1, len(rooms))))
    return {seq: min(each, room) for seq, room in islice(rooms.items(), max(0, limit) // each)}
