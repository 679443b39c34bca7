"""The server of a run: all of it is the product's, but for what it is given."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import cast

from numaserve.server.adapters.adapters import Adapters, Describe, Description
from numaserve.server.common.death import Death
from numaserve.server.engine.config import EngineCallbacks, EngineConfig
from numaserve.server.engine.engine import Engine
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.scheduler.cache.kv_events import KVEventLog
from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.server.speculation.drafter import Drafters
from numaserve.server.supervisor.group import Group, GroupFailed, GroupHooks, GroupSpec
from numaserve.server.supervisor.policy import WINDOW_S, RestartPolicy
from numaserve.server.supervisor.remote_group import AgentStage
from numaserve.server.supervisor.staged_group import StagedGroup
from numaserve.server.supervisor.supervisor import Supervisor
from numaserve.server.tokenizer.types import TokenizerProtocol
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.protocol import Launch

from tests.simulation.board import SimulatedBoard
from tests.simulation.counted import CountedMetrics
from tests.simulation.disk import SimulatedDisks
from tests.simulation.group import SimulatedGroup
from tests.simulation.hosts import SimulatedHosts
from tests.simulation.matchers import SimulatedMatcherWork
from tests.simulation.scenario import Scenario
from tests.simulation.truth import FIRST, LETTERS
from tests.simulation.world import World
from tests.support.drafters import Each, Knowing, NoDrafters


@dataclass(frozen=True)
class Server:
    """An engine and what it is made of."""

    engine: Engine
    scheduler: Scheduler
    metrics: CountedMetrics
    adapters: Adapters
    disks: SimulatedDisks
    hosts: SimulatedHosts
    groups: list[SimulatedGroup] = field(default_factory=list)  # one for each life, as they are made
    launches: list[Group] = field(default_factory=list)  # of the supervisor; one that waits for a host has no life yet


def make_server(world: World, scenario: Scenario) -> Server:
    """A server that has not been started."""
    scheduler, metrics = _scheduler(world, scenario), CountedMetrics()
    groups: list[SimulatedGroup] = []
    launches: list[Group] = []
    disks = SimulatedDisks(world, scenario)
    adapters = Adapters(scenario.adapters, Described, in_thread=partial(_described, world))

    hosts = SimulatedHosts(world, scenario, disks, groups)

    def make_group(spec: GroupSpec, hooks: GroupHooks, on_failure: Callable[[Death], None]) -> Group:
        def failed(death: Death) -> None:
            groups[-1].is_over(death)
            on_failure(death)

        if scenario.hosts:
            launches.append(_Stages(world, spec, hooks, failed, hosts.stages))
        else:
            groups.append(SimulatedGroup(world, scenario, hooks, failed, spec.adapters, disks))
            launches.append(groups[-1])
        return launches[-1]

    def given_up(_reason: str) -> None:
        world.has_given_up(scenario.most_failures, WINDOW_S)

    spec = GroupSpec(
        _launches(scenario.ranks, scenario.ranks // scenario.stages if scenario.hosts else scenario.ranks),
        board_factory=partial(SimulatedBoard, world, lambda: None),
        adapters=adapters.at_launch,
    )
    engine = Engine(
        EngineConfig(
            "simulated",
            "0",
            max_queued_requests=scenario.queued,
            max_queued_s=scenario.queued_s,
            step_deadline_s=scenario.step_deadline_s,
            overlap=scenario.overlap,
            mask_patience_s=60.0,  # longer than matchers are late
            resume_timeout_s=scenario.resume_timeout_s,
        ),
        Supervisor(spec, RestartPolicy(scenario.most_failures), make_group),
        scheduler,
        cast(TokenizerProtocol, LETTERS),
        cast(Metrics, metrics),
        callbacks=EngineCallbacks(given_up=given_up),
        clock=world.loop.time,
        matcher_work=SimulatedMatcherWork(world, scenario),
        adapters=adapters,
        disk_index=disks,
    )
    return Server(engine, scheduler, metrics, adapters, disks, hosts, groups, launches)


class _Stages(StagedGroup):
    """The product's stages, whose starts that fail are counted."""

    def __init__(
        self,
        world: World,
        spec: GroupSpec,
        hooks: GroupHooks,
        on_failure: Callable[[Death], None],
        agents: Sequence[AgentStage],
    ) -> None:
        super().__init__(spec, hooks, on_failure, agents)
        self._world = world

    async def start(self) -> None:
        try:
            await super().start()
        except GroupFailed:
            self._world.workers_failed()
            raise


@dataclass(frozen=True)
class Described:
    """The description of an adapter, whose content is its path."""

    path: Path
    rank: int = 8
    mean_rank: float = 8.0
    matrices: int = 4

    @property
    def digest(self) -> str:
        return str(self.path)


async def _described(world: World, describe: Describe, path: Path) -> Description:
    await asyncio.sleep(world.rng.expovariate(50.0))
    return describe(path)


def _scheduler(world: World, scenario: Scenario) -> Scheduler:
    return Scheduler(
        scenario.limits,
        # Events have the placeholders of images, by which a reader cannot distinguish two images.
        KVEventLog("simulated") if scenario.disk_slots and not scenario.feature_tiles else None,
        drafters=_drafters(world, scenario),
    )


def _drafters(world: World, scenario: Scenario) -> Drafters | None:
    if scenario.right_drafts:

        def made(_position: int, token: int) -> int:
            return token if world.chance(scenario.right_drafts) else FIRST

        return Each(lambda _scope: Knowing(lambda: (each.tokens for each in world.truths.values()), made))
    return NoDrafters() if scenario.worker_drafter else None


@lru_cache
def _launches(ranks: int, of_stage: int) -> tuple[Launch, ...]:
    return tuple(
        Launch(
            rank=rank % of_stage,
            world_size=of_stage,
            model="simulated",
            cpus=[[each] for each in range(of_stage)],
            nodes=[0] * of_stage,
            weights=[1] * of_stage,
            capacity=Capacity.of_program(1, 1, 1, 1, 1),
            ring_fd=-1,
            ring_nonce=0,
            step_deadline_s=1.0,
        )
        for rank in range(ranks)
    )
