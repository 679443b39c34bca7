"""Draft tokens, some of them right."""

from collections.abc import Sequence

from msgspec.structs import replace
from numaserve.workers.interface.protocol import TO_BE_DRAFTED, StepPlan

from tests.simulation.scenario import Scenario
from tests.simulation.truth import FIRST, Truth
from tests.simulation.world import World


class SimulatedDrafter:
    """Drafts what sequences really say, each token rightly with a probability."""

    def __init__(self, world: World, right: float, _scope: str) -> None:
        self._world = world
        self._right = right

    def draft(self, tokens: list[int], most: int) -> list[int]:
        """Return draft tokens of what follows; some are for a token more than there is."""
        end = len(tokens)
        found = (each.tokens for each in self._world.truths.values() if each.tokens[:end] == tokens)
        true = next(found, tokens)[end : end + most]
        return [token if self._world.chance(self._right) else FIRST for token in true]


def drafted(world: World, scenario: Scenario, plan: StepPlan, truths: Sequence[Truth]) -> StepPlan:
    """The plan with the draft tokens of the workers' draft model."""
    reads = {each.index for each in plan.draft_work or []}
    seqs = list(plan.seqs)
    for index, (seq, truth) in enumerate(zip(plan.seqs, truths, strict=True)):
        if TO_BE_DRAFTED not in seq.tokens:
            continue
        if not scenario.worker_drafter or index not in reads:
            world.violate("draft tokens were asked of a draft model that reads nothing")
        world.note("draft token of the draft model", plan.step_id)
        right = scenario.right_drafts or 0.5
        true = [*truth.tokens[seq.start : seq.start + len(seq.tokens)], *[FIRST] * len(seq.tokens)]
        tokens = [
            token if token != TO_BE_DRAFTED else true[place] if world.chance(right) else FIRST
            for place, token in enumerate(seq.tokens)
        ]
        seqs[index] = replace(seq, tokens=tokens)
    return replace(plan, seqs=seqs)
