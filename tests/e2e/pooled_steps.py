"""Steps of whole prompts that are pooled."""

from collections.abc import Sequence

from numaserve.workers.interface.protocol import PAGE_SIZE, SamplingParams, SeqPlan, SlotInit, StepPlan, VectorForm

from tests.support.rank_group import RankGroup


def answers(group: RankGroup, prompts: Sequence[list[int]], step: int, *forms: VectorForm) -> list[bytes]:
    """The vectors of prompts that are together in one step, each in its form: the last of `forms` counts for those that
    follow, and "whole" without any."""
    plans, page = [], 0
    for slot, prompt in enumerate(prompts):
        pages = list(range(page, page - (-len(prompt) // PAGE_SIZE)))
        page += len(pages)
        form = forms[min(slot, len(forms) - 1)] if forms else "whole"
        init = SlotInit(SamplingParams())
        plans.append(SeqPlan(slot, 0, prompt, pages=pages, init=init, pool=True, vector_form=form))
    return [result.embedding for result in group.run(StepPlan(step, plans)).seqs]
