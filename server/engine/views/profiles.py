"""Requests to the workers for figures of their steps."""

import asyncio
import functools
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from numaserve.server.common.patience import PatientTimer
from numaserve.server.engine.types import NotReady
from numaserve.workers.interface.protocol import ProfileRequest, RankProfile

logger = logging.getLogger(__name__)


@dataclass
class _Asked:
    request: ProfileRequest
    answers: dict[int, RankProfile] = field(default_factory=dict)
    complete: asyncio.Future[list[RankProfile]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def fail(self, reason: str) -> None:
        """Fail the request: every waiter raises `NotReady`."""
        self.complete.set_exception(NotReady(reason))
        self.complete.exception()  # marks the exception as retrieved, in case there is no waiter left


class Profiles:
    """Requests to the workers for profiles, until every rank has answered.

    Callers share the answer to an identical pending request. Workers read messages between steps: many requests could
    queue up before a long step, and plans after them would be dropped.
    """

    def __init__(self, send: Callable[[ProfileRequest], None], *, world_size: int, deadline_s: float) -> None:
        self._send = send
        self._world_size = world_size
        self._deadline_s = deadline_s
        self._ids = itertools.count()
        self._asked: dict[bool, _Asked] = {}  # by whether ceilings are requested

    async def ask(self, *, ceilings: bool) -> list[RankProfile]:
        """Return every rank's profile, by rank. Raises `NotReady` when the workers do not answer in time or end."""
        asked = self._asked.get(ceilings) or self._begin(ceilings)
        return await asyncio.shield(asked.complete)  # a client that leaves must not cancel the answer of others

    def _begin(self, ceilings: bool) -> _Asked:
        """Send the request to the workers.

        The deadline belongs to the request, not to each waiter. If later waiters extended it, a lost answer would block
        all callers indefinitely.
        """
        asked = self._asked[ceilings] = _Asked(ProfileRequest(next(self._ids), ceilings))
        timer = PatientTimer(functools.partial(self._give_up, asked))
        timer.start(self._deadline_s)
        asked.complete.add_done_callback(lambda _: timer.stop())
        self._send(asked.request)
        return asked

    def _give_up(self, asked: _Asked) -> None:
        del self._asked[asked.request.ceilings]
        asked.fail(f"The workers sent no profile within {self._deadline_s:g} s. Retry later.")

    def on_answer(self, profile: RankProfile) -> None:
        """Process the answer of a rank."""
        asked = next((each for each in self._asked.values() if each.request.request_id == profile.request_id), None)
        if asked is None or profile.rank in asked.answers:
            logger.warning("worker %d sent a profile that was not requested", profile.rank)
            return
        asked.answers[profile.rank] = profile
        if len(asked.answers) == self._world_size:
            del self._asked[asked.request.ceilings]
            asked.complete.set_result([asked.answers[rank] for rank in range(self._world_size)])

    def fail(self, reason: str) -> None:
        """Fail every pending request with `reason`: the workers are gone."""
        for asked in self._asked.values():
            asked.fail(reason)
        self._asked.clear()
