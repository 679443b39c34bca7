"""What all parts of a run share: chance, time, the log of events and the first thing that was wrong."""

import hashlib
import random
from collections import Counter
from collections.abc import Sequence

from numaserve.server.common.death import Death
from numaserve.workers.interface.protocol import StepPlan

from tests.simulation.truth import Truth
from tests.support.simulated_features import SimulatedImageStore
from tests.support.simulated_loop import SimulatedLoop


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
        self.late_matchers = False  # whether a mask may come too late
        self.truths: dict[int, Truth] = {}  # of the sequences, by their seeds
        self.images = SimulatedImageStore()
        self.resume_timeout_s = 0.0
        self._down_since: float | None = None  # without a step that was answered, or could have been
        self._failures: list[
            float
        ] = []  # of the workers, since the last before which a step was answered: in which second of presence
        self._answered = False  # a step, since then
        self.deaths: list[dict[int, range]] = []  # the positions in flight at each death of the workers, by seed
        self.excused: dict[int, str] = {}  # seeds of sequences that may end with an error, and why
        self.excuse_all = ""  # why any may
        self.lost_adapters: set[str] = set()  # contents that new workers could not load
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
        self.note("plan", plan.step_id, [(seq.slot, seq.start, len(seq.tokens)) for seq in plan.seqs])

    def workers_died(self, death: Death, in_flight: dict[int, range]) -> None:
        """The workers are gone, and the front end is told now. Who was in flight at the same positions before may be
        taken for the cause."""
        self.note("group.fails", str(death))
        if self._down_since is None:
            self._down_since = self.loop.presence()
        again = [seed for seed, positions in in_flight.items() if self._killed_before(seed, positions)]
        self.excused |= dict.fromkeys(again, "the workers died twice while it was in flight")
        self.deaths.append(in_flight)
        self.workers_failed()

    def _killed_before(self, seed: int, positions: range) -> bool:
        """Whether the workers have died before while one of these positions was in flight."""
        before = [death[seed] for death in self.deaths if seed in death]
        return any(max(each.start, positions.start) < min(each.stop, positions.stop) for each in before)

    def workers_failed(self) -> None:
        """They have died, or have not loaded."""
        if self._answered:
            self._failures.clear()
        else:
            self._failures.append(self.loop.presence())
        self._answered = False

    def has_given_up(self, most_failures: int, window_s: float) -> None:
        """The server will not start workers again, as it does not when they fail for nothing, again and again."""
        self.note("given up")
        self.excuse_all = "the server has given up"
        if sum(at >= self.loop.presence() - window_s for at in self._failures) < most_failures:
            self.violate(f"the server has given up after failures at {self._failures}")

    def workers_work(self) -> None:
        """They have answered a step, or there is none to answer."""
        self._down_since = None

    def step_answered(self) -> None:
        """A step was answered as it should be."""
        self._answered = True
        self.workers_work()

    def waited_too_long(self) -> bool:
        """Whether requests have waited for new workers for as long as they should, of the time in which the front end
        was there."""
        return self._down_since is not None and self.loop.presence() >= self._down_since + self.resume_timeout_s

    def excuses(self, truth: Truth) -> bool:
        """Whether a sequence may end with an error that it does not have of itself."""
        return bool(self.excuse_all) or truth.wanted.seed in self.excused or truth.adapter_digest in self.lost_adapters

    def expired(self, seed: int, step_id: int) -> None:
        """The workers have waited for a mask of this sequence until it was too late."""
        self.note("mask too late", step_id, seed)
        if not self.late_matchers and not self.loop.absent_s:
            self.violate(f"the mask of a sequence in step {step_id} never came")

    def digest(self) -> str:
        """The hash of the log."""
        return hashlib.blake2b("\n".join(map(repr, self.log)).encode(), digest_size=16).hexdigest()
