"""What all parts of a run share: chance, time, the log of events and the first thing that was wrong."""

import hashlib
import random
from collections import Counter

from numaserve.workers.protocol import StepPlan

from tests.simulation.loop import SimulatedLoop
from tests.simulation.truth import Truth


class Violation(Exception):
    """Something that must never happen has happened."""


class World:
    """One run. Whatever is drawn from `rng` is drawn in the order of events, which is the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.loop: SimulatedLoop
        self.log: list[tuple[object, ...]] = []
        self.seen: Counter[str] = Counter()  # how often each kind of event came
        self.violation = ""  # the first
        self.changed = False  # since the last look at the invariants
        self.impatient = False  # whether requests wait for new workers for a while only
        self.late_matchers = False  # whether a mask may come too late
        self.truths: dict[int, Truth] = {}  # of the sequences, by their seeds
        self.deaths: Counter[int] = Counter()  # of workers with a sequence of this seed in flight
        self.excused: dict[int, str] = {}  # seeds of sequences that may end with an error, and why
        self.excuse_all = ""  # why any may
        self.admitted = 0  # sequences

    def note(self, kind: str, *facts: object) -> None:
        """Write an event to the log."""
        self.log.append((round(self.loop.time(), 6), kind, *facts))
        self.seen[kind] += 1
        self.changed = True

    def violate(self, message: str) -> None:
        """Note that something was wrong.

        The run ends in the next turn of the loop: an exception raised here might be caught on its way.
        """
        if not self.violation:
            self.violation = message
            self.note("violation", message)

    def chance(self, probability: float) -> bool:
        """Whether something of this probability happens."""
        return probability > 0 and self.rng.random() < probability

    def sent(self, plan: StepPlan) -> None:
        """A plan was sent."""
        self.note("plan", plan.step_id, [(seq.slot, seq.start, len(seq.tokens)) for seq in plan.seqs])

    def workers_died(self, reason: str, in_flight: set[int]) -> None:
        """The workers are gone, with the sequences of these seeds in their plans, and the front end is told now."""
        self.note("group.fails", reason)
        for seed in sorted(in_flight):
            self.deaths[seed] += 1
            if self.deaths[seed] > 1:
                self.excused[seed] = "the workers died of it again and again, as far as one can tell"

    def excuses(self, seed: int) -> bool:
        """Whether the sequence of this seed may end with an error that it does not have of itself."""
        return bool(self.excuse_all) or seed in self.excused

    def expired(self, seed: int, step_id: int) -> None:
        """The workers have waited for a mask of this sequence until it was too late."""
        self.note("mask too late", step_id)
        self.excused[seed] = "its mask came too late"
        if not self.late_matchers:
            self.violate(f"the mask of a sequence in step {step_id} never came")

    def digest(self) -> str:
        """The hash of the log."""
        return hashlib.blake2b("\n".join(map(repr, self.log)).encode(), digest_size=16).hexdigest()
