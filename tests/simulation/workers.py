"""The workers of a simulated group: they run plans, and answer late, wrongly or not at all, ranks in any order."""

import random
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from itertools import compress
from typing import NamedTuple, Protocol

from numaserve.server.scheduler.matcher import MaskState
from numaserve.server.supervisor.cpu_time import ThreadTime
from numaserve.server.supervisor.judge import RankLook
from numaserve.workers.interface.protocol import (
    TO_BE_DRAFTED,
    AdapterLoaded,
    Failure,
    FromWorker,
    LoadAdapter,
    LoraAdapter,
    ProfileRequest,
    RankProfile,
    SeqPlan,
    SeqResult,
    StepPlan,
    StepResult,
    ToDisk,
)
from numaserve.workers.process.continuations import Continuations

from tests.simulation.board import SimulatedBoard
from tests.simulation.disk import SimulatedDisks, SimulatedTransfers
from tests.simulation.scenario import Scenario
from tests.simulation.truth import FIRST, VOCABULARY, Truth
from tests.simulation.world import World
from tests.support.simulated_memory import SimulatedMemory

_WAY_S = 0.002  # from a worker to the front end, on average


class Die(Protocol):
    def __call__(self, *, quietly: bool) -> None: ...


class _MaskedRow(NamedTuple):
    slot: int
    row: int  # of the board
    behind: int  # draft tokens
    truth: Truth | None  # of the sequence; None where a draft token before it is wrong, and its mask says nothing
    count: int  # of the token of the output that is sampled there


@dataclass(eq=False, slots=True)
class _Step:
    """A plan that was sent."""

    plan: StepPlan
    truths: list[Truth]
    shown: list[Truth]  # the sequences whose tiles the tower reads
    ranks: set[int]  # that have not answered
    fault: str = ""
    lateness: str = ""  # why it takes longer than its deadline, which is no fault
    begun: float = 0.0
    worker_ns: int = 0
    tower_ns: int = 0  # of these
    void: bool = False  # it was sent before the failure of a step before it was told
    failed: bool = False
    lied: bool = False
    waits: bool = False  # for masks
    rows: list[_MaskedRow] = field(default_factory=list)
    wrong_drafts: list[int] = field(default_factory=list)  # of each sequence; empty until it was run
    not_counted: set[int] = field(default_factory=set)  # slots that went on from what stands for a late token


