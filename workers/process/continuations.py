"""Where sequences go on whose last tokens were sampled by a step that had not been answered when the plan was made."""

from collections.abc import Iterable

from msgspec.structs import replace
from numaserve.workers.protocol import DraftWork, SeqPlan, StepPlan


class Continuations:
    """What the last step of each slot has sampled. Plans are completed with it.

    The front end makes a plan behind one with guesses as if they were all wrong. How many were right is known here,
    on every rank, as soon as the step has run. So the worker that guesses need not wait for the front end's answer.
    """

    def __init__(self, *, reads_guesses: bool) -> None:
        """`reads_guesses`: what guesses in the worker has read its own guesses as it would read them as tokens, but for
        the last of them. A layer that predicts has not: it has read them with what it made itself."""
        self._reads_guesses = reads_guesses
        # By slot: what was sampled, of which all but the last was guessed, and how many guesses there were.
        self._last: dict[int, tuple[list[int], int]] = {}

    def completed(self, plan: StepPlan) -> StepPlan:
        """The plan with positions and tokens where it could not know them, and with what has to be read of these."""
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
            return seq  # the Program knows the token, and where it is
        return replace(seq, start=seq.start + len(said) - 1, tokens=[said[-1], *seq.tokens], from_previous=False)

    def _lacking(self, work: DraftWork, slot: int) -> DraftWork:
        (*right, _), drafts = self._last[slot]
        read = max(0, min(len(right), drafts - 1)) if self._reads_guesses else 0
        return DraftWork(work.index, work.lacking + right[read:])

    def ran(self, plan: StepPlan, sampled: Iterable[list[int]]) -> None:
        """Take in the tokens that a plan has sampled of each of its sequences."""
        for seq, drafts, tokens in zip(plan.seqs, plan.drafts_of_each, sampled, strict=True):
            self._last[seq.slot] = tokens, drafts
