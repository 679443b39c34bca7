"""The KV cache of simulated workers, which trusts nothing that a plan says."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from msgspec import UNSET
from msgspec.structs import replace
from numaserve.server.scheduler.sequence import SchedulerConfig
from numaserve.workers.interface.drafters import MAX_DRAFTS
from numaserve.workers.interface.protocol import (
    KEPT_HIDDEN_STATES,
    TO_BE_DRAFTED,
    DiskRecord,
    SampledToken,
    SeqPlan,
    SeqResult,
    StepPlan,
    TokenLogprobs,
)

from tests.support.simulated_features import SimulatedFeatures
from tests.support.simulated_states import SimulatedStates
from tests.support.simulated_windows import SimulatedWindows


class Truth(Protocol):
    """The tokens of a sequence, whatever happens to it, and the digests that its positions leave in the cache."""

    seed: int
    prompt_len: int
    tokens: list[int]  # prompt, every token that may be sampled, and one more
    digests: list[int]
    tiles: Mapping[int, Hashable]  # contents, by first positions
    penalties: bool
    adapter_digest: str  # empty: none

    def is_nan(self, position: int) -> bool: ...
    def row(self, position: int) -> TokenLogprobs: ...
    def sampled(self, position: int) -> SampledToken: ...
    def embedding(self) -> bytes: ...


class Content(NamedTuple):
    """The content of a record of the disk tier."""

    page: list[int] | None = None
    draft_page: list[int] | None = None
    snapshot: int | None = None
    tails: list[list[list[int]]] | None = None


@dataclass(slots=True)
class _Slot:
    truth: Truth
    own_pages: list[list[int]]  # their contents
    sampled: int
    history: list[int]  # what penalties count
    adapter: int  # its place
    pages: list[int] = field(default_factory=list)
    stands_in: bool = False  # `sampled` stands for a token whose mask was late


class SimulatedMemory:
    """Pages of digests. A plan must find in the pages of each sequence what the tokens before it have left there.

    `truths` are those of sequences by their seeds, which a plan names in `SlotInit`; `contents` are those of tiles.
    `violate` is called with what is wrong.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        truths: Mapping[int, Truth],
        contents: Mapping[int, Hashable],
        violate: Callable[[str], None],
        *,
        vocabulary: int,
        tower_parts: Sequence[float] = (1.0,),
    ) -> None:
        """`tower_parts` has the share of each part of a run of the tower."""
        limits, size = config.capacity, config.page_size
        self._config = config
        self._truths = truths
        self._violate = violate
        self._vocabulary = vocabulary
        self._pages = [[0] * size for _ in range(limits.num_pages)]
        self._draft_pages = [[0] * size for _ in range(limits.num_pages)]  # the draft model's
        self._slots: dict[int, _Slot] = {}
        self.adapters: dict[int, str] = {}  # contents, by place
        self._states = SimulatedStates(limits.num_snapshots, violate) if limits.num_snapshots else None
        self._windows: SimulatedWindows | None = None
        if config.windows:
            self._windows = SimulatedWindows(config.window_tables, config.page_layout, violate)
        self._features = SimulatedFeatures(limits.feature_tiles, config.rows_per_tile, contents, violate, tower_parts)

    def content(self, record: DiskRecord) -> Content:
        """Return what a record is written with."""
        if not record.is_anchor:
            return Content(list(self._pages[record.page]), list(self._draft_pages[record.page]))
        return Content(
            snapshot=None if self._states is None else self._states.snapshot(record.snapshot),
            tails=None if self._windows is None else self._windows.pages(record.tails),
        )

    def set_content(self, record: DiskRecord, content: Content) -> None:
        """Take in what a record was written with."""
        if content.page is not None and content.draft_page is not None:
            self._pages[record.page], self._draft_pages[record.page] = list(content.page), list(content.draft_page)
        elif self._states is not None:
            self._states.set_snapshot(record.snapshot, content.snapshot)
        if self._windows is not None and content.tails is not None:
            self._windows.set_pages(record.tails, content.tails)

    def run_share(self, plan: StepPlan) -> float:
        """Return the share of whole runs of the tower in a plan."""
        return self._features.share(plan)

    def check(self, plan: StepPlan, in_flight: Iterable[StepPlan]) -> None:
        """Check what does not depend on the state in which the plan is run. `in_flight` are the plans before it whose
        answers count and have not come."""
        self._features.sent(plan, in_flight)
        limits = self._config.capacity
        tokens = [seq.num_tokens for seq in plan.seqs]
        rows = sum(seq.sample + len(seq.prompt_logprobs) for seq in plan.seqs) + sum(plan.drafts_of_each)
        slots = {seq.slot for seq in plan.seqs}
        fits = sum(tokens) <= self._config.shared_step_tokens or (self._config.whole_prompts and len(tokens) == 1)
        if not (
            fits and rows <= limits.max_logit_rows and len(slots) == len(tokens) and slots <= {*range(limits.max_slots)}
        ):
            self._violate(f"plan {plan.step_id} exceeds the limits of the workers")
        if (plan.windows is not UNSET and self._windows is None) or (plan.states is not UNSET and self._states is None):
            self._violate(f"plan {plan.step_id} changes window tables or states, and there are none")
        if plan.draft_work == [] or (plan.drafts is not UNSET and not any(plan.drafts)):
            self._violate(f"plan {plan.step_id} has a list of draft tokens that is empty")

    def open(self, plan: StepPlan) -> None:
        """Change window tables as a plan says, before its positions are known."""
        if self._windows is not None:
            self._windows.open(plan)

    def drafted(self, plan: StepPlan, is_right: Callable[[int], bool], wrong: int) -> StepPlan:
        """Return the plan with the draft tokens of the workers' drafter.

        `is_right` is asked for the position of each of these tokens; one that is not right is `wrong`.
        """
        reads = {each.index for each in plan.draft_work or []}
        seqs = list(plan.seqs)
        for index, seq in enumerate(plan.seqs):
            if TO_BE_DRAFTED not in seq.tokens:
                continue
            if not self._config.worker_drafter or index not in reads:
                self._violate("draft tokens were asked of a draft model that reads nothing")
            tokens = self._truth_of(seq).tokens
            true = [*tokens[seq.start : seq.start + len(seq.tokens)], *[wrong] * len(seq.tokens)]
            drafts = [
                token if token != TO_BE_DRAFTED else true[place] if is_right(seq.start + place) else wrong
                for place, token in enumerate(seq.tokens)
            ]
            seqs[index] = replace(seq, tokens=drafts)
        return replace(plan, seqs=seqs)

    def run(
        self, plan: StepPlan, dropped: Mapping[int, int] | None = None, late: Collection[int] = ()
    ) -> list[SeqResult]:
        """Run a plan; all read before any writes.

        `dropped` has the number of draft tokens after which the sequence of a slot has no mask, `late` the slots whose
        mask was not there in time.
        """
        dropped, size = dropped or {}, self._config.page_size
        slots = [self._open(seq) for seq in plan.seqs]
        for work in plan.draft_work or []:
            self._draft(plan.seqs[work.index], slots[work.index], plan.drafts_of_each[work.index], work.lacking)
        own: list[list[int]] = [[] if slot.stands_in else slot.truth.digests for slot in slots]
        if self._states is not None:
            self._states.run(plan, own)
        if self._windows is not None:
            self._windows.run(plan, own)
        self._features.run(plan, [slot.truth.tiles for slot in slots])
        ends = [self._read(*each) for each in zip(plan.seqs, slots, plan.drafts_of_each, strict=True)]
        written: set[tuple[int, int]] = set()
        for seq, slot, (_, right) in zip(plan.seqs, slots, ends, strict=True):
            for position in range(seq.start, seq.start + seq.num_tokens):
                cell = slot.pages[position // size], position % size
                if cell in written:
                    self._violate(f"two sequences write to page {cell[0]} in plan {plan.step_id}")
                written.add(cell)
                self._pages[cell[0]][cell[1]] = slot.truth.digests[position] if position < right else -1
        results = [
            self._result(seq, slot, *end, dropped=dropped.get(seq.slot), late=seq.slot in late)
            for seq, slot, end in zip(plan.seqs, slots, ends, strict=True)
        ]
        for slot, result in zip(slots, results, strict=True):
            if result.nan:
                self._features.doubt(slot.truth.tiles)
        return results

    def goes_on_from_a_stand_in(self, seq: SeqPlan) -> bool:
        """Whether nothing that the workers make of a sequence counts, until it is started again."""
        return seq.init is None and self._slots[seq.slot].stands_in

    def spoil(self, plan: StepPlan) -> None:
        """Leave anything in what the plan writes: it failed, or one before it did."""
        if self._states is not None:
            self._states.spoil(plan)
        if self._windows is not None:
            self._windows.spoil(plan)
        self._features.spoil(plan)
        size = self._config.page_size
        for seq in plan.seqs:
            slot = self._open(seq)
            for position in range(seq.start, seq.start + seq.num_tokens):
                page, at = slot.pages[position // size], position % size
                self._pages[page][at] = self._draft_pages[page][at] = -1

    def _draft(self, seq: SeqPlan, slot: _Slot, drafts: int, lacking: list[int]) -> None:
        """Check what the draft model reads, which has to be all that it has not read before."""
        truth, start, end = slot.truth, seq.start - len(lacking), seq.start + len(seq.tokens)
        known, size = end - drafts, self._config.page_size
        reads_drafts = self._config.worker_drafter == "draft_model"
        # Hidden states of tokens before are known as far as a layer that predicts keeps them.
        if not reads_drafts and len(lacking) + MAX_DRAFTS >= KEPT_HIDDEN_STATES:
            self._violate("the layer that predicts lacks more than it can read")
        if lacking != truth.tokens[start : seq.start] or start < 0 or known <= start:
            self._violate("the draft model is to read what its sequence has not said")
        cells = [(slot.pages[position // size], position % size) for position in range(max(known, end - 1))]
        if any(self._draft_pages[page][at] != truth.digests[i] for i, (page, at) in enumerate(cells[:start])):
            self._violate(f"the draft model would draft after what it has not read of {truth.seed}")
        for position, (page, at) in enumerate(cells[start:], start):
            right = seq.tokens[: position + 1 - seq.start] == truth.tokens[seq.start : position + 1]
            # What a layer that predicts has read of its own draft tokens, it has read with what it made itself.
            right = right and reads_drafts and not slot.stands_in
            read = position < (seq.start if slot.stands_in else known) or right
            self._draft_pages[page][at] = truth.digests[position] if read else -1

    def _truth_of(self, seq: SeqPlan) -> Truth:
        return self._slots[seq.slot].truth if seq.init is None else self._truths[seq.init.sampling.seed]

    def _open(self, seq: SeqPlan) -> _Slot:
        if seq.init is not None:
            truth, size = self._truth_of(seq), self._config.page_size
            wanted = truth.tokens[: truth.prompt_len] if truth.penalties else []
            if seq.init.prompt_history != wanted:
                self._violate("a sequence was started with a prompt that is not its own")
            own_pages = [truth.digests[at : at + size] for at in range(0, len(truth.digests), size)]
            self._slots[seq.slot] = _Slot(truth, own_pages, -1, list(seq.init.output_history), seq.init.adapter)
        slot = self._slots[seq.slot]
        slot.pages += seq.pages
        if (self.adapters.get(slot.adapter, "no adapter") if slot.adapter else "") != slot.truth.adapter_digest:
            self._violate(f"sequence {slot.truth.seed} would be computed with another adapter")
        return slot

    def _read(self, seq: SeqPlan, slot: _Slot, drafts: int) -> tuple[int, int]:
        """Check what a sequence brings and finds. Returns where what is known ends, and what of the drafts is right."""
        truth, start = slot.truth, seq.start
        if slot.stands_in:
            return start, start  # what it leaves is nobody's
        tokens = [slot.sampled] if seq.from_previous else seq.tokens
        known = len(tokens) - drafts
        if seq.from_previous == bool(seq.tokens) or known < 1 or tokens[:known] != truth.tokens[start : start + known]:
            self._violate(f"a plan has other tokens at {start} than its sequence")
        if start + len(tokens) >= len(truth.tokens) and drafts:
            self._violate("draft tokens go on beyond the end of their sequence")
        full, rest = divmod(start, self._config.page_size)
        pages, own = self._pages, slot.own_pages
        right = all(pages[slot.pages[i]] == own[i] for i in range(full))
        if not right or (rest and pages[slot.pages[full]][:rest] != own[full][:rest]):
            self._violate(f"sequence {truth.seed} would read keys and values that are not its own")
        if seq.prompt_logprobs != truth.tokens[start + 1 : start + 1 + len(seq.prompt_logprobs)]:
            self._violate("log-probabilities were asked of tokens that are not the prompt's")
        right = known
        while right < len(tokens) and tokens[right] == truth.tokens[start + right]:
            right += 1
        return start + known, start + right

    def _result(self, seq: SeqPlan, slot: _Slot, known: int, end: int, *, dropped: int | None, late: bool) -> SeqResult:
        truth = slot.truth
        if slot.stands_in:
            return SeqResult(slot.sampled)
        if dropped:
            end = min(end, known + dropped - 1)
        rows = [truth.row(seq.start + 1 + i) for i in range(len(seq.prompt_logprobs))]
        last = end - 1 if seq.sample or seq.pool else seq.start + len(rows) - 1
        nan = bool(seq.sample or rows or seq.pool) and truth.is_nan(last)
        embedding = truth.embedding() if seq.pool else b""
        if not seq.sample:
            return SeqResult(prompt_logprobs=rows, nan=nan, embedding=embedding)
        if late and not nan:
            slot.stands_in, slot.sampled = True, (truth.sampled(known).token + 1) % self._vocabulary
            return SeqResult(slot.sampled, prompt_logprobs=rows, late=True)
        sampled = [truth.sampled(position) for position in range(known, end + 1)]
        if truth.penalties:
            if slot.history != truth.tokens[truth.prompt_len : known]:
                self._violate("penalties would count other tokens than those of the output")
            slot.history += [each.token for each in sampled]
        slot.sampled = sampled[-1].token
        first, *others = sampled
        named = first.token_logprobs
        return SeqResult(first.token, first.logprobs, rows, nan, dropped == 0, named, embedding, others)
