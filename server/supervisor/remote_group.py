"""A worker group on another host, which an agent runs: one launch of one pipeline stage."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass

from msgspec import structs
from numaserve.server.common.death import Death
from numaserve.server.common.patience import patiently
from numaserve.server.supervisor.agent_link import AgentLink
from numaserve.server.supervisor.agent_messages import (
    End,
    Ended,
    Failed,
    FromAgent,
    Loaded,
    Mask,
    Started,
    StartStage,
)
from numaserve.server.supervisor.agent_wire import AgentAddress
from numaserve.server.supervisor.group import GroupFailed, GroupHooks, GroupSpec
from numaserve.server.supervisor.judge import RankLook
from numaserve.server.supervisor.memory import MaskBoard
from numaserve.workers.interface.protocol import (
    Failure,
    LoadAdapter,
    ProfileRequest,
    RankProfile,
    Ready,
    StepPlan,
    StepResult,
    ToDisk,
    WorkerStats,
)

_END_S = 5.0  # for the agent to end its workers, besides their grace
_WORD_BITS, _WORD_BYTES = 32, 4


@dataclass(frozen=True)
class AgentStage:
    """The agent of a stage, and what its workers need besides their launches."""

    agent: AgentAddress
    model: str  # path on the agent's host
    ring_lanes: int
    ring_slot_bytes: int
    mask_rows: int
    vocabulary: int


class RemoteBoard:
    """A mask board on another host. Rows travel as messages; any thread may publish one."""

    fd, nonce = -1, 0

    def __init__(self, link: AgentLink, vocabulary: int) -> None:
        self.row_bytes = -(-vocabulary // _WORD_BITS) * _WORD_BYTES
        self._link = link
        self._loop = asyncio.get_running_loop()

    def publish(self, step: int, row: int, state: int, bits: int = 0) -> None:
        """See `MaskBoard`."""
        mask = Mask(step, row, state, ctypes.string_at(bits, self.row_bytes) if bits else b"")
        with suppress(RuntimeError):  # the loop is closed: no process reads the board
            self._loop.call_soon_threadsafe(self._link.send, mask)

    def close(self) -> None:
        """See `MaskBoard`: the agent closes its board at the end of the launch."""


class RemoteGroup:
    """Has the agent of a `link` start the workers of `spec`, and reports the first failure to `on_failure`, once.

    Must be constructed inside a running event loop. The stage has a mask board if `spec` has a factory of boards.
    """

    def __init__(
        self,
        spec: GroupSpec,
        hooks: GroupHooks,
        on_failure: Callable[[Death], None],
        stage: AgentStage,
        link: AgentLink,
    ) -> None:
        self._launches = [structs.replace(each, model=stage.model) for each in spec.launches]
        self._hooks, self._on_failure = hooks, on_failure
        self._stage, self._link = stage, link
        self._masked = spec.board_factory is not None
        self._board = RemoteBoard(link, stage.vocabulary) if self._masked else None
        loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._pids: list[int] = []
        self._over = False
        link.on_message = self._on_message
        link.on_lost = self._on_lost

    @property
    def board(self) -> MaskBoard | None:
        """The mask board of this launch; None after `end`."""
        return self._board

    @property
    def pids(self) -> list[int]:
        """The process ids by rank, on the agent's host."""
        return self._pids

    @property
    def garbage_frames(self) -> int:
        """The number of frames that were dropped because they were not valid messages: none, since such a frame ends
        the launch."""
        return 0

    async def start(self) -> None:
        """Start the workers and wait until every rank has loaded; raises `GroupFailed`."""
        stage = self._stage
        rows = stage.mask_rows if self._masked else 0
        self._link.send(
            StartStage(self._launches, stage.ring_lanes, stage.ring_slot_bytes, rows, stage.vocabulary if rows else 0)
        )
        if self._link.lost is not None:
            self._on_lost(self._link.lost)
        await self._started

    def send(self, message: StepPlan | ProfileRequest | LoadAdapter | ToDisk) -> None:
        """Send a message to every rank. Stages have neither adapters nor the disk tier."""
        if isinstance(message, StepPlan | ProfileRequest):
            self._link.send(message)

    def look(self, ranks: Collection[int], with_times: bool) -> dict[int, RankLook]:
        """Return the looks at those of `ranks` that run, which the agent has sent with its last beat."""
        self._link.wants_times |= with_times
        return {rank: look for rank, look in self._link.looks.items() if rank in ranks}

    def fail(self, death: Death) -> None:
        """Declare the group broken, and call `on_failure`, unless a failure was reported before."""
        if self._over:
            return
        self._over = True
        if self._started.done():
            self._on_failure(death)
        else:
            self._started.set_exception(GroupFailed(death))

    async def end(self, *, grace_s: float = 0.0) -> None:
        """End every process within about `grace_s` seconds, and close the link. May be called twice."""
        self._over = True
        self._board = None
        if not self._started.done():
            self._started.cancel()
        if self._link.is_open:
            self._link.send(End(grace_s))
            with suppress(TimeoutError):
                async with patiently(grace_s + _END_S):
                    await asyncio.shield(self._ended)
        self._link.close()

    def _on_message(self, message: FromAgent) -> None:
        if isinstance(message, Ended):
            if not self._ended.done():
                self._ended.set_result(None)
            return
        if isinstance(message, Failed):
            self.fail(Death(message.reason, message.message))
        if self._over:
            return
        rank = getattr(message, "rank", 0)
        if not 0 <= rank < len(self._launches):
            self.fail(Death("mismatch", f"the agent at {self._stage.agent.address} has sent a message of rank {rank}"))
            return
        match message:
            case StepResult() | Failure():
                self._hooks.answered(message)
            case Ready() | WorkerStats():
                self._hooks.described(message)
            case RankProfile():
                self._hooks.profiled(message)
            case Loaded():
                self._hooks.loaded(message.done, message.total)
            case Started():
                self._pids = message.pids
                if not self._started.done():
                    self._started.set_result(None)

    def _on_lost(self, reason: str) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
        self.fail(Death("stall", reason))
