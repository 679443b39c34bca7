"""One life of a group of workers that is simulated: it loads or does not, serves, and dies."""

import asyncio
from collections.abc import Callable, Collection, Sequence

from numaserve.server.common.death import Death
from numaserve.server.supervisor.group import GroupFailed, GroupHooks
from numaserve.server.supervisor.judge import RankLook
from numaserve.workers.interface.protocol import (
    AdapterLoaded,
    Failure,
    FromDisk,
    FromWorker,
    LoadAdapter,
    LoraAdapter,
    OperationTerms,
    ProfileRequest,
    RankProfile,
    Ready,
    StepPlan,
    StepResult,
    ToDisk,
)

from tests.simulation.board import SimulatedBoard
from tests.simulation.disk import SimulatedDisks
from tests.simulation.scenario import Scenario
from tests.simulation.workers import SimulatedWorkers
from tests.simulation.world import World

# Of a model whose steps take longer with each token, and much longer with each position that it looks at.
_TERMS = [OperationTerms("all", weight_bytes=100_000, row_flops=100_000.0, position_bytes=1000, pair_flops=10_000)]
_TOWER_TERMS = [OperationTerms("patches", weight_bytes=1000, row_flops=1000.0)]
_LAST_WORDS_S = 0.1  # after which the end of a process that said nothing is reported
_LOADING_STUCK_S = 300.0


