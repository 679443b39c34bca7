"""The KV cache of the workers, which trusts nothing that a plan says."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import UNSET
from numaserve.workers.interface.protocol import DiskRecord, SeqPlan, SeqResult, StepPlan

from tests.simulation.scenario import Scenario
from tests.simulation.truth import PAGE_SIZE, VOCABULARY, Truth
from tests.simulation.world import World
from tests.support.simulated_features import SimulatedFeatures
from tests.support.simulated_states import SimulatedStates
from tests.support.simulated_windows import SimulatedWindows


class Content(NamedTuple):
    """The content of a record of the disk tier."""

    page: list[int] | None = None
    draft_page: list[int] | None = None
    snapshot: int | None = None
    tails: list[list[list[int]]] | None = None


@dataclass(slots=True)
class _Slot:
    truth: Truth
    pages: list[int]
    sampled: int
    history: list[int]  # what penalties count
    adapter: int  # its place
    stands_in: bool = False  # `sampled` stands for a token whose mask was late


class Memory:
    """Pages of digests. A plan must find in the pages of each sequence what the tokens before it have left there."""

    def __init__(self, world: World, scenario: Scenario) -> None:
        self._world = world
        self._scenario = scenario
        self._pages = [[0] * PAGE_SIZE for _ in range(scenario.pages)]
        self._reads_drafts = scenario.worker_drafter == "draft_model"
        self._draft_pages = [[0] * PAGE_SIZE for _ in range(scenario.pages)]  # the draft model's
        self._slots: dict[int, _Slot] = {}
        self.adapters: dict[int, str] = {}  # contents, by place
        self._states = SimulatedStates(scenario.snapshots, world.violate) if scenario.snapshots else None
        self._windows: SimulatedWindows | None = None
        if scenario.windows:
            self._windows = SimulatedWindows(scenario.window_tables, scenario.page_layout, world.violate)

        self._features = SimulatedFeatures(
            scenario.feature_tiles,
            scenario.rows_per_tile,
            world.images.contents,
            world.violate,
            scenario.tower_parts,
        )

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
        tokens = sum(seq.num_tokens for seq in plan.seqs)
        rows = sum(seq.sample + len(seq.prompt_logprobs) for seq in plan.seqs) + sum(plan.drafts_of_each)
        slots = {seq.slot for seq in plan.seqs}
        fits = tokens <= self._scenario.step_tokens and rows <= self._scenario.logit_rows
        if not (fits and len(slots) == len(plan.seqs) and slots <= set(range(self._scenario.running))):
            self._world.violate(f"plan {plan.step_id} is more than the workers were told they would get")
        if plan.windows is not UNSET and self._windows is None:
            self._world.violate(f"plan {plan.step_id} changes window tables, and there are none")

    def open(self, plan: StepPlan) -> None:
        """Change window tables as a plan says, before its positions are known."""
        if self._windows is not None:
            self._windows.open(plan)

    def run(self, plan: StepPlan, dropped: dict[int, int], late: set[int]) -> list[SeqResult]:
        """Run a plan; all read before any writes.

        `dropped` has the number of draft tokens after which the sequence of a slot has no mask, `late` the slots whose
        mask was not there in time.
        """
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
                cell = slot.pages[position // PAGE_SIZE], position % PAGE_SIZE
                if cell in written:
                    self._world.violate(f"two sequences write to page {cell[0]} in plan {plan.step_id}")
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
        for seq in plan.seqs:
            slot = self._open(seq)
            for position in range(seq.start, seq.start + seq.num_tokens):
                page, at = slot.pages[position // PAGE_SIZE], position % PAGE_SIZE
                self._pages[page][at] = self._draft_pages[page][at] = -1

    def _draft(self, seq: SeqPlan, slot: _Slot, drafts: int, lacking: list[int]) -> None:
        """Check what the draft model reads, which has to be all that it has not read before."""
        truth, start, end = slot.truth, seq.start - len(lacking), seq.start + len(seq.tokens)
        known = end - drafts
        if lacking != truth.tokens[start : seq.start] or start < 0 or known <= start:
            self._world.violate("the draft model is to read what its sequence has not said")
        cells = [(slot.pages[position // PAGE_SIZE], position % PAGE_SIZE) for position in range(max(known, end - 1))]
        if any(self._draft_pages[page][at] != truth.digests[i] for i, (page, at) in enumerate(cells[:start])):
            self._world.violate(f"the draft model would draft after what it has not read of {truth.wanted.seed}")
        for position, (page, at) in enumerate(cells[start:], start):
            right = seq.tokens[: position + 1 - seq.start] == truth.tokens[seq.start : position + 1]
            # What a layer that predicts has read of its own draft tokens, it has read with what it made itself.
            right = right and self._reads_drafts and not slot.stands_in
            read = position < (seq.start if slot.stands_in else known) or right
            self._draft_pages[page][at] = truth.digests[position] if read else -1

    def _open(self, seq: SeqPlan) -> _Slot:
        if seq.init is not None:
            truth = self._world.truths[seq.init.sampling.seed]
            wanted = list(truth.wanted.prompt) if truth.wanted.penalties else []
            if seq.init.prompt_history != wanted:
                self._world.violate("a sequence was started with a prompt that is not its own")
            self._slots[seq.slot] = _Slot(truth, [], -1, list(seq.init.output_history), seq.init.adapter)
        slot = self._slots[seq.slot]
        slot.pages += seq.pages
        if (self.adapters.get(slot.adapter, "no adapter") if slot.adapter else "") != slot.truth.adapter:
            self._world.violate(f"sequence {slot.truth.wanted.seed} would be computed with another adapter")
        return slot

    def _read(self, seq: SeqPlan, slot: _Slot, drafts: int) -> tuple[int, int]:
        """Check what a sequence brings and finds. Returns where what is known ends, and what of the drafts is right."""
        truth, start = slot.truth, seq.start
        if slot.stands_in:
            return start, start  # what it leaves is nobody's
        tokens = [slot.sampled] if seq.from_previous else seq.tokens
        known = len(tokens) - drafts
        if not tokens or known < 1 or tokens[:known] != truth.tokens[start : start + known]:
            self._world.violate(f"a plan has other tokens at {start} than its sequence")
        if start + len(tokens) >= len(truth.tokens) and drafts:
            self._world.violate("draft tokens go on beyond the end of their sequence")
        full, rest = divmod(start, PAGE_SIZE)
        pages = self._pages
        right = all(pages[slot.pages[i]] == truth.pages[i] for i in range(full))
        if not right or (rest and pages[slot.pages[full]][:rest] != truth.pages[full][:rest]):
            self._world.violate(f"sequence {truth.wanted.seed} would read keys and values that are not its own")
        if seq.prompt_logprobs != truth.tokens[start + 1 : start + 1 + len(seq.prompt_logprobs)]:
            self._world.violate("log-probabilities were asked of tokens that are not the prompt's")
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
            slot.stands_in, slot.sampled = True, (truth.sampled(known).token + 1) % VOCABULARY
            return SeqResult(slot.sampled, prompt_logprobs=rows, late=True)
        sampled = [truth.sampled(position) for position in range(known, end + 1)]
        if truth.wanted.penalties:
            if slot.history != truth.tokens[truth.prompt_len : known]:
                self._world.violate("penalties would count other tokens than those of the output")
            slot.history += [each.token for each in sampled]
        slot.sampled = sampled[-1].token
        first, *others = sampled
        named = first.token_logprobs
        return SeqResult(first.token, first.logprobs, rows, nan, dropped == 0, named, embedding, others)
