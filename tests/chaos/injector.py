"""How faults are brought about."""

import asyncio
import os
import resource
import shutil
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
from numaserve.shm_comm import _ring
from numaserve.shm_comm.segment import MEMFD_NAME

from tests.chaos import faults
from tests.chaos.cells import Action, Point
from tests.chaos.client import Asked, ask
from tests.chaos.faults import Fault
from tests.chaos.served import LOAD_DEADLINE_S, ChaosServer, Holdings, ServerGone
from tests.chaos.traffic import Request

SLOW_MS = 300  # less than the deadline of a step
_NO_DESCRIPTORS_S = 0.5
_FILE_BYTES = 4096  # that a worker may write when the disk is full; its weights are more
_COMES_S = 15.0  # until a point is come to, under load
_LOOKS_S = 0.1
_HEALS_S = 60.0
# A server gives up after three deaths in a minute that come before a step was answered.
_MOST_STARTS, _WINDOW_S = 2, 65.0
_TEMPLATES, _TRIALS = "numaserve.server.template.process", "numaserve.server.structured.trial.process"
_SIGNALS = {Action.KILL: signal.SIGKILL, Action.CRASH: signal.SIGSEGV, Action.STOP: signal.SIGSTOP}


@dataclass
class Injector:
    """Brings faults about, one after the other. Within `at_rest()` nothing is asked of the server."""

    server: ChaosServer
    at_rest: Callable[[], AbstractAsyncContextManager[None]]
    deaths: list[tuple[float, float]] = field(default_factory=list)  # of groups: since when, and until when it was down
    hits: Counter[str] = field(default_factory=Counter)  # by state
    actions: Counter[str] = field(default_factory=Counter)
    hangs: Counter[str] = field(default_factory=Counter)  # by state
    missed: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # answers to what the injector asked itself
    held: list[Holdings] = field(default_factory=list)  # under load, before each fault: each time by other workers
    _starts: deque[float] = field(default_factory=lambda: deque([-_WINDOW_S] * _MOST_STARTS, _MOST_STARTS))

    async def bring(self, fault: Fault) -> None:
        """Bring one about, and wait until the server serves again. Raises `ServerGone`."""
        await self._serving(fault.steps)
        await self._look()
        match fault.state:
            case Point.LOADING | Point.RESTART:
                if time.monotonic() - self._starts[0] < _WINDOW_S:
                    return
                hit = await self._amid_a_start(fault)
            case Point():
                hit = await self._at_a_point(fault)
            case faults.ANY_TIME | faults.BOTH:
                hit = await self._at_any_time(fault)
            case faults.IDLE:
                hit = await self._while_idle(fault)
            case faults.TEMPLATE:
                hit = await self._amid_a_template()
            case faults.GRAMMAR:
                hit = await self._amid_a_trial()
            case faults.DISK:
                hit = await self._with_a_full_disk(fault)
            case _:
                hit = await self._without_descriptors(fault)
        self.tell_of(fault.place, fault, hit=hit)

    async def _look(self) -> None:
        """Note what the server holds, unless a process ends meanwhile or the server has no time to tell."""
        with suppress(psutil.NoSuchProcess, httpx.TransportError):
            self.held.append(await asyncio.to_thread(self.server.look))

    def tell_of(self, place: str, fault: Fault, *, hit: bool) -> None:
        """Count a fault that came about, or did not."""
        if hit:
            self.hits[place] += 1
            self.actions[fault.action.name.lower()] += 1
            self.hangs[place] += fault.action in (Action.STOP, Action.LOOP)
        else:
            self.missed.append(str(fault))

    async def at_point(self, fault: Fault) -> bool:
        """Order what is to happen at a point, and wait until it has. Nobody waits for the next life."""
        cells, cell = self.server.cells, self.server.cells.ranks[fault.rank]
        assert isinstance(fault.state, Point)
        number = cells.command(fault.rank, fault.state, fault.action, times=fault.times, slow_ms=SLOW_MS)
        if await self.server.until(lambda: cell.done == number, _COMES_S):
            return True
        cells.withdraw(fault.rank)
        return False

    async def _at_a_point(self, fault: Fault) -> bool:
        lives = self.server.lives()
        hit = await self.at_point(fault)
        if hit and fault.action != Action.SLOW:
            await self._death(lives)
        return hit

    async def _amid_a_start(self, fault: Fault) -> bool:
        """A worker is killed, and one of the next life does not get far."""
        cells, lives = self.server.cells, self.server.lives()
        assert isinstance(fault.state, Point)
        number = cells.command(fault.rank, fault.state, fault.action)
        cell = cells.ranks[fault.rank]
        self._signal([fault.rank], signal.SIGKILL)
        begun = time.monotonic()
        hit = await self.server.until(lambda: cell.done == number, _HEALS_S)
        lives[fault.rank] += hit  # the other one may have ended before it had begun
        await self._serving_after(lives)
        self._starts.append(time.monotonic())  # a start that hangs fails only as long after as its deadline is
        self.deaths += [(begun, time.monotonic())] * (1 + hit)
        return hit

    async def _at_any_time(self, fault: Fault) -> bool:
        await asyncio.sleep(fault.after_s)
        lives = self.server.lives()
        ranks = list(range(len(lives))) if fault.state == faults.BOTH else [fault.rank]
        if fault.action == Action.ABORT:
            abort_ring(self.server.pid)
        elif fault.action == Action.SLOW:
            self._signal(ranks, signal.SIGSTOP)
            await asyncio.sleep(SLOW_MS / 1000)
            self._signal(ranks, signal.SIGCONT)
            return True
        else:
            self._signal(ranks, _SIGNALS[fault.action])
        await self._death(lives)
        return True

    async def _while_idle(self, fault: Fault) -> bool:
        """It has to be noticed, and mended, before somebody asks again."""
        async with self.at_rest():
            lives = self.server.lives()
            self._signal([fault.rank], _SIGNALS[fault.action])
            await self._death(lives)
        return True

    async def _without(self, module: str) -> bool:
        """A child of the front end is killed, as soon as there is one."""
        end = time.monotonic() + _COMES_S
        while (child := self.server.child(module)) is None and time.monotonic() < end:
            await asyncio.sleep(_LOOKS_S)
        if child is not None:
            os.kill(child, signal.SIGKILL)
        return child is not None

    async def _amid_a_template(self) -> bool:
        """A conversation whose template has ended two children is refused: one is written before the next fault."""
        hit = await self._without(_TEMPLATES)
        body = {"messages": [{"role": "user", "content": "Say"}], "max_tokens": 1, "temperature": 0}
        await self._ask("chat", "/v1/chat/completions", body, "after a template")
        return hit

    async def _amid_a_trial(self) -> bool:
        """The child that tries grammars is killed while somebody has one that nobody had before."""
        pattern = f"{len(self.actions)}{time.monotonic_ns()}[a-z]{{3}}"
        body = {"prompt": "Say", "regex": pattern, "max_tokens": 40, "temperature": 0}
        asking = asyncio.create_task(self._ask("grammar", "/v1/completions", body, "amid a trial"))
        hit = await self._without(_TRIALS)
        await asking
        return hit

    async def _ask(self, kind: str, path: str, body: dict[str, object], when: str) -> None:
        asked = Asked(Request(kind, path, body), 0)
        await ask(self.server.real.url, asked)
        if asked.status != 200:
            self.refused.append(f"{when}: {asked.status} {asked.error} {asked.data[:200]!r}")

    async def _with_a_full_disk(self, fault: Fault) -> bool:
        """The weights are not in the cache any more, and there is no room to put them there again."""
        server, lives = self.server, self.server.lives()
        told = server.log().count("not cached")
        for cell in server.cells.ranks:
            cell.file_bytes = _FILE_BYTES
        shutil.rmtree(server.cache, ignore_errors=True)
        self._signal([fault.rank], signal.SIGKILL)
        await self._death(lives)
        hit = await server.until(lambda: server.log().count("not cached") > told, _COMES_S)
        for cell in server.cells.ranks:
            cell.file_bytes = 0
        return hit

    async def _without_descriptors(self, _: Fault) -> bool:
        """No connection is accepted and no file opened for a while."""
        pid = self.server.pid
        most = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (self.server.highest_file() + 1, most[1]))
        try:
            await asyncio.sleep(_NO_DESCRIPTORS_S)
        finally:
            self.server.check()
            resource.prlimit(pid, resource.RLIMIT_NOFILE, most)
        return True

    def _signal(self, ranks: Sequence[int], number: signal.Signals) -> None:
        for rank in ranks:
            try:
                os.kill(self.server.cells.ranks[rank].pid, number)
            except ProcessLookupError:  # it has died of something else
                continue

    async def _death(self, lives: list[int]) -> None:
        begun = time.monotonic()
        await self._serving_after(lives)
        self.deaths.append((begun, time.monotonic()))

    async def _serving_after(self, lives: list[int]) -> None:
        """Wait until the lives after `lives` serve."""
        server = self.server
        seconds = _HEALS_S + LOAD_DEADLINE_S + server.step_deadline_s
        if not await server.until(lambda: all(map(int.__lt__, lives, server.lives())) and server.serves(), seconds):
            raise ServerGone(f"it did not serve again after life {lives}: {server.last_words()}")

    async def _serving(self, steps: int) -> None:
        if not await self.server.until(lambda: self.server.serves(steps), _HEALS_S):
            raise ServerGone(f"it answers no steps: {self.server.last_words()}")


def abort_ring(pid: int) -> None:
    """Abort the ring that a front end holds, from outside."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if MEMFD_NAME in str(link.readlink()):
                descriptor = os.open(link, os.O_RDWR)
                _ring.abort_segment(descriptor, "the run wants it so")
                os.close(descriptor)
        except FileNotFoundError:  # closed since it was listed
            continue
