"""A plan in the making, and the record of it until its result comes."""

from collections.abc import Mapping
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from numaserve.server.costs.cost_model import CostModel
from numaserve.server.costs.cost_table import NO_TERMS, Terms
from numaserve.server.scheduler.errors import ResultMismatch
from numaserve.server.scheduler.images import Tile
from numaserve.server.scheduler.policy import Chunk, StepBudget
from numaserve.server.scheduler.sequence import SchedulerConfig, Sequence, SequenceUpdate
from numaserve.server.scheduler.tower_runs import TowerRuns
from numaserve.server.speculation.reports import NO_DRAFT, Awaited, Draft, Sampled, StepAnswered, Unchecked
from numaserve.server.speculation.worker_reading import WorkerReading
from numaserve.workers.interface.protocol import (
    NO_ADAPTER,
    SeqPlan,
    SeqResult,
    SlotInit,
    StateWork,
    StepPlan,
    StepResult,
    WindowWork,
)


class Entry(NamedTuple):
    """The record of one `SeqPlan`. It names the sequence and not the slot, which may be another's by then."""

    seq: Sequence
    end: int  # the position after the last one planned
    sample: bool
    logprob_rows: int
    pool: bool
    drafts: int = 0  # draft tokens; they count in `end`
    draft: Draft = NO_DRAFT
    void: bool = False  # planned after a sample that was taken back: its answer means nothing

    @property
    def by_workers(self) -> int:
        """The number of draft tokens that the workers make."""
        return self.drafts if self.draft.by_workers else 0

    @property
    def known_end(self) -> int:
        """The position after the last one planned, without draft tokens."""
        return self.end - self.drafts

    def updates(self, answer: SeqResult, *, finished: bool) -> list[SequenceUpdate]:
        """Return the updates of the sequence by a good answer, one for each token."""
        first = SequenceUpdate(
            self.seq,
            answer.token if self.sample else None,
            answer.logprobs,
            answer.prompt_logprobs,
            finished and not answer.following,
            embedding=answer.embedding,
            token_logprobs=answer.token_logprobs,
            drafter=self.draft.drafter if answer.following else "",
        )
        last = len(answer.following) - 1  # it was sampled after the last accepted draft token
        return [first] + [
            SequenceUpdate(
                self.seq,
                each.token,
                each.logprobs,
                [],
                finished and index == last,
                token_logprobs=each.token_logprobs,
                drafter=self.draft.drafter if index < last else "",
            )
            for index, each in enumerate(answer.following)
        ]

    def answers(self, answer: SeqResult) -> bool:
        """Return whether `answer` has what was planned, and no more."""
        return self.void or (
            (answer.token >= 0) == self.sample
            and len(answer.prompt_logprobs) == self.logprob_rows
            and bool(answer.embedding) == self.pool
            and len(answer.following) <= self.drafts
        )


class MaskedRow(NamedTuple):
    """A sequence of a plan whose samples wait for masks."""

    seq: Sequence
    rows: tuple[int, ...]  # of the board: its slot's when the plan was made, and one after each draft token
    position: int  # of the first token to sample: tokens that the sequence has before it
    drafts: tuple[int, ...] = ()  # draft tokens from there on


