"""A scheduler over simulated workers, and its requests."""

from collections import deque
from collections.abc import Sequence as ListOf
from functools import partial
from typing import NoReturn

from msgspec import UNSET
from numaserve.server.scheduler.adapter import Adapter
from numaserve.server.scheduler.cache.kv_events import KVEventLog
from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.server.scheduler.sequence import SchedulerConfig, Sequence, SequenceUpdate
from numaserve.server.speculation.drafter import Drafters
from numaserve.workers.interface.protocol import OperationTerms, StepPlan, StepResult
from numaserve.workers.process.continuations import Continuations
from simulated_requests import NAN_TOKEN, VOCABULARY, Request

from tests.support.drafters import Each, NoDrafters
from tests.support.plan_limits import plan_limits
from tests.support.simulated_features import SimulatedImageStore
from tests.support.simulated_memory import SimulatedMemory

# What the simulated workers tell of themselves, and nanoseconds of a step, of a token and of a pair in it.
OPERATIONS = [OperationTerms("linear", row_flops=2e7), OperationTerms("attention", pair_flops=200_000)]
STEP_NS, TOKEN_NS, PAIR_NS = 1_000_000, 100_000, 5_000
DRAFT_OPERATIONS, DRAFT_PASS_NS = [OperationTerms("linear", row_flops=1e6)], 50_000
TOWER_OPERATIONS, RUN_NS = [OperationTerms("patches", row_flops=1e6)], 700_000


class SimulatedWorkers:
    """Runs plans in order, over a memory that checks each of them."""

    def __init__(
        self,
        config: SchedulerConfig,
        requests: dict[int, Request],
        store: SimulatedImageStore,
        adapters: dict[int, str],
        tower_parts: ListOf[float],
    ) -> None:
        self.memory = SimulatedMemory(
            config, requests, store.contents, fail, vocabulary=VOCABULARY, tower_parts=tower_parts
        )
        self.memory.adapters = adapters
        self.continuations = Continuations(reads_drafts=config.worker_drafter == "draft_model")

    def run(self, plan: StepPlan) -> StepResult:
        self.memory.open(plan)
        plan = self.memory.drafted(self.continuations.completed(plan), lambda position: bool(hash(position) % 3), 0)
        results = self.memory.run(plan)
        self.continuations.ran(plan, (each.tokens for each in results))
        draft_ns = 0 if plan.draft_work is UNSET else DRAFT_PASS_NS * (1 + max(plan.drafts_of_each))
        tower_ns = round(RUN_NS * self.memory.run_share(plan))
        worker_ns = step_ns(plan) + draft_ns + tower_ns
        return StepResult(plan.step_id, 0, results, 0, 0, worker_ns, draft_ns=draft_ns, tower_ns=tower_ns)

    def write_garbage(self, plan: StepPlan) -> None:
        self.memory.open(plan)
        self.memory.spoil(plan)


def fail(message: str) -> NoReturn:
    raise AssertionError(message)


class HalfRight:
    """Drafts what a request will really say, but for some tokens."""

    def __init__(self, requests: dict[int, Request], _salt: str) -> None:
        self.requests = requests

    def draft(self, tokens: list[int], most: int) -> list[int]:
        truths = [each.tokens for each in self.requests.values() if each.tokens[: len(tokens)] == tokens]
        if not truths or len(tokens) % 3 == 0:
            return []
        drafts = truths[0][len(tokens) : len(tokens) + most]
        return [each if hash((each, index, *tokens)) % 4 else 0 for index, each in enumerate(drafts)]


