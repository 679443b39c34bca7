"""The time that a step will take, learnt from the steps before it."""

from __future__ import annotations

from collections.abc import Sequence

from numaserve.server.costs.cost_table import NUM_TERMS, CostTable, StepWork, Terms
from numaserve.workers.interface.protocol import OperationTerms

# A machine that reads 10 GB and multiplies 100 Gflop a second, and needs a millisecond for anything. Only the ratios
# count: the first observation says how much faster or slower the whole is.
_FIRST_ESTIMATE = (1e-3, 1e-10, 1e-11, 1e-10, 1e-11)
_NOISE = 0.1  # part of a step's time that the terms do not explain
_OUTLIER = 3.0  # standard deviations; what is further off counts as if it were as far
_DOUBT = 1.0  # standard deviation of a coefficient of which nothing is known, as a part of it
_DRIFT = 0.02  # by which a coefficient may change from one step to the next
_SETTLED = 16  # observations after which predictions are to be relied on


class CostModel:
    """Seconds of a step as a sum of its terms, each at a rate that is fitted to the times of steps.

    The fit is recursive least squares with a random walk of the coefficients (a Kalman filter): it follows a machine
    that becomes slower, costs some microseconds a step, and forgets nothing about terms that the present steps do not
    have, as a fit with exponential weights would. Errors count relative to the time itself, so that short steps matter
    as much as long ones; no rate is negative. The same observations give the same model: there is no clock in it.
    """

    def __init__(self) -> None:
        self._table = CostTable()
        self._rates = list(_FIRST_ESTIMATE)
        self._covariance: list[list[float]] = []
        self._observed = 0

    def describe(self, ranks: Sequence[Sequence[OperationTerms]]) -> None:
        """Take each rank's terms of its operations. Learned rates stay while the terms are the same."""
        table = CostTable.of_slowest(ranks)
        if table != self._table:
            self._table, self._observed, self._rates = table, 0, list(_FIRST_ESTIMATE)

    @property
    def predicts(self) -> bool:
        """True if there is a table, and a step was observed: otherwise nothing is known."""
        return self._observed > 0

    def begin(self) -> StepWork:
        """The work of a new plan."""
        return self._table.begin()

    def predict(self, terms: Terms) -> float:
        """Seconds of a step with those terms."""
        return sum(map(float.__mul__, self._rates, terms))

    def expected(self, terms: Terms) -> float | None:
        """Seconds that can be relied on; None as long as too few steps were seen for that."""
        return self.predict(terms) if self._observed >= _SETTLED else None

    def branch(self) -> CostModel | None:
        """Return a model that begins with these rates, doubts each of them, and learns from other steps; None as long
        as these cannot be relied on."""
        if self._observed < _SETTLED:
            return None
        model = CostModel()
        model._table, model._rates, model._observed = self._table, list(self._rates), self._observed
        model._doubt()
        return model

    def request_seconds(self, prompt: int, output: int, *, chunk: int, batch: int) -> float:
        """Return the seconds that a request takes from the others: its prompt's steps of at most `chunk` tokens, and
        its part of the steps of `batch` such requests. 0 while that is unknown."""
        work = self._table.begin()
        of_prompt = self.expected(work.terms(0, prompt))
        if of_prompt is None:
            return 0.0
        once_more = self.predict((1.0, work.terms(0, min(prompt, chunk))[1], 0.0, 0.0, 0.0))
        work.add(prompt, 1, 1, times=batch)
        return of_prompt + (-(-prompt // chunk) - 1) * once_more + output * self.predict(work.terms()) / batch

    def observe(self, terms: Terms, seconds: float) -> None:
        """Take in the time of a step."""
        if self._table.is_empty or seconds <= 0.0:
            return
        if not self._observed or not self._update(terms, seconds):
            self._begin(terms, seconds)
        self._observed += 1

    def _begin(self, terms: Terms, seconds: float) -> None:
        """Scale all rates by the ratio of a step's time to the first estimate."""
        self._observed = 0
        scale = seconds / sum(map(float.__mul__, _FIRST_ESTIMATE, terms))
        self._rates = [rate * scale for rate in _FIRST_ESTIMATE]
        self._doubt()
        self._update(terms, seconds)

    def _doubt(self) -> None:
        """Forget how sure the rates are."""
        self._covariance = [
            [(_DOUBT * rate) ** 2 if row == column else 0.0 for column in range(NUM_TERMS)]
            for row, rate in enumerate(self._rates)
        ]

    def _update(self, terms: Terms, seconds: float) -> bool:
        """Correct the rates; or return False, and do nothing, if the few steps before this one took far too long.

        Steps are slow for many reasons, and fast for none: caches were cold. The fit would come down from such rates
        only in hundreds of steps, since those that were to be negative are 0 instead.
        """
        predicted = self.predict(terms)
        gain = [sum(map(float.__mul__, row, terms)) for row in self._covariance]
        variance = sum(map(float.__mul__, gain, terms)) + (_NOISE * max(predicted, seconds)) ** 2
        bound = _OUTLIER * variance**0.5
        if self._observed < _SETTLED and seconds < predicted - bound:
            return False
        error = min(max(seconds - predicted, -bound), bound) / variance
        for row, own in enumerate(gain):
            self._rates[row] = max(0.0, self._rates[row] + own * error)
            self._covariance[row] = [
                each - own * other / variance for each, other in zip(self._covariance[row], gain, strict=True)
            ]
            self._wander(row)
        return True

    def _wander(self, row: int) -> None:
        """Let a coefficient be a little less sure than it was, up to the doubt that there was at first."""
        rate = max(self._rates[row], _DRIFT * _FIRST_ESTIMATE[row])
        if self._covariance[row][row] < (_DOUBT * rate) ** 2:
            self._covariance[row][row] += (_DRIFT * rate) ** 2
