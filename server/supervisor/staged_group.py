"""One launch of a model that is divided into pipeline stages: a worker group for each stage.

Outside, ranks are numbered through all stages. Every stage gets every message, so that all have
the same page tables. When the group of one stage fails, all end: none can go on without the others.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any

from msgspec import structs
from numaserve.server.common.death import Death
from numaserve.server.dispatch.directory import SocketDirectory
from numaserve.server.supervisor.group import GroupFailed, GroupHooks, GroupSpec, WorkerGroup
from numaserve.server.supervisor.judge import RankLook
from numaserve.server.supervisor.memory import MaskBoard
from numaserve.workers.interface.protocol import LoadAdapter, ProfileRequest, StepPlan, ToDisk


class StagedGroup:
    """Starts the stages of `spec`, and reports the first failure to `on_failure`, once.

    Must be constructed inside a running event loop. Raises `OperatorError` when there is no directory for the sockets.
    """

    def __init__(self, spec: GroupSpec, hooks: GroupHooks, on_failure: Callable[[Death], None]) -> None:
        self._on_failure = on_failure
        self._failed: Death | None = None
        self._is_up = self._over = False
        self._starts: list[asyncio.Future[None]] = []
        self._loaded: dict[int, tuple[int, int]] = {}
        self._tp = tp = spec.launches[0].world_size
        count = len(spec.launches) // tp
        self._links = SocketDirectory(len(spec.launches))
        self._stages = [
            WorkerGroup(
                replace(
                    spec,
                    launches=[
                        structs.replace(
                            each,
                            rows_from=self._link(stage, each.rank) if stage else "",
                            rows_to=self._link(stage + 1, each.rank) if stage < count - 1 else "",
                        )
                        for each in spec.launches[stage * tp : (stage + 1) * tp]
                    ],
                    # Only the last stage samples, and reads masks.
                    board_factory=spec.board_factory if stage == count - 1 else None,
                ),
                self._hooks_of(stage, hooks),
                partial(self._on_stage_failure, stage),
            )
            for stage in range(count)
        ]

    @property
    def board(self) -> MaskBoard | None:
        """The mask board of this launch; None before `start` and after `end`."""
        return self._stages[-1].board

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

        `end` must be called afterwards in any case.
        """
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
        if not self._over:
            self._over = True
            self._links.remove()

    def _link(self, stage: int, rank: int) -> str:
        return f"ipc://{self._links.path}/rank{stage * self._tp + rank}.sock"

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
