"""Runs the ranks of a benchmark, each in a process of its own: a thread team pins its caller for good."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from typing import TypeVar

import msgspec
from numaserve.shm_comm.segment import Segment, create_segment
from numaserve.workers.bench.tasks import Answer, Failed, Line, Status, Task
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import Launch
from numaserve.workers.interface.python_process import child_environment, module_command
from numaserve.workers.planning.deployment import Deployment

Say = Callable[[str], None]

_COMMAND = module_command("numaserve.workers.bench.rank")
_T = TypeVar("_T", bound=Answer)


class RankFailed(Exception):
    """An error: a rank ended without an answer."""


@contextmanager
def launches_of(deployment: Deployment) -> Iterator[tuple[list[Launch], Segment | None]]:
    """Yield the deployment's launches with a ring of their own, if they need one."""
    world = len(deployment.launches)
    ring = create_segment(world, deployment.ring_lanes, deployment.ring_slot_bytes) if world > 1 else nullcontext()
    with ring as segment:
        if segment is None:
            yield deployment.launches, None
        else:
            fields = {"ring_fd": segment.fd, "ring_nonce": segment.nonce}
            yield [msgspec.structs.replace(launch, **fields) for launch in deployment.launches], segment


def run_ranks(tasks: Sequence[Task], kind: type[_T], segment: Segment | None, say: Say) -> list[_T]:
    """Run a task on each rank, and return the answers by rank. `say` gets the progress of rank 0.

    When a rank fails, the others are ended. Raises `OperatorError` for an error that the operator can fix, else
    `RankFailed`.
    """
    ranks: list[_Rank] = []
    try:
        for index, task in enumerate(tasks):
            ranks.append(_Rank(index, task, segment))
        with ThreadPoolExecutor(len(ranks)) as threads:
            waiting = [threads.submit(rank.answer, kind, say if rank.index == 0 else None) for rank in ranks]
            try:
                for each in as_completed(waiting):
                    each.result()
            except BaseException:
                # Their peers would wait for them until the ring's deadline.
                _end(ranks)
                raise
        return [each.result() for each in waiting]
    finally:
        _end(ranks)


def _end(ranks: Sequence[_Rank]) -> None:
    for rank in ranks:
        rank.end()


class _Rank:
    def __init__(self, index: int, task: Task, segment: Segment | None) -> None:
        self.index = index
        self._process = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[] if segment is None else [segment.fd],
            env=child_environment() | {"OMP_NUM_THREADS": "1"},
        )
        self._lock = threading.Lock()
        assert self._process.stdin is not None  # noqa: S101  piped above
        self._process.stdin.write(msgspec.json.encode(task) + b"\n")
        self._process.stdin.flush()

    def answer(self, kind: type[_T], say: Say | None) -> _T:
        """Wait for the process's answer, which is a `kind`."""
        assert self._process.stdout is not None  # noqa: S101  piped above
        for text in self._process.stdout:
            line = msgspec.json.decode(text, type=Line)
            if isinstance(line, kind):
                return line
            if isinstance(line, Failed):
                raise OperatorError(line.message)
            if isinstance(line, Status) and say is not None:
                say(line.text)
        raise RankFailed(f"rank {self.index} exited with status {self._process.wait()} before it answered")

    def end(self) -> None:
        """End the process and close its pipes. May be called twice."""
        with self._lock:
            if self._process.poll() is None:
                # A process that has answered is about to end; one that waits for a peer would not.
                self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
