"""What all parts of a run share: chance, time, the log of events and the first thing that was wrong."""

import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from numaserve.workers.protocol import StepPlan

from tests.simulation.loop import SimulatedLoop
from tests.simulation.truth import Truth


class Violation(Exception):
    """Something that must never happen has happened."""


@dataclass(frozen=True)
class Rules:
    """What the server promises."""

    deaths_fail: bool = True  # requests that have begun end with an error when the workers die


RULES = Rules()


class World:
    """One run. Whatever is drawn from `rng` is drawn in the order of events, which is the same for the same seed."""

    def __init__(self, seed: int, rules: Rules) -> None:
        self.rng = random.Random(seed)
        self.rules = rules
        self.loop: SimulatedLoop
        self.log: list[tuple[object, ...]] = []
        self.seen: Counter[str] = Counter()  # how often each kind of event came
        self.violation = ""  # the first
        self.changed = False  # since the last look at the invariants
        self.late_matchers = False  # whether a mask may come too late
        self.truths: dict[int, Truth] = {}  # of the sequences, by their seeds
        self.begun: set[int] = set()  # seeds that were in a plan
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

    def sent(self, plan: StepPlan, truths: Sequence[Truth]) -> None:
        """A plan of these sequences was sent."""
        self.begun.update(truth.wanted.seed for truth in truths)
        self.note("plan", plan.step_id, [(seq.slot, seq.start, len(seq.tokens)) for seq in plan.seqs])

    def workers_died(self, reason: str) -> None:
        """The workers are gone, and the front end is told now."""
        self.note("group.fails", reason)
        if self.rules.deaths_fail:
            self.excused |= dict.fromkeys(self.begun, "the workers died")

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
