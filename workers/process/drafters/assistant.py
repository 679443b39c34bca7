"""Draft tokens from an assistant, which reads the KV cache of the served model."""

from collections.abc import Sequence

import msgspec
import numpy as np
from numaserve.workers.interface.protocol import SlotInit, StepPlan, WindowWork
from numaserve.workers.layers.assistant import Assistant, Drafting
from numaserve.workers.layers.predictor import HIDDEN_STATES
from numaserve.workers.process.drafter import RankParts
from numaserve.workers.process.drafters.draft_model import DraftModelDrafter, Reading
from numaserve.workers.process.hidden_states import Bits, widen
from numaserve.workers.process.rank_program import RankProgram


class AssistantDrafter(DraftModelDrafter):
    """The drafter that reads the last token of a sequence, and the caches of the served model for all tokens before it.

    It keeps nothing of a sequence but its page tables and the hidden states of the last step, so prompts need not be
    read. Draft tokens of a step are at one position, whose token is not in the cache yet: the Program runs at the
    position before it, and its rotary tables begin at position 1.
    """

    def __init__(self, own: RankProgram, served: RankProgram, vocabulary: int) -> None:
        """Connect the Programs of assistant and served model, which have the same vocabulary."""
        super().__init__(own, vocabulary, vocabulary)
        self._given = own.outside.given(HIDDEN_STATES).view(np.uint32)
        self._made, self._served = own.outside.kept(HIDDEN_STATES), served.outside.kept(HIDDEN_STATES)
        self._own: dict[int, Bits] = {}  # the assistant's last hidden state, by the index of a sequence in the plan
        self._states: dict[int, tuple[int, Bits]] = {}  # by slot: the first position, and the states from it on
        self._windows: dict[int, list[WindowWork]] = {}  # changes of window tables, by slot

    def prepare(self, plan: StepPlan) -> None:
        """Store the changes that a plan makes to slots; see `DraftModelDrafter`."""
        super().prepare(plan)
        for seq in plan.seqs:
            if seq.init is not None:
                self._windows[seq.slot] = []
        for work in plan.windows or ():
            self._windows.setdefault(plan.seqs[work.index].slot, []).append(work)

    def follow(self, plan: StepPlan) -> int:
        """Store the hidden states of the rows that a plan has sampled from. See `DraftModelDrafter`."""
        end = 0
        for seq, drafts in zip(plan.seqs, plan.drafts_of_each, strict=True):
            targets = len(seq.prompt_logprobs)
            end += targets + (seq.sample and targets < seq.num_tokens) + drafts
            if seq.sample:
                first = seq.start + seq.num_tokens - 1 - drafts
                self._states[seq.slot] = first, self._served[end - 1 - drafts : end].copy()
        return 0

    def _change_slots(self) -> None:
        super()._change_slots()
        changes, self._windows = self._windows, {}
        for slot, works in changes.items():
            for work in works:
                self._program.advance_window(slot, work.window, work.first, work.pages)

    def _draft(self, readings: list[Reading]) -> dict[int, list[int]]:
        self._change_slots()
        drafts: dict[int, list[int]] = {each.place: [] for each in readings if each.drafts}
        level = [_last_token(each) for each in readings if each.drafts]
        for depth in range(1, max((each.drafts for each in level), default=0) + 1):
            self._step(level, drafts)
            level = [each._replace(tokens=[]) for each in level if each.drafts > depth]
        return drafts

    def _tokens(self, readings: Sequence[Reading]) -> list[int]:
        """Return the tokens that a step of the Program reads, and fill in the hidden states."""
        for row, each in enumerate(readings):
            widen(self._state_of(each) if each.tokens else self._own[each.place], self._given[row])
        return super()._tokens(readings)

    def _state_of(self, reading: Reading) -> Bits:
        """Return the hidden state of the token before the one that is read."""
        first, states = self._states.get(reading.slot, (0, self._served[:0]))
        if not 0 <= reading.start - first < len(states):
            raise ValueError("the step asks for draft tokens after a token that the last step did not sample from")
        found: Bits = states[reading.start - first]
        return found

    def _ended(self, readings: Sequence[Reading]) -> None:
        for row, each in enumerate(readings):
            self._own[each.place] = self._made[row].copy()

    def _own_init(self, init: SlotInit) -> SlotInit:
        """Return greedy sampling: all draft tokens of a step are at one position, and would have one random number."""
        own = super()._own_init(init)
        return msgspec.structs.replace(own, sampling=msgspec.structs.replace(own.sampling, temperature=0.0))


def _last_token(reading: Reading) -> Reading:
    """Return the reading of the last token, from the position before it."""
    return reading._replace(start=reading.start + len(reading.tokens) - 2, tokens=reading.tokens[-1:])


def make(parts: RankParts) -> AssistantDrafter:
    """Return the drafter of the launch's assistant."""
    served, draft = parts.loaded
    assistant, decoder = draft.config.decoder, served.config.decoder
    assert isinstance(assistant, Assistant)  # noqa: S101  the front end names this drafter for assistants alone
    draft.loaded.weights.borrow(served.part.matrix(decoder.embedding.table), served.loaded.weights)
    program = Drafting(assistant, decoder, served.part)
    own = RankProgram(draft, program, parts.node, parts.launch.capacity, parts.served)
    return AssistantDrafter(own, parts.served, served.config.vocab_size)