def step_ns(plan: StepPlan) -> int:
    """The time that the simulated workers take."""
    counts = [(seq.start, seq.num_tokens) for seq in plan.seqs]
    tokens = sum(count for _, count in counts)
    pairs = sum(start * count + count * (count + 1) // 2 for start, count in counts)
    return STEP_NS + TOKEN_NS * tokens + PAIR_NS * pairs


class Service:
    """A scheduler with its workers, and the part of the engine that finds stop tokens."""

    def __init__(
        self,
        config: SchedulerConfig,
        ahead: bool = False,
        log: KVEventLog | None = None,
        *,
        drafts: bool = False,
        tower_parts: ListOf[float] = (1.0,),
    ) -> None:
        self.config = config
        self.ahead = ahead  # whether a plan leaves before the result of the one before it is in
        self.requests: dict[int, Request] = {}
        self.scheduler = Scheduler(config, log, self.drafters(drafts))
        self.scheduler.step_costs.describe([OPERATIONS], [DRAFT_OPERATIONS], [TOWER_OPERATIONS], [tower_parts])
        self.store = SimulatedImageStore()
        self.tower_parts = tower_parts
        self.loaded: dict[int, str] = {}  # digests of adapters, by their places
        self.workers = self.make_workers()
        self.sent: deque[StepPlan | StepResult] = deque()  # plans, or results that are there already
        self.adapters: dict[str, Adapter] = {}
        self.draining: list[Adapter] = []  # withdrawn, with requests left
        self.loads = 0

    def make_workers(self) -> SimulatedWorkers:
        return SimulatedWorkers(self.config, self.requests, self.store, self.loaded, self.tower_parts)

    def drafters(self, drafts: bool) -> Drafters | None:
        """The drafters of the front end; none of them if only the workers' draft model drafts."""
        if drafts:
            return Each(partial(HalfRight, self.requests))
        return NoDrafters() if self.config.worker_drafter else None

    def add(self, prompt: list[int], max_new_tokens: int, **options: object) -> Request:
        rows = self.config.rows_per_tile
        request = Request(len(self.requests), prompt, max_new_tokens, rows_per_tile=rows, **options)  # type: ignore[arg-type]
        self.scheduler.add(request.sequence(request.placed(self.store)))
        self.requests[request.seed] = request
        return request

    def reload(self, name: str, digest: str) -> Adapter:
        """Serve other files, or the same, under the name of an adapter. Requests of the earlier load go on."""
        if name in self.adapters:
            self.draining.append(self.adapters[name])
            self.scheduler.kv.withdraw(self.adapters[name])
        self.loads += 1
        self.loaded[self.loads] = str(self.loads)
        self.adapters[name] = Adapter(name, "", self.loads, self.loads, digest, 8, 8.0, 4)
        return self.adapters[name]

    def forget_drained(self) -> None:
        """Forget the withdrawn adapters that no request uses."""
        used = {each.request.adapter for each in self.scheduler.live.by_id.values()}
        for adapter in [each for each in self.draining if each not in used]:
            self.draining.remove(adapter)
            self.scheduler.kv.forget_adapter(adapter)

    def schedule(self) -> StepPlan | None:
        plan = self.scheduler.schedule()
        if plan is not None:
            assert plan.seqs or plan.tower
            self.workers.memory.check(plan, [each for each in self.sent if isinstance(each, StepPlan)])
            self.sent.append(plan)
        return plan

    def receive(self) -> list[SequenceUpdate]:
        sent = self.sent.popleft()
        updates = self.scheduler.apply(self.workers.run(sent) if isinstance(sent, StepPlan) else sent)
        for update in updates:
            request = self.request_of(update.sequence)
            if "stop" not in request.ends:  # tokens after the stop do not count
                self.take_in(request, update)
        return updates

    def request_of(self, seq: Sequence) -> Request:
        return self.requests[seq.request.sampling.seed]

    def take_in(self, request: Request, update: SequenceUpdate) -> None:
        if update.nan:
            assert update.token is None and update.finished and not update.prompt_logprobs
            request.ends.append("nan")
            self.check_nothing_is_left_of(update.sequence)
            return
        request.rows += [row.token for row in update.prompt_logprobs]
        if update.token is not None:
            request.received.append(update.token)
        if update.finished:
            request.ends.append("length")
        elif len(request.received) == request.stop_after:
            self.end(request, "stop")

    def check_nothing_is_left_of(self, seq: Sequence) -> None:
        """No state that NaN may have reached outlives the sequence that has found it."""
        kv, size = self.scheduler.kv, self.config.page_size
        found = kv.tree.match_prefix(seq.request.scope, seq.keys, len(seq.keys) // size)
        reachable = found if kv.anchors is None else kv.anchors.deepest(found)
        assert NAN_TOKEN not in seq.tokens[: reachable.depth * size]
        scope = seq.request.scope.without_adapter
        assert not any((scope, each.tile.digest) in self.scheduler.features for each in seq.request.images)

    def end(self, request: Request, reason: str) -> None:
        if self.scheduler.finish(request.name or str(request.seed)):
            request.ends.append(reason)

    def fail_step(self) -> None:
        """The oldest plan fails half-way, and so does the one behind it: what they should have written is garbage."""
        plans = [plan for plan in self.sent if isinstance(plan, StepPlan)]
        for plan in plans:
            self.workers.write_garbage(plan)
        failed, *later = plans
        self.sent = deque(StepResult(plan.step_id, 0, [], 0, 0, 0) for plan in later)
        for ended in self.scheduler.fail_step(failed.step_id):
            self.request_of(ended).ends.append("error")

    def restart_workers(self) -> None:
        self.sent.clear()
        self.workers = self.make_workers()
        convicted = self.scheduler.workers_died().convicted
        if convicted is not None:
            self.request_of(convicted).ends.append("convicted")

    @property
    def nobody_left(self) -> bool:
        waiting = self.scheduler.waiting
        awaiting = any(seq.awaits_prefix for seq in waiting.aside)
        return not (self.scheduler.running or waiting or awaiting or self.scheduler.held)

    def drain(self, max_steps: int = 5000) -> None:
        """Run until nobody is left; a scheduler that stands still fails here."""
        for _ in range(max_steps):
            if self.nobody_left and not self.sent:
                return
            plan = self.schedule()
            assert plan is not None or self.sent, "nothing runs, nothing is awaited, and sequences are left"
            if self.sent and (plan is None or not self.ahead or len(self.sent) == 2):
                self.receive()
        raise AssertionError("the sequences do not come to an end")


def small_service(ahead: bool = False, *, drafts: bool = False, **limits: int | float | None) -> Service:
    """A service of four sequences with pages of four tokens, unless `limits` have others."""
    sizes = {"num_pages": 64, "context_length": 100, "max_slots": 4, "max_step_tokens": 64, "page_size": 4}
    return Service(plan_limits(**{**sizes, **limits}), ahead, drafts=drafts)  # type: ignore[arg-type]
