"""One launch of a pipeline stage on this host, on behalf of a front end."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from msgspec import structs
from numaserve.server.common.death import Death
from numaserve.server.common.patience import PatientTimer
from numaserve.server.service.model.deployment import weights_cache_folder
from numaserve.server.supervisor.agent_messages import (
    LOST_S,
    Beat,
    Beaten,
    Failed,
    FromAgent,
    Loaded,
    Mask,
    Started,
    StartStage,
    ToWorkers,
)
from numaserve.server.supervisor.group import GroupFailed, GroupHooks, GroupSpec, WorkerGroup
from numaserve.server.supervisor.process import DEFAULT_COMMAND
from numaserve.shm_comm.mask_board import create_mask_board
from numaserve.shm_comm.progress_board import create_progress_board
from numaserve.shm_comm.segment import create_segment
from numaserve.workers.interface.host_links import Address
from numaserve.workers.interface.protocol import Launch, WeightsCache

_BACKLOG = 8

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HostOptions:
    """The address of an agent, the first port of its ranks, 0 for any free ports, and its limit of packed weights."""

    address: Address
    rows_port: int
    weights_cache_bytes: int
    worker_command: Sequence[str] = DEFAULT_COMMAND


class HostedStage:
    """A stage that listens for rows from its beginning, and has workers after `start`.

    `send` sends a message to the front end. `on_lost` is called once after `LOST_S` without a beat. Must be constructed
    inside a running event loop. Raises `OSError` where a port is taken.
    """

    def __init__(
        self, options: HostOptions, ranks: int, send: Callable[[FromAgent], None], on_lost: Callable[[], None]
    ) -> None:
        self._options = options
        self._send = send
        self._rows: list[socket.socket] = []
        self._group: WorkerGroup | None = None
        self._starting: asyncio.Task[None] | None = None
        self._silence = PatientTimer(on_lost)
        try:
            for rank in range(ranks):
                port = options.rows_port and options.rows_port + rank
                self._rows.append(listen_at(Address(options.address.host, port)))
        except OSError:
            self._close_rows()
            raise
        self._silence.start(LOST_S)

    @property
    def ports(self) -> list[int]:
        """The ports on which the ranks listen."""
        return [each.getsockname()[1] for each in self._rows]

    def start(self, message: StartStage) -> None:
        """Start the workers. Raises `ValueError` for launches that are not those of this stage."""
        ranks = len(self._rows)
        if self._starting is not None or [each.rank for each in message.launches] != list(range(ranks)):
            raise ValueError("the stage has been started, or its launches are not those of the claim")
        tp = message.launches[0].world_size
        board = partial(create_mask_board, message.mask_rows, message.vocabulary) if message.mask_rows else None
        spec = GroupSpec(
            [self._own(launch) for launch in message.launches],
            partial(create_segment, tp, message.ring_lanes, message.ring_slot_bytes) if tp > 1 else None,
            self._options.worker_command,
            board,
            partial(create_progress_board, tp),
        )
        hooks = GroupHooks(
            answered=self._send,
            profiled=self._send,
            described=self._send,
            loaded=lambda done, total: self._send(Loaded(done, total)),
            starved=lambda _seconds, _elapsed: None,
        )
        self._starting = asyncio.get_running_loop().create_task(self._start(spec, hooks))

    def pass_on(self, message: ToWorkers) -> None:
        """Send a message to every rank."""
        if self._group is not None:
            self._group.send(message)

    def publish(self, mask: Mask) -> None:
        """Publish a row of the mask board. Raises `ValueError` for bits of another length."""
        board = None if self._group is None else self._group.board
        if board is None:
            return
        if mask.bits and len(mask.bits) != board.row_bytes:
            raise ValueError(f"a mask has {len(mask.bits)} bytes instead of {board.row_bytes}")
        bits = ctypes.create_string_buffer(mask.bits, len(mask.bits)) if mask.bits else None
        board.publish(mask.step, mask.row, mask.state, 0 if bits is None else ctypes.addressof(bits))

    def beat(self, message: Beat) -> None:
        """Note that the front end is there, and answer with a look at the ranks."""
        self._silence.start(LOST_S)
        looks = {} if self._group is None else self._group.look(range(len(self._rows)), message.with_times)
        self._send(Beaten(looks))

    async def end(self, grace_s: float = 0.0) -> None:
        """End the workers and close the ports. May be called twice."""
        self._silence.stop()
        if self._group is not None:
            await self._group.end(grace_s=grace_s)
        if self._starting is not None:
            await asyncio.gather(self._starting, return_exceptions=True)
        self._close_rows()

    def _own(self, launch: Launch) -> Launch:
        """Return a launch with the descriptors and folders of this host in place of those of the front end."""
        limit = self._options.weights_cache_bytes
        return structs.replace(
            launch,
            image_fd=-1,
            image_tiles=0,
            disk_folder="",
            rows_fd=self._rows[launch.rank].fileno() if launch.rows_from else -1,
            weights_cache=WeightsCache(str(weights_cache_folder()), limit) if limit else None,
        )

    async def _start(self, spec: GroupSpec, hooks: GroupHooks) -> None:
        try:
            self._group = WorkerGroup(spec, hooks, self._failed)
            await self._group.start()
        except GroupFailed as error:
            self._failed(error.death)
        except Exception as error:
            # Of whatever kind: the front end waits for the workers as long as beats come.
            _log.exception("the workers could not be started")
            self._failed(Death("failure", f"the agent could not start the workers: {error}"))
        else:
            self._send(Started(self._group.pids))

    def _failed(self, death: Death) -> None:
        self._send(Failed(death.reason, death.message))

    def _close_rows(self) -> None:
        for each in self._rows:
            each.close()


def listen_at(address: Address) -> socket.socket:
    """Return a socket that listens at an address of this host. Raises `OSError`."""
    family = socket.AF_INET6 if address.host.startswith("[") else socket.AF_INET
    return socket.create_server((address.host.strip("[]"), address.port), family=family, backlog=_BACKLOG)
