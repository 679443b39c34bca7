"""Draft tokens from the predictor layer of the model, which predicts the token after the next (MTP)."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import StepPlan
from numaserve.workers.layers.predictor import HIDDEN_STATES
from numaserve.workers.process.drafter import RankParts
from numaserve.workers.process.drafters.draft_model import DraftModelDrafter, Reading, readings_of
from numaserve.workers.process.hidden_states import Bits, HiddenStates, widen
from numaserve.workers.process.rank_program import RankProgram
from numaserve.workers.program.caches import CacheIndex


class MtpDrafter(DraftModelDrafter):
    """The drafter that reads tokens, each with the hidden state of the token before it, and predicts the next token.

    The drafter reads the tokens of a step, such as a prompt, after that step. To make draft tokens, it reads the
    lacking tokens before the step: the model has computed all tokens before the next one. After its own draft tokens
    the drafter continues from its own hidden states. It reads the tokens again once the model has computed them.
    """

    def __init__(self, predictor: RankProgram, served: RankProgram, vocabulary: int) -> None:
        """Connect the Programs `predictor` and `served`, which share their weights."""
        super().__init__(predictor, vocabulary, vocabulary)
        self._given = predictor.outside.given(HIDDEN_STATES).view(np.uint32)
        self._made, self._served = predictor.outside.kept(HIDDEN_STATES), served.outside.kept(HIDDEN_STATES)
        self._no_token = vocabulary
        memory = predictor.program.state_memory(CacheIndex(0, 0))  # its only state
        self._states = HiddenStates(*memory, self._given.shape[1])
        self._own: dict[int, Bits] = {}  # the drafter's own last hidden state, by the index of a sequence in the plan
        self._computed: dict[int, tuple[int, int]] = {}  # by index: the first position, and its row
        self._after: list[Reading] = []

    def prepare(self, plan: StepPlan) -> None:
        """Prepare the slots for a plan; see `DraftModelDrafter`."""
        super().prepare(plan)
        self._after = []  # readings of a refused plan
        for seq in plan.seqs:
            if seq.init is not None:
                self._states.begin(seq.slot)
            self._states.append_pages(seq.slot, seq.pages)

    def run(self, plan: StepPlan) -> tuple[StepPlan, int]:
        """Return the plan with draft tokens; see `DraftModelDrafter`. Sequences that get draft tokens are read now, and
        all others after the step."""
        readings = readings_of(plan)
        self._after = [each for each in readings if not each.drafts]
        self._computed = {}
        return self._with_drafts(plan, [each for each in readings if each.drafts])

    def follow(self, plan: StepPlan) -> int:
        """Read the tokens of the step, and store their hidden states. See `DraftModelDrafter`."""
        if not plan.seqs:
            return 0
        counts = [seq.num_tokens for seq in plan.seqs]
        rows = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)
        read_ns = 0
        if self._after:
            begin = time.monotonic_ns()
            self._computed = {place: (seq.start, int(rows[place])) for place, seq in enumerate(plan.seqs)}
            self._draft(self._after)
            self._after = []
            read_ns = time.monotonic_ns() - begin
        slots = np.repeat(np.array([seq.slot for seq in plan.seqs], np.int64), counts)
        starts = np.array([seq.start for seq in plan.seqs], np.int64)
        positions = np.arange(rows[-1]) + np.repeat(starts - rows[:-1], counts)
        self._states.keep(slots, positions, self._served[: rows[-1]])
        return read_ns

    def _tokens(self, readings: Sequence[Reading]) -> list[int]:
        """Return the tokens of each reading, and fill in their hidden states. The first position has neither."""
        tokens: list[int] = []
        row = 0
        for each in readings:
            states = self._states_of(each)
            widen(states, self._given[row : row + len(states)])
            row += len(states)
            first = [self._no_token] if each.start == 0 and each.tokens else []
            tokens += first + each.tokens[len(first) :]
        return tokens

    def _states_of(self, reading: Reading) -> Bits:
        """Return the hidden state of the token before each token that is read."""
        if not reading.tokens:
            return self._own[reading.place]
        before, count = reading.start - 1, len(reading.tokens)
        start, row = self._computed.get(reading.place, (before + count, 0))  # the rows that this step computes
        known = min(count, max(0, start - before))
        parts = [np.zeros((1, self._given.shape[1]), np.uint16)] if before < 0 else []
        parts.append(self._states.find(reading.slot, before + len(parts), known - len(parts)))
        first = row + before + known - start
        parts.append(self._served[first : first + count - known])
        return np.concatenate(parts)

    def _ended(self, readings: Sequence[Reading]) -> None:
        row = -1
        for each in readings:
            row += len(each.tokens) or 1
            if each.drafts:
                self._own[each.place] = self._made[row : row + 1].copy()


def make(parts: RankParts) -> MtpDrafter:
    """Return the drafter of the model's MTP layer."""
    held = parts.loaded[0]
    predictor = held.config.decoder.predictor
    if predictor is None:
        raise OperatorError(f"{parts.launch.model}: the model has no multi-token prediction (MTP) layer; leave mtp out")
    limits = parts.launch.capacity.without_window_tables()
    return MtpDrafter(RankProgram(held, predictor, parts.node, limits), parts.served, held.config.vocab_size)
