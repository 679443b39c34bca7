"""A server whose workers take orders, and what can be seen of it from outside."""

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import psutil

from tests.chaos.cells import Cell, Cells
from tests.support.real_server import RealServer

ROOT = Path(__file__).resolve().parents[2]
RANKS = 2
LOAD_DEADLINE_S = 30.0  # a busy machine takes some seconds to start a worker
_OPTIONS = {
    "tp": RANKS,
    "context-length": 2048,
    "chunked-prefill-size": 128,
    "max-running-requests": 24,  # fewer than clients: some wait
    "kv-cache-gib": 0.012,
    "mask-deadline-ms": 2500,
    "drain-seconds": 60,
    "log-level": "info",
}
_PATIENCE_S = 60.0
_GRAVE = frozenset({"error", "critical"})
_LAST_WORDS = 12


def options(**more: object) -> list[str]:
    """The command's options."""
    return [word for name, value in (_OPTIONS | more).items() for word in (f"--{name}", str(value))]


class ServerGone(Exception):
    """The server's process has ended."""


@dataclass(frozen=True)
class Holdings:
    """What a server holds at a time. Pages are of the KV cache; helpers are the front end's other processes."""

    pages: int
    active_pages: int
    front_end_files: int
    worker_files: int
    front_end_mib: float
    worker_mib: float
    helper_mib: float


class ChaosServer:
    """A running server, the cells of its workers, and its processes."""

    def __init__(self, real: RealServer, cells: Cells, step_deadline_s: float) -> None:
        self.real = real
        self.cells = cells
        self.step_deadline_s = step_deadline_s
        self._process = psutil.Process(real.process.pid)

    @property
    def pid(self) -> int:
        """Of the front end."""
        return self._process.pid

    def check(self) -> None:
        """Raises `ServerGone`."""
        if self.real.process.poll() is not None:
            raise ServerGone(f"the server ended with status {self.real.process.returncode}: {self.last_words()}")

    def lives(self) -> list[int]:
        """How often the worker of each rank was started."""
        return [cell.lives for cell in self.cells.ranks]

    def serves(self, steps: int = 0) -> bool:
        """Whether all ranks have loaded, and have answered so many steps since."""
        return all(cell.ready == cell.lives and cell.steps >= steps for cell in self.cells.ranks)

    async def until(self, condition: Callable[[], bool], seconds: float = _PATIENCE_S) -> bool:
        """Wait for a condition; False where it has not come in time. Raises `ServerGone`."""
        end = time.monotonic() + seconds
        while not condition():
            self.check()
            if time.monotonic() > end:
                return False
            await asyncio.sleep(0.002)
        return True

    @property
    def cache(self) -> Path:
        """Where packed weights are cached."""
        return self.real.folder / "cache"

    def log(self) -> str:
        """What the server has written so far."""
        return self.real.log.read_text()

    def last_words(self) -> str:
        """What the server has said last that was no routine."""
        lines = [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]
        told = [f"{line['time'][11:23]} {line['message']}" for line in lines if line["level"] in _GRAVE]
        return "; ".join(told[-_LAST_WORDS:])

    def highest_file(self) -> int:
        """The highest of the front end's descriptors."""
        return max(int(link.name) for link in Path(f"/proc/{self.pid}/fd").iterdir())

    def child(self, module: str) -> int | None:
        """The process id of the front end's child that runs `module`."""
        for child in self._process.children():
            try:
                if module in child.cmdline():
                    return child.pid
            except psutil.Error:
                continue
        return None

    async def holdings(self) -> Holdings:
        """What it holds once nothing runs any more. Raises `ServerGone`."""
        self.check()
        await asyncio.to_thread(self.real.until, self._is_idle)
        return await asyncio.to_thread(self.look)

    def look(self) -> Holdings:
        """What it holds now, where all workers live."""
        metrics = self.real.metrics()
        pids = [cell.pid for cell in self.cells.ranks]
        workers = [psutil.Process(pid) for pid in pids]
        helpers = [child for child in self._process.children(recursive=True) if child.pid not in pids]
        return Holdings(
            pages=int(sum(value for name, value in metrics.items() if name.startswith("kv_pages "))),
            active_pages=int(metrics["kv_pages active"]),
            front_end_files=self._process.num_fds(),
            worker_files=sum(worker.num_fds() for worker in workers),
            front_end_mib=_mib([self._process]),
            worker_mib=_mib(workers),
            helper_mib=_mib(helpers),
        )

    def _is_idle(self) -> bool:
        metrics = self.real.metrics()
        nothing_runs = metrics["requests running"] == metrics["requests waiting"] == 0
        return self.serves() and nothing_runs and not any(map(self._caches_weights, self.cells.ranks))

    def _caches_weights(self, cell: Cell) -> bool:
        """Whether a worker has files of the cache open, which it also writes while it serves."""
        return any(path.is_relative_to(self.cache) for path in _opened(cell.pid))


def _opened(pid: int) -> Iterator[Path]:
    with suppress(FileNotFoundError):  # it has ended
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed since it was listed
                yield link.readlink()


def _mib(processes: Sequence[psutil.Process]) -> float:
    return round(sum(process.memory_info().rss for process in processes) / 2**20, 1)


@contextmanager
def _importable() -> Iterator[None]:
    """The front end and the workers find the package of the tests."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with patch.dict(os.environ, PYTHONPATH=path):
        yield


@contextmanager
def oracle(model: Path, **more: object) -> Iterator[RealServer]:
    """The command as it is, without faults."""
    with RealServer(*options(**more), model=str(model)) as server:
        yield server


@contextmanager
def under_chaos(
    model: Path, folder: Path, step_deadline_s: float, *, fork: bool = False, **more: object
) -> Iterator[ChaosServer]:
    """The command over workers that take orders; one that hangs is noticed after `step_deadline_s`."""
    cells = Cells(folder / "cells", RANKS)
    way = "fork" if fork else "execute"
    program = ("-m", "tests.chaos.serve", way, str(folder / "cells"), str(RANKS), f"{LOAD_DEADLINE_S}")
    given = options(**{"step-deadline-seconds": step_deadline_s, "weights-cache-gib": 1}, **more)
    with _importable(), RealServer(*given, model=str(model), program=program) as server:
        yield ChaosServer(server, cells, step_deadline_s)
