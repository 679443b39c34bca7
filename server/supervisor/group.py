"""One launch of a worker group: its sockets, its ring and its processes, from exec until the last one is reaped."""

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import msgspec
import zmq
from numaserve.server.common.death import Death
from numaserve.server.common.patience import wait_patiently
from numaserve.server.dispatch.channel import WorkerGroupChannel
from numaserve.server.supervisor.cpu_time import thread_times
from numaserve.server.supervisor.group_memory import GroupMemory
from numaserve.server.supervisor.judge import RankLook
from numaserve.server.supervisor.memory import BoardFactory, MaskBoard, ProgressFactory, RingFactory
from numaserve.server.supervisor.process import DEFAULT_COMMAND, WorkerProcess
from numaserve.server.supervisor.progress import ProgressWatch, Witness
from numaserve.workers.interface.protocol import (
    AdapterLoaded,
    DiskReady,
    Failure,
    FromDisk,
    FromWorker,
    Launch,
    LoadAdapter,
    LoadProgress,
    LoraAdapter,
    ProfileRequest,
    RankProfile,
    Ready,
    RecordsMoved,
    Shutdown,
    StepPlan,
    StepResult,
    ToDisk,
    WorkerStats,
)

logger = logging.getLogger(__name__)

# Loading reports progress all the time; minutes without progress mean that it is stuck, for example on a dead file
# system.
LOAD_DEADLINE_S = 300.0
# A worker writes its Failure before it exits, but the exit may be seen first. A worker that a signal ends writes none.
_LAST_WORDS_S = 0.1
_TERM_GRACE_S = 2.0


class GroupFailed(Exception):
    """The group could not be started; the message names the rank and the reason."""

    def __init__(self, death: Death) -> None:
        super().__init__(death.message)
        self.death = death


@dataclass(frozen=True)
class GroupSpec:
    """The workers of a group, the same in each launch.

    `launches` are in order of rank, without the fields of the shared memory, which is new in every launch, and without
    the adapters that `adapters` returns for each launch.
    `ring_factory` makes the ring; None with one rank. `board_factory` makes the mask board; without it no sequence can
    be masked. `progress_factory` makes the progress board; without it, only processor time shows that a rank is late.
    `command` is the command of a worker, without its arguments. Each worker keeps `inherited_fd` open until its end.
    """

    launches: Sequence[Launch]
    ring_factory: RingFactory | None = None
    command: Sequence[str] = DEFAULT_COMMAND
    board_factory: BoardFactory | None = None
    progress_factory: ProgressFactory | None = None
    inherited_fd: int = -1
    adapters: Callable[[], Sequence[LoraAdapter]] = tuple


@dataclass(frozen=True)
class GroupHooks:
    """Callbacks of a group, all called in the event loop."""

    answered: Callable[[StepResult | Failure], None]  # by a rank; a `Failure` here always has a step id
    profiled: Callable[[RankProfile], None]
    described: Callable[[Ready | WorkerStats], None]  # reports of a rank about itself
    loaded: Callable[[int, int], None]  # bytes of packed weights in all ranks; the total is estimated until all report
    starved: Callable[[Mapping[int, float], float], None]  # see `Witness`
    adapter_loaded: Callable[[AdapterLoaded], None] = lambda _: None  # the answer of a rank to `LoadAdapter`
    disk: Callable[[FromDisk], None] = lambda _: None  # of the disk tier of a rank


class Group(Protocol):
    """One launch of a group, as the supervisor uses it: a `WorkerGroup` or a simulated group.

    Only the first failure after every rank is ready is reported, possibly just before `start` returns.
    """

    @property
    def board(self) -> MaskBoard | None:
        """The mask board of this launch; None before `start` and after `end`."""

    @property
    def pids(self) -> list[int]:
        """The process ids by rank."""

    @property
    def garbage_frames(self) -> int:
        """The number of frames that were dropped because they were not valid messages."""

    async def start(self) -> None:
        """Return when every rank is ready. Raises `GroupFailed`; `end` must be called afterwards in any case."""

    def send(self, message: StepPlan | ProfileRequest | LoadAdapter | ToDisk) -> None:
        """Send a message to every rank."""

    def look(self, ranks: Collection[int], with_times: bool) -> dict[int, RankLook]:
        """Look at those of `ranks` that run, for a `Witness`, and let ranks wait for each other further."""

    def fail(self, death: Death) -> None:
        """Declare the group broken."""

    async def end(self, *, grace_s: float = 0.0) -> None:
        """End every process within about `grace_s` seconds, and release all resources. May be called twice."""


GroupFactory = Callable[[GroupSpec, GroupHooks, Callable[[Death], None]], Group]


