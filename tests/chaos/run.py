"""A run: what is asked without faults, the same with faults, and how the answers differ."""

import asyncio
import itertools
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.answers import Incomplete, events_of, is_beginning, joined, said
from tests.chaos.client import Asked, ask
from tests.chaos.faults import Injector, draw_faults
from tests.chaos.model import write_model
from tests.chaos.report import Report
from tests.chaos.served import ChaosServer, ServerGone, oracle, under_chaos
from tests.chaos.traffic import Request, draw_requests


@dataclass(frozen=True)
class Options:
    """Of a run, which ends after `seconds` or, if it is not 0, after `kills` deaths."""

    seed: int
    seconds: float = 30.0
    kills: int = 0
    clients: int = 32
    requests: int = 120  # different ones, which are asked again and again


def run(options: Options) -> Report:
    """Make the model, ask it all, and do it again under chaos."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        folder = Path(name)
        model = write_model(folder / "model")
        requests = draw_requests(options.seed, options.requests)
        with oracle(model) as server:
            expected = asyncio.run(_expected(server.url, requests, options.clients))
        with under_chaos(model, folder) as served:
            return asyncio.run(_Run(options, served, requests, expected).run())


async def _expected(url: str, requests: Sequence[Request], clients: int) -> list[Any]:
    """What each of the requests is answered where nothing happens."""
    turns = asyncio.Semaphore(clients)

    async def one(index: int, request: Request) -> Any:
        async with turns:
            whole = Request(request.kind, request.path, request.body)
            asked = await ask(url, whole, index)
        if asked.error or asked.status != 200:
            raise RuntimeError(f"without any fault: {request}: {asked.error} {asked.status} {asked.data[:500]!r}")
        return said(asked.data, streams=request.streams)

    return list(await asyncio.gather(*(one(index, request) for index, request in enumerate(requests))))


class _Run:
    def __init__(
        self, options: Options, server: ChaosServer, requests: Sequence[Request], expected: Sequence[Any]
    ) -> None:
        self._options = options
        self._server = server
        self._requests = requests
        self._expected = expected
        self._order = self._orders()
        self._over = asyncio.Event()
        self._injector = Injector(server)
        self._report = Report(options.seed)

    def _orders(self) -> Iterator[int]:
        """Indices of requests, in an order that changes from round to round."""
        draw = random.Random(self._options.seed)
        for _ in itertools.count():
            yield from draw.sample(range(len(self._requests)), len(self._requests))

    async def run(self) -> Report:
        """The part with faults."""
        await self._ask_all()  # what a server holds only since it was first asked is no leak
        before = await asyncio.to_thread(self._server.holdings)
        clients = [asyncio.create_task(self._client()) for _ in range(self._options.clients)]
        begun = time.monotonic()
        try:
            await self._inject(begun)
        except ServerGone as error:
            self._report.gone = str(error)
        self._over.set()
        await asyncio.gather(*clients)
        report = self._report
        report.seconds = time.monotonic() - begun
        report.deaths, report.hits, report.missed = (
            self._injector.deaths,
            self._injector.hits,
            self._injector.missed,
        )
        if not report.gone:
            report.before, report.after = before, await asyncio.to_thread(self._server.holdings)
        return report

    async def _inject(self, begun: float) -> None:
        options, injector = self._options, self._injector
        for fault in draw_faults(options.seed):
            enough = len(injector.deaths) >= options.kills > 0
            if enough or (not options.kills and time.monotonic() - begun > options.seconds):
                return
            await injector.bring(fault)

    async def _ask_all(self) -> None:
        turns = asyncio.Semaphore(self._options.clients)

        async def one(index: int) -> None:
            async with turns:
                self._judge(await ask(self._server.real.url, self._requests[index], index))

        await asyncio.gather(*(one(index) for index in range(len(self._requests))))

    async def _client(self) -> None:
        while not self._over.is_set():
            index = next(self._order)
            self._judge(await ask(self._server.real.url, self._requests[index], index))

    def _judge(self, asked: Asked) -> None:
        complaint, different = _complaint(asked, self._expected[asked.index])
        self._report.add(asked, complaint, different=different)


def _complaint(asked: Asked, expected: Any) -> tuple[str, bool]:
    """What is wrong with an answer, and whether it is that it says something else."""
    if asked.error or asked.status != 200:
        return asked.error or f"status {asked.status}: {asked.data[:300]!r}", False
    try:
        if asked.left:
            events = [event for event in events_of(asked.data) if event != "[DONE]"]
            return ("", False) if is_beginning(joined(events), expected) else (f"{asked.data!r}", True)
        found = said(asked.data, streams=asked.request.streams)
    except (Incomplete, ValueError) as error:
        return f"{type(error).__name__}: {error}", False
    return ("", False) if found == expected else (f"got {found}\nnot {expected}", True)
