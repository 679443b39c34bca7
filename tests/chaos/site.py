"""One server of a run: who asks it, what happens to it, and how its answers differ from those that are expected."""

import asyncio
import itertools
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.chaos import faults
from tests.chaos.answers import Incomplete, events_of, is_beginning, joined, said
from tests.chaos.cells import Action, Point
from tests.chaos.client import Asked, ask
from tests.chaos.faults import Fault, draw_faults, states
from tests.chaos.injector import Injector
from tests.chaos.report import Report
from tests.chaos.served import ChaosServer, ServerGone
from tests.chaos.traffic import Request

_REST_S = 0.05  # of a client whose request failed: it does not ask as fast as it is refused
_DRAINED = 16  # streams
_EXIT_S = 60.0
_ANSWERS_S = 300.0  # in which all that was asked is answered


@dataclass(frozen=True)
class Load:
    """What is asked of a server: requests, again and again, by so many clients, and what they are answered.

    There are `steps` at least between a death and the next fault.
    """

    requests: Sequence[Request]
    expected: Sequence[Any]
    clients: int
    steps: int
    seed: int


async def answers_of(url: str, requests: Sequence[Request], clients: int) -> list[Any]:
    """What each of the requests is answered where nothing happens."""
    turns = asyncio.Semaphore(clients)

    async def one(index: int, request: Request) -> Any:
        async with turns:
            asked = await ask(url, Asked(Request(request.kind, request.path, request.body), index))
        if asked.error or asked.status != 200:
            raise RuntimeError(f"without any fault: {request}: {asked.error} {asked.status} {asked.data[:500]!r}")
        return said(asked.data, request.path, streams=request.streams)

    return list(await asyncio.gather(*(one(index, request) for index, request in enumerate(requests))))


class Site:
    """A server under load and faults."""

    def __init__(
        self, server: ChaosServer, load: Load, *, pooled: bool, show: Callable[[int, Report], None] = lambda *_: None
    ) -> None:
        """`show` gets deaths and the report after each fault beyond the first round."""
        self._server = server
        self._load = load
        self._pooled = pooled
        self._show = show
        self._order = self._orders()
        self._over = False
        self._may_ask = asyncio.Event()
        self._may_ask.set()
        self._asking = 0  # requests that are under way
        self._injector = Injector(server, self._at_rest)
        self._report = Report()

    def _orders(self) -> Iterator[int]:
        """Indices of requests, in an order that changes from round to round."""
        draw = random.Random(self._load.seed)
        for _ in itertools.count():
            yield from draw.sample(range(len(self._load.requests)), len(self._load.requests))

    async def run(self, is_enough: Callable[[int], bool]) -> Report:
        """Ask, and hurt in every state and then on until `is_enough(deaths)`; end the server with one more death while
        it drains."""
        report, injector = self._report, self._injector
        await self._ask_each()  # what a server holds only since it was first asked is no leak
        begun = time.monotonic()
        try:
            report.before = await self._server.holdings()
            await self._hurt(is_enough)
            report.after = await self._server.holdings()
            report.seconds = time.monotonic() - begun
            await self._drain()
        except ServerGone as error:
            report.gone = str(error)
        report.deaths, report.missed = injector.deaths, injector.missed
        report.hits, report.actions, report.hangs = injector.hits, injector.actions, +injector.hangs
        report.held = injector.held
        report.failed += injector.refused
        report.restarts = max(self._server.lives()) - 1
        report.log = self._server.log()
        return report

    async def _hurt(self, is_enough: Callable[[int], bool]) -> None:
        clients = [asyncio.create_task(self._client()) for _ in range(self._load.clients)]
        try:
            faults_to_come = draw_faults(self._load.seed, self._load.steps, pooled=self._pooled)
            for _ in states(pooled=self._pooled):
                await self._injector.bring(next(faults_to_come))
            while not is_enough(len(self._injector.deaths)):
                await self._injector.bring(next(faults_to_come))
                self._show(len(self._injector.deaths), self._report)
        finally:
            self._over = True
            await asyncio.gather(*clients)

    async def _drain(self) -> None:
        """SIGTERM amid streams, and then a death: all are answered, and the exit status is 0."""
        process = self._server.real.process
        streams = [] if self._pooled else self._streams()
        jobs = [asyncio.create_task(self._judge(asked)) for asked in streams]
        await self._server.until(lambda: all(asked.arrivals or asked.error for asked in streams))
        process.send_signal(signal.SIGTERM)
        if streams:
            fault = Fault(Point.DECODE, Action.KILL, 0, times=3, after_s=0, steps=0)
            hit = await self._injector.at_point(fault)
            self._injector.tell_of(faults.DRAINING, fault, hit=hit)
            begun = time.monotonic()
            await asyncio.gather(*jobs)
            self._injector.deaths += [(begun, time.monotonic())] * hit
        status = await asyncio.to_thread(process.wait, _EXIT_S)
        if status != 0:
            raise ServerGone(f"after SIGTERM the exit status was {status}: {self._server.last_words()}")

    @asynccontextmanager
    async def _at_rest(self) -> AsyncIterator[None]:
        """Nobody asks anything, once what was asked is answered."""
        self._may_ask.clear()
        try:
            if not await self._server.until(lambda: self._asking == 0, _ANSWERS_S):
                raise ServerGone(f"{self._asking} requests were not answered: {self._server.last_words()}")
            await self._server.holdings()  # who left is not there any more
            yield
        finally:
            self._may_ask.set()

    def _streams(self) -> list[Asked]:
        """Some requests of which each takes some time, to be asked."""
        found = [Asked(each, index) for index, each in enumerate(self._load.requests) if each.kind == "stream"]
        return found[:_DRAINED]

    async def _ask_each(self) -> None:
        turns = asyncio.Semaphore(self._load.clients)

        async def one(index: int) -> None:
            async with turns:
                await self._ask(index)

        await asyncio.gather(*(one(index) for index in range(len(self._load.requests))))

    async def _client(self) -> None:
        while not self._over:
            await self._may_ask.wait()
            if not await self._ask(next(self._order)):
                await asyncio.sleep(_REST_S)

    async def _ask(self, index: int) -> bool:
        """Whether the answer was what it has to be."""
        return await self._judge(Asked(self._load.requests[index], index))

    async def _judge(self, asked: Asked) -> bool:
        self._asking += 1
        await ask(self._server.real.url, asked)
        self._asking -= 1
        complaint, different = complaint_about(asked, self._load.expected[asked.index])
        self._report.add(asked, complaint, different=different)
        return not complaint


def complaint_about(asked: Asked, expected: Any) -> tuple[str, bool]:
    """What is wrong with an answer, and whether it is that it says something else."""
    if asked.error or asked.status != 200:
        return asked.error or f"status {asked.status}: {asked.data[:300]!r}", False
    try:
        if asked.left:
            events = [event for event in events_of(asked.data) if event != "[DONE]"]
            return ("", False) if is_beginning(joined(events), expected) else (f"{asked.data!r}", True)
        found = said(asked.data, asked.request.path, streams=asked.request.streams)
    except (Incomplete, ValueError) as error:
        return f"{type(error).__name__}: {error}", False
    return ("", False) if found == expected else (f"got {found}\nnot {expected}", True)
