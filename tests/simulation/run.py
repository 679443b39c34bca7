"""One run of a simulation."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from numaserve.server.supervisor.group import GroupFailed

from tests.simulation.clients import Client
from tests.simulation.invariants import Invariants
from tests.simulation.log import logged_to
from tests.simulation.scenario import Scenario, scenario_of
from tests.simulation.server import Server, make_server
from tests.simulation.truth import Truth
from tests.simulation.world import Violation, World
from tests.support.simulated_loop import SimulatedLoop, Stuck

_LONG_S = 3600.0  # in which any run is over, and clients that nobody answers would not be
_MOST_TURNS = 100_000
_MOMENT_S = 1e-6


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
        self._server: Server
        world.loop = self._loop = SimulatedLoop(self._turn)
        self._loop.set_exception_handler(self._on_loop_exception)

    def outcome(self) -> Outcome:
        world = self.world
        with logged_to(world):
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
        self._server = server = make_server(world, scenario)
        self._invariants = invariants = Invariants(world, server)
        longest = server.scheduler.config.max_sequence_tokens
        clients = []
        for number, request in enumerate(scenario.requests):
            truths = [Truth(wanted, longest, request.client.cache_group) for wanted in request.sequences]
            world.truths |= {truth.wanted.seed: truth for truth in truths}
            clients.append(Client(world, server.engine, server.adapters, number, request, truths))
        for at in scenario.deaths:
            self._loop.call_outside_at(at, self._kill)
        for at, seconds in scenario.absences:
            self._loop.call_outside_at(at, self._go_away, seconds)
        for absence in scenario.host_absences:
            self._loop.call_outside_at(absence.at, server.hosts.go_away, absence)
        if scenario.keys_removed_at >= 0:
            self._loop.call_at(scenario.keys_removed_at, self._remove_keys)
        tasks = [asyncio.create_task(client.run()) for client in clients]
        await self._serve(tasks)
        if scenario.ending == "wait":
            invariants.check_quiet()
        await self._stop()
        await server.hosts.end()  # as agents do without a front end
        await asyncio.wait(tasks)
        for task in tasks:
            task.result()
        invariants.check_over()
        invariants.check_search(scenario)
        stats = server.scheduler.stats()
        world.seen.update({"retraction": stats.retractions, "prefix found": stats.prefix_hit_tokens})
        features = server.scheduler.features
        world.seen.update({"tower run": features.runs, "features found": features.hits})
        anchors = server.scheduler.kv.anchor_stats()
        if anchors is not None:
            world.seen.update({"anchor found": anchors.hits, "anchor missed": anchors.unanchored_tokens})

    def _remove_keys(self) -> None:
        """Leave the common cache group alone, while requests of others run."""
        self.world.note("keys removed")
        self._server.disks.kept_groups = {""}
        self._server.engine.keep_cache_groups({""})

    async def _serve(self, clients: list[asyncio.Task[None]]) -> None:
        """Start and serve until it is time to end, which may be before the end of the start."""
        world, scenario, engine = self.world, self.scenario, self._server.engine
        starting = asyncio.create_task(engine.start())
        patience = None if scenario.ending == "wait" else scenario.ends_at
        await asyncio.wait([starting], timeout=patience)
        if not starting.done():
            starting.cancel()
            await asyncio.wait([starting])
            world.note("start cancelled")
            return
        if isinstance(starting.exception(), GroupFailed):
            world.note("not started")
            return
        starting.result()
        await asyncio.wait(clients, timeout=None if patience is None else max(0.0, patience - self._loop.time()))
        if scenario.ending == "wait":
            # A plan that was made ahead of the last answer may be on its way, and its end come while nobody is there.
            end = self._loop.presence() + 4 * scenario.step_deadline_s
            while (seconds := end - self._loop.presence()) > _MOMENT_S:
                await asyncio.sleep(seconds)

    async def _stop(self) -> None:
        """End as the service does: in a hurry what was begun is not waited for, or not alone."""
        engine, rng = self._server.engine, self.world.rng
        hurries = self.scenario.ending == "hurry"
        if self.scenario.ending != "wait":
            self.world.excuse_all = "the server stops"
        if self.scenario.ending in ("drain", "hurry"):
            draining = asyncio.create_task(engine.drain(1.0))
            await asyncio.wait([draining], timeout=rng.uniform(0.0, 2.0) if hurries else None)
            draining.cancel()
        stopping = asyncio.create_task(engine.stop(at_once=rng.random() < 0.5))
        if hurries:
            await asyncio.wait([stopping], timeout=rng.uniform(0.0, 2.0))
            await engine.stop(at_once=True)
        await stopping

    def _go_away(self, seconds: float) -> None:
        self.world.note("front end absent", seconds)
        self._loop.go_away(seconds)

    def _kill(self) -> None:
        if self._server.groups:
            group, how = self._server.groups[-1], self.world.rng.choice(("freezes", "dies", "dies quietly"))
            group.freeze() if how == "freezes" else group.die(quietly=how == "dies quietly")

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
