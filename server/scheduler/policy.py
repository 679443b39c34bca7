"""The division of one step's tokens and logit rows among sequences."""

from typing import NamedTuple

from numaserve.server.scheduler.sequence import Sequence


class Chunk(NamedTuple):
    """A sequence's part of a step: `length` positions, the first `logprob_rows` of them with prompt logprobs."""

    length: int
    sample: bool
    logprob_rows: int


class StepBudget:
    """The tokens and logit rows that are left of a step.

    Sequences take their turn oldest first. A prefill takes all it can get and need not spare anything for decodes: they
    are older and had their turn, since nobody is admitted behind a prefill that has used up the budget.
    """

    def __init__(self, tokens: int, rows: int) -> None:
        self._tokens = tokens
        self._rows = rows

    @property
    def is_open(self) -> bool:
        """Whether one more sequence could have at least one token of any kind."""
        return self._tokens > 0 and self._rows > 0

    def take(self, seq: Sequence) -> Chunk:
        """A chunk of as many of the sequence's remaining positions as fit: at least one while the budget `is_open`."""
        remaining = seq.num_remaining
        length = min(remaining, self._tokens)
        logprob_rows = 0
        if seq.prompt_logprobs:
            length, logprob_rows = _with_prompt_logprobs(seq, length, self._rows)
        sample = length == remaining and seq.wants_sample
        if sample and logprob_rows == self._rows:
            length, sample = length - 1, False
        self._tokens -= length
        self._rows -= logprob_rows + sample
        return Chunk(length, sample, logprob_rows)


def _with_prompt_logprobs(seq: Sequence, length: int, rows: int) -> tuple[int, int]:
    """The chunk's length and number of prompt logprob rows: its positions need either all a row or none.

    The last position of the prompt has no next token and needs none; positions before `logprob_rows_planned` are
    computed again after a retraction and need none.
    """
    start, end = seq.num_computed, seq.prompt_len - 1
    if start < seq.logprob_rows_planned:
        return min(length, seq.logprob_rows_planned - start), 0
    if start < end:
        length = min(length, rows)
        return length, max(0, min(length, end - start))
    return length, 0
