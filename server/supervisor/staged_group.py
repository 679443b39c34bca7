"""One launch of a model that is divided into pipeline stages: a worker group for each stage.

Outside, ranks are numbered through all stages. Every stage gets every message, so that all have
the same page tables. When the group of one stage fails, all end: none can go on without the others.

Stages run on this host, or each on the host of an agent. Agents are taken before any worker is started: the ranks of a
stage need the addresses of the next one.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from msgspec import structs
from numaserve.server.common.death import Death
from numaserve.server.dispatch.directory import SocketDirectory
from numaserve.server.supervisor.agent_link import AgentLink
from numaserve.server.supervisor.group import Group, GroupFailed, GroupHooks, GroupSpec, WorkerGroup
from numaserve.server.supervisor.judge import RankLook
from numaserve.server.supervisor.memory import MaskBoard
from numaserve.server.supervisor.remote_group import AgentStage, RemoteGroup
from numaserve.server.supervisor.stage_links import linked
from numaserve.workers.interface.protocol import Launch, LoadAdapter, ProfileRequest, StepPlan, ToDisk


class StagedGroup:
    """Starts the stages of `spec`, and reports the first failure to `on_failure`, once.

    `agents` has the agent of each stage, or None for a stage on this host; all are on this host if it is empty. Must be
    constructed inside a running event loop. Raises `OperatorError` when there is no directory for the sockets.
    """

    def __init__(
        self,
        spec: GroupSpec,
        hooks: GroupHooks,
        on_failure: Callable[[Death], None],
        agents: Sequence[AgentStage | None] = (),
    ) -> None:
        self._spec, self._hooks = spec, hooks
        self._on_failure = on_failure
        self._failed: Death | None = None
        self._is_up = self._over = False
        self._starts: list[asyncio.Future[None]] = []
        self._loaded: dict[int, tuple[int, int]] = {}
        self._tp = spec.launches[0].world_size
        self._agents = agents or [None] * (len(spec.launches) // self._tp)
        # Only stages of this host that follow each other have sockets there.
        is_needed = any(each is None for each in self._agents[1:])
        self._directory = SocketDirectory(len(spec.launches)) if is_needed else None
        self._links: dict[int, AgentLink] = {}  # by stage
        self._stages: list[Group] = []  # empty before all agents are taken

    @property
    def board(self) -> MaskBoard | None:
        """The mask board of this launch; None before `start` and after `end`."""
        return self._stages[-1].board if self._stages else None

    @property
    def pids(self) -> list[int]:
        """The process ids by rank."""
        return [pid for stage in self._stages for pid in stage.pids]

    @property
    def garbage_frames(self) -> int:
        """The number of frames that were dropped because they were not valid messages."""
        return sum(stage.garbage_frames for stage in self._stages)

    async def start(self) -> None:
        """Spawn the workers of all stages and wait until every rank has loaded; raises `GroupFailed`.

        An agent that is not there is waited for. `end` must be called afterwards in any case.
        """
        await self._claim_agents()
        ports = {stage: link.ports for stage, link in self._links.items()}
        agents = [None if each is None else each.agent for each in self._agents]
        folder = None if self._directory is None else self._directory.path
        launches = linked(self._spec.launches, agents, ports, folder)
        self._stages = [self._group(stage, part) for stage, part in enumerate(launches)]
        self._starts = [asyncio.ensure_future(stage.start()) for stage in self._stages]
        done, _ = await asyncio.wait(self._starts, return_when=asyncio.FIRST_EXCEPTION)
        for each in done:
            each.result()
        if self._failed is not None:  # a stage was ready, and failed while others loaded
            raise GroupFailed(self._failed)
        self._is_up = True

    def send(self, message: StepPlan | ProfileRequest | LoadAdapter | ToDisk) -> None:
        """Send a message to every rank."""
        for stage in self._stages:
            stage.send(message)

    def look(self, ranks: Collection[int], with_times: bool) -> dict[int, RankLook]:
        """Look at those of `ranks` that run, for a `Witness`, and let ranks wait for each other further."""
        found: dict[int, RankLook] = {}
        for index, stage in enumerate(self._stages):
            first = index * self._tp
            mine = [rank - first for rank in ranks if first <= rank < first + self._tp]
            found |= {first + rank: look for rank, look in stage.look(mine, with_times).items()}
        return found

    def fail(self, death: Death) -> None:
        """Declare all stages broken, and call `on_failure`, unless a failure was reported before."""
        for stage in self._stages:
            stage.fail(death)

    async def end(self, *, grace_s: float = 0.0) -> None:
        """End every process within about `grace_s` seconds, and release all resources. May be called twice."""
        await asyncio.gather(*(stage.end(grace_s=grace_s) for stage in self._stages))
        await asyncio.gather(*self._starts, return_exceptions=True)
        for link in self._links.values():
            link.close()
        if not self._over:
            self._over = True
            if self._directory is not None:
                self._directory.remove()

    async def _claim_agents(self) -> None:
        """Take all agents, again those that are lost while another one is waited for."""
        while free := [
            (stage, place)
            for stage, place in enumerate(self._agents)
            if place is not None and not (stage in self._links and self._links[stage].is_open)
        ]:
            stage, place = free[0]
            self._links[stage] = await AgentLink.claim(place.agent, self._tp)

    def _group(self, stage: int, launches: Sequence[Launch]) -> Group:
        # Only the last stage samples, and reads masks.
        board = self._spec.board_factory if stage == len(self._agents) - 1 else None
        spec = replace(self._spec, launches=launches, board_factory=board)
        hooks, on_failure = self._hooks_of(stage, self._hooks), partial(self._on_stage_failure, stage)
        place = self._agents[stage]
        if place is None:
            return WorkerGroup(spec, hooks, on_failure)
        return RemoteGroup(spec, hooks, on_failure, place, self._links[stage])

    def _on_stage_failure(self, stage: int, death: Death) -> None:
        if self._failed is not None:
            return
        self._failed = Death(death.reason, f"stage {stage}: {death.message}")
        for each in self._stages:
            each.fail(self._failed)
        if self._is_up:
            self._on_failure(self._failed)

    def _hooks_of(self, stage: int, hooks: GroupHooks) -> GroupHooks:
        first = stage * self._tp

        def of_rank(hook: Callable[[Any], None]) -> Callable[[Any], None]:
            return lambda message: hook(structs.replace(message, rank=first + message.rank))

        return GroupHooks(
            answered=of_rank(hooks.answered),
            profiled=of_rank(hooks.profiled),
            described=of_rank(hooks.described),
            loaded=partial(self._on_loaded, hooks.loaded, stage),
            starved=lambda seconds, elapsed: hooks.starved(
                {first + rank: waited for rank, waited in seconds.items()}, elapsed
            ),
            adapter_loaded=of_rank(hooks.adapter_loaded),
            disk=of_rank(hooks.disk),
        )

    def _on_loaded(self, loaded: Callable[[int, int], None], stage: int, done: int, total: int) -> None:
        self._loaded[stage] = done, total
        parts = self._loaded.values()
        loaded(sum(done for done, _ in parts), sum(total for _, total in parts) * len(self._stages) // len(parts))
