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
        """Have everybody who waits for it raise `NotReady`."""
        self.complete.set_exception(NotReady(reason))
        self.complete.exception()  # seen, should nobody wait for it any more


class Profiles:
    """Profiles that were asked of the workers and have not all come.

    Whoever asks while the same is asked already gets that answer: workers take requests between steps, and so many
    frames could gather before a long one that plans would be dropped behind them.
    """

    def __init__(self, send: Callable[[ProfileRequest], None], *, world_size: int, deadline_s: float) -> None:
        self._send = send
        self._world_size = world_size
        self._deadline_s = deadline_s
        self._ids = itertools.count()
        self._asked: dict[bool, _Asked] = {}  # by whether ceilings are wanted

    async def ask(self, *, ceilings: bool) -> list[RankProfile]:
        """Every rank's profile, by rank. Raises `NotReady` when the workers do not answer in time or go."""
        asked = self._asked.get(ceilings) or self._begin(ceilings)
        return await asyncio.shield(asked.complete)  # a client that leaves takes nobody else's answer with it

    def _begin(self, ceilings: bool) -> _Asked:
        """Ask the workers. The deadline is the request's, not that of each who waits for it: one that were kept beyond
        it, for those who came later, would stand in everybody's way for ever when an answer to it was lost."""
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
        """Take in the answer of a rank."""
        asked = next((each for each in self._asked.values() if each.request.request_id == profile.request_id), None)
        if asked is None or profile.rank in asked.answers:
            logger.warning("worker %d sent a profile that was not requested", profile.rank)
            return
        asked.answers[profile.rank] = profile
        if len(asked.answers) == self._world_size:
            del self._asked[asked.request.ceilings]
            asked.complete.set_result([asked.answers[rank] for rank in range(self._world_size)])

    def fail(self, reason: str) -> None:
        """End every request: the workers are gone, for `reason`."""
        for asked in self._asked.values():
            asked.fail(reason)
        self._asked.clear()
