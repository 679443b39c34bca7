"""Short calls of speculation, and costs that a test decides."""

from numaserve.server.costs.cost_model import CostModel
from numaserve.server.costs.cost_table import Terms
from numaserve.server.scheduler.sequence import Sequence
from numaserve.server.speculation.decode import Decode
from numaserve.server.speculation.reports import Awaited, Draft, DraftBudget, Sampled, StepAnswered
from numaserve.server.speculation.speculation import Speculation
from numaserve.workers.interface.protocol import OperationTerms


class Rated(CostModel):
    """A step takes one second, and a hundredth more for each row; a pass of a draft model `seconds`."""

    predicts = True

    def __init__(self, seconds: float | None = None) -> None:
        super().__init__()
        self.describe([[OperationTerms("linear", row_flops=1.0)]])
        self.seconds = seconds

    def predict(self, terms: Terms) -> float:
        return 1.0 + 0.01 * terms[2] if self.seconds is None else self.seconds


def choose(speculation: Speculation, seqs: list[Sequence], rows: int) -> dict[Decode, Draft]:
    """The draft tokens of a step."""
    return dict(speculation.propose(seqs, DraftBudget(rows)).drafts)


def waits(speculation: Speculation, seqs: list[Sequence], rows: int) -> bool:
    """Whether a step that opens waits for the answer to a plan without draft tokens."""
    awaited = Awaited(len(seqs), drafts=0, by_workers=0, expected=0.0, seconds=0.0)
    return speculation.propose(seqs, DraftBudget(rows, opens=True, awaited=awaited)).waits


def took(speculation: Speculation, ratio: float, rows: int, kept: int | None, expected: float = 0.0) -> None:
    """Report a step of which only the price counts."""
    speculation.observe(StepAnswered([], ratio, rows, kept, expected))


def sampled(speculation: Speculation, seq: Sequence, tokens: list[int], by_workers: int = 0) -> None:
    """Report the next tokens of a sequence."""
    speculation.observe(StepAnswered([Sampled(seq, tokens, by_workers)]))
