"""The real worker processes of a small group, driven plan by plan without a front end."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import zmq
from msgspec import structs
from numaserve.shm_comm.mask_board import create_mask_board
from numaserve.shm_comm.segment import Segment, create_segment
from numaserve.shm_comm.stat import ring_stat
from numaserve.workers.adapters.describe import describe_adapter
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.protocol import (
    AdapterLoaded,
    DiskReady,
    DraftModel,
    Failure,
    FromWorker,
    Launch,
    LoadAdapter,
    LoraAdapter,
    ProfileRequest,
    RankProfile,
    ReadRecords,
    Ready,
    RecordsMoved,
    Shutdown,
    StepPlan,
    StepResult,
    ToWorker,
    WeightsCache,
    WriteRecords,
    decode_from_worker,
    encode,
    mask_rows,
)
from numaserve.workers.interface.settings import Backend, ModelSettings
from numaserve.workers.models.load import load_model_config
from numaserve.workers.models.spec import ModelConfig

from tests.support.launches import count
from tests.support.rank_process import FORKS, work

_UNPINNED = -1  # tests share the cores with each other, and ranks outnumber them
_PATIENCE_S = 240
_POLL_MS = 500
_LIFELINE_FD, _RING_FD, _MASK_FD, _IMAGE_FD = 200, 201, 202, 203  # in a worker: numbers that nothing else there has

Message = TypeVar("Message", bound=FromWorker)


class WorkerFailed(Exception):
    """A worker answered with a failure, or with nothing."""


def _padded(count: int, unit: int = 32) -> int:
    return -(-count // unit) * unit


def _drafter(draft_model: Path | None, settings: Mapping[str, Any]) -> str:
    if draft_model is None:
        return "mtp" if settings.get("mtp") else ""
    return "assistant" if load_model_config(draft_model).decoder.borrows else "draft_model"


def _sizes(config: ModelConfig, tp: int) -> tuple[int, int]:
    """The columns of the largest message of a token or a patch, and of the logits."""
    parts, decoder = config.partition([1] * tp).ranks, config.decoder
    towers = [] if decoder.tower is None else [*map(decoder.tower.message_columns, parts)]
    return max(config.hidden_size, *map(decoder.message_columns, parts), *towers), config.vocab_size


def _described(number: int, path: Path, config: ModelConfig, settings: Mapping[str, Any]) -> LoraAdapter:
    return LoraAdapter(number, str(path), describe_adapter(path, config, ModelSettings(**settings)).digest)


def _linked(launch: Launch, rows: str) -> Launch:
    """The launch of a rank that receives the rows of the stage before, if there is one, at an endpoint that begins with
    `rows`."""
    stage, stages = launch.settings.stage, launch.settings.stages
    return structs.replace(
        launch,
        rows_from=f"{rows}{launch.number}" if stage else "",
        rows_to=f"{rows}{launch.number + launch.world_size}" if stage < stages - 1 else "",
    )


def _store(tiles: npt.NDArray[np.uint8]) -> Connection:
    """An image store with the pixels of tiles, as the front end makes one."""
    fd = os.memfd_create("images")
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(tiles.tobytes())
    return Connection(fd)


class RankGroup:
    """A model on `tp` ranks of `threads` threads each, unpinned unless their `cpus` are named, by rank.

    At most two plans are in flight, as with the server: `send` a plan, `receive` the result of the oldest. `isa`
    forces an instruction set; None leaves the choice to the workers. With a `mask_grace_s` there is a mask `board`.
    `settings` are those of `ModelSettings`. A `draft_model` is no larger than the model. `tiles` are the pixels of the
    image store, uint8 [tiles, side, side, 3]. `adapters` are loaded at the start, and numbered from 1. The disk tier's
    files are in `disk_folder`. Each of several pipeline `stages` has `tp` ranks, which are numbered through all stages.
    """

    def __init__(
        self,
        model: Path,
        tp: int = 1,
        *,
        stages: int = 1,
        isa: str | None = None,
        threads: int = 1,
        cpus: list[list[int]] | None = None,
        num_pages: int = 64,
        context_length: int = 512,
        max_slots: int = 16,
        max_step_tokens: int = 512,
        max_logit_rows: int = 512,
        weights_cache: WeightsCache | None = None,
        mask_grace_s: float | None = None,
        num_snapshots: int = 0,
        max_drafts: int = 0,
        window_pages: Sequence[int] = (),
        feature_tiles: int = 0,
        backend: Backend = "native",
        draft_model: Path | None = None,
        tiles: npt.NDArray[np.uint8] | None = None,
        adapters: Sequence[Path] = (),
        disk_folder: Path | None = None,
        **settings: Any,
    ) -> None:
        count("rank groups")
        if adapters:
            settings.setdefault("max_loras", len(adapters))
        config = load_model_config(model, ModelSettings(**settings))
        self._exits = contextlib.ExitStack()
        rows = mask_rows(max_slots)
        self.board = None if mask_grace_s is None else create_mask_board(rows, config.vocab_size)
        if self.board is not None:
            self._exits.callback(self.board.close)
        segments: list[Segment] = []
        if tp > 1:
            configs = [config] if draft_model is None else [config, load_model_config(draft_model)]
            hidden, vocabulary = (
                max(_padded(each) for each in sizes)
                for sizes in zip(*(_sizes(each, tp) for each in configs), strict=True)
            )
            patches = 0 if config.decoder.tower is None else _padded(config.decoder.tower.patches)
            largest = max(max(max_step_tokens, patches) * hidden, max_logit_rows * vocabulary)
            segments = [create_segment(tp, threads, _padded(4 * largest, 4096)) for _ in range(stages)]
            for segment in segments:
                self._exits.callback(segment.close)
        limits = Capacity(
            num_pages=num_pages,
            context_length=context_length,
            max_slots=max_slots,
            max_step_tokens=max_step_tokens,
            max_logit_rows=max_logit_rows,
            num_snapshots=num_snapshots,
            max_drafts=max_drafts,
            window_pages=tuple(window_pages),
            feature_tiles=feature_tiles,
        )
        launches = [
            Launch(
                rank=rank,
                world_size=tp,
                model=str(model),
                cpus=cpus or [[_UNPINNED] * threads] * tp,
                nodes=[0] * tp,
                weights=[threads] * tp,
                capacity=limits,
                ring_fd=_RING_FD if segments else -1,
                ring_nonce=segments[stage].nonce if segments else 0,
                step_deadline_s=_PATIENCE_S,
                settings=ModelSettings(**settings, stage=stage, stages=stages),
                weights_cache=weights_cache,
                backend=backend,
                mask_fd=_MASK_FD if self.board else -1,
                mask_nonce=self.board.nonce if self.board else 0,
                image_fd=-1 if tiles is None else _IMAGE_FD,
                image_tiles=0 if tiles is None else len(tiles),
                mask_grace_s=1.0 if mask_grace_s is None else mask_grace_s,
                draft=None if draft_model is None else DraftModel(str(draft_model), ModelSettings()),
                drafter=_drafter(draft_model, settings),
                adapters=[_described(number, path, config, settings) for number, path in enumerate(adapters, 1)],
                disk_folder="" if disk_folder is None else str(disk_folder),
            )
            for stage in range(stages)
            for rank in range(tp)
        ]
        self._leader = len(launches) - tp
        self._config, self._settings = config, settings
        with contextlib.ExitStack() as undo:
            undo.push(self._exits)
            self._start(launches, segments, isa, None if tiles is None else _store(tiles))
            undo.pop_all()

    def _start(
        self, launches: list[Launch], segments: list[Segment], isa: str | None, images: Connection | None
    ) -> None:
        context = self._exits.enter_context(zmq.Context())
        folder = self._exits.enter_context(
            tempfile.TemporaryDirectory(prefix="numaserve-e2e-", ignore_cleanup_errors=True)
        )
        self._processes: list[BaseProcess] = []
        self._exits.callback(self._reap)
        # Workers end when the write end closes, even if this process is killed.
        lifeline, self._lifeline = map(self._exits.enter_context, FORKS.Pipe(duplex=False))
        files = {_LIFELINE_FD: lifeline}
        if self.board is not None:
            files[_MASK_FD] = Connection(os.dup(self.board.fd))
        rings = [Connection(os.dup(segment.fd)) for segment in segments]
        if images is not None:
            files[_IMAGE_FD] = images
        self._folder = Path(folder)
        self._sockets: list[zmq.Socket[bytes]] = []
        environment = {} if isa is None else {"NUMASERVE_ISA": isa}
        for launch in launches:
            number = launch.number
            socket = self._exits.enter_context(context.socket(zmq.PAIR))
            socket.setsockopt(zmq.LINGER, 0)
            endpoint = f"ipc://{folder}/rank{number}.sock"
            socket.bind(endpoint)
            self._sockets.append(socket)
            arguments = ["--rank", str(launch.rank), "--endpoint", endpoint, "--lifeline-fd", str(_LIFELINE_FD)]
            ring = {_RING_FD: rings[launch.settings.stage]} if rings else {}
            process = FORKS.Process(target=work, args=(arguments, environment, files | ring))
            process.start()
            self._processes.append(process)
        for file in (*files.values(), *rings):
            file.close()
        for socket, launch in zip(self._sockets, launches, strict=True):
            # Waits for the worker to connect, while the others start too.
            socket.send(encode(_linked(launch, f"ipc://{folder}/rows")))
        self.ready = [self._next(rank, Ready) for rank in range(len(launches))]

    @property
    def isa(self) -> str:
        """Instruction set in use."""
        return self.ready[0].isa

    def send(self, plan: StepPlan) -> None:
        """Send a plan to every rank."""
        self._broadcast(plan)

    def receive(self) -> StepResult:
        """The result of the oldest plan in flight, by rank 0 of the last stage, when every rank has answered it. Raises
        `WorkerFailed`."""
        results = [self._next(rank, StepResult) for rank in range(len(self._sockets))]
        assert {result.step_id for result in results} == {results[0].step_id}
        return results[self._leader]

    def run(self, plan: StepPlan) -> StepResult:
        """Send a plan and wait for its result. Raises `WorkerFailed`."""
        self.send(plan)
        return self.receive()

    def profile(self) -> list[RankProfile]:
        """What every rank's steps have cost since load."""
        self._broadcast(ProfileRequest(0, ceilings=False))
        return [self._next(rank, RankProfile) for rank in range(len(self._sockets))]

    def disk_ready(self) -> list[DiskReady]:
        """Every rank's report about the disk tier."""
        return [self._next(rank, DiskReady) for rank in range(len(self._sockets))]

    def move(self, message: WriteRecords | ReadRecords) -> list[RecordsMoved]:
        """Write or read records on every rank; the answers."""
        self._broadcast(message)
        return [self._next(rank, RecordsMoved) for rank in range(len(self._sockets))]

    def load_adapter(self, number: int, path: Path) -> list[AdapterLoaded]:
        """Load an adapter on every rank; the answers."""
        return self.load_described(self.described(number, path))

    def load_described(self, adapter: LoraAdapter) -> list[AdapterLoaded]:
        """The same for one that was described earlier."""
        self.begin_load(adapter)
        return [self._next(rank, AdapterLoaded) for rank in range(len(self._sockets))]

    def begin_load(self, adapter: LoraAdapter) -> None:
        """Ask every rank to load an adapter, whose answers nothing waits for."""
        self._broadcast(LoadAdapter(0, adapter))

    def described(self, number: int, path: Path) -> LoraAdapter:
        """An adapter as the front end names it to ranks."""
        return _described(number, path, self._config, self._settings)

    def receive_failures(self) -> list[Failure]:
        """Every rank's refusal of the oldest plan in flight. Raises `WorkerFailed` when one has not refused it."""
        return [self.receive_failure(rank) for rank in range(len(self._sockets))]

    def receive_failure(self, rank: int) -> Failure:
        """A rank's refusal of the oldest plan in flight, or its last words. Raises `WorkerFailed`."""
        return self._next(rank, Failure)

    def send_frames(self, *frames: bytes) -> None:
        """Send any frames, as one message, to every rank."""
        for socket in self._sockets:
            socket.send_multipart(frames, zmq.NOBLOCK)

    def send_to(self, rank: int, plan: StepPlan) -> None:
        """Send a plan to one rank only, as a front end does that is killed before it has sent the others theirs, and
        wait until that rank is at the step's first collective."""
        before = self._arrivals(rank)
        self._sockets[rank].send(encode(plan), zmq.NOBLOCK)
        while self._arrivals(rank) == before:
            time.sleep(0.01)

    def orphan(self) -> list[int | None]:
        """What the workers see when the front end is killed; their exit statuses."""
        self._lifeline.close()
        for process in self._processes:
            process.join(_PATIENCE_S / 8)
        return [process.exitcode for process in self._processes]

    def left_behind(self) -> list[str]:
        """Files in the folder of the sockets, or the folder itself."""
        return [path.name for path in self._folder.iterdir()] if self._folder.exists() else []

    def close(self) -> None:
        """End the workers and remove everything they leave."""
        if not self._lifeline.closed:
            for socket in self._sockets:
                with contextlib.suppress(zmq.Again):  # a worker that has ended takes no message
                    socket.send(encode(Shutdown()), zmq.NOBLOCK)
        self._exits.close()

    def __enter__(self) -> RankGroup:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _broadcast(self, message: ToWorker) -> None:
        for socket in self._sockets:
            socket.send(encode(message), zmq.NOBLOCK)

    def _arrivals(self, rank: int) -> int:
        return ring_stat(self._processes[rank].pid).ranks[rank].arrived_max

    def _next(self, rank: int, kind: type[Message]) -> Message:
        """The next message of this kind; progress and statistics on the way are dropped."""
        for _ in range(_PATIENCE_S * 1000 // _POLL_MS):
            while self._sockets[rank].poll(_POLL_MS):
                message = decode_from_worker(self._sockets[rank].recv())
                if isinstance(message, kind):
                    return message
                if getattr(message, "message", None):
                    raise WorkerFailed(message)
            if (status := self._processes[rank].exitcode) is not None:
                raise WorkerFailed(f"worker {rank} exited with status {status}")
        raise WorkerFailed(f"nothing from worker {rank} for {_PATIENCE_S} s")

    def _reap(self) -> None:
        for process in self._processes:
            process.join(10)
            if process.exitcode is None:
                process.kill()
                process.join()
            process.close()
