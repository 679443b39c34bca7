"""The division of one step's tokens, logit rows and time among sequences."""

from typing import NamedTuple

from numaserve.server.costs.cost_model import CostModel
from numaserve.server.costs.cost_table import StepWork
from numaserve.server.scheduler.images import image_across
from numaserve.server.scheduler.sequence import ECONOMICAL_STEP_S, SchedulerConfig, Sequence
from numaserve.server.scheduler.step_time import StepTime
from numaserve.server.scheduler.tower_runs import TowerRuns
from numaserve.server.speculation.reports import NO_DRAFT, Draft


class Chunk(NamedTuple):
    """A sequence's part of a step: `length` positions, the first `logprob_rows` of them with prompt logprobs."""

    length: int
    sample: bool
    logprob_rows: int
    draft: Draft = NO_DRAFT  # draft tokens after the positions, to be verified


class StepBudget:
    """The tokens, logit rows and seconds that are left of a step.

    Decodes take their turn first, and so a prefill takes all the tokens that it can get.

    Next to decodes a prefill takes no longer than they may wait for their next tokens. It gets the whole pages that the
    step has time for, as `costs` predicts. Where a page takes too long, it gets a part of a page that takes as long as
    the decodes at least: at most half of the time goes to them. A whole page is the least where the decodes alone take
    too long, so that a prompt ends however slow the machine is. The time is the time of the step, not of the prompt's
    tokens: late in a long prompt a token takes several times as long as early in it. No other prefill follows one that
    is cut, or it would cost the decodes once more. A prefill whose output had begun when the workers died is not cut:
    its client waits between two tokens as well, and with smaller chunks the weights are read more often until all have
    caught up.

    Newcomers wait for the step in flight. Where the operator leaves the size of steps out, a step with more than
    `least_step_tokens` tokens therefore takes at most `ECONOMICAL_STEP_S`.

    Runs of the vision tower take their time from the same limits: a prefill is cut before the first tile whose run does
    not fit. Next to decodes they leave a reserve of the limit for steps that take longer (`RunCost.overrun`), and so do
    all chunks of prompts with images: a reserve for runs alone was rejected, since one step in fifteen next to an image
    has a chunk. Where the next position of a prefill needs such a run, the step has as many parts of it as fit next to
    decodes, and the first prefill at least one, so that an image ends. Without decodes the run is planned whole.

    Where tokens of an image see each other, a chunk ends before an image that it has no space or time for, and an image
    at its beginning is its least part.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        costs: CostModel,
        work: StepWork,
        draft_costs: CostModel | None = None,
        tokens: int | None = None,
        *,
        tower: TowerRuns | None = None,
    ) -> None:
        """Begin a step. `work` is the work that was planned so far, and grows with the step; `tower` does, too, if the
        model has one. `draft_costs` are those of the workers' drafter, if there is one, which reads prompts too.
        `tokens`: the limit of this step; None for `shared_step_tokens`."""
        self._whole_prompts = config.whole_prompts
        self._most_tokens = self._tokens = config.shared_step_tokens if tokens is None else tokens
        # What is left of the shortest limit on a step; where that is the only limit, the same as `_tokens`.
        self._short = config.shortest_limit
        self._whole_rows = config.whole_rows
        self._rows = config.capacity.max_logit_rows
        self._time = StepTime(config, costs, work, draft_costs, tower)
        self._tower = tower
        self._has_decodes = False
        self._has_prefill = False
        self._out_of_time = False

    @property
    def is_open(self) -> bool:
        """True if one more sequence could have at least one token of any kind."""
        return self._tokens > 0 and self._rows > 0 and not self._out_of_time

    def has_room(self, seq: Sequence) -> bool:
        """Return whether the sequence finds a place in a step that `is_open`. A whole prompt that exceeds the limit
        needs an empty step."""
        return not self._whole_prompts or seq.num_remaining <= self._tokens or self._tokens == self._most_tokens

    def begins(self, seq: Sequence, start: int) -> bool:
        """Return whether the features for the position `start` of a prompt are found, or can be made in this step, and
        whether there is space for an image there that must be whole."""
        if self._tower is None or not seq.request.images:
            return True
        if self._least(seq, start) > self._tokens:
            return False
        ahead = self._tower.ahead(seq, start, start + 1)
        return ahead.end > start and not (ahead.runs and self._has_prefill and not self._has_time(seq, start))

    def add_parts(self, seq: Sequence, start: int) -> float:
        """Plan parts of the run for the position `start` of a prompt, unless both fit. Return their time in tokens."""
        tower, limit_s = self._tower, self._limit_of(seq)
        if tower is None:
            return 0.0
        if not tower.continues(seq, start):
            ahead = tower.ahead(seq, start, start + 1)
            if limit_s is None or not ahead.runs or ahead.end == start or self._has_time(seq, start):
                return 0.0
        left_s = None
        if limit_s is not None:
            left_s = self._limit_of_images(seq) - self._time.planned_s
        share = tower.add_parts(seq, start, left_s, least=not self._has_prefill)
        if share:
            self._has_prefill = True
            self._out_of_time = limit_s is not None and not (self.begins(seq, start) and self._has_time(seq, start))
        return share * tower.cost.tokens

    def beyond(self, sequences: int) -> int:
        """Return the tokens with logits that are left if `sequences` sequences have one each."""
        return max(0, min(self._tokens, self._rows) - sequences)

    def draft(self, chunk: Chunk, draft: Draft) -> Chunk:
        """Return a sequence's next token with draft tokens after it, for which there is room (`beyond`)."""
        self._spend(len(draft.tokens))
        self._rows -= len(draft.tokens)
        return chunk._replace(draft=draft)

    def take(self, seq: Sequence) -> Chunk:
        """Return a chunk of the sequence's remaining positions that fit: at least one while the budget `is_open` if the
        sequence `begins`, and all of a whole prompt that `has_room`."""
        remaining = seq.num_remaining
        if self._whole_prompts:
            self._spend(remaining)
            return Chunk(remaining, sample=False, logprob_rows=0)
        length = min(remaining, self._tokens)
        if remaining > 1:
            least = self._least(seq, seq.position.computed)
            length = self._spare_newcomers(seq, self._with_places(seq, length))
            length = self._with_runs(seq, self._in_time(seq, length))
            length = max(least, self._before_image(seq, length))
            self._has_prefill = True
        else:
            self._has_decodes = True
        logprob_rows = 0
        if seq.request.prompt_logprobs:
            length, logprob_rows = _with_prompt_logprobs(seq, length, self._rows)
        sample = length == remaining and seq.position.wants_sample
        if sample and logprob_rows == self._rows:
            length, sample = length - 1, False
        self._spend(length)
        self._rows -= logprob_rows + sample
        return Chunk(length, sample, logprob_rows)

    def _least(self, seq: Sequence, start: int) -> int:
        """Return the fewest positions of a prompt from `start` on that can be computed: those of an image there that
        must be whole in a step."""
        across = image_across(seq.request.images, start + 1) if self._whole_rows else None
        return 1 if across is None else across.end - start

    def _before_image(self, seq: Sequence, length: int) -> int:
        """Return the number of a prefill's next `length` positions before an image that must be whole, and is not."""
        start = seq.position.computed
        across = image_across(seq.request.images, start + length) if self._whole_rows else None
        return length if across is None else max(across.start - start, 0)

    def _spare_newcomers(self, seq: Sequence, length: int) -> int:
        """Return the number of a prefill's next `length` positions that newcomers may wait for. The step ends with
        them if there are more."""
        least = max(self._short, 1)
        if length <= least or self._time.total(seq, length) <= ECONOMICAL_STEP_S:
            return length
        self._tokens = max(self._time.fitting(seq, length, ECONOMICAL_STEP_S), least)
        return self._tokens

    def _spend(self, tokens: int) -> None:
        self._tokens -= tokens
        self._short -= tokens

    def _in_time(self, seq: Sequence, length: int) -> int:
        """Return the number of a prefill's next `length` positions that there is time for."""
        if self._out_of_time:
            return 0
        limit_s = self._limit_of(seq)
        if limit_s is not None and seq.request.images:
            limit_s = self._limit_of_images(seq)
        if limit_s is None or self._time.total(seq, length) <= limit_s:
            return length
        self._out_of_time = True
        return self._time.fitting(seq, length, limit_s)

    def _with_places(self, seq: Sequence, length: int) -> int:
        """Return the number of a prefill's next `length` positions before the first tile that finds no place."""
        if self._tower is None:
            return length
        start = seq.position.computed
        return self._tower.ahead(seq, start, start + length).end - start

    def _with_runs(self, seq: Sequence, length: int) -> int:
        """Return the number of a prefill's next `length` positions before the first run of the tower that does not fit;
        next to decodes, the positions up to the next run must fit with it. The run that the next position needs is
        planned, and so is the first one of a step without decodes."""
        if self._tower is None or not seq.request.images:
            return length
        start, limit_s = seq.position.computed, self._limit_of_images(seq)
        runs = self._tower.ahead(seq, start, start + length).runs
        is_first = not self._tower.works and not self._has_decodes
        later = runs[1:] if runs and (is_first or runs[0] == start) else runs
        ends = [position + 1 for position in later] if self._limit_of(seq) is None else [*later[1:], start + length]
        for position, end in zip(later, ends, strict=False):
            if self._time.total(seq, end - start) > limit_s:
                self._out_of_time = True
                return position - start
        return length

    def _has_time(self, seq: Sequence, start: int) -> bool:
        """Return whether there is time for a page of a prompt from `start` on, and for the run there."""
        return self._time.of_page(seq, start) <= self._limit_of_images(seq)

    def _limit_of_images(self, seq: Sequence) -> float:
        limit_s = self._limit_of(seq)
        if limit_s is None:
            return ECONOMICAL_STEP_S
        return limit_s if self._tower is None else limit_s / self._tower.cost.overrun

    def _limit_of(self, seq: Sequence) -> float | None:
        """Return the seconds of the step for the sake of its decodes; None if a prefill may take any time."""
        if seq.position.resuming or not self._has_decodes:
            return None
        return self._time.limit(seq, min(self._short, self._tokens))


def _with_prompt_logprobs(seq: Sequence, length: int, rows: int) -> tuple[int, int]:
    """The chunk's length and number of prompt logprob rows: its positions need either all a row or none.

    The last position of the prompt has no next token and needs none; positions before `logprob_rows_planned` are
    computed again after a retraction and need none.
    """
    start, end = seq.position.computed, seq.prompt_len - 1
    if start < seq.position.logprob_rows_planned:
        return min(length, seq.position.logprob_rows_planned - start), 0
    if start < end:
        length = min(length, rows)
        return length, max(0, min(length, end - start))
    return length, 0
