"""The places of requests with more prompts than the queue takes at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from numaserve.server.common.fair_semaphore import FairSemaphore
from numaserve.server.engine.admission.backlog import Backlog, Work
from numaserve.server.engine.admission.reserve import reserve_of
from numaserve.server.engine.types import GenerationStream, QueueFull, RequestTimedOut
from numaserve.server.scheduler.client import Client
from numaserve.server.scheduler.request import Request

MAX_PLACES = 32  # requests; the prompts of one, of several megabytes, wait in the front end
TURNS = 2  # requests whose prompts run at the same time: one's next prompts follow the other's without a gap

Admit = Callable[[Sequence[Request]], GenerationStream]


class Place:
    """The place of one request, whose prompts are admitted in turns and are never refused for a full queue."""

    def __init__(self, places: Places, client: Client, admit: Admit) -> None:
        self._places = places
        self._client = client
        self._admit = admit
        self._prompts = 0
        self.work = Work(0, 0.0)  # of the prompts that have not been admitted

    def expect(self, prompts: Sequence[int]) -> None:
        """Count the work of prompts of these numbers of tokens."""
        self._prompts = len(prompts)
        self.work = self._places.work_of(prompts)

    @asynccontextmanager
    async def turn(self, timeout_s: float | None) -> AsyncIterator[None]:
        """Wait until this request may admit prompts; clients take turns. Raises `RequestTimedOut`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._places.turns.acquire(self._client.name)
        except TimeoutError:
            raise RequestTimedOut from None
        try:
            yield
        finally:
            self._places.turns.release(self._client.name)

    def admit(self, requests: Sequence[Request]) -> GenerationStream:
        """Admit the next prompts. Raises `NotReady` or `RequestTooLong`."""
        stream = self._admit(requests)
        left = max(0, self._prompts - len(requests))
        share = left / self._prompts if self._prompts else 0.0
        self.work = Work(round(self.work.tokens * share), self.work.seconds * share)
        self._prompts = left
        return stream

    def leave(self) -> None:
        """Give the place up."""
        self._places.leave(self, self._client)


class Places:
    """Places of requests, bounded in number and in predicted seconds, with a reserve for clients without any place.

    A request with a thousand prompts is admitted whole or refused before anything is done for it. Its prompts still
    enter the queue in parts, which leaves space for the requests of other clients.
    """

    def __init__(self, backlog: Backlog, max_queued_s: float) -> None:
        self.turns = FairSemaphore(TURNS)
        self._backlog = backlog
        self._max_queued_s = max_queued_s
        self._places: set[Place] = set()
        self._clients: Counter[str] = Counter()
        self._empty = asyncio.Event()
        self._empty.set()

    def enter(self, client: Client, admit: Admit, now: float) -> Place:
        """Return a place, whose prompts `admit` admits. Raises `QueueFull`."""
        most = MAX_PLACES + (0 if self._clients[client.name] else reserve_of(MAX_PLACES))
        seconds = self._backlog.seconds + sum(place.work.seconds for place in self._places)
        if len(self._places) >= most:
            message = f"The server is full: {len(self._places)} requests with many inputs are waiting (limit {most})."
        elif seconds > self._max_queued_s:
            message = (
                f"The queue is full: the predicted work of the waiting inputs is {seconds:.0f} s "
                f"(limit {self._max_queued_s:g} s)."
            )
        else:
            place = Place(self, client, admit)
            self._places.add(place)
            self._clients[client.name] += 1
            self._empty.clear()
            return place
        retry_after = self._backlog.retry_after(now, sum(place.work.tokens for place in self._places))
        raise QueueFull(f"{message} Retry after {retry_after} s.", retry_after)

    def leave(self, place: Place, client: Client) -> None:
        """Remove a place that was given up; may be called more than once."""
        if place in self._places:
            self._places.remove(place)
            self._clients -= Counter((client.name,))
            if not self._places:
                self._empty.set()

    async def wait_until_empty(self) -> None:
        """Return when every place has been given up."""
        await self._empty.wait()

    def work_of(self, prompts: Sequence[int]) -> Work:
        """Return the work of prompts of these numbers of tokens, as if all were of their mean length."""
        mean = self._backlog.work_of(round(sum(prompts) / len(prompts)), 0)
        return Work(sum(prompts), mean.seconds * len(prompts))
