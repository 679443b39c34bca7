"""The supervisor of one worker group: starts it, restarts it when it fails, gives up when restarts do not help."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from numaserve.server.common.death import Cause, Death, DeathReason
from numaserve.server.supervisor.group import Group, GroupFactory, GroupFailed, GroupHooks, GroupSpec, WorkerGroup
from numaserve.server.supervisor.judge import RankLook
from numaserve.server.supervisor.memory import MaskBoard
from numaserve.server.supervisor.policy import RestartPolicy
from numaserve.workers.interface.protocol import Launch, LoadAdapter, ProfileRequest, StepPlan, ToDisk

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SupervisorHooks:
    """Callbacks of the supervisor and of its current group, all called in the event loop."""

    group: GroupHooks
    up: Callable[[], None]  # every rank is ready and holds no sequence
    # The group failed: every plan in flight and the KV cache are lost. Returns the cause.
    down: Callable[[Death], Cause]
    restarted: Callable[[DeathReason], None]  # the group is started again
    given_up: Callable[[str], None]  # the group failed too often and is not started again


class Supervisor:
    """Supervises the worker group of `spec` across launches. `make_group` makes the group of each launch."""

    def __init__(
        self, spec: GroupSpec, policy: RestartPolicy | None = None, make_group: GroupFactory = WorkerGroup
    ) -> None:
        self._spec = spec
        self._make_group = make_group
        self._policy = policy or RestartPolicy()
        self._hooks: SupervisorHooks
        self._group: Group | None = None
        self._restarting: asyncio.Task[None] | None = None
        self._starting = False
        self._stillborn: list[Death] = []  # failures of the group that is being started
        self._stopped = False
        self.restarts = 0

    @property
    def launches(self) -> Sequence[Launch]:
        """The launch message of each rank, with the fields of ring and mask board not yet set."""
        return self._spec.launches

    @property
    def can_mask(self) -> bool:
        """True if every group has a mask board."""
        return self._spec.board_factory is not None

    @property
    def board(self) -> MaskBoard | None:
        """The mask board of the current group."""
        return self._group.board if self._group else None

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers by rank; empty between two launches."""
        return self._group.pids if self._group else []

    @property
    def garbage_frames(self) -> int:
        """The number of frames of the current group that were dropped because they were not valid messages."""
        return self._group.garbage_frames if self._group else 0

    async def start(self, hooks: SupervisorHooks) -> None:
        """Start the group for the first time. A failure here is final: raises `GroupFailed`.

        The hooks are set here and not in the constructor, because their owners send through this object and are
        therefore made after it.
        """
        self._hooks = hooks
        try:
            await self._start_group()
        except BaseException:
            await self._end_group()
            raise
        self._hooks.up()

    def send(self, message: StepPlan | ProfileRequest | LoadAdapter | ToDisk) -> None:
        """Send a message to every rank."""
        if self._group is not None:
            self._group.send(message)

    def look(self, ranks: Collection[int], with_times: bool) -> Mapping[int, RankLook]:
        """Return the progress of those of `ranks` that run (`Group.look`)."""
        return self._group.look(ranks, with_times) if self._group else {}

    def fail(self, death: Death) -> None:
        """Declare the current group broken, for example because it no longer answers."""
        if self._group is not None:
            self._group.fail(death)

    async def stop(self, grace_s: float) -> None:
        """End the group permanently; workers get `grace_s` seconds to exit by themselves."""
        self._stopped = True
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.wait([self._restarting])
        await self._end_group(grace_s)

    async def _start_group(self) -> None:
        self._group = self._make_group(self._spec, self._hooks.group, self._on_failure)
        self._starting = True
        try:
            await self._group.start()
        finally:
            self._starting = False
        if self._stillborn:
            raise GroupFailed(self._stillborn.pop())

    async def _end_group(self, grace_s: float = 0.0) -> None:
        group = self._group
        if group is not None:
            # Shielded: a cancelled caller must not leave processes running.
            await asyncio.shield(group.end(grace_s=grace_s))
            self._group = None

    def _on_failure(self, death: Death) -> None:
        if self._stopped:
            return
        if self._starting:  # every rank is ready, but the task that waits for them has not run yet
            self._stillborn.append(death)
            return
        logger.error("the worker group failed: %s", death)
        cause = self._hooks.down(death)
        self._restarting = asyncio.get_running_loop().create_task(self._restart(death, cause))

    async def _restart(self, death: Death, cause: Cause) -> None:
        was_ready = True
        while True:
            await self._end_group()
            now = asyncio.get_running_loop().time()
            if self._policy.failed(now, was_ready=was_ready, cause=cause):
                logger.critical("giving up: the worker group failed too often; last failure: %s", death)
                self._hooks.given_up(str(death))
                return
            await asyncio.sleep(self._policy.pause_s)
            self.restarts += 1
            self._hooks.restarted(death.reason)
            try:
                await self._start_group()
            except GroupFailed as error:
                death, was_ready, cause = error.death, False, Cause.UNKNOWN
                logger.error("the worker group could not be restarted: %s", death)
                continue
            except Exception as error:  # the next attempt may succeed, and the policy ends the attempts
                death, was_ready, cause = Death("failure", str(error)), False, Cause.UNKNOWN
                logger.exception("the worker group could not be restarted")
                continue
            self._hooks.up()
            return
