"""A worker group made of dictionaries: it remembers what was written to each page, and trusts nothing it is told."""

from collections import deque
from collections.abc import Hashable, Mapping
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import NoReturn

from msgspec import UNSET
from msgspec.structs import replace
from numaserve.server.scheduler.adapter import Adapter
from numaserve.server.scheduler.cache.kv_events import KVEventLog
from numaserve.server.scheduler.cache.scope import CacheScope
from numaserve.server.scheduler.client import EVERYBODY, Client
from numaserve.server.scheduler.images import PlacedTile
from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.server.scheduler.sequence import SchedulerConfig, Sequence, SequenceUpdate
from numaserve.server.speculation.drafter import Drafters
from numaserve.workers.interface.drafters import MAX_DRAFTS
from numaserve.workers.interface.protocol import (
    KEPT_HIDDEN_STATES,
    TO_BE_DRAFTED,
    OperationTerms,
    SampledToken,
    SamplingParams,
    SeqPlan,
    SeqResult,
    StepPlan,
    StepResult,
    TokenLogprobs,
)
from numaserve.workers.process.continuations import Continuations

from tests.support.drafters import Each, NoDrafters
from tests.support.sequences import sequence
from tests.support.simulated_features import SimulatedFeatures, SimulatedImageStore
from tests.support.simulated_states import SimulatedStates
from tests.support.simulated_windows import SimulatedWindows

VOCABULARY = 3
# What the simulated workers tell of themselves, and nanoseconds of a step, of a token and of a pair in it.
OPERATIONS = [OperationTerms("linear", row_flops=2e7), OperationTerms("attention", pair_flops=200_000)]
STEP_NS, TOKEN_NS, PAIR_NS = 1_000_000, 100_000, 5_000
DRAFT_OPERATIONS, DRAFT_PASS_NS = [OperationTerms("linear", row_flops=1e6)], 50_000
TOWER_OPERATIONS, RUN_NS = [OperationTerms("patches", row_flops=1e6)], 700_000
NAN_TOKEN = 3  # never sampled; logits from its position on are not numbers


@dataclass
class Request:
    """What the truth about a sequence is; found by its seed, which a plan names in `SlotInit`."""

    seed: int
    prompt: list[int]
    max_new_tokens: int
    salt: str = ""
    prompt_logprobs: bool = False
    penalties: bool = False
    stop_after: int | None = None  # the caller finds a stop token after so many
    client: Client = EVERYBODY
    priority: int = 0
    drafters: frozenset[str] | None = None
    pictures: Mapping[int, int] = field(default_factory=dict)  # of tiles, by their first positions
    rows_per_tile: int = 0
    adapter: Adapter | None = None

    received: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.truth = list(self.prompt)  # prompt, every token that may be sampled, and one more
        self.digests: list[int] = []
        self.tiles: dict[int, Hashable] = {
            start: (self.scope.without_adapter, picture) for start, picture in self.pictures.items()
        }
        of_tiles = [(start, row) for start in self.pictures for row in range(self.rows_per_tile)]
        rows = {start + row: (self.pictures[start], row) for start, row in of_tiles}
        load_id = 0 if self.adapter is None else self.adapter.load_id
        # Not of the string: that differs from process to process.
        digest = hash((load_id, *self.scope.digest.encode()))
        for position in range(len(self.prompt) + self.max_new_tokens):
            digest = hash((digest, rows.get(position, self.truth[position])))
            self.digests.append(digest)
            if position >= len(self.prompt) - 1:
                self.truth.append(hash((digest, self.seed)) % VOCABULARY)

    @property
    def scope(self) -> CacheScope:
        return CacheScope(self.client.cache_group, self.salt, self.adapter)

    def is_nan(self, position: int) -> bool:
        """Whether the logits of `position` are not numbers."""
        return NAN_TOKEN in self.prompt[: position + 1]

    def placed(self, store: SimulatedImageStore) -> tuple[PlacedTile, ...]:
        """New tiles of the prompt, which nobody else holds."""
        digests = {start: bytes([picture]) * 32 for start, picture in self.pictures.items()}
        tiles = {start: store.write(self.tiles[start], digest, self.seed) for start, digest in digests.items()}
        return tuple(PlacedTile(start, tile) for start, tile in tiles.items())

    def sequence(self, images: tuple[PlacedTile, ...] = ()) -> Sequence:
        sampling = SamplingParams(seed=self.seed, repetition_penalty=1.5 if self.penalties else 1.0)
        return sequence(
            str(self.seed),
            self.prompt,
            sampling,
            self.max_new_tokens,
            prompt_logprobs=self.prompt_logprobs,
            cache_salt=self.salt,
            client=self.client,
            priority=self.priority,
            drafters=self.drafters,
            images=images,
            adapter=self.adapter,
        )


@dataclass
class Slot:
    request: Request
    pages: list[int]
    last_sample: int | None
    output_history: list[int]


