"""The server of a run: all of it is the product's, but for what it is given."""

import asyncio
from collections.abc import Callable
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
from numaserve.server.supervisor.group import GroupHooks, GroupSpec
from numaserve.server.supervisor.policy import WINDOW_S, RestartPolicy
from numaserve.server.supervisor.supervisor import Supervisor
from numaserve.server.tokenizer.types import TokenizerProtocol
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.protocol import Launch

from tests.simulation.board import SimulatedBoard
from tests.simulation.counted import CountedMetrics
from tests.simulation.disk import SimulatedDisks
from tests.simulation.group import SimulatedGroup
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
    groups: list[SimulatedGroup] = field(default_factory=list)  # one for each life, as they are made


def make_server(world: World, scenario: Scenario) -> Server:
    """A server that has not been started."""
    scheduler, metrics = _scheduler(world, scenario), CountedMetrics()
    groups: list[SimulatedGroup] = []
    disks = SimulatedDisks(world, scenario)
    adapters = Adapters(scenario.adapters, Described, in_thread=partial(_described, world))

    def make_group(spec: GroupSpec, hooks: GroupHooks, on_failure: Callable[[Death], None]) -> SimulatedGroup:
        groups.append(SimulatedGroup(world, scenario, hooks, on_failure, spec.adapters, disks))
        return groups[-1]

    def given_up(_reason: str) -> None:
        world.has_given_up(scenario.most_failures, WINDOW_S)

    spec = GroupSpec(
        _launches(scenario.ranks),
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
    return Server(engine, scheduler, metrics, adapters, disks, groups)


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
def _launches(ranks: int) -> tuple[Launch, ...]:
    return tuple(
        Launch(
            rank=rank,
            world_size=ranks,
            model="simulated",
            cpus=[[each] for each in range(ranks)],
            nodes=[0] * ranks,
            weights=[1] * ranks,
            capacity=Capacity.of_program(1, 1, 1, 1, 1),
            ring_fd=-1,
            ring_nonce=0,
            step_deadline_s=1.0,
        )
        for rank in range(ranks)
    )
