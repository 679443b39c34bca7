"""Draft tokens from a smaller model, of which each rank holds a shard."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numaserve.workers.interface.protocol import TO_BE_DRAFTED, SlotInit, StepPlan
from numaserve.workers.process.drafter import RankParts
from numaserve.workers.process.rank_program import RankProgram
from numaserve.workers.program.slots import END_SAMPLE, slot_settings

Row = tuple[int, int, int, bool, int, int]  # a row of `Program.step`


class Reading(NamedTuple):
    """Tokens of a sequence that the draft model reads from position `start` on, and the number of its draft tokens."""

    place: int  # index of the sequence in the plan
    slot: int
    start: int
    tokens: list[int]
    drafts: int


class _Change(NamedTuple):
    """Changes of a slot by plans: the start of a new sequence, and pages to append."""

    init: SlotInit | None
    pages: list[int]


class DraftModelDrafter:
    """The drafter that reads the tokens of the served model with a draft model, and proposes draft tokens.

    The draft model has the same slots and page tables, and its own KV cache under the same page numbers. The front end
    plans both models alike, and a cached prefix serves both. The draft model samples with the parameters and random
    numbers of the request: models with similar distributions mostly draw the same token. The front end names the
    tokens to read. A page that the draft model has not read can cost a draft token, never a wrong token.
    """

    def __init__(self, own: RankProgram, own_vocabulary: int, vocabulary: int) -> None:
        """Run a draft model that reads tokens below `own_vocabulary` and drafts tokens below `vocabulary`."""
        self.programs = (own,)
        self._program = own.program
        self._own_vocabulary = own_vocabulary
        self._vocabulary = vocabulary
        self._max_step_tokens = own.limits.max_step_tokens
        self._changes: dict[int, _Change] = {}  # by slot

    def prepare(self, plan: StepPlan) -> None:
        """Store the changes that a plan makes to slots, for the next step of the draft model.

        A Program keeps the former state of its slots until its next step, which may be far away here. A refused plan
        needs no undo, because all sequences then start again.
        """
        for seq in plan.seqs:
            if seq.init is not None:
                self._changes[seq.slot] = _Change(seq.init, list(seq.pages))
            elif seq.pages:
                self._changes.setdefault(seq.slot, _Change(None, [])).pages.extend(seq.pages)

    def revert(self) -> None:
        """Undo the changes of slots since the last step."""
        self._program.revert()

    def run(self, plan: StepPlan) -> tuple[StepPlan, int]:
        """Return the plan with draft tokens in place of `TO_BE_DRAFTED`, and the nanoseconds that drafting took.

        Raises `ValueError` for work that does not fit the plan, and what a step raises.
        """
        return self._with_drafts(plan, readings_of(plan))

    def follow(self, plan: StepPlan) -> int:
        """Note that the plan has run, and return the nanoseconds that reading its tokens took."""
        return 0

    def _with_drafts(self, plan: StepPlan, readings: list[Reading]) -> tuple[StepPlan, int]:
        begin = time.monotonic_ns()
        drafts = self._draft(readings)
        seqs = list(plan.seqs)
        for index, found in drafts.items():
            seq = seqs[index]
            known = seq.tokens[: len(seq.tokens) - len(found)]
            seqs[index] = msgspec.structs.replace(seq, tokens=known + found)
        return msgspec.structs.replace(plan, seqs=seqs), time.monotonic_ns() - begin

    def _change_slots(self) -> None:
        changes, self._changes = self._changes, {}
        for slot, change in changes.items():
            if change.init is not None:
                self._program.init_slot(slot, slot_settings(self._own_init(change.init)))
            if change.pages:
                self._program.append_pages(slot, change.pages)

    def _draft(self, readings: list[Reading]) -> dict[int, list[int]]:
        """Return the draft tokens of each reading, by the index of its sequence."""
        self._change_slots()
        drafts: dict[int, list[int]] = {each.place: [] for each in readings if each.drafts}
        for batch in _batches(readings, self._max_step_tokens):
            self._step(batch, drafts)
        ends = {each.place: each.start + len(each.tokens) for each in readings}
        for depth in range(1, max((each.drafts for each in readings), default=0)):
            following = [
                each._replace(start=ends[each.place] + depth - 1, tokens=[]) for each in readings if each.drafts > depth
            ]
            self._step(following, drafts)
        return drafts

    def _step(self, readings: list[Reading], drafts: dict[int, list[int]]) -> None:
        """Run a step of the draft model. A sequence without tokens continues from its last draft token."""
        rows: list[Row] = [
            (each.slot, each.start, len(each.tokens) or 1, not each.tokens, END_SAMPLE if each.drafts else 0, 0)
            for each in readings
        ]
        nothing = np.empty(0, dtype=np.int32)
        shape = np.array(rows, dtype=np.int32).reshape(-1, len(rows[0]))
        found, *_ = self._program.step(shape, np.array(self._tokens(readings), dtype=np.int32), nothing)
        for row, sample, *_ in found:
            if sample is not None:
                drafts[readings[row].place].append(min(sample[0], self._vocabulary - 1))
        self._ended(readings)

    def _tokens(self, readings: Sequence[Reading]) -> list[int]:
        """Return the tokens that a step of the Program reads."""
        return [min(token, self._own_vocabulary - 1) for each in readings for token in each.tokens]

    def _ended(self, readings: Sequence[Reading]) -> None:
        """Note that a step of the Program has read `readings`."""

    def _own_init(self, init: SlotInit) -> SlotInit:
        """Return the start of a sequence in the draft model: without penalties, which would count draft tokens as
        output."""
        sampling = init.sampling
        known = {token: bias for token, bias in sampling.logit_bias.items() if token < self._own_vocabulary}
        suppressed = [token for token in sampling.suppress if token < self._own_vocabulary]
        own = msgspec.structs.replace(
            sampling,
            repetition_penalty=1.0,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            logit_bias=known,
            suppress=suppressed,
            logprobs=-1,
            masked=False,
            token_ids_logprob=[],
        )
        return SlotInit(own, grids=init.grids)


def readings_of(plan: StepPlan) -> list[Reading]:
    """Return the readings of the sequences of a plan. Raises `ValueError` for draft work that does not fit the plan."""
    return [_reading(plan, each.index, each.lacking) for each in plan.draft_work or []]


def _reading(plan: StepPlan, index: int, lacking: list[int]) -> Reading:
    if not 0 <= index < len(plan.seqs):
        raise ValueError(f"the step asks for draft tokens of sequence {index}, but has only {len(plan.seqs)} sequences")
    seq = plan.seqs[index]
    drafts = seq.tokens.count(TO_BE_DRAFTED)
    known = seq.tokens[: len(seq.tokens) - drafts]
    if TO_BE_DRAFTED in known or drafts not in (0, plan.drafts_of_each[index]):
        raise ValueError("the draft model must generate all draft tokens of a sequence or none, after the known tokens")
    if plan.drafts_of_each[index] and not drafts:
        known = known[: len(known) - plan.drafts_of_each[index]]  # of another drafter, may be rejected
    tokens = lacking + known
    if not tokens:
        raise ValueError("the step asks for draft tokens of a sequence that has no tokens to continue")
    return Reading(index, seq.slot, seq.start - len(lacking), tokens, drafts)


def _batches(readings: list[Reading], most: int) -> Iterator[list[Reading]]:
    """Split `readings` into steps of at most `most` tokens. Draft tokens follow the last token of a sequence."""
    batch: list[Reading] = []
    room = most
    for each in readings:
        begin = 0
        while begin < len(each.tokens):
            part = each.tokens[begin : begin + room]
            end = begin + len(part)
            drafts = each.drafts if end == len(each.tokens) else 0
            batch.append(each._replace(start=each.start + begin, tokens=part, drafts=drafts))
            room -= len(part)
            begin = end
            if not room:
                yield batch
                batch, room = [], most
    if batch:
        yield batch


def make(parts: RankParts) -> DraftModelDrafter:
    """Return the drafter of the launch's draft model."""
    served, draft = parts.loaded
    own = RankProgram(draft, draft.config.decoder, parts.node, draft.launch.capacity)
    return DraftModelDrafter(own, draft.config.vocab_size, served.config.vocab_size)