class WorkerGroup:
    """Starts the workers of `spec` and reports the first failure to `on_failure`, once.

    Must be constructed inside a running event loop.
    """

    def __init__(self, spec: GroupSpec, hooks: GroupHooks, on_failure: Callable[[Death], None]) -> None:
        self._launches = spec.launches
        self._adapters = spec.adapters
        self._hooks = hooks
        self._on_failure = on_failure
        self._command = spec.command
        self._inherited_fd = spec.inherited_fd
        self._memory = GroupMemory(spec.launches, spec.ring_factory, spec.board_factory, spec.progress_factory)
        self._channel: WorkerGroupChannel | None = None
        self._processes: list[WorkerProcess] = []
        self._lifeline = -1
        self._loading: dict[int, LoadProgress] = {}
        self._ready: dict[int, Ready] = {}
        self._all_ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._first_failed: int | None = None
        self._over = False
        loading = Witness(partial(self.look, range(len(spec.launches))), hooks.starved)
        self._load_watch = ProgressWatch(LOAD_DEADLINE_S, self._load_stalled, loading)

    @property
    def board(self) -> MaskBoard | None:
        """The mask board of this launch; None before `start` and after `end`."""
        return self._memory.board

    @property
    def pids(self) -> list[int]:
        """The process ids by rank."""
        return [process.pid for process in self._processes]

    @property
    def garbage_frames(self) -> int:
        """The number of frames that were dropped because they were not valid messages."""
        return self._channel.garbage_frames if self._channel else 0

    async def start(self) -> None:
        """Spawn the workers and wait until every rank has loaded; raises `GroupFailed`.

        `end` must be called afterwards in any case.
        """
        try:
            self._spawn()
        except (OSError, zmq.ZMQError) as error:
            raise GroupFailed(Death("failure", f"the workers could not be started: {error}")) from error
        self._load_watch.expect(len(self._launches))
        await self._all_ready

    def _spawn(self) -> None:
        self._channel = WorkerGroupChannel(len(self._launches), self._on_message)
        memory, adapters = self._memory.create(), list(self._adapters())
        read_end, self._lifeline = os.pipe()
        try:
            for launch in self._launches:
                endpoint = self._channel.endpoint(launch.rank)
                self._channel.send(launch.rank, msgspec.structs.replace(launch, **memory, adapters=adapters))
                process = WorkerProcess(
                    launch.rank,
                    self._command,
                    endpoint,
                    lifeline_fd=read_end,
                    inherited_fds=[*self._memory.fds, launch.image_fd, launch.rows_fd, self._inherited_fd],
                    on_exit=self._on_exit,
                )
                self._processes.append(process)
        finally:
            os.close(read_end)

    def send(self, message: StepPlan | ProfileRequest | LoadAdapter | ToDisk) -> None:
        """Send a message to every rank."""
        if self._channel is not None:
            self._channel.broadcast(message)

    def look(self, ranks: Collection[int], with_times: bool) -> dict[int, RankLook]:
        """Look at those of `ranks` that run, for a `Witness`."""
        return {
            each.rank: self._memory.progress_of(each.rank, thread_times(each.pid) if with_times else {})
            for each in self._processes
            if each.rank in ranks and not each.exited.done()
        }

    def fail(self, death: Death) -> None:
        """Declare the group broken: abort the ring and call `on_failure`, unless a failure was reported before."""
        self._memory.abort_ring(death.message)
        if self._over:
            return
        self._over = True
        self._load_watch.stop()
        if self._all_ready.done():
            self._on_failure(death)
        else:
            self._all_ready.set_exception(GroupFailed(death))

    async def end(self, *, grace_s: float = 0.0) -> None:
        """End every process, after a shutdown request if `grace_s` > 0, and release all resources. May be called
        twice."""
        self._over = True
        self._load_watch.stop()
        if not self._all_ready.done():
            self._all_ready.cancel()
        alive = [process.exited for process in self._processes if not process.exited.done()]
        if grace_s > 0 and alive and self._channel is not None:
            self._channel.broadcast(Shutdown())
            await wait_patiently(alive, grace_s)
        self._memory.abort_ring("the worker group is stopping")
        await asyncio.gather(*(process.end(_TERM_GRACE_S) for process in self._processes))
        if self._channel is not None:
            self._channel.close()
        self._memory.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def _on_message(self, message: FromWorker) -> None:
        if self._over and not isinstance(message, Failure):
            return
        match message:
            case StepResult():
                self._hooks.answered(message)
            case Failure(step_id=step_id) if step_id >= 0:
                self._hooks.answered(message)
            case Failure():
                self._on_last_words(message)
            case LoadProgress():
                self._on_progress(message)
            case Ready():
                self._on_ready(message)
            case WorkerStats():
                self._hooks.described(message)
            case RankProfile():
                self._hooks.profiled(message)
            case AdapterLoaded():
                self._hooks.adapter_loaded(message)
            case RecordsMoved() | DiskReady():
                self._hooks.disk(message)

    def _on_progress(self, message: LoadProgress) -> None:
        self._load_watch.touch()
        self._loading[message.rank] = message
        parts = self._loading.values()
        # Ranks that have not reported are assumed to be like the others: otherwise the bar would go back when they
        # report.
        total = sum(part.total for part in parts) * len(self._launches) // len(parts)
        self._hooks.loaded(sum(part.done for part in parts), total)

    def _on_ready(self, message: Ready) -> None:
        if message.rank in self._ready:
            return
        self._ready[message.rank] = message
        self._load_watch.answered()
        self._hooks.described(message)
        if len(self._ready) == len(self._launches) and not self._all_ready.done():
            self._load_watch.stop()
            self._all_ready.set_result(None)

    def _on_last_words(self, message: Failure) -> None:
        # When one rank is gone the others fail too, in the aborted ring. The first failure is the cause.
        if self._first_failed in (None, message.rank):
            self._first_failed = message.rank
            self.fail(Death("failure", f"worker {message.rank}: {message.message}"))

    def _on_exit(self, rank: int) -> None:
        if self._over or self._first_failed is not None:
            return
        self._first_failed = rank
        self._memory.abort_ring(f"worker {rank} ended")
        process = self._processes[rank]
        killed = process.was_killed()
        death = Death("signal" if killed else "exit", f"worker {rank} {process.ending()}")
        logger.error("%s", death)
        asyncio.get_running_loop().call_later(0.0 if killed else _LAST_WORDS_S, self.fail, death)

    def _load_stalled(self) -> None:
        missing = sorted(set(range(len(self._launches))) - set(self._ready))
        message = (
            f"workers {missing} made no progress in loading for {LOAD_DEADLINE_S:.0f} s. Check that the disk "
            "is readable"
        )
        self.fail(Death("stall", message))
