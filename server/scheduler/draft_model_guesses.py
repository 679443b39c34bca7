"""How many tokens the workers' draft model is to guess: for all sequences together, since one pass guesses for all."""

from itertools import islice

from numaserve.server.scheduler.costs.cost_model import CostModel
from numaserve.server.scheduler.draft_gain import DECLINES, MEMORY, UNKNOWN, Gain
from numaserve.server.scheduler.draft_model import pass_terms, reading_before_guesses
from numaserve.server.scheduler.sequence import Sequence, WorkerDrafter

_DEEPEST = 8  # guesses of a sequence in a step
BLIND = 3  # the same while nothing is known of the time of a step, and of those that are only tried
_MEMORY_OF_ALL = 0.02  # weight of the last guess among those of all sequences, by which new ones are judged
_FORGOTTEN = 0.01  # of a bad opinion of a sequence, with each step in which nothing is guessed for it
_TRIED = 4  # sequences for which guesses are only tried
_SOON, _LATE = 32, 1024  # steps in which nothing pays, until some guesses are tried; at first, and at last


class DraftModelGuesses:
    """What is known of the guesses of a draft model, and which of them pay.

    Front-end drafters are asked first and cost nothing; a pass of the draft model reads all of its weights, whether for
    one sequence or for all. So depth is chosen pass by pass: all sequences that may gain by one more take part in it.
    """

    def __init__(self, name: WorkerDrafter, costs: CostModel) -> None:
        """`name` is that by which its guesses are counted, and chosen; `costs` is what it takes."""
        self.name = name
        self._costs = costs
        self._often_right: dict[Sequence, tuple[float, int]] = {}  # and in which step that was seen
        self._of_all = UNKNOWN
        self._steps = 0
        self._patience = _SOON
        self._waited = 0

    def may_guess(self, seq: Sequence) -> bool:
        """Whether a sequence is the draft model's: nobody tells the masks behind what workers alone know."""
        return not seq.sampling.masked and (seq.drafters is None or self.name in seq.drafters)

    def right(self, seq: Sequence) -> float:
        """The probability that a guess is right.

        No sequence is thought ill of before it has begun, whatever others say, nor for ever: what is not guessed is not
        seen to be right.
        """
        usual = max(UNKNOWN, self._of_all)
        right, seen = self._often_right.get(seq, (usual, self._steps))
        return right if right >= usual else usual - (usual - right) * (1.0 - _FORGOTTEN) ** (self._steps - seen)

    def expected(self, seq: Sequence, depth: int = _DEEPEST) -> float:
        """How many of the first `depth` are right, and those before them."""
        right = self.right(seq)
        return sum(right**each for each in range(1, depth + 1))

    def answered(self, seq: Sequence, right: int, verified: int) -> None:
        """Of so many guesses that were verified, the first `right` ones were right."""
        for was_right in [True] * right + [False] * (right < verified):
            before = self.right(seq)
            self._often_right[seq] = before + MEMORY * (was_right - before), self._steps
            self._of_all += _MEMORY_OF_ALL * (was_right - self._of_all)

    def is_due(self, *, pays: bool) -> bool:
        """Whether to try some guesses in the step that is planned, though none `pays`.

        What they cost, and how often they are right, is seen only of what is tried: a bad beginning would be the end.
        """
        if pays:
            self._patience, self._waited = _SOON, 0
            return False
        self._waited += 1
        return self._waited >= self._patience

    def tried(self, rooms: dict[Sequence, int], most: int) -> dict[Sequence, int]:
        """Some guesses to try, behind few sequences, of those of which it has read most."""
        few = sorted(rooms, key=lambda seq: seq.next_position - seq.draft_read)[:_TRIED]
        depths = blind_depths({seq: rooms[seq] for seq in few}, most)
        if depths:
            self._patience, self._waited = min(2 * self._patience, _LATE), 0
        return depths

    def step_ended(self) -> None:
        """What is known is a step older."""
        self._steps += 1

    def forget(self, seq: Sequence) -> None:
        """Forget a sequence that has ended."""
        self._often_right.pop(seq, None)

    def depths(
        self, gain: Gain, rooms: dict[Sequence, int], most: int, least: float
    ) -> tuple[dict[Sequence, int], float]:
        """How many guesses of each sequence pay, which has room for so many; at most so many of all, none left out; and
        tokens a second with them.

        Those that are right less often than `least` pay for no row. All that were tried are added to `gain`.
        """
        best, chosen, depths, declines = gain.rate, dict[Sequence, int](), dict[Sequence, int](), 0
        readings = {seq: reading_before_guesses(seq, _DEEPEST) for seq in rooms}
        right = {seq: self.right(seq) for seq in rooms}
        level = sorted(rooms, key=right.__getitem__, reverse=True)
        for depth in range(1, _DEEPEST + 1):
            level = [seq for seq in level if depth <= rooms[seq] and right[seq] ** depth > least][: max(0, most)]
            if not level or declines == DECLINES:
                break
            most -= len(level)
            for seq in level:
                gain.add(seq, depth, right[seq] ** depth)
            gain.drafting(self._costs.predict(pass_terms(self._costs, [readings[seq] for seq in level], depth - 1)))
            depths |= dict.fromkeys(level, depth)
            rate = gain.rate
            declines = declines + 1 if rate <= best else 0
            if rate > best:
                best, chosen = rate, dict(depths)
        return chosen, best


def blind_depths(rooms: dict[Sequence, int], most: int) -> dict[Sequence, int]:
    """Some guesses behind each sequence, or behind as many as may be, whatever they take; at most so many of all."""
    each = min(BLIND, max(1, most // max(1, len(rooms))))
    return {seq: min(each, room) for seq, room in islice(rooms.items(), max(0, most) // each)}