class SimulatedWorkers:
    """Runs plans in order and checks that each position reads exactly the KV of the tokens before it.

    Within a plan, sequences may run in any order: all read before any writes.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        requests: dict[int, Request],
        store: SimulatedImageStore,
        tower_parts: ListOf[float] = (1.0,),
    ) -> None:
        self.config = config
        self.requests = requests
        self.memory: dict[tuple[int, int], int] = {}
        self.draft_memory: dict[tuple[int, int], int] = {}  # the draft model's
        self.slots: dict[int, Slot] = {}
        self.continuations = Continuations(reads_drafts=config.worker_drafter == "draft_model")
        self.states = SimulatedStates(config.capacity.num_snapshots, fail) if config.capacity.num_snapshots else None
        self.windows = SimulatedWindows(config.window_tables, config.page_layout, fail) if config.windows else None
        places = config.capacity.feature_tiles
        self.features = SimulatedFeatures(places, config.rows_per_tile, store.contents, fail, tower_parts)

    def run(self, plan: StepPlan) -> StepResult:
        self.check_limits(plan)
        self.open_windows(plan)
        plan = self.continuations.completed(plan)
        writes: dict[tuple[int, int], int] = {}
        drafts = drafts_of(plan)
        slots = [self.open_slot(seq) for seq in plan.seqs]
        plan = self.drafted(plan, slots)
        each = zip(plan.seqs, slots, drafts, strict=True)
        results = [self.run_one(seq, slot, count, writes) for seq, slot, count in each]
        self.memory.update(writes)
        if self.states is None:
            assert plan.states is UNSET
        else:
            self.states.run(plan, [slot.request.digests for slot in slots])
        if self.windows is not None:
            self.windows.run(plan, [slot.request.digests for slot in slots])
        self.features.run(plan, [slot.request.tiles for slot in slots])
        for slot, result in zip(slots, results, strict=True):
            if result.nan:
                self.features.doubt(slot.request.tiles)
        self.continuations.ran(plan, (each.tokens for each in results))
        draft_ns = 0 if plan.draft_work is UNSET else DRAFT_PASS_NS * (1 + max(drafts))
        tower_ns = round(RUN_NS * self.features.share(plan))
        worker_ns = step_ns(plan) + draft_ns + tower_ns
        return StepResult(plan.step_id, 0, results, 0, 0, worker_ns, draft_ns=draft_ns, tower_ns=tower_ns)

    def drafted(self, plan: StepPlan, slots: list[Slot]) -> StepPlan:
        """The plan with draft tokens, of which some are wrong. What the draft model sees it has read itself."""
        assert plan.draft_work is UNSET or plan.draft_work
        seqs = list(plan.seqs)
        for work in plan.draft_work or []:
            index, lacking = work.index, work.lacking
            seq, slot = plan.seqs[index], slots[index]
            truth, digests = slot.request.truth, slot.request.digests
            start, known = seq.start - len(lacking), seq.start + len(seq.tokens) - plan.drafts_of_each[index]
            assert lacking == truth[start : seq.start]
            if self.config.worker_drafter == "mtp":  # hidden states of tokens before are known as far as these go
                assert len(lacking) + MAX_DRAFTS < KEPT_HIDDEN_STATES
            for position in range(start):
                assert self.draft_memory[self.cell(slot, position)] == digests[position], "the draft model skipped some"
            for position in range(start, max(known, seq.start)):
                self.draft_memory[self.cell(slot, position)] = digests[position]
            if TO_BE_DRAFTED not in seq.tokens:
                continue
            drafts = [truth[at] if hash((known, at)) % 3 else 0 for at in range(known, seq.start + len(seq.tokens))]
            for position, right in enumerate(accumulate(map(int.__eq__, drafts[:-1], truth[known:]), min), known):
                # What a layer that predicts has read of its own draft tokens, it has read with what it made itself.
                read = right and self.config.worker_drafter == "draft_model"
                self.draft_memory[self.cell(slot, position)] = digests[position] if read else -1
            seqs[index] = replace(seq, tokens=seq.tokens[: known - seq.start] + drafts)
        return replace(plan, seqs=seqs)

    def check_limits(self, plan: StepPlan) -> None:
        tokens = sum(seq.num_tokens for seq in plan.seqs)
        rows = sum(seq.sample + len(seq.prompt_logprobs) for seq in plan.seqs) + sum(drafts_of(plan))
        assert tokens > 0 or plan.tower
        assert tokens <= self.config.shared_step_tokens
        assert rows <= self.config.capacity.max_logit_rows
        assert len({seq.slot for seq in plan.seqs}) == len(plan.seqs) <= self.config.capacity.max_slots
        assert all(0 <= seq.slot < self.config.capacity.max_slots for seq in plan.seqs)

    def run_one(self, plan: SeqPlan, slot: Slot, drafts: int, writes: dict[tuple[int, int], int]) -> SeqResult:
        request = slot.request
        assert plan.from_previous != bool(plan.tokens)
        tokens = [slot.last_sample] if plan.from_previous else plan.tokens
        known = plan.start + len(tokens) - drafts
        right = right_drafts(tokens[len(tokens) - drafts :], request.truth[known:])
        end = known + right
        assert tokens[: end - plan.start] == request.truth[plan.start : end]
        assert known + drafts < len(request.truth), "drafts beyond the last token that may be sampled"
        for position in range(plan.start):
            assert self.memory[self.cell(slot, position)] == request.digests[position], "stale or foreign KV was read"
        for position in range(plan.start, end):
            cell = self.cell(slot, position)
            assert cell not in writes, "two sequences write the same position"
            writes[cell] = request.digests[position]
        for position in range(end, known + drafts):
            writes[self.cell(slot, position)] = -1
        assert plan.prompt_logprobs == request.truth[plan.start + 1 : plan.start + 1 + len(plan.prompt_logprobs)]
        sampled = request.truth[known : end + 1] if plan.sample else []
        if plan.sample:
            assert slot.output_history == (request.truth[len(request.prompt) : known] if request.penalties else [])
            slot.last_sample = sampled[-1]
            slot.output_history += sampled * request.penalties
        rows = [TokenLogprobs(row, -1.0) for row in plan.prompt_logprobs]
        last = end - 1 if plan.sample else plan.start + len(rows) - 1
        nan = (plan.sample or bool(rows)) and request.is_nan(last)
        token, *others = sampled or [-1]
        return SeqResult(token, prompt_logprobs=rows, nan=nan, following=[SampledToken(each) for each in others])

    def write_garbage(self, plan: StepPlan) -> None:
        if self.states is not None:
            self.states.spoil(plan)
        self.open_windows(plan)
        if self.windows is not None:
            self.windows.spoil(plan)
        self.features.spoil(plan)
        for seq in plan.seqs:
            slot = self.open_slot(seq)
            for position in range(seq.start, seq.start + seq.num_tokens):
                self.memory[self.cell(slot, position)] = self.draft_memory[self.cell(slot, position)] = -1

    def open_windows(self, plan: StepPlan) -> None:
        if self.windows is None:
            assert plan.windows is UNSET
        else:
            self.windows.open(plan)

    def open_slot(self, plan: SeqPlan) -> Slot:
        if plan.init is not None:
            request = self.requests[plan.init.sampling.seed]
            assert plan.init.adapter == (0 if request.adapter is None else request.adapter.number)
            assert plan.init.prompt_history == (request.prompt if request.penalties else [])
            self.slots[plan.slot] = Slot(request, [], None, list(plan.init.output_history))
        slot = self.slots[plan.slot]
        slot.pages += plan.pages
        return slot

    def cell(self, slot: Slot, position: int) -> tuple[int, int]:
        return slot.pages[position // self.config.page_size], position % self.config.page_size


def fail(message: str) -> NoReturn:
    raise AssertionError(message)


def drafts_of(plan: StepPlan) -> list[int]:
    """How many drafts each sequence has. A plan says so only where there are some."""
    assert plan.drafts is UNSET or any(plan.drafts)
    return plan.drafts_of_each


def right_drafts(drafts: list[int], truth: list[int]) -> int:
    """How many drafts are right, up to the first that is not."""
    return next((i for i, (draft, true) in enumerate(zip(drafts, truth, strict=False)) if draft != true), len(drafts))


class HalfRight:
    """Drafts what a request will really say, but for some tokens."""

    def __init__(self, requests: dict[int, Request], _salt: str) -> None:
        self.requests = requests

    def draft(self, tokens: list[int], most: int) -> list[int]:
        truths = [each.truth for each in self.requests.values() if each.truth[: len(tokens)] == tokens]
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
        self.workers = SimulatedWorkers(config, self.requests, self.store, tower_parts)
        self.sent: deque[StepPlan | StepResult] = deque()  # plans, or results that are there already
        self.adapters: dict[str, Adapter] = {}
        self.draining: list[Adapter] = []  # withdrawn, with requests left
        self.loads = 0

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
            self.workers.features.sent(plan, (each for each in self.sent if isinstance(each, StepPlan)))
            self.sent.append(plan)
        return plan

    def receive(self) -> list[SequenceUpdate]:
        sent = self.sent.popleft()
        updates = self.scheduler.apply(self.workers.run(sent) if isinstance(sent, StepPlan) else sent)
        for update in updates:
            if "stop" in self.requests[int(update.sequence.request_id)].ends:
                continue  # tokens behind the stop
            self.take_in(self.requests[int(update.sequence.request_id)], update)
        return updates

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
        if self.scheduler.finish(str(request.seed)):
            request.ends.append(reason)

    def fail_step(self) -> None:
        """The oldest plan fails half-way, and so does the one behind it: what they should have written is garbage."""
        plans = [plan for plan in self.sent if isinstance(plan, StepPlan)]
        for plan in plans:
            self.workers.write_garbage(plan)
        failed, *later = plans
        self.sent = deque(StepResult(plan.step_id, 0, [], 0, 0, 0) for plan in later)
        for ended in self.scheduler.fail_step(failed.step_id):
            self.requests[int(ended.request_id)].ends.append("error")

    def restart_workers(self) -> None:
        self.sent.clear()
        self.workers = SimulatedWorkers(self.config, self.requests, self.store, self.tower_parts)
        convicted = self.scheduler.workers_died().convicted
        if convicted is not None:
            self.requests[int(convicted.request_id)].ends.append("convicted")

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
