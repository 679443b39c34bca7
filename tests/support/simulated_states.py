"""The states of a model with recurrent layers, as digests of the tokens that they have read."""

from collections.abc import Callable, Sequence

from msgspec import UNSET
from numaserve.workers.interface.protocol import StateWork, StepPlan

ZEROS = None  # before the first token
ANYTHING = -1  # is no digest


class SimulatedStates:
    """The states of each slot, and the snapshots: a sequence that goes on with any but its own is found.

    `violate` is called with what is wrong.
    """

    def __init__(self, snapshots: int, violate: Callable[[str], None]) -> None:
        self._violate = violate
        self._snapshots: list[int | None] = [ANYTHING] * snapshots
        self._slots: dict[int, dict[int, int]] = {}  # by position: the last certain one, and after draft tokens

    def run(self, plan: StepPlan, digests: Sequence[Sequence[int]]) -> None:
        """Run a plan whose positions and draft tokens are known.

        `digests` are those of each sequence's positions; none of a sequence that goes on from another token than its
        own, whatever it reads. All read before any writes, since sequences of a plan run in any order.
        """
        works = {each.index: each for each in plan.states or []}
        self._check(plan, works)
        for index, (seq, drafts, own) in enumerate(zip(plan.seqs, plan.drafts_of_each, digests, strict=True)):
            if own:
                self._begin(seq.slot, seq.start, works.get(index, StateWork(index)).begin, own)
            end = seq.start + seq.num_tokens
            self._slots[seq.slot] = {at: own[at - 1] for at in range(end - drafts, end + 1) if at <= len(own)}
        for index, work in works.items():
            for position, snapshot in work.marks:
                self._snapshots[snapshot] = digests[index][position - 1] if digests[index] else ANYTHING

    def snapshot(self, number: int) -> int | None:
        """Return the content of a snapshot."""
        return self._snapshots[number]

    def set_snapshot(self, number: int, content: int | None) -> None:
        """Give a snapshot the content of another one."""
        self._snapshots[number] = content

    def spoil(self, plan: StepPlan) -> None:
        """Leave anything in what the plan writes."""
        for seq in plan.seqs:
            self._slots[seq.slot] = {}
        for work in plan.states or []:
            for _, snapshot in work.marks:
                self._snapshots[snapshot] = ANYTHING

    def _begin(self, slot: int, start: int, snapshot: int, digests: Sequence[int]) -> None:
        found = ZEROS if start == 0 else self._slots.get(slot, {}).get(start, ANYTHING)
        if snapshot >= 0:
            found = self._snapshots[snapshot]
        if found != (digests[start - 1] if start else ZEROS):
            source = f"snapshot {snapshot}" if snapshot >= 0 else "its slot"
            self._violate(f"a sequence would go on at {start} with states of {source} that are not its own")

    def _check(self, plan: StepPlan, works: dict[int, StateWork]) -> None:
        if plan.states is not UNSET and not (plan.states and len(works) == len(plan.states)):
            self._violate(f"plan {plan.step_id} has no entries of states, or two of a sequence")
        stored = [snapshot for work in works.values() for _, snapshot in work.marks]
        if len(set(stored)) != len(stored) or set(stored) & {work.begin for work in works.values()}:
            self._violate(f"plan {plan.step_id} stores twice in a snapshot, or where a sequence of it begins")
        for index, work in works.items():
            seq, last = plan.seqs[index], plan.seqs[index].start
            if work.begin < 0 and not work.marks:
                self._violate(f"plan {plan.step_id} has an entry of states without any")
            if work.begin >= 0 and seq.init is None:
                self._violate(f"a sequence of plan {plan.step_id} begins with a snapshot in the middle")
            for position, _ in work.marks:
                if not last < position <= seq.start + seq.num_tokens - plan.drafts_of_each[index]:
                    self._violate(f"the mark after {position} tokens is not in the known tokens of its sequence")
                last = position
