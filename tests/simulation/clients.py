"""Clients: they come, read at their pace, leave, and compare what they get with the truth."""

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from numaserve.server.adapters.adapters import Adapters
from numaserve.server.adapters.errors import AdapterError
from numaserve.server.engine.engine import Engine
from numaserve.server.engine.requests.stream import Stream
from numaserve.server.engine.types import (
    AdapterGone,
    Busy,
    GenerationChunk,
    GenerationFailed,
    NotReady,
    QueueFull,
    RequestTimedOut,
    RequestTooLong,
)
from numaserve.server.scheduler.adapter import Adapter
from numaserve.server.scheduler.images import PlacedTile
from numaserve.server.scheduler.request import Pooling
from numaserve.server.scheduler.request import Request as EngineRequest
from numaserve.workers.interface.protocol import SamplingParams

from tests.simulation.matchers import SimulatedMatcher
from tests.simulation.scenario import Request
from tests.simulation.truth import Answer, Truth
from tests.simulation.world import World

_MOMENT_S = 1e-6
_TRIES = 6
_AGAIN_S = 0.5  # behind a refusal, the first time; then twice as much each time


class Client:
    """One client, and what it knows about the answers to its sequences."""

    def __init__(
        self,
        world: World,
        engine: Engine,
        adapters: Adapters,
        number: int,
        request: Request,
        truths: Sequence[Truth],
    ) -> None:
        self._world = world
        self._engine = engine
        self._adapters = adapters
        self._chosen: list[Adapter | None] = [None] * len(truths)
        self._number = number
        self._request = request
        self._truths = list(truths)
        self._admitted_at = 0.0
        self._answers = [Answer() for _ in truths]

    async def run(self) -> None:
        """Come, ask, read and go."""
        await asyncio.sleep(self._request.at)
        for attempt in range(_TRIES):
            try:
                await self._ask()
            except (QueueFull, NotReady, Busy, AdapterGone) as refusal:
                self._note("refused", type(refusal).__name__)
                if self._engine.state in ("failed", "stopped"):
                    return
                await asyncio.sleep(_AGAIN_S * 2**attempt)
            else:
                return

    async def _ask(self) -> None:
        if self._request.kind == "profile":
            await self._engine.profile(ceilings=self._number % 2 == 0)
        elif self._request.kind == "flush":
            await self._engine.flush_cache()
        elif self._request.adapter:
            await self._change_adapters()
        else:
            await self._generate()

    async def _change_adapters(self) -> None:
        """Load an adapter whose content no load had before, or unload it."""
        name, leaves = self._request.adapter, self._request.leaves_after_s
        try:
            async with asyncio.timeout(leaves if leaves >= 0 else None):
                if self._request.kind == "unload":
                    await self._adapters.unload(name)
                else:
                    await self._adapters.load(name, Path(f"{name}{self._number}"), replace=self._request.replaces)
            self._note(self._request.kind, name)
        except AdapterError as error:
            self._note(f"{self._request.kind} {error.kind}", str(error))
        except TimeoutError:
            self._note(f"left its {self._request.kind}")

    async def _find_adapters(self) -> None:
        """Choose the adapters, and work out what is true with them."""
        for index, truth in enumerate(self._truths):
            try:
                adapter = self._adapters.find(truth.wanted.adapter)
            except AdapterError:
                adapter = None
            self._chosen[index] = adapter
            content = "" if adapter is None else adapter.digest
            self._truths[index] = Truth(truth.wanted, truth.longest, truth.group, content)
            self._world.truths[truth.wanted.seed] = self._truths[index]
        if any(self._chosen) and self._number % 2:
            await asyncio.sleep(0.01 * self._number)  # as a tokenizer takes its time

    async def _generate(self) -> None:
        if self._adapters.num_places:
            await self._find_adapters()
        requests = [self._generation(*each) for each in zip(self._truths, self._chosen, strict=True)]
        too_long = any(truth.is_too_long for truth in self._truths)
        try:
            stream = self._engine.admit(requests)
        except RequestTooLong:
            self._note("too long")
            if not too_long:
                self._world.violate("a request that fits was said to be too long")
            return
        self._note("admitted")
        self._admitted_at = self._world.loop.time()
        if too_long:
            self._world.violate("a request that is too long was admitted")
        self._world.admitted += len(requests)
        leaves = self._request.leaves_after_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(leaves if leaves >= 0 else None):
                await self._read(stream)
        await stream.aclose()
        await stream.aclose()

    async def _read(self, stream: Stream) -> None:
        left = self._request.leaves_after_chunks
        try:
            while left != 0:
                self._take(await anext(stream))
                left -= 1
                if self._request.pace_s:
                    await asyncio.sleep(self._request.pace_s)
            self._note("left")
        except StopAsyncIteration:
            self._note("answered", [answer.finish for answer in self._answers])
            self._check_time(over=False)
            self._check_ends()
        except GenerationFailed as error:
            self._note("failed", str(error))
            if not any(truth.fails or self._world.excuses(truth) for truth in self._truths):
                self._world.violate(f"a request was failed without need: {error}")
        except RequestTimedOut:
            self._note("timed out")
            self._check_time(over=True)
        except NotReady as error:
            self._note("given up", str(error))
            self._check_waited(error)

    def _take(self, chunk: GenerationChunk) -> None:
        answer, truth = self._answers[chunk.index], self._truths[chunk.index]
        self._note("chunk", chunk.index, chunk.text, chunk.finish_reason)
        if answer.finish:
            self._world.violate("something came behind the end of a sequence")
        answer.tokens += chunk.token_ids
        answer.text += chunk.text
        answer.logprobs += chunk.logprobs
        answer.named += chunk.token_logprobs
        answer.rows += chunk.prompt_logprobs
        answer.embedding += chunk.embedding
        if chunk.finish_reason is not None:
            answer.finish, answer.stop_reason = chunk.finish_reason, chunk.stop_reason
        if not (answer == truth.answer if answer.finish else answer.is_part_of(truth.answer)):
            self._world.violate(f"an answer is not what it should be: {answer}, not {truth.answer}")

    def _check_waited(self, error: NotReady) -> None:
        """Only where there are no workers for too long is a request that was admitted told to come again."""
        if self._request.pace_s or self._world.excuse_all:
            return  # it may have read of it late
        if self._engine.state != "restarting" or not self._world.waited_too_long():
            self._world.violate(f"a request was given up in the state {self._engine.state}: {error}")

    def _check_time(self, *, over: bool) -> None:
        """A request ends when its time is over and not before it."""
        timeout_s = self._request.timeout_s
        end = float("inf") if timeout_s is None else self._admitted_at + timeout_s
        now = self._world.loop.time()
        if (over and now < end - _MOMENT_S) or (not over and not self._request.pace_s and now > end + _MOMENT_S):
            self._world.violate(f"a request that has time until {end} ended at {now}")

    def _check_ends(self) -> None:
        if not all(answer.finish for answer in self._answers):
            self._world.violate("a stream has ended before all of its sequences")

    def _generation(self, truth: Truth, adapter: Adapter | None) -> EngineRequest:
        wanted = truth.wanted
        store = self._world.images
        images = [
            PlacedTile(
                each.start, store.write(truth.tiles[each.start], bytes([each.picture]) * 32, wanted.seed, each.rows)
            )
            for each in wanted.tiles
        ]
        sampling = SamplingParams(
            seed=wanted.seed,
            repetition_penalty=1.5 if wanted.penalties else 1.0,
            logprobs=wanted.logprobs,
            token_ids_logprob=list(wanted.named),
        )
        return EngineRequest(
            f"client {self._number}",
            list(wanted.prompt),
            sampling,
            wanted.max_new_tokens,
            min_new_tokens=wanted.min_new_tokens,
            stop=wanted.stop,
            stop_token_ids=wanted.stop_token_ids,
            prompt_logprobs=wanted.prompt_logprobs,
            include_stop=wanted.include_stop,
            cache_salt=f"salt {wanted.salt}" if wanted.salt else "",
            pooling=Pooling() if wanted.pool else None,
            images=tuple(images),
            adapter=adapter,
            client=self._request.client,
            priority=self._request.priority,
            timeout_s=self._request.timeout_s,
            matcher=partial(SimulatedMatcher, self._world, truth) if wanted.masked else None,
        )

    def _note(self, kind: str, *facts: object) -> None:
        self._world.note(f"client.{kind}", self._number, *facts)
