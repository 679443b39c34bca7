"""The messages between the scheduler and speculation: budgets, proposals and reports."""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as ListOf
from typing import NamedTuple

from numaserve.server.speculation.decode import Decode
from numaserve.server.speculation.worker_reading import WorkerReading


class Draft(NamedTuple):
    """Draft tokens of a sequence."""

    tokens: ListOf[int]
    drafter: str
    by_workers: bool = False  # the tokens are placeholders
    reads: bool = False  # the drafter has read them, except the last, and need not read accepted ones again


NO_DRAFT = Draft((), "")


class Awaited(NamedTuple):
    """The last plan in flight."""

    sequences: int
    drafts: int  # its draft tokens
    by_workers: int  # of these, the draft tokens of workers
    expected: float  # of these, the expected number of accepted tokens
    seconds: float  # its expected duration; 0 if unknown


class DraftBudget(NamedTuple):
    """The limits of the draft tokens of a step in the making."""

    rows: int  # most draft tokens
    step_id: int = 0
    opens: bool = False  # nothing is planned yet: the step can still wait for the answer to `awaited`
    awaited: Awaited | None = None  # None: no plan is in flight


class Unchecked(NamedTuple):
    """New draft tokens of a constrained sequence after its first `begin` tokens, which its matcher may check."""

    seq: Decode
    begin: int
    tokens: ListOf[int]


class Proposal(NamedTuple):
    """The draft tokens of a step, or the advice to plan the step only after the answer in flight."""

    drafts: Mapping[Decode, Draft] = {}
    expected: float = 0.0  # accepted tokens
    waits: bool = False
    unchecked: ListOf[Unchecked] = ()
    reading: WorkerReading | None = None  # the part of the workers' drafter in the step


class Sampled(NamedTuple):
    """The next tokens of a sequence: a sample, and one more after each accepted draft token."""

    seq: Decode
    tokens: list[int]
    by_workers: int  # verified draft tokens of the workers


class StepAnswered(NamedTuple):
    """A step that was answered."""

    sampled: ListOf[Sampled]
    ratio: float | None = None  # of actual to predicted time; None without a prediction
    rows: int | None = None  # rows of its products; None for a step with prompts
    kept: int | None = None  # accepted draft tokens; None for a step without draft tokens
    expected: float = 0.0  # accepted draft tokens that the proposal promised


class WorkersIdled(NamedTuple):
    """The time for which workers idled before and after a step."""

    seconds: float
    sequences: int


class SequencesEnded(NamedTuple):
    """Sequences that have ended."""

    sequences: ListOf[Decode]


class WorkersDied(NamedTuple):
    """Sequences with draft tokens in flight as the workers died: these may be the cause, and would come again."""

    sequences: ListOf[Decode]


class TokensForced(NamedTuple):
    """Tokens of the only text that the constraint of a sequence allows after its first `begin` tokens."""

    seq: Decode
    begin: int
    tokens: Iterable[int]


class DraftForbidden(NamedTuple):
    """Draft tokens after the first `begin` tokens of a sequence, of which the constraint forbids only the last."""

    seq: Decode
    begin: int
    tokens: ListOf[int]


ConstraintReport = TokensForced | DraftForbidden
Report = StepAnswered | WorkersIdled | SequencesEnded | WorkersDied | ConstraintReport
