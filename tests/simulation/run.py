"""One run of a simulation."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import cast

from numaserve.server.death import Death
from numaserve.server.engine.engine import Engine, EngineCallbacks, EngineConfig
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.scheduler.errors import ResultMismatch
from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.server.scheduler.sequence import SchedulerConfig
from numaserve.server.supervisor.group import GroupFailed, GroupHooks, GroupSpec
from numaserve.server.supervisor.policy import WINDOW_S, RestartPolicy
from numaserve.server.supervisor.supervisor import Supervisor
from numaserve.server.tokenizer.types import TokenizerProtocol
from numaserve.workers.protocol import Launch

from tests.simulation.board import SimulatedBoard
from tests.simulation.clients import Client
from tests.simulation.counted import CountedMetrics
from tests.simulation.group import SimulatedGroup
from tests.simulation.invariants import Invariants
from tests.simulation.matchers import SimulatedMatcherWork
from tests.simulation.scenario import Scenario, scenario_of
from tests.simulation.truth import LETTERS, PAGE_SIZE, Truth
from tests.simulation.world import Violation, World
from tests.support.simulated_loop import SimulatedLoop, Stuck

_LONG_S = 3600.0  # in which any run is over, and clients that nobody answers would not be
_MOST_TURNS = 100_000


@dataclass(frozen=True)
class Outcome:
    """What came of a run."""

    seed: int
    violation: str  # empty: everything was right
    digest: str  # of the log
    log: list[tuple[object, ...]]
    seen: Counter[str]
    scenario: Scenario
    seconds: float  # simulated


def run(seed: int) -> Outcome:
    """Run what `seed` decides, to its end or to the first thing that is wrong."""
    return _Run(seed).outcome()


class _Run:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.world = world = World(seed)
        self.scenario = scenario_of(world.rng)
        self._turns = 0
        self._invariants: Invariants | None = None
        self._groups: list[SimulatedGroup] = []
        world.loop = self._loop = SimulatedLoop(self._turn)
        self._loop.set_exception_handler(self._on_loop_exception)

    def outcome(self) -> Outcome:
        world = self.world
        with _logged_to(world):
            try:
                self._loop.run_until_complete(asyncio.wait_for(self._main(), _LONG_S))
            except Violation:
                pass
            except Stuck as stuck:
                world.violate(str(stuck))
            except TimeoutError:
                world.violate(f"something has not ended after {_LONG_S:g} s")
            self._invariants = None
            self._clean_up()
        return Outcome(
            self._seed, world.violation, world.digest(), world.log, world.seen, self.scenario, self._loop.time()
        )

    async def _main(self) -> None:
        world, scenario = self.world, self.scenario
        world.resume_timeout_s = scenario.resume_timeout_s
        scheduler, metrics = _scheduler(scenario), CountedMetrics()
        engine = self._engine(scheduler, metrics)
        self._invariants = Invariants(world, engine, scheduler, metrics, self._groups)
        longest = scheduler.config.max_sequence_tokens
        clients = []
        for number, request in enumerate(scenario.requests):
            truths = [Truth(wanted, longest) for wanted in request.sequences]
            world.truths |= {truth.wanted.seed: truth for truth in truths}
            clients.append(Client(world, engine, number, request, truths))
        for at in scenario.deaths:
            self._loop.call_at(at, self._kill)
        tasks = [asyncio.create_task(client.run()) for client in clients]
        try:
            await engine.start()
        except GroupFailed:
            world.note("not started")
            world.excuse_all = "the server has not started"
        await self._end(engine, tasks)
        self._invariants.check_over()
        self._invariants.check_search(scenario)
        stats = scheduler.stats()
        world.seen.update({"retraction": stats.retractions, "prefix found": stats.prefix_hit_tokens})

    async def _end(self, engine: Engine, clients: list[asyncio.Task[None]]) -> None:
        world, scenario = self.world, self.scenario
        if scenario.ending == "wait":
            await asyncio.wait(clients)
            # A plan that was made ahead of the last answer may be on its way.
            await asyncio.sleep(2 * scenario.step_deadline_s)
            assert self._invariants is not None
            self._invariants.check_quiet()
        else:
            await asyncio.sleep(scenario.ends_at)
            world.excuse_all = "the server stops"
        if scenario.ending == "drain":
            await engine.drain(1.0)
        else:
            await engine.stop(at_once=world.rng.random() < 0.5)
        await asyncio.wait(clients)
        for client in clients:
            client.result()

    def _engine(self, scheduler: Scheduler, metrics: CountedMetrics) -> Engine:
        world, scenario = self.world, self.scenario

        def make_group(spec: GroupSpec, hooks: GroupHooks, on_failure: Callable[[Death], None]) -> SimulatedGroup:
            self._groups.append(SimulatedGroup(world, scenario, hooks, on_failure))
            return self._groups[-1]

        def given_up(_reason: str) -> None:
            world.has_given_up(scenario.most_failures, WINDOW_S)

        spec = GroupSpec(_launches(scenario.ranks), board_factory=partial(SimulatedBoard, world, lambda: None))
        return Engine(
            EngineConfig(
                "simulated",
                "0",
                max_queued_requests=scenario.queued,
                step_deadline_s=scenario.step_deadline_s,
                overlap=scenario.overlap,
                resume_timeout_s=scenario.resume_timeout_s,
            ),
            Supervisor(spec, RestartPolicy(scenario.most_failures), make_group),
            scheduler,
            cast(TokenizerProtocol, LETTERS),
            cast(Metrics, metrics),
            callbacks=EngineCallbacks(given_up=given_up),
            clock=self._loop.time,
            matcher_work=SimulatedMatcherWork(world, scenario),
        )

    def _kill(self) -> None:
        if self._groups:
            self._groups[-1].die(quietly=self.world.rng.random() < 0.5)

    def _turn(self) -> None:
        """Between two callbacks of the loop."""
        if self._invariants is None:
            return
        self._turns += 1
        if self.world.changed:
            self.world.changed = False
            self._invariants.check()
        if self._turns > _MOST_TURNS:
            self.world.violate("something goes round in circles")
        if self.world.violation:
            raise Violation(self.world.violation)

    def _on_loop_exception(self, _loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        self.world.violate(f"an exception got lost: {context.get('exception') or context['message']!r}")

    def _clean_up(self) -> None:
        """End the tasks that a violation has left."""
        tasks = asyncio.all_tasks(self._loop)
        for _ in range(3):
            for task in tasks:
                task.cancel()
            with suppress(Stuck):
                self._loop.run_until_complete(_ends_of(tasks))
        self._loop.close()


async def _ends_of(tasks: Iterable[asyncio.Task[object]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)


def _scheduler(scenario: Scenario) -> Scheduler:
    return Scheduler(
        SchedulerConfig(
            num_pages=scenario.pages,
            context_length=scenario.context,
            max_running_requests=scenario.running,
            max_step_tokens=scenario.step_tokens,
            max_logit_rows=scenario.logit_rows,
            enable_prefix_cache=scenario.prefix_cache,
            page_size=PAGE_SIZE,
        )
    )


@lru_cache
def _launches(ranks: int) -> tuple[Launch, ...]:
    return tuple(
        Launch(
            rank=rank,
            world_size=ranks,
            model="simulated",
            cpus=[[each] for each in range(ranks)],
            nodes=[0] * ranks,
            weights=[1] * ranks,
            num_pages=1,
            context_length=1,
            max_running_requests=1,
            max_step_tokens=1,
            max_logit_rows=1,
            ring_fd=-1,
            ring_nonce=0,
            step_deadline_s=1.0,
        )
        for rank in range(ranks)
    )


class _LogHandler(logging.Handler):
    """Puts the server's log into that of the run, and finds exceptions in it that nobody meant to happen."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.WARNING)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        self._world.note("log", record.getMessage())
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, ResultMismatch | GroupFailed) and str(error) != "on purpose":
            self._world.violate(f"{record.getMessage()}: {error!r}")


@contextmanager
def _logged_to(world: World) -> Iterator[None]:
    """Have the server log to `world` and to nobody else."""
    logger, handler = logging.getLogger("numaserve"), _LogHandler(world)
    before = logger.propagate, logger.level
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate, logger.level = before
