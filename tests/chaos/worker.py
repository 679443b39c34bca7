"""The worker of a run: the real one, to which things happen where its cell says so.

``python -m tests.chaos.worker CELLS RANKS --rank R ...``
"""

import ctypes
import mmap
import os
import resource
import signal
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from numaserve.workers.interface.protocol import FromWorker, LoadProgress, Ready, StepPlan, StepResult
from numaserve.workers.process import loop, main
from numaserve.workers.process.model import RankModel, StepAnswer
from numaserve.workers.process.node import NodeContext

from tests.chaos.cells import Action, Cells, Point
from tests.chaos.native_states import NativeStates, Watch

_NATIVE = (Point.COLLECTIVE, Point.SAMPLING, Point.MASK_WAIT)
_PROT_NONE = 0


class Agent:
    """Carries out the orders of one rank's cell."""

    def __init__(self, cells: Cells, rank: int) -> None:
        self._cell = cells.ranks[rank]
        self._model: RankModel
        self._node: NodeContext
        self._states: NativeStates | None = None
        self._cell.steps = 0
        self._cell.pid = os.getpid()
        self._cell.lives += 1
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if self._cell.file_bytes:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self._cell.file_bytes, resource.RLIM_INFINITY))

    def install(self) -> None:
        """Put itself where the worker passes."""
        send, make, run = loop.Mailbox.send, RankModel.__init__, RankModel.run

        def sending(mailbox: loop.Mailbox, message: FromWorker) -> None:
            if isinstance(message, LoadProgress):
                self.at(Point.LOADING)
            send(mailbox, message)
            if isinstance(message, Ready):
                self._cell.ready = self._cell.lives
            elif isinstance(message, StepResult):
                self._cell.steps += 1

        def making(model: RankModel, *arguments: object) -> None:
            make(model, *arguments)  # type: ignore[arg-type]
            self._model, self._node = model, model._node
            if self._node.ring is not None:
                self._states = NativeStates(model._launch, self._node.ring, self._node.masks)

        def running(model: RankModel, plan: StepPlan) -> StepAnswer:
            known = [seq.num_tokens - drafts for seq, drafts in zip(plan.seqs, plan.drafts_of_each, strict=True)]
            if any(count > 1 for count in known):
                self.at(Point.PREFILL)
            if any(seq.sample and count <= 1 for seq, count in zip(plan.seqs, known, strict=True)):
                self.at(Point.DECODE)
            if self._states is None or self._node.ring is None:
                return run(model, plan)
            begin = self._node.ring.position
            with self._watch(begin):
                answer = run(model, plan)
            self._states.count_collectives(begin)
            return answer

        loop.Mailbox.send = sending  # type: ignore[method-assign]
        RankModel.__init__ = making  # type: ignore[method-assign, assignment]
        RankModel.run = running  # type: ignore[method-assign]

    def at(self, point: Point) -> None:
        """Carry out the order of the cell if it is for here and now."""
        if self._is_due(point):
            self._cell.done = self._cell.order
            self._act(Action(self._cell.action), point)

    def _is_due(self, point: Point) -> bool:
        cell = self._cell
        if cell.order == cell.done or cell.point != point:
            return False
        cell.times -= 1
        return bool(cell.times == 0)

    def _watch(self, begin: int) -> AbstractContextManager[None]:
        """Look into the native call that comes now, if an order is about one."""
        cell = self._cell
        point = next((each for each in _NATIVE if each == cell.point), None)
        if cell.order == cell.done or point is None or self._states is None or self._states.collectives == 0:
            return nullcontext()

        def act() -> None:
            self.at(point)

        return Watch(self._states, point, begin, act)

    def _act(self, action: Action, point: Point) -> None:
        match action:
            case Action.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case Action.STOP:
                os.kill(os.getpid(), signal.SIGSTOP)
            case Action.ABORT:
                assert self._node.ring is not None
                self._node.ring.abort("the run wants it so")
            case Action.LOOP:
                while True:
                    pass
            case Action.SLOW:
                time.sleep(self._cell.slow_ms / 1000)
            case Action.CRASH:
                self._crash(point)

    def _crash(self, point: Point) -> None:
        """Take memory away that native code is about to use: weights, or in the native call the ring."""
        if point in (Point.RESTART, Point.LOADING):
            ctypes.string_at(0)
        elif point in _NATIVE:
            assert self._node.ring is not None
            offset, nbytes = self._node.ring.part_range(self._cell_rank)
            _forbid(self._node.ring.base_address + offset, nbytes)
        else:
            matrix = self._model._matrices[-1]
            _forbid(matrix.address, matrix.nbytes)

    @property
    def _cell_rank(self) -> int:
        assert self._node.ring is not None
        return self._node.ring.rank


def _forbid(address: int, nbytes: int) -> None:
    """Make all whole pages of some memory such that touching them is a SIGSEGV."""
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (address + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - first
    assert length > 0, "less than a page"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(first), ctypes.c_size_t(length), _PROT_NONE) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")


def run_worker() -> int:
    """The worker's life, with its own arguments behind those of the run."""
    path, ranks, *arguments = sys.argv[1:]
    sys.argv[1:] = arguments
    rank = int(arguments[arguments.index("--rank") + 1])
    agent = Agent(Cells(Path(path), int(ranks)), rank)
    agent.install()
    agent.at(Point.RESTART)
    return main.main()


if __name__ == "__main__":
    sys.exit(run_worker())