class SimulatedGroup:
    """Implements `Group`."""

    garbage_frames = 0

    def __init__(
        self,
        world: World,
        scenario: Scenario,
        hooks: GroupHooks,
        on_failure: Callable[[Death], None],
        adapters: Callable[[], Sequence[LoraAdapter]],
        disks: SimulatedDisks,
        held_until: Callable[[int], float] = lambda _rank: 0.0,
    ) -> None:
        self._world = world
        self._scenario = scenario
        self._hooks = hooks
        self._on_failure = on_failure
        self._adapters = adapters
        self._launched: Sequence[LoraAdapter] = ()
        self._ready: asyncio.Future[None] = world.loop.create_future()
        self._workers = SimulatedWorkers(
            world, scenario, tell=self._tell, die=self.die, blame=self.blame, disks=disks, held_until=held_until
        )
        self._frozen_at = float("inf")
        self._lost_at = float("inf")
        self._blamed = False  # it has done what it may be declared broken for
        self.pids: list[int] = []
        self.board: SimulatedBoard | None = None
        self.state = "new"  # then loading, serving, dead (which nobody knows yet), over, ended

    # --- what the supervisor calls ------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load, for some time and perhaps in vain."""
        world, rng = self._world, self._world.rng
        self.state = "loading"
        self._launched = self._adapters()
        self.pids = list(range(self._scenario.ranks))
        self.board = SimulatedBoard(world, self._workers.on_mask)
        fault = (
            rng.choice(("dies", "dies at its end", "stuck")) if self._workers.faulty(self._scenario.load_faults) else ""
        )
        world.note(f"group.loads and {fault}" if fault else "group.loads")
        seconds = _LOADING_STUCK_S if fault == "stuck" else self._scenario.load_s * rng.uniform(0.5, 2.0)
        world.loop.call_later(seconds, self._loaded, fault)
        await self._ready

    def send(self, message: StepPlan | ProfileRequest | LoadAdapter | ToDisk) -> None:
        """Take a message to every rank."""
        if self.state not in ("serving", "dead") or self.board is None:
            self._world.violate(f"{type(message).__name__} was sent to workers that are {self.state}")
        else:
            self._workers.take(message, self.board)

    def look(self, ranks: Collection[int], with_times: bool) -> dict[int, RankLook]:
        """Show what ranks do."""
        return self._workers.look(ranks)

    def fail(self, death: Death) -> None:
        """Be declared broken."""
        self._fail(death)

    async def end(self, *, grace_s: float = 0.0) -> None:
        """End, which takes its time."""
        if self.state == "ended":
            return
        self.state = "over"
        self._workers.stand_still(over=True)
        self._ready.cancel()
        self._world.note("group.ends", grace_s)
        await asyncio.sleep(self._world.rng.choice((0.0, 0.01, 2.0)) + self._world.rng.uniform(0, grace_s))
        if self.board is not None:
            self.board.close()
            self.board = None
        self.pids = []
        self.state = "ended"

    # --- its life -----------------------------------------------------------------------------------------------

    def die(self, *, quietly: bool) -> None:
        """End a worker's process. One that goes quietly is missed a little later."""
        world = self._world
        if self.state == "loading":
            self._loaded("dies")
        if self.state != "serving":
            return
        world.note("group.dies in a step" if self._workers.in_flight else "group.dies idle", quietly)
        self.state = "dead"
        self._workers.stand_still()
        death = Death("signal", f"worker {world.rng.randrange(self._scenario.ranks)} was killed")
        world.loop.call_later(_LAST_WORDS_S if quietly else 0.0, self._fail, death)
        self._blamed = True

    def freeze(self) -> None:
        """Have the workers do nothing more, and live."""
        if self.state == "serving":
            self._world.note("group.freezes in a step" if self._workers.in_flight else "group.freezes idle")
            self._workers.freeze()
            self._frozen_at = self._world.loop.presence()
            self._blamed = True

    def lose_host(self) -> None:
        """Have the workers of a stage gone, which only their host knows."""
        self.blame()
        if self.state in ("loading", "serving"):
            self._world.note("group.loses a host in a step" if self._workers.in_flight else "group.loses a host idle")
            self.state = "dead"
            self._lost_at = self._world.loop.presence()
            self._workers.stand_still()

    def lost_for(self) -> float:
        """The seconds since a host was lost, while the front end was there to see it; 0 where it knows."""
        return max(0.0, self._world.loop.presence() - self._lost_at) if self.state == "dead" else 0.0

    def blame(self) -> None:
        """Note that the workers may be declared broken."""
        self._blamed = True

    def is_over(self, death: Death) -> None:
        """Note that the front end takes the workers to have failed."""
        if not self._blamed:
            self._world.violate(f"workers that do their work were declared broken: {death}")
        self.state = "over"
        self._workers.stand_still(over=True)
        if self.board is not None:
            self.board.close()  # from now on nobody is there to publish for
        self._world.workers_died(death, self._workers.positions_in_flight())

    def frozen_for(self) -> float:
        """The seconds for which the workers have done nothing, not even died, while the front end was there to see it;
        0 or less where they have."""
        return self._world.loop.presence() - self._frozen_at if self.state == "serving" else 0.0

    def _loaded(self, fault: str) -> None:
        if self.state != "loading" or self._ready.done():  # the start was cancelled
            return
        if fault and fault != "dies at its end":
            self.state = "over"
            if not self._scenario.hosts:  # otherwise the front end does not know of it yet
                self._world.workers_failed()
            self._ready.set_exception(GroupFailed(Death("exit", f"loading: {fault}")))
            return
        self.state = "serving"
        for rank in self.pids:
            parts = list(self._scenario.tower_parts)
            self._hooks.described(
                Ready(
                    rank,
                    "simulated",
                    1,
                    1,
                    1,
                    0,
                    terms=_TERMS,
                    tower_terms=_TOWER_TERMS,
                    tower_parts=parts,
                    adapters=[self._workers.load_at_launch(rank, each) for each in self._launched],
                )
            )
        self._world.note("group.serves")
        self._ready.set_result(None)
        if self._scenario.disk_slots:
            self._workers.transfers.measured()
        if fault:  # before whoever waits for it has run
            self._blamed = True
            self._fail(Death("failure", "its first word was its last"))

    def _fail(self, death: Death) -> None:
        if self.state not in ("serving", "dead"):
            return
        self.state = "dead"
        self._workers.stand_still()
        self._on_failure(death)

    def _tell(self, message: FromWorker) -> bool:
        """Deliver a message, as `WorkerGroup` does: a failure also when the group is over. False when it is lost."""
        if self.state == "ended" or (self.state == "over" and not isinstance(message, Failure)):
            return False
        if isinstance(message, RankProfile):
            self._hooks.profiled(message)
        elif isinstance(message, AdapterLoaded):
            self._hooks.adapter_loaded(message)
        elif isinstance(message, StepResult | Failure):
            self._hooks.answered(message)
        elif isinstance(message, FromDisk):
            self._hooks.disk(message)
        return True
