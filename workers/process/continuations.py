"""The completion of plans that were made before the answer to the step that samples their last tokens."""

from collections.abc import Iterable

from msgspec.structs import replace
from numaserve.workers.interface.protocol import DraftWork, SeqPlan, StepPlan


class Continuations:
    """The tokens that the last step of each slot sampled, which complete the next plan.

    The front end makes a plan that follows one with draft tokens as if all of them were rejected. Every rank knows the
    number of accepted draft tokens as soon as the step has run. A worker with a drafter need not wait for the front
    end.
    """

    def __init__(self, *, reads_drafts: bool) -> None:
        """Start without any sampled tokens.

        `reads_drafts`: the worker's drafter has read its own draft tokens, except the last, like other tokens. False
        for a predictor layer, which has read them with hidden states of its own.
        """
        self._reads_drafts = reads_drafts
        # By slot: the sampled tokens, all but the last of them draft tokens, and the number of draft tokens.
        self._last: dict[int, tuple[list[int], int]] = {}

    def completed(self, plan: StepPlan) -> StepPlan:
        """Return the plan with positions and tokens that were unknown, and with the tokens for the drafter."""
        seqs, works = list(plan.seqs), list(plan.draft_work or [])
        for index, seq in enumerate(plan.seqs):
            if seq.from_previous:
                seqs[index] = self._completed(seq)
        for place, work in enumerate(works):
            if 0 <= work.index < len(seqs) and seqs[work.index] is not plan.seqs[work.index]:
                works[place] = self._lacking(work, plan.seqs[work.index].slot)
        return replace(plan, seqs=seqs, draft_work=works or plan.draft_work)

    def _completed(self, seq: SeqPlan) -> SeqPlan:
        said, _ = self._last.get(seq.slot, ([], 0))
        if not said or (len(said) == 1 and not seq.tokens):
            return seq  # the Program knows the token and its position
        return replace(seq, start=seq.start + len(said) - 1, tokens=[said[-1], *seq.tokens], from_previous=False)

    def _lacking(self, work: DraftWork, slot: int) -> DraftWork:
        (*right, _), drafts = self._last[slot]
        read = max(0, min(len(right), drafts - 1)) if self._reads_drafts else 0
        return DraftWork(work.index, work.lacking + right[read:])

    def ran(self, plan: StepPlan, sampled: Iterable[list[int]]) -> None:
        """Store the tokens that a plan has sampled for each of its sequences."""
        for seq, drafts, tokens in zip(plan.seqs, plan.drafts_of_each, sampled, strict=True):
            self._last[seq.slot] = tokens, drafts
