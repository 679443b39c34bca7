"""The segments of a sequence's tokens in a step: between two of them its states are stored."""

from collections.abc import Sequence
from dataclasses import dataclass

from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.program.reference.slots import Slot

# Index of the sequence in the plan, the snapshot that it begins with or -1, and marks (position, snapshot).
SequenceStates = tuple[int, int, Sequence[tuple[int, int]]]


@dataclass(frozen=True)
class Segment:
    """Rows of a step whose sequence begins with the states at `load`, None: zeros, and has its states stored at `store`
    afterwards. States are numbered: first those of the slots, then the snapshots, then those after draft tokens."""

    row: int
    count: int  # 0: states are copied
    load: int | None
    store: int


def segments(
    slot: int,
    row: int,
    start: int,
    count: int,
    *,
    limits: Capacity,
    work: SequenceStates | None,
    drafts: int = 0,
    accepted: int = 0,
) -> list[Segment]:
    """The segments of `count` tokens from position `start` on, which are the rows of a step from `row` on.

    The last `drafts` of them are draft tokens. States are kept after each of these, of which `accepted` of the step
    before have become known tokens.
    """
    _, begin, marks = work or (0, -1, ())
    load = limits.max_slots + begin if begin >= 0 else _kept(slot, accepted, limits) if start > 0 else None
    ends = [(position, limits.max_slots + snapshot) for position, snapshot in marks]
    known = start + count - drafts
    ends += [(known + index, _kept(slot, index, limits)) for index in range(drafts + 1)]
    found, done = [], start
    for position, store in ends:
        found.append(Segment(row + done - start, position - done, load, store))
        load, done = store, position
    return found


def _kept(slot: int, drafts: int, limits: Capacity) -> int:
    """The number of the states of a slot after its known tokens, or after draft tokens that follow these."""
    of_drafts = limits.max_slots + limits.num_snapshots + slot * limits.max_drafts
    return of_drafts + drafts - 1 if drafts else slot


def check_states(
    limits: Capacity, sequences: Sequence[Sequence[int]], drafts: Sequence[int], works: Sequence[SequenceStates]
) -> None:
    """Check the snapshots of a plan of (slot, start, count, ...). Raises `ValueError` for a plan that cannot be run."""
    indices = [index for index, _, _ in works]
    _require(
        all(0 <= index < len(sequences) for index in indices), "the step has states of a sequence that is not in it"
    )
    _require(len(set(indices)) == len(indices), "the step has states of a sequence twice")
    stored = [snapshot for _, _, marks in works for _, snapshot in marks]
    _require(len(set(stored)) == len(stored), "the step stores a snapshot twice")
    for index, begin, marks in works:
        number, start, count = sequences[index][:3]
        named = f"slot {number} of the step"
        _require(-1 <= begin < limits.num_snapshots, f"{named} begins with a snapshot that does not exist")
        _require(begin < 0 or start > 0, f"{named} begins with a snapshot at position 0")
        _require(begin < 0 or begin not in stored, f"{named} begins with a snapshot that the step stores")
        before, end = start, start + count - drafts[index]
        for position, snapshot in marks:
            _require(0 <= snapshot < limits.num_snapshots, f"{named} stores a snapshot that does not exist")
            _require(before < position <= end, f"{named} has a mark that is not among its known tokens, in order")
            before = position


def check_position(limits: Capacity, slot: Slot, row: Sequence[int], drafts: int, *, begins: bool) -> None:
    """Check that a sequence (slot, start, ...) goes on from its states, or with `begins` from a snapshot. Raises
    `ValueError` if it does not."""
    number, start = row[:2]
    named, behind = f"slot {number} of the step", start - slot.state_position
    _require(drafts <= limits.max_drafts, f"{named} has more draft tokens than its states can go back")
    _require(
        begins or start == 0 or 0 <= behind <= slot.state_drafts,
        f"{named} begins at position {start}, but its states are those after {slot.state_position} tokens",
    )


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)