@dataclass(slots=True)
class InFlight:
    """A plan sent whose result is awaited."""

    step_id: int
    entries: list[Entry] = field(default_factory=list)
    void: bool = False  # its result is to be ignored
    terms: Terms = NO_TERMS  # of its work
    draft_terms: Terms = NO_TERMS  # of the draft model's
    tokens: int = 0  # of all its sequences
    drafts: int = 0  # draft tokens of all its sequences
    by_workers: int = 0  # of these, the draft tokens that workers make
    expected: float = 0.0  # of these, the expected number of accepted tokens
    drafted_by_workers: set[Sequence] = field(default_factory=set)  # their drafter has read these to the end
    tiles: ListOf[Tile] = ()  # of the tower's runs, whose pixels workers read; see `FeaturePool`
    run_share: float = 0.0  # of whole runs of the tower
    run_ends: Mapping[Sequence, int] = field(default_factory=dict)  # see `TowerRuns.ends`
    places: ListOf[int] = ()  # of the feature pool, locked

    @property
    def ends(self) -> dict[Sequence, int]:
        """The sequences that it works for, each with the position after the last one planned."""
        return {**self.run_ends, **{entry.seq: entry.known_end for entry in self.entries}}

    @property
    def rows(self) -> int | None:
        """Rows of its products, if it has no prompt."""
        rows = len(self.entries) + self.drafts
        return rows if rows == self.tokens else None

    def awaited(self, seconds: float) -> Awaited:
        """Return the plan, which takes `seconds`, as speculation needs to know it."""
        return Awaited(len(self.entries), self.drafts, self.by_workers, self.expected, seconds)

    def report(self, result: StepResult, sampled: list[Sampled], predicted: float | None) -> StepAnswered:
        """Return what speculation learns from the result. `predicted` is the expected time in seconds."""
        ratio = predicted
        if predicted:
            # The wait for masks after draft tokens counts: it is part of the price of draft tokens.
            ratio = (result.worker_ns - result.draft_ns - result.tower_ns) * 1e-9 / predicted
        kept = None
        if self.drafts and not any(each.late for each in result.seqs):
            kept = sum(len(each.following) for each in result.seqs)
        return StepAnswered(sampled, ratio, self.rows, kept, self.expected)

    def go_on_after(self, before: "InFlight", result: StepResult) -> None:
        """Note the accepted draft tokens of the plan before: this plan was made as if all were rejected."""
        accepted = {each.seq: len(answer.following) for each, answer in zip(before.entries, result.seqs, strict=True)}
        self.entries = [entry._replace(end=entry.end + accepted.get(entry.seq, 0)) for entry in self.entries]

    def take_back(self, seq: Sequence) -> None:
        """Void what is planned of a sequence, since the sample before it does not count."""
        self.entries = [each._replace(void=True) if each.seq is seq else each for each in self.entries]

    def check(self, result: StepResult) -> None:
        """Raise `ResultMismatch` unless `result` answers this plan, entry by entry."""
        if self.step_id != result.step_id:
            raise ResultMismatch(f"received the result of step {result.step_id} instead of step {self.step_id}")
        if self.void:
            return
        if len(self.entries) != len(result.seqs):
            raise ResultMismatch(
                f"the result of step {result.step_id} has {len(result.seqs)} sequences instead of {len(self.entries)}"
            )
        for entry, answer in zip(self.entries, result.seqs, strict=True):
            if not entry.answers(answer):
                raise ResultMismatch(
                    f"the result of step {result.step_id} for sequence {entry.seq.request_id!r} does not match the plan"
                )


