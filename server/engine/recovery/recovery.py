"""The fate of the requests when the workers die."""

import logging

from numaserve.server.common.death import Cause, Death, DeathReason
from numaserve.server.engine.clock import Clock
from numaserve.server.engine.recovery.deaths import Deaths
from numaserve.server.engine.recovery.outage import Outage
from numaserve.server.engine.requests.registry import LiveRequests
from numaserve.server.engine.types import GenerationFailed, NotReady
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.server.scheduler.sequence import Sequence

logger = logging.getLogger(__name__)


class Recovery:
    """Lets requests wait for new workers and resume there from their tokens. A request that was found to kill the
    workers ends instead. All waiting requests end with `NotReady` when that takes more than `timeout_s` seconds.

    See `Outage` on the duration.
    """

    def __init__(
        self, scheduler: Scheduler, requests: LiveRequests, metrics: Metrics, clock: Clock, *, timeout_s: float
    ) -> None:
        self._scheduler = scheduler
        self._requests = requests
        self._metrics = metrics
        self._timeout_s = timeout_s
        self._deaths = Deaths()
        self._outage = Outage(metrics, clock, timeout_s=timeout_s, expired=self._expired)

    @property
    def is_overdue(self) -> bool:
        """True if the outage has lasted too long for new requests to wait for its end."""
        return self._outage.expired

    def died(self, death: Death, *, steps: int, beats: int) -> Cause:
        """Handle the death of the workers after `steps` and `beats` answers in total. Return its cause (see
        `Deaths`)."""
        finding = self._scheduler.workers_died()
        if finding.convicted is not None:
            self._end_convicted(finding.convicted, death)
        self._metrics.resumed(self._requests.num_begun)
        self._outage.workers_down()
        return self._deaths.cause(finding, steps, beats)

    def restarting(self, reason: DeathReason) -> None:
        """Note that the workers that died for `reason` have ended, and that new ones are being started."""
        self._metrics.workers_restarted(reason)
        self._outage.workers_ended()

    def workers_up(self) -> None:
        """Note that new workers are up, which have answered nothing yet."""
        self._outage.workers_up()
        self.settle()

    def answered(self) -> None:
        """Note that a step was answered, during an outage or not."""
        self._outage.end()

    def settle(self) -> None:
        """End the outage when there are no live requests; called while there are workers."""
        if len(self._requests) == 0:
            self._outage.end()

    def close(self) -> None:
        """Stop the timer: the server ends."""
        self._outage.close()

    def _end_convicted(self, sequence: Sequence, death: Death) -> None:
        request_id = self._requests.id_of(sequence)
        logger.error("request %s made the workers fail repeatedly; the request ends: %s", request_id, death)
        message = f"The workers failed repeatedly while they computed {request_id}. The last failure: {death}."
        self._requests.fail([sequence], GenerationFailed(message))

    def _expired(self) -> None:
        seconds = self._timeout_s
        logger.error("the workers were not replaced within %g s; the waiting requests end", seconds)
        self._requests.fail_all(
            NotReady(f"The workers failed and were not replaced within {seconds:g} s. Retry later.")
        )
