"""The interface of a worker's drafter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from numaserve.workers.interface.protocol import Launch, StepPlan
from numaserve.workers.process.node import NodeContext
from numaserve.workers.process.rank_program import RankProgram, RankWeights


class Drafter(Protocol):
    """Makes draft tokens between the steps of the served model."""

    @property
    def programs(self) -> Sequence[RankProgram]:
        """The Programs of its own."""

    def prepare(self, plan: StepPlan) -> None:
        """Note the changes that a plan makes to slots."""

    def revert(self) -> None:
        """Undo the changes of slots since the last step."""

    def run(self, plan: StepPlan) -> tuple[StepPlan, int]:
        """Return the plan with draft tokens in place of `TO_BE_DRAFTED`, and the nanoseconds that drafting took.

        Called for a plan with `draft_work`. Raises `ValueError` for work that does not fit the plan.
        """

    def follow(self, plan: StepPlan) -> int:
        """Note that a plan has run, and return the nanoseconds that this took."""


class RankParts(NamedTuple):
    """The parts of a rank from which a drafter is made."""

    launch: Launch
    loaded: list[RankWeights]  # of the served model, and of the draft model if there is one
    served: RankProgram
    node: NodeContext
