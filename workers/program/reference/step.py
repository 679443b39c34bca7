"""A plan as the operations of one step see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from numaserve.workers.interface.protocol import MAX_MASKED_DRAFTS, NO_ADAPTER, PAGE_SIZE
from numaserve.workers.program.cost import StepWork
from numaserve.workers.program.reference.images import (
    NO_IMAGES,
    ImageRows,
    PlacedTuple,
    coordinates,
    feature_rows,
    image_end,
)
from numaserve.workers.program.reference.segments import (
    Segment,
    SequenceStates,
    check_position,
    check_states,
    segments,
)
from numaserve.workers.program.reference.slots import Slot, SlotTable
from numaserve.workers.program.setup import ProgramSetup
from numaserve.workers.program.slots import END_POOL, END_POOL_TOKENS, END_SAMPLE, RowIndex

Ints = npt.NDArray[np.int32]

# The indices of a token in the order of positions, but for the token's own, which a plan has.
_INDICES: Mapping[RowIndex, Callable[[Slot, int], int]] = {
    "position": lambda slot, position: position,
    "type": lambda slot, position: int(0 < slot.init.get("second_text", 0) <= position),
    "time": lambda slot, position: coordinates(slot.init.get("grids", []), position)[0],
    "height": lambda slot, position: coordinates(slot.init.get("grids", []), position)[1],
    "width": lambda slot, position: coordinates(slot.init.get("grids", []), position)[2],
}


@dataclass(frozen=True, eq=False)
class SequenceRows:
    """The new tokens of one sequence: which rows of the step they are, and at which positions."""

    index: int  # in the plan
    number: int  # of the slot
    slot: Slot
    row: int
    start: int
    count: int
    segments: list[Segment]  # of its states, in order

    @property
    def end(self) -> int:
        """The position after the last new token."""
        return self.start + self.count

    @property
    def last_row(self) -> int:
        """The row of the last new token."""
        return self.row + self.count - 1


@dataclass(frozen=True)
class LogitRow:
    """A row whose logits are wanted: for a sample, for the log-probability of a target, -1: none, or for both."""

    row: int
    sequence: SequenceRows
    position: int  # of the token that the logits are for
    target: int
    sample: bool
    drafts: list[int]  # of its sequence and this step, up to the row: draft tokens on which it rests
    draft: int  # the draft token for what is sampled here, -1: none


@dataclass(frozen=True)
class Step:
    """The rows of a step, in the order of its plan."""

    tokens: list[int]
    sequences: list[SequenceRows]
    divided: list[SequenceRows]  # those whose latents the ranks divide
    logit_rows: list[LogitRow]
    pooled: list[SequenceRows]
    wants_tokens: bool  # whether a pooled sequence asks for vectors of its tokens
    features: dict[int, int]  # the row of the feature pool for each row that takes one in place of its embedding
    merged: int = 1  # tokens of which a row is made

    @property
    def work(self) -> StepWork:
        """The step as costs are counted by it."""
        return StepWork([(each.start, each.count) for each in self.sequences], len(self.logit_rows), len(self.pooled))

    @property
    def shape(self) -> tuple[int, ...]:
        """The numbers that `shape_totals` of a Program sums up."""
        rows, pooled, divided = len(self.logit_rows), len(self.pooled), len(self.divided_rows)
        return 1, len(self.sequences), len(self.tokens), rows, pooled, divided

    @property
    def whole(self) -> list[SequenceRows]:
        """The sequences that every rank attends to for its own heads."""
        return [each for each in self.sequences if each not in self.divided]

    @property
    def divided_rows(self) -> list[int]:
        """The rows of the sequences that are divided."""
        return [row for each in self.divided for row in range(each.row, each.row + each.count)]

    @property
    def positions(self) -> list[int]:
        """The position of each token of the step."""
        return self.indices("position")

    def indices(self, of: RowIndex) -> list[int]:
        """The index of each token of the step."""
        if of == "token":
            return self.tokens
        rule = _INDICES[of]
        return [rule(each.slot, position) for each in self.sequences for position in range(each.start, each.end)]

    def rows_of_adapters(self) -> dict[int, list[int]]:
        """The rows of the sequences with each adapter, by its number."""
        found: dict[int, list[int]] = {}
        for each in self.sequences:
            number = each.slot.init.get("adapter", NO_ADAPTER)
            if number != NO_ADAPTER:
                found.setdefault(number, []).extend(range(each.row, each.row + each.count))
        return found

    def narrowed(self) -> Step:
        """The step with the rows of logits as its new tokens, each a sequence of its own."""
        sequences = [
            replace(each.sequence, row=row, start=each.position - 1, count=1, segments=[])
            for row, each in enumerate(self.logit_rows)
        ]
        return replace(self, tokens=[self.tokens[each.row] for each in self.logit_rows], sequences=sequences)

    def pooled_rows(self) -> Step:
        """The step with one row of each pooled sequence, in place of its last token."""
        sequences = [
            replace(each, row=row, start=each.end - 1, count=1, segments=[]) for row, each in enumerate(self.pooled)
        ]
        return replace(self, tokens=[self.tokens[each.last_row] for each in self.pooled], sequences=sequences)

    def merged_rows(self, merged: int) -> Step:
        """The step with one row for each `merged` tokens; fewer at the end are none."""
        sequences = [
            replace(each, row=each.row // merged, start=0, count=each.count // merged, segments=[])
            for each in self.sequences
        ]
        tokens = self.tokens[: len(self.tokens) // merged * merged : merged]
        return replace(self, tokens=tokens, sequences=sequences, merged=merged)

    def places(self, table: int) -> Iterator[tuple[int, int]]:
        """The page of each token in a page table, and its place in that."""
        for each in self.sequences:
            pages = each.slot.tables[table].pages
            for position in range(each.start, each.end):
                yield pages[position // PAGE_SIZE], position % PAGE_SIZE


def make_step(
    setup: ProgramSetup,
    slots: SlotTable,
    sequences: Ints,
    tokens: Ints,
    targets: Ints,
    *,
    drafts: Sequence[int] = (),
    states: Sequence[SequenceStates] = (),
    placed: Sequence[PlacedTuple] = (),
    images: ImageRows = NO_IMAGES,
) -> Step:
    """The step of a plan: rows of (slot, start, count, from previous, end, targets), token ids, wanted next tokens, how
    many of each sequence's tokens are drafts, the snapshots of sequences, and the features that are `placed`.

    Raises `ValueError` for a plan that cannot be run.
    """
    literal, wanted = iter(tokens.tolist()), iter(targets.tolist())
    given = list(drafts) or [0] * len(sequences)
    _check(setup, slots, sequences.tolist(), tokens.tolist(), targets.tolist(), drafts=given, images=images)
    features = feature_rows(sequences.tolist(), placed, images.pool)
    check_states(setup.limits, sequences.tolist(), given, states)
    works, keeps = {work[0]: work for work in states}, any(kind.of_sequences for kind in setup.shape.states)
    for index, row in enumerate(sequences.tolist() if keeps else ()):
        begins = index in works and works[index][1] >= 0
        check_position(setup.limits, slots.at(row[0]), row, given[index], begins=begins)
    wants_tokens = END_POOL_TOKENS in sequences[:, 4].tolist()
    step, parallel = Step([], [], [], [], [], wants_tokens, features), setup.context_parallel
    for index, (number, start, count, from_previous, end, num_targets) in enumerate(sequences.tolist()):
        slot = slots.at(number)
        row = len(step.tokens)
        drafted = {"drafts": given[index], "accepted": start - slot.state_position} if keeps else {}
        cuts = segments(number, row, start, count, limits=setup.limits, work=works.get(index), **drafted)
        slot.state_position, slot.state_drafts = start + count - given[index], given[index]
        sequence = SequenceRows(index, number, slot, row, start, count, cuts)
        step.sequences.append(sequence)
        if parallel is not None and parallel.divides(start, count, sum(each.count for each in step.divided)):
            step.divided.append(sequence)
        if end in (END_POOL, END_POOL_TOKENS):
            step.pooled.append(sequence)
        step.tokens.extend([slot.last_token] if from_previous else [next(literal) for _ in range(count)])
        own = step.tokens[sequence.row :]
        known = count - given[index]
        for token in range(count):
            target = next(wanted) if token < num_targets else -1
            samples = end == END_SAMPLE and token >= known - 1
            if target >= 0 or samples:
                draft = own[token + 1] if samples and token + 1 < count else -1
                rests_on = own[known : token + 1]
                position = start + token + 1
                step.logit_rows.append(
                    LogitRow(sequence.row + token, sequence, position, target, samples, rests_on, draft)
                )
    return step


def _check(
    setup: ProgramSetup,
    slots: SlotTable,
    sequences: list[list[int]],
    tokens: Sequence[int],
    targets: Sequence[int],
    *,
    drafts: list[int],
    images: ImageRows,
) -> None:
    limits = setup.limits
    numbers, counts = [each[0] for each in sequences], [each[2] for each in sequences]
    literal = sum(count for count, each in zip(counts, sequences, strict=True) if not each[3])
    _require(len(drafts) == len(sequences), "the step must have one number of draft tokens for each sequence")
    rows = sum(each[5] + (each[4] == END_SAMPLE and each[5] < each[2]) for each in sequences) + sum(drafts)
    for row, count in zip(sequences, drafts, strict=True):
        _check_sequence(slots, row)
        _check_pages(setup, slots, row)
        _check_drafts(slots, row, count)
        _check_whole(setup, row, count, images)
        _check_images(setup, slots, row)
    is_lone = images.tile > images.patches
    _require(not is_lone or len(sequences) <= 1, "the step has more than one tile with tokens that are no patches")
    _require(len(set(numbers)) == len(numbers), "the step names a slot twice")
    _require(sum(counts) <= limits.max_step_tokens, "the step has more tokens than the limit of a step")
    _require(rows <= limits.max_logit_rows, "the step has more rows of logits than the model was loaded for")
    _require(literal == len(tokens), "the number of token ids does not match the sequences of the step")
    _require(
        sum(each[5] for each in sequences) == len(targets),
        "the number of tokens to score does not match the sequences of the step",
    )
    slots.check_ids(tokens, more=setup.shape.extra_tokens)
    slots.check_ids(targets)


def _check_sequence(slots: SlotTable, row: list[int]) -> None:
    number, start, count, from_previous, _, num_targets = row
    slot = slots.at(number)
    named = f"slot {number} of the step"
    _require(count > 0 and start >= 0, f"{named} has no new token")
    _require(
        not from_previous or (count == 1 and slot.last_token >= 0), f"{named} has no sampled token to continue from"
    )
    _require(0 <= num_targets <= count, f"{named} has more target tokens than new tokens")


def _check_pages(setup: ProgramSetup, slots: SlotTable, row: list[int]) -> None:
    number, start, count, *_ = row
    named, end = f"slot {number} of the step", start + count
    for table, window in zip(slots.at(number).tables, setup.table_windows, strict=True):
        short = f"{named} has a page table that is too short for the new tokens"
        _require(end <= len(table.pages) * PAGE_SIZE, short)
        _require(table.first <= window.first_page(start), f"{named} reads pages of a window table that were given back")
    exceeds = f"{named} exceeds the context that the model was loaded for"
    _require(end <= setup.limits.pages_per_slot * PAGE_SIZE, exceeds)


def _check_drafts(slots: SlotTable, row: list[int], drafts: int) -> None:
    number, _, count, _, end, num_targets = row
    sampling, named = slots.at(number).sampling, f"slot {number} of the step"
    _require(
        drafts == 0 or (0 < drafts < count and end == END_SAMPLE and num_targets == 0),
        f"{named} has draft tokens, but no sampled token before them",
    )
    _require(
        drafts <= MAX_MASKED_DRAFTS or not sampling.masked,
        f"{named} has more draft tokens than masks",
    )


def _check_whole(setup: ProgramSetup, row: list[int], drafts: int, images: ImageRows) -> None:
    number, start, count, _, end, _ = row
    if tile := images.tile:
        whole = start == 0 and drafts == 0 and (count % tile == 0 if images.many else count == tile)
        _require(whole, f"slot {number} of the step is not a whole tile of {tile} patches")
        return
    _require(
        not any(kind.window.bidirectional for kind in setup.shape.caches)
        or (start == 0 and drafts == 0 and end in (END_POOL, END_POOL_TOKENS)),
        f"slot {number} of the step is not a whole sequence to be pooled, which bidirectional attention needs",
    )


def _check_images(setup: ProgramSetup, slots: SlotTable, row: list[int]) -> None:
    number, start, count, *_ = row
    if any(kind.window.images for kind in setup.shape.caches):
        grids = slots.at(number).init.get("grids", [])
        is_cut = image_end(grids, start - 1) > start or image_end(grids, start + count - 1) > start + count
        _require(not is_cut, f"slot {number} of the step has a part of an image, whose tokens see each other")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)
