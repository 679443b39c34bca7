"""The hosts of pipeline stages: each has an agent, dies or falls silent, and comes back.

The front end's side is the product's: `StagedGroup`, `RemoteGroup` and `AgentLink`. This is the other side. The agents
run one pipeline together, which is a `SimulatedGroup`. It starts when each agent has its `StartStage`, and stands still
when one of the hosts is lost.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Coroutine
from typing import Any

from msgspec import structs
from numaserve.server.common.death import Death
from numaserve.server.supervisor.agent_messages import (
    LOST_S,
    Beat,
    Beaten,
    Claim,
    Claimed,
    End,
    Ended,
    Failed,
    FromAgent,
    Mask,
    Refused,
    Started,
    StartStage,
    ToAgent,
    ToWorkers,
)
from numaserve.server.supervisor.group import GroupFailed, GroupHooks
from numaserve.server.supervisor.judge import RankLook
from numaserve.server.supervisor.remote_group import AgentStage

from tests.simulation.disk import SimulatedDisks
from tests.simulation.group import SimulatedGroup
from tests.simulation.scenario import HostAbsence, Scenario
from tests.simulation.truth import VOCABULARY
from tests.simulation.wires import SimulatedPlace, SimulatedWire
from tests.simulation.world import World

_NOTICED_S = LOST_S + 1.5  # after which the front end knows of it
_HARMLESS_S = 1.0  # a silence of a host that must cost no restart


class SimulatedHosts:
    """The hosts of all stages. Each pipeline is appended to `groups`."""

    def __init__(self, world: World, scenario: Scenario, disks: SimulatedDisks, groups: list[SimulatedGroup]) -> None:
        self.world = world
        self.ranks = scenario.ranks // scenario.stages  # of each stage
        self.pipeline: SimulatedGroup | None = None
        self.scenario, self._disks, self._groups = scenario, disks, groups
        self._agents = [_Agent(self, stage) for stage in range(scenario.stages)]
        self._started: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: asyncio.Task[None] | None = None

    @property
    def stages(self) -> list[AgentStage]:
        """The agents, as the front end knows them."""
        return [
            AgentStage(SimulatedPlace(each), "simulated", 1, 1, self.scenario.running, VOCABULARY)
            for each in self._agents
        ]

    def go_away(self, absence: HostAbsence) -> None:
        """Have a host die or fall silent for a while."""
        self._agents[absence.stage].go_away(absence.seconds, silently=absence.silently)

    def silent_for(self) -> float:
        """Return the longest silence of a host that serves, in seconds of the front end's presence."""
        now = self.world.loop.presence()
        return max((now - each.silent_since for each in self._agents if each.is_silent), default=0.0)

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something that takes its time."""
        task = self.world.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def start(self, stage: int) -> None:
        """Start a stage of the pipeline."""
        if self.pipeline is None:
            hooks = GroupHooks(
                answered=self._arrives,
                profiled=self._arrives,
                described=self._describes,
                loaded=lambda _done, _total: None,
                starved=lambda _seconds, _elapsed: None,
            )
            self.pipeline = SimulatedGroup(
                self.world, self.scenario, hooks, self._fails, tuple, self._disks, self._silent_until
            )
            self._groups.append(self.pipeline)
        self._started.add(stage)
        if len(self._started) == len(self._agents) and self.pipeline.state == "new":
            self.run(self._start(self.pipeline))

    def send(self, message: ToWorkers) -> None:
        """Take a message to all ranks; those of a lost host do nothing with it."""
        if self.pipeline is not None:
            self.pipeline.send(message)

    def publish(self, mask: Mask) -> None:
        """Take a mask to the board, if there is still one."""
        pipeline = self.pipeline
        if pipeline is not None and pipeline.board is not None and pipeline.state in ("serving", "dead"):
            bits = ctypes.create_string_buffer(mask.bits, len(mask.bits)) if mask.bits else None
            pipeline.board.publish(mask.step, mask.row, mask.state, 0 if bits is None else ctypes.addressof(bits))

    def look(self, stage: int, with_times: bool) -> dict[int, RankLook]:
        """Look at the ranks of a stage."""
        if self.pipeline is None:
            return {}
        looks = self.pipeline.look(range(self.scenario.ranks), with_times)
        first = stage * self.ranks
        mine = {rank - first: look for rank, look in looks.items() if first <= rank < first + self.ranks}
        return mine if with_times else {rank: RankLook(look.barriers, look.waiting) for rank, look in mine.items()}

    async def end(self, grace_s: float = 0.0) -> None:
        """End the pipeline, if there is one."""
        if self._ending is None and self.pipeline is not None:
            self._ending = self.run(self._end(self.pipeline, grace_s))
        if self._ending is not None:
            await asyncio.shield(self._ending)

    async def _start(self, pipeline: SimulatedGroup) -> None:
        try:
            await pipeline.start()
        except GroupFailed as error:
            self._fails(error.death)
            return
        for agent in self._agents:
            agent.post(Started(list(range(self.ranks))))

    async def _end(self, pipeline: SimulatedGroup, grace_s: float) -> None:
        await pipeline.end(grace_s=grace_s)
        self.pipeline, self._ending = None, None
        self._started.clear()

    def _fails(self, death: Death) -> None:
        self.world.rng.choice(self._agents).post(Failed(death.reason, death.message))

    def _arrives(self, message: Any) -> None:
        stage, rank = divmod(message.rank, self.ranks)
        self._agents[stage].arrives(structs.replace(message, rank=rank))

    def _describes(self, message: Any) -> None:
        stage, rank = divmod(message.rank, self.ranks)
        self._agents[stage].post(structs.replace(message, rank=rank))

    def _silent_until(self, rank: int) -> float:
        return self._agents[rank // self.ranks].silent_until


class _Agent:
    """The agent on the host of a stage."""

    def __init__(self, hosts: SimulatedHosts, stage: int) -> None:
        self.hosts, self.world, self.stage = hosts, hosts.world, stage
        self.silent_until = 0.0
        self.silent_since = 0.0  # in seconds of the front end's presence
        self._back_at = 0.0  # until then the host is dead
        self._wire: SimulatedWire | None = None  # of the last claim
        self._holds = False  # the front end of that claim has not been given up
        self._heard = 0.0

    @property
    def is_silent(self) -> bool:
        """Whether nothing comes from a host to which the front end is connected."""
        wire = self._wire
        return self.world.loop.time() < self.silent_until and wire is not None and not wire.is_closed

    def go_away(self, seconds: float, *, silently: bool) -> None:
        """Die, or fall silent, for a while."""
        world = self.world
        now = world.loop.time()
        world.note("host.is silent" if silently else "host.dies", self.stage, seconds)
        if seconds > _NOTICED_S:  # what is noted has the invariants looked at
            world.loop.call_outside_at(now + _NOTICED_S, world.note, "host.is still away", self.stage)
        if silently:
            is_longer = now < self.silent_until
            if not is_longer:
                self.silent_since = world.loop.presence()
            if (is_longer or seconds > _HARMLESS_S) and self.hosts.pipeline is not None:
                self.hosts.pipeline.blame()
            self.silent_until = max(self.silent_until, now + seconds)
            return
        self._back_at = max(self._back_at, now + seconds)
        self._give_up()
        if self._wire is not None:
            self._wire.ends()

    def take(self, wire: SimulatedWire, message: ToAgent) -> None:
        """Take a message from the front end, now or when the host is no longer silent."""
        loop = self.world.loop
        if isinstance(message, ToWorkers) and self.stage == 0:
            self.hosts.send(message)
        if isinstance(message, Mask):
            self.hosts.publish(message)
        elif loop.time() < self.silent_until:
            loop.call_outside_at(self.silent_until, self._read, wire, message)
        else:
            self._read(wire, message)

    def post(self, message: FromAgent) -> None:
        """Send a message to the front end, even one that was given up."""
        if self._wire is not None:
            self._wire.post(message)

    def arrives(self, message: FromAgent) -> None:
        """Deliver a message that is at the front end."""
        if self._wire is not None:
            self._wire.arrives(message)

    def _read(self, wire: SimulatedWire, message: ToAgent) -> None:
        hosts = self.hosts
        if wire.is_closed or self.world.loop.time() < self._back_at:
            return
        if isinstance(message, Claim):
            hosts.run(self._claim(wire))
        elif wire is not self._wire or not self._holds:
            wire.post(Refused("the agent has not been taken, or has given up this front end"))
        elif isinstance(message, StartStage):
            hosts.start(self.stage)
        elif isinstance(message, Beat):
            self._hear()
            wire.post(Beaten(hosts.look(self.stage, message.with_times)))
        elif isinstance(message, End):
            hosts.run(self._end(wire, message.grace_s))

    def _hear(self) -> None:
        loop = self.world.loop
        self._heard = loop.time()
        loop.call_outside_at(self._heard + LOST_S, self._check, self._heard)

    def _check(self, heard: float) -> None:
        if heard == self._heard:
            self._give_up()

    def _give_up(self) -> None:
        if self._holds:
            self._holds = False
            if self.hosts.pipeline is not None:
                self.hosts.pipeline.lose_host()

    async def _claim(self, wire: SimulatedWire) -> None:
        self._holds = False
        await self.hosts.end()
        if not wire.is_closed:
            self._wire, self._holds = wire, True
            self._hear()
            wire.post(Claimed(list(range(1, self.hosts.ranks + 1))))

    async def _end(self, wire: SimulatedWire, grace_s: float) -> None:
        await self.hosts.end(grace_s)
        wire.post(Ended())