class SimulatedWorkers:
    """Runs plans one after the other: each rank takes part in all of them.

    `tell` delivers a message, `die` ends the group, `blame` says that it may be declared broken. Messages of
    a rank arrive after `held_until`, which its host decides.
    """

    def __init__(
        self,
        world: World,
        scenario: Scenario,
        tell: Callable[[FromWorker], bool],
        die: Die,
        blame: Callable[[], None],
        disks: SimulatedDisks,
        held_until: Callable[[int], float],
    ) -> None:
        self._world = world
        self._scenario = scenario
        self._tell = tell
        self._die = die
        self._blame = blame
        self._held_until = held_until
        self._memory = SimulatedMemory(
            scenario.limits,
            world.truths,
            world.images.contents,
            world.violate,
            vocabulary=VOCABULARY,
            tower_parts=scenario.tower_parts,
        )
        self.transfers = SimulatedTransfers(world, scenario, disks, self._memory, self._send, self.faulty)
        self._continuations = Continuations(reads_drafts=scenario.worker_drafter == "draft_model")
        self._board: SimulatedBoard
        self._slots: dict[int, Truth] = {}  # as the plans that were sent have them
        self._late = random.Random(f"{scenario.late_steps} {world.loop.time()}")  # of its own, as what is drafted
        self._frozen = False
        self._starved_s = 0.0  # in all steps that have been run
        self._queue: deque[_Step] = deque()  # not run to the end; the first is being run
        self._running = False
        self._dead = False
        self._lost: set[int] = set()  # places of adapters that a rank could not load
        self._over = False  # and the front end knows it
        self._told: list[_Step] = []  # steps whose last answer is being told, and is wrong
        self._answered: dict[int, int] = {}  # positions of each sequence, by its seed
        self._arrival = [0.0] * scenario.ranks  # of each rank's last message: they do not overtake each other
        self.in_flight: deque[_Step] = deque()  # that not every rank has answered, or one before them not

    def faulty(self, probability: float) -> bool:
        """Whether something goes wrong now that does so with this probability."""
        return self._world.loop.time() < self._scenario.faults_end and self._world.chance(probability)

    def load_at_launch(self, rank: int, adapter: LoraAdapter) -> AdapterLoaded:
        """Load an adapter on a rank before it is ready."""
        if self.faulty(self._scenario.refused_adapters):
            self._world.note("adapter lost", adapter.number)
            self._world.lost_adapters.add(adapter.digest)
            self._lost.add(adapter.number)
            self._memory.adapters.pop(adapter.number, None)
            return AdapterLoaded(rank, adapter.number, 0, "lost")
        if adapter.number not in self._lost:
            self._memory.adapters[adapter.number] = adapter.digest
        return AdapterLoaded(rank, adapter.number, 4)

    def take(self, message: StepPlan | ProfileRequest | LoadAdapter | ToDisk, board: SimulatedBoard) -> None:
        """Take a message in, and begin with it when there is nothing else to do."""
        self._board = board
        if isinstance(message, LoadAdapter):
            self._load_adapter(message)
            return
        if isinstance(message, ToDisk):
            if not self._dead:
                self.transfers.take(message, self._queue)
            return
        if isinstance(message, ProfileRequest):
            self._world.note("profile")
            for rank in range(self._scenario.ranks):
                self._send(rank, RankProfile(message.request_id, rank, 0, 0, 0, []))
            return
        for seq in message.seqs:
            if seq.init is not None:
                self._slots[seq.slot] = self._world.truths[seq.init.sampling.seed]
        truths = [self._slots[seq.slot] for seq in message.seqs]
        shown = [self._world.truths[self._world.images.owners[work.tile]] for work in message.tower or []]
        step = _Step(message, truths, shown, set(range(self._scenario.ranks)))
        for seq, truth, drafts in zip(message.seqs, step.truths, message.drafts_of_each, strict=True):
            if seq.sample and truth.wanted.masked:
                step.rows += self._masked_rows(seq, truth, drafts)
        self._world.sent(message, step.truths)
        if any(work.begin or work.end for work in message.tower or []):
            self._world.note("tower part", message.step_id, [(work.begin, work.end) for work in message.tower or []])
        self._memory.check(message, [each.plan for each in self.in_flight if not each.void])
        self.in_flight.append(step)
        self._check_in_flight(message)
        if not self._dead:
            self._queue.append(step)
            self._begin()

    def _check_in_flight(self, plan: StepPlan) -> None:
        if len(self.in_flight) > self._scenario.most_in_flight:
            self._world.violate(f"{len(self.in_flight)} plans are in flight")
        if self._scenario.stages == 1:
            return
        if any(seq.from_previous for seq in plan.seqs):
            self._world.violate("a plan has a token that the first stage does not know")
        if len(self.in_flight) == self._scenario.stages and all(each.plan.seqs for each in self.in_flight):
            self._world.note("all stages are busy")

    def _load_adapter(self, message: LoadAdapter) -> None:
        world, number, refusing = self._world, message.adapter.number, -1
        world.note("adapter load", number, message.adapter.digest)
        if any(
            truth.adapter_digest and self._memory.adapters.get(number) == truth.adapter_digest
            for step in self.in_flight
            for truth in step.truths
        ):
            world.violate("an adapter is to be overwritten that a plan in flight uses")
        self._memory.adapters.pop(number, None)
        if self.faulty(self._scenario.refused_adapters):
            refusing = world.rng.randrange(self._scenario.ranks)
            world.note("adapter refused", number)
        elif not self._dead:
            self._memory.adapters[number] = message.adapter.digest
        seconds = world.rng.expovariate(10.0)
        for rank in range(self._scenario.ranks):
            problem = "no" if rank == refusing else ""
            answer = AdapterLoaded(rank, message.request_id, 4, problem)
            self._world.loop.call_outside_at(world.loop.time() + seconds, self._send, rank, answer)

    def stand_still(self, *, over: bool = False) -> None:
        """Be dead: what is sent gets lost, and what was sent arrives until the front end knows it."""
        self._dead = True
        self._over = self._over or over
        self.transfers.stand_still()
        self._queue.clear()

    def freeze(self) -> None:
        """Run nothing more, and answer nothing."""
        self._queue.clear()
        self.transfers.stand_still()
        self._frozen = self._running = True
        self._arrival = [float("inf")] * self._scenario.ranks

    def look(self, ranks: Collection[int]) -> dict[int, RankLook]:
        """The processor times and barriers of ranks: each has one thread, whose id is the rank."""
        if self._dead:
            return {}
        now, step = self._world.loop.time(), self._queue[0] if self._queue else None
        # A look at another host may be older than a step: processor time goes on evenly from one step to the next.
        state, ran, barriers = "S", now - self._starved_s, 0
        if self._frozen:
            state, ran = "T", 0.0
        elif step is not None and step.fault == "hang":
            state = "R"
        elif step is not None and step.lateness == "starved":
            state, ran = "R", step.begun - self._starved_s
        elif step is not None:
            state, barriers = "R", int(now * 10)
        return {rank: RankLook(barriers, threads={rank: ThreadTime(state, ran, 0.0)}) for rank in ranks}

    def positions_in_flight(self) -> dict[int, range]:
        """The positions that were planned and not answered, of each sequence, by its seed."""
        steps = [*self._told, *self.in_flight]
        ends = {truth.wanted.seed: truth.prompt_len for step in steps for truth in step.shown}
        ends |= {
            truth.wanted.seed: seq.start + seq.num_tokens - drafts
            for step in steps
            for seq, truth, drafts in zip(step.plan.seqs, step.truths, step.plan.drafts_of_each, strict=True)
        }
        return {seed: range(self._answered.get(seed, 0), end) for seed, end in ends.items()}

    def on_mask(self) -> None:
        """A mask was published."""
        if self._queue and self._queue[0].waits:
            self._sample(self._queue[0])

    def _begin(self) -> None:
        if self._running or not self._queue:
            return
        self._running = True
        step, world = self._queue[0], self._world
        faults = self._scenario.step_faults
        step.fault = next((kind for kind, probability in faults.items() if self.faulty(probability)), "")
        if any(truth.wanted.poison for truth in [*step.truths, *step.shown]):
            step.fault = "die"
        if step.fault:
            world.note(f"fault.{step.fault}", step.plan.step_id)
        deadline = self._scenario.step_deadline_s
        work = self._scenario.token_s * sum(seq.num_tokens for seq in step.plan.seqs)
        runs_s = min(self._scenario.run_s * self._memory.run_share(step.plan), deadline / 4)
        seconds = min(world.rng.expovariate(1 / self._scenario.step_s) + work, deadline / 2 - runs_s) + runs_s
        if step.fault == "slow":
            seconds = deadline * world.rng.uniform(0.3, 0.6)
        elif not step.fault and self._late.random() < self._scenario.late_steps:
            step.lateness = self._late.choice(("starved", "crawls"))
            world.note(f"step.{step.lateness}", step.plan.step_id)
            seconds = deadline * self._late.uniform(1.5, 4.0)
        step.begun = world.loop.time()
        step.worker_ns, step.tower_ns = round(seconds * 1e9), round(runs_s * 1e9)
        if step.fault == "hang":
            self._blame()
        else:
            world.loop.call_outside_at(world.loop.time() + seconds, self._sample, step)

    def _sample(self, step: _Step, late: bool = False) -> None:
        """Run a step to its end, when all its masks are there or it is too late for them."""
        if not self._queue or self._queue[0] is not step:
            return
        if step.fault.startswith("die"):
            if step.fault == "die_talking":
                self._send(0, Failure(0, step.plan.step_id, "the last words"))
            self._die(quietly=step.fault == "die_quietly")
            return
        missing = any((step.plan.step_id, each.row) not in self._board.rows for each in step.rows)
        if missing and not late and step.fault != "fail":
            if not step.waits:
                step.waits = True
                self._world.note("masks awaited", step.plan.step_id)
                loop = self._world.loop
                loop.call_outside_at(loop.time() + self._scenario.mask_grace_s, self._sample, step, True)
            return
        self._run(step)
        self._queue.popleft()
        if step.lateness == "starved":
            self._starved_s += self._world.loop.time() - step.begun
        self.transfers.ran(step)
        self._running = False
        self._begin()

    def _run(self, step: _Step) -> None:
        plan, world = step.plan, self._world
        step.failed = step.fault == "fail"
        doubtful = step.void or any(before.failed for before in self.in_flight if before is not step)
        seqs: list[SeqResult] = []
        if not step.failed:
            # Rows that are not sampled, by slot the first one.
            dropped: dict[int, int] = {}
            late = {each.slot for each in step.rows if not each.behind and not self._is_said(step, each)}
            for each in step.rows:
                if self._is_dropped(step, each, doubtful):
                    dropped[each.slot] = min(each.behind, dropped.get(each.slot, each.behind))
        if doubtful or step.failed:
            self._memory.open(plan)
            self._memory.spoil(plan)
        else:
            seqs = self._compute(step, dropped, late)
        if step.failed and not step.void:
            for truth in [*step.truths, *step.shown]:
                world.excused[truth.wanted.seed] = "its step failed"
        if step.fault in ("mismatch", "misshapen") and not doubtful:
            self._blame()
            step.lied = True
            seqs = _lie(step.fault, seqs)
        failing = world.rng.randrange(self._scenario.ranks) if step.failed else -1
        mute = world.rng.randrange(self._scenario.ranks) if step.fault == "mute" else -1
        for rank in range(self._scenario.ranks):
            own = seqs if rank == 0 else []
            answer = StepResult(plan.step_id, rank, own, 0, 0, step.worker_ns, tower_ns=step.tower_ns)
            if rank == mute:
                self._blame()
                self._arrival[rank] = float("inf")
                world.late_matchers = True  # for want of the tokens that it does not tell
            if step.fault == "unasked":
                self._send(rank, StepResult(plan.step_id + world.rng.choice((-1, 1000)), rank, seqs, 0, 0, 0))
            self._send(rank, Failure(rank, plan.step_id, "on purpose") if rank == failing else answer)
            if step.fault == "twice":
                self._send(rank, answer)

    def _compute(self, step: _Step, dropped: dict[int, int], late: set[int]) -> list[SeqResult]:
        """Run a step without faults, all before it having been run: what they have drafted rightly is known."""
        plan = step.plan
        if any(seq.from_previous and seq.tokens for seq in plan.seqs):
            self._world.note("plan behind draft tokens", plan.step_id)
        self._memory.open(plan)
        plan = self._continuations.completed(plan)
        for _ in range(sum(TO_BE_DRAFTED in seq.tokens for seq in plan.seqs)):
            self._world.note("draft token of the draft model", plan.step_id)
        right = self._scenario.right_drafts or 0.5
        plan = step.plan = self._memory.drafted(plan, lambda _: self._world.chance(right), FIRST)
        step.not_counted = {seq.slot for seq in plan.seqs if self._memory.goes_on_from_a_stand_in(seq)}
        seqs = self._memory.run(plan, dropped, late)
        self._continuations.ran(plan, (each.tokens for each in seqs))
        counts = zip(plan.drafts_of_each, seqs, strict=True)
        step.wrong_drafts = [drafts - len(result.following) for drafts, result in counts]
        return seqs

    def _masked_rows(self, seq: SeqPlan, truth: Truth, drafts: int) -> Iterator[_MaskedRow]:
        known = seq.start + seq.num_tokens - drafts
        for behind in range(drafts + 1):
            right = seq.tokens[len(seq.tokens) - drafts :][:behind] == truth.tokens[known : known + behind]
            row = seq.slot + behind * self._scenario.running
            yield _MaskedRow(seq.slot, row, behind, truth if right else None, known + behind - truth.prompt_len)

    def _is_said(self, step: _Step, row: _MaskedRow) -> bool:
        return (step.plan.step_id, row.row) in self._board.rows

    def _is_dropped(self, step: _Step, row: _MaskedRow, doubtful: bool) -> bool:
        """Whether the row has no mask that allows a token."""
        state, bits = self._board.rows.pop((step.plan.step_id, row.row), (None, 0))
        if state is None:
            if row.truth is not None and not row.behind:
                self._world.expired(row.truth.wanted.seed, step.plan.step_id)
            return True
        if state is not MaskState.DROP and not doubtful and row.truth is not None:
            wanted = row.truth.masks[row.count]
            if row.behind:
                self._world.note("mask behind a draft token", step.plan.step_id)
            if (state, bits if state is MaskState.MASK else wanted[1]) != wanted:
                self._world.violate(f"the mask of a row in step {step.plan.step_id} is that of another position")
        return state is MaskState.DROP or (state is MaskState.MASK and not bits)

    def _send(self, rank: int, message: FromWorker) -> None:
        """Have a message of a rank arrive, after those that it sent before."""
        now, way = self._world.loop.time(), self._world.rng.expovariate(1 / _WAY_S)
        # Two timers of the same time would fire in any order.
        self._arrival[rank] = arrival = max(self._arrival[rank] + 1e-6, now + way, self._held_until(rank))
        if arrival < float("inf"):
            self._world.loop.call_arriving_at(arrival, self._arrive, rank, message)

    def _arrive(self, rank: int, message: FromWorker) -> None:
        if isinstance(message, StepResult | Failure):
            self._world.note("answer", message.step_id, rank, isinstance(message, Failure))
            if not self._over:
                self._count(message.step_id, rank)
        self._tell(message)
        self._told.clear()

    def _count(self, step_id: int, rank: int) -> None:
        """Do as the step loop will, which is told next: take the steps that all have answered, in their order."""
        step = next((each for each in self.in_flight if each.plan.step_id == step_id), None)
        if step is not None:
            step.ranks.discard(rank)
        while self.in_flight and not self.in_flight[0].ranks:
            first = self.in_flight.popleft()
            if first.lied:
                self._told.append(first)
                continue
            self._world.step_answered()
            counted = [seq.slot not in first.not_counted for seq in first.plan.seqs]
            for seq, truth in compress(zip(first.plan.seqs, first.truths, strict=True), counted):
                self._answered[truth.wanted.seed] = seq.start + seq.num_tokens
            for truth, wrong in compress(zip(first.truths, first.wrong_drafts, strict=False), counted):
                self._answered[truth.wanted.seed] -= wrong
            if first.failed:
                self._answered.clear()
                for later in self.in_flight:
                    later.void = True


def _lie(fault: str, seqs: list[SeqResult]) -> list[SeqResult]:
    """Results that are not the plan's."""
    if fault == "mismatch" or not seqs:
        return [*seqs, SeqResult(1)]
    first = seqs[0]
    return [SeqResult(-1 if first.token >= 0 else 1, prompt_logprobs=first.prompt_logprobs), *seqs[1:]]
