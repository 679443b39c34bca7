"""The link of the front end to an agent, for one launch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Self

from numaserve.server.common.death import Death
from numaserve.server.common.patience import PatientTimer
from numaserve.server.supervisor.agent_messages import (
    BEAT_S,
    LOST_S,
    Beat,
    Beaten,
    Claim,
    Claimed,
    FromAgent,
    OtherVersion,
    Refused,
    ToAgent,
    decode_from_agent,
    encode_message,
    other_version,
)
from numaserve.server.supervisor.agent_wire import AgentAddress
from numaserve.server.supervisor.group import GroupFailed
from numaserve.server.supervisor.judge import RankLook
from numaserve.workers.interface.protocol import ProtocolError

logger = logging.getLogger(__name__)

_ATTEMPT_S = 5.0  # for a claim: the workers of a launch before may take this long to end
_REPORT_ATTEMPTS = 12  # attempts between two log lines about an agent that is not there


class AgentLink:
    """An agent that is taken for one launch. Must be constructed inside a running event loop.

    `on_message` is called in the event loop for each message but beats. `on_lost` is called once when the agent has
    been silent for `LOST_S`, the connection has ended, or a message was none of this version.
    """

    def __init__(self, agent: AgentAddress) -> None:
        self.agent = agent
        self.ports: list[int] = []
        self.looks: dict[int, RankLook] = {}  # the last look at each rank that runs
        self.on_message: Callable[[FromAgent], None] = lambda _: None
        self.on_lost: Callable[[str], None] = lambda _: None
        self.lost: str | None = None  # the reason
        self.wants_times = False
        self._loop = asyncio.get_running_loop()
        self._answered: asyncio.Future[FromAgent] = self._loop.create_future()
        self._silence = PatientTimer(lambda: self._lose(f"it has been silent for {LOST_S:g} s"))
        self._beats: asyncio.TimerHandle | None = None
        self._closed = False
        self._wire = agent.open(self._on_frames, self._on_end)

    @property
    def is_open(self) -> bool:
        """Whether messages reach the agent, as far as is known."""
        return not self._closed and self.lost is None

    @classmethod
    async def claim(cls, agent: AgentAddress, ranks: int) -> Self:
        """Take an agent whose ranks will listen for rows, as soon as it is there. Raises `GroupFailed` when the agent
        refuses, or is of another version."""
        attempts = 0
        while True:
            link = cls(agent)
            try:
                await link._claim(ranks)
            except TimeoutError:
                link.close()
                if attempts % _REPORT_ATTEMPTS == 0:
                    logger.warning("the agent at %s does not answer; trying again until it does", agent.address)
                attempts += 1
            except BaseException:
                link.close()
                raise
            else:
                return link

    def send(self, message: ToAgent) -> None:
        """Send a message. Does nothing when the agent is lost or the link is closed."""
        if not self.is_open:
            return
        if not self._wire.send(encode_message(message)):
            self._lose("it does not read its messages")

    def close(self) -> None:
        """Close the link. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._silence.stop()
        if self._beats is not None:
            self._beats.cancel()
        self._wire.close()

    async def _claim(self, ranks: int) -> None:
        self.send(Claim(ranks))
        async with asyncio.timeout(_ATTEMPT_S):
            answer = await self._answered
        match answer:
            case Claimed():
                self.ports = answer.ports
            case Refused():
                raise GroupFailed(Death("failure", f"the agent at {self.agent.address} refused: {answer.message}"))
            case _:
                raise GroupFailed(Death("failure", f"the agent at {self.agent.address} gave another answer"))
        self._silence.start(LOST_S)
        self._beat()

    def _beat(self) -> None:
        self.send(Beat(self.wants_times))
        self.wants_times = False
        if self.is_open:  # the agent may have been lost by sending
            self._beats = self._loop.call_later(BEAT_S, self._beat)

    def _on_frames(self, frames: list[bytes]) -> None:
        try:
            self._on_answer(decode_from_agent(frames))
        except OtherVersion as other:
            self._refuse_version(other)
        except ProtocolError as error:
            self._lose(f"it has sent an invalid message: {error}")

    def _on_answer(self, message: FromAgent) -> None:
        if not self._answered.done():
            self._answered.set_result(message)
            return
        self._silence.start(LOST_S)
        if isinstance(message, Beaten):
            self.looks = message.looks
        elif isinstance(message, Refused):
            self._lose(message.message)
        else:
            self.on_message(message)

    def _refuse_version(self, other: OtherVersion) -> None:
        problem = other_version(self.agent.address, other)
        if self._answered.done():
            self._lose(problem)
        else:
            self._answered.set_exception(GroupFailed(Death("failure", problem)))

    def _on_end(self) -> None:
        if self._answered.done():
            self._lose("the connection has ended")

    def _lose(self, reason: str) -> None:
        if not self.is_open:
            return
        self.lost = f"the agent at {self.agent.address} is lost: {reason}"
        reason = self.lost
        self.close()
        self.on_lost(reason)