class StepBuilder:
    """A plan in the making, and the record of what its result must bring."""

    def __init__(
        self,
        step_id: int,
        config: SchedulerConfig,
        costs: CostModel,
        draft_costs: CostModel | None = None,
        tokens: int | None = None,
        *,
        tower: TowerRuns | None = None,
    ) -> None:
        """Begin a plan. `draft_costs` are those of the workers' drafter, and `tower` is the vision tower's part of the
        plan, if there are such. `tokens`: the most tokens of this step; None for `shared_step_tokens`."""
        self._slots = config.capacity.max_slots
        self._work = costs.begin()
        self.reading: WorkerReading | None = None  # the part of the workers' drafter
        self.tower = tower
        self.budget = StepBudget(config, costs, self._work, draft_costs, tokens, tower=tower)
        self.in_flight = InFlight(step_id)
        self.plans: list[SeqPlan] = []
        self.states: list[StateWork] = []
        self.windows: list[WindowWork] = []
        self.masked: list[MaskedRow] = []
        self.unchecked: ListOf[Unchecked] = ()

    def add(self, seq: Sequence, chunk: Chunk, pages: list[int], init: SlotInit | None) -> None:
        """Plan the sequence's next `chunk`."""
        request, at, tokens = seq.request, seq.position, seq.tokens
        length, sample, logprob_rows, draft = chunk
        start = at.next
        known = start + length
        drafts = len(draft.tokens)
        end = known + drafts
        pooling = request.pooling
        pool = pooling is not None and end == seq.prompt_len
        read = at.drafter_read if self.reading is None else self._read(self.reading, seq, chunk, known)
        self.plans.append(
            SeqPlan(
                slot=seq.slot,
                start=start,
                tokens=[*tokens[start:known], *draft.tokens],
                from_previous=start >= len(tokens),
                pages=pages,
                init=init,
                sample=sample,
                prompt_logprobs=tokens[start + 1 : start + 1 + logprob_rows],
                pool=pool,
                vector_form="whole" if pooling is None else pooling.form,
            )
        )
        self.in_flight.drafts += drafts
        self.in_flight.entries.append(Entry(seq, end, sample, logprob_rows, pool, drafts, draft))
        self._work.add(start, end - start, logprob_rows + sample + drafts, adapter=request.adapter)
        if sample and request.sampling.masked:
            self.masked.append(MaskedRow(seq, self._mask_rows(seq.slot, drafts), known, tuple(draft.tokens)))
        at.planned(length, drafts, read, sample, logprob_rows)

    def _read(self, reading: WorkerReading, seq: Sequence, chunk: Chunk, known: int) -> int:
        """Plan the part of the workers' drafter. Return the number of tokens that it has then read of a sequence."""
        by_workers = len(chunk.draft.tokens) if chunk.draft.by_workers else 0
        if by_workers:
            self.in_flight.by_workers += by_workers
            self.in_flight.drafted_by_workers.add(seq)
        return reading.add(len(self.plans), seq, known if by_workers else min(known, len(seq.tokens)), by_workers)

    def _mask_rows(self, slot: int, drafts: int) -> tuple[int, ...]:
        return tuple(slot + behind * self._slots for behind in range(drafts + 1))

    def finish(self) -> StepPlan:
        """Return the plan, to which nothing is added any more."""
        if self.plans:
            self.in_flight.terms, self.in_flight.tokens = self._work.terms(), self._work.tokens
        more: dict[str, Any] = {}  # left out where there is nothing to say
        if self.in_flight.drafts:
            more["drafts"] = [entry.drafts for entry in self.in_flight.entries]
        if self.reading is not None:
            for index, read in self.reading.finish():
                self.in_flight.entries[index].seq.position.planned(0, 0, read)
            if self.reading.plans:
                self.in_flight.draft_terms = self.reading.terms()
                more["draft_work"] = self.reading.plans
        if self.states:
            more["states"] = self.states
        if self.windows:
            more["windows"] = self.windows
        if self.tower is not None:
            self._finish_images(self.tower, more)
        return StepPlan(self.in_flight.step_id, self.plans, **more)

    def _finish_images(self, tower: TowerRuns, more: dict[str, Any]) -> None:
        self.in_flight.places = tower.places
        if tower.placed:
            more["placed"] = tower.placed
        if tower.works:
            self.in_flight.tiles, more["tower"] = tower.tiles, tower.works
            self.in_flight.run_share, self.in_flight.run_ends = tower.share, tower.ends


def slot_init(seq: Sequence) -> SlotInit:
    """The start of `seq` in a slot, or its next one: the tokens before count for the penalties."""
    sampling, pooling, adapter = seq.request.sampling, seq.request.pooling, seq.request.adapter
    second_text = 0 if pooling is None else pooling.second_text
    grids = [number for start, tile, _ in seq.request.images for number in (start, tile.rows, tile.cols)]
    prompt, output = (seq.tokens[: seq.prompt_len], seq.output) if sampling.has_penalties else ([], [])
    return SlotInit(
        sampling=sampling,
        prompt_history=prompt,
        output_history=output,
        second_text=second_text,
        adapter=NO_ADAPTER if adapter is None else adapter.number,
        grids=grids,
    )
