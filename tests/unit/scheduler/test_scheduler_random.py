"""Random operations, with the workers simulated token by token."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numaserve.server.scheduler.client import Client
from numaserve.server.scheduler.errors import SequenceTooLong
from numaserve.server.scheduler.sequence import SchedulerConfig
from numaserve.workers.interface.protocol import StepPlan
from numaserve.workers.interface.windows import Window, WindowTable
from scheduler_simulation import NAN_TOKEN, Request, Service

from tests.support.plan_limits import plan_limits, with_limits
from tests.support.scheduler_integrity import check_integrity

# Few tokens and few beginnings: most prompts share pages with others.
beginnings = st.sampled_from([[0] * 24, [0, 1, 2] * 8, [1] * 24])
prompts = st.builds(
    lambda beginning, length, rest: beginning[:length] + rest,
    beginnings,
    st.integers(0, 16),
    st.lists(st.sampled_from([0, 1, 2, 0, 1, 2, 0, 1, 2, NAN_TOKEN]), min_size=1, max_size=6),
)


def config_of(
    windows: list[Window], spare_pages: int, block_pages: int, *, shorter: int | None, **limits: int
) -> SchedulerConfig:
    """Limits with window tables that have a few more pages than running sequences may need. The least tokens of a step
    are `shorter` than the most by as many, but at least one."""
    least_step_tokens = None if shorter is None else max(1, limits["max_step_tokens"] - shorter)
    config = plan_limits(**limits, block_pages=block_pages, least_step_tokens=least_step_tokens)  # type: ignore[arg-type]
    least = [
        each.least_pages(config.max_running, config.shared_step_tokens, config.max_drafts, config.page_layout)
        for each in windows
    ]
    tables = [WindowTable(window, pages + spare_pages) for window, pages in zip(windows, least, strict=True)]
    return with_limits(config, tables)


configs = st.builds(
    config_of,
    windows=st.lists(st.builds(Window, st.integers(1, 12), st.booleans()), max_size=2),
    spare_pages=st.sampled_from([0, 0, 1, 4]),
    block_pages=st.sampled_from([1, 2, 3]),
    max_drafts=st.sampled_from([1, 4, 16]),
    num_pages=st.integers(2, 16),
    context_length=st.integers(8, 48),
    max_slots=st.integers(1, 5),
    max_step_tokens=st.integers(1, 40),
    shorter=st.none() | st.integers(0, 39),
    max_logit_rows=st.integers(1, 16),
    enable_prefix_cache=st.sampled_from([True, True, True, False]),
    page_size=st.sampled_from([1, 2, 4]),
    worker_drafter=st.sampled_from([None, "draft_model", "mtp"]),
    num_snapshots=st.sampled_from([0, 0, 1, 2, 4, 16]),
    tokens_between_marks=st.sampled_from([4, 8, 4096]),
    # No time at all, a little more than a decode takes, and more than any step.
    target_itl_s=st.sampled_from([1e-9, 0.0015, 0.003, None]),
    feature_tiles=st.sampled_from([0, 0, 1, 2, 5]),
    rows_per_tile=st.integers(1, 6),
)
pictures = st.lists(st.tuples(st.integers(0, 16), st.integers(0, 2)), max_size=4)  # where a tile is, and what it shows
clients = st.builds(
    Client,
    st.sampled_from(["", "", "a", "b", "c"]),
    st.sampled_from([0.5, 1.0, 1.0, 3.0]),
    st.sampled_from(["", "", "team"]),
)


class RandomService(RuleBasedStateMachine):
    """Whatever happens, in whatever order, every request gets its own tokens and ends once."""

    @initialize(config=configs, ahead=st.booleans(), drafts=st.booleans())
    def start(self, config: SchedulerConfig, ahead: bool, drafts: bool) -> None:
        self.service = self.make_service(config, ahead, drafts)
        for name in ("one", "two"):
            self.service.reload(name, "same")

    def make_service(self, config: SchedulerConfig, ahead: bool, drafts: bool) -> Service:
        return Service(config, ahead, drafts=drafts)

    @rule(
        prompt=prompts,
        max_new_tokens=st.integers(0, 24),
        salt=st.sampled_from(["", "", "tenant"]),
        prompt_logprobs=st.sampled_from([False, False, True]),
        penalties=st.booleans(),
        stop_after=st.none() | st.integers(1, 16),
        client=clients,
        priority=st.sampled_from([0, 0, 0, -3, 2, 1000]),
        shown=st.just([]) | pictures,
        adapter=st.sampled_from(["", "", "one", "one", "two"]),
    )
    def add(
        self, prompt: list[int], max_new_tokens: int, shown: list[tuple[int, int]], adapter: str, **options: object
    ) -> None:
        config = self.service.config
        options["adapter"] = self.service.adapters.get(adapter)
        if config.capacity.feature_tiles:
            prompt, options["pictures"] = with_pictures(prompt, shown, config.rows_per_tile)
        fits = len(prompt) + min(1, max_new_tokens) <= config.max_sequence_tokens
        try:
            self.service.add(prompt, max_new_tokens, **options)
        except SequenceTooLong:
            assert not fits
        else:
            assert fits

    @precondition(lambda self: any(not request.ends for request in self.service.requests.values()))
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        live = [request for request in self.service.requests.values() if not request.ends]
        self.service.end(data.draw(st.sampled_from(live)), "abort")

    @rule(name=st.sampled_from(["one", "two"]), digest=st.sampled_from(["same", "same", "other"]))
    def reload_adapter(self, name: str, digest: str) -> None:
        self.service.reload(name, digest)

    @rule()
    def forget_adapters(self) -> None:
        self.service.forget_drained()

    @rule(count=st.integers(1, 10))
    def run_steps(self, count: int) -> None:
        for _ in range(count):
            self.schedule()
            self.receive()

    @rule()
    def schedule(self) -> None:
        if len(self.service.sent) < 1 + self.service.ahead:
            scheduler = self.service.scheduler
            others = [*scheduler.waiting, *scheduler.held]
            eldest = [seq for seq in scheduler.running[:1] if all(seq.turn <= other.turn for other in others)]
            self.service.schedule()
            assert eldest == scheduler.running[:1] or not eldest, "it may never have to give way"
            check_integrity(self.service.scheduler)

    @rule()
    def receive(self) -> None:
        if len(self.service.sent) > self.service.ahead or self.service.nobody_left:
            self.flush_one()

    @precondition(lambda self: self.service.sent)
    @rule()
    def flush_one(self) -> None:
        if self.service.sent:
            self.service.receive()
            check_integrity(self.service.scheduler)

    @precondition(lambda self: self.service.sent and isinstance(self.service.sent[0], StepPlan))
    @rule(really=st.sampled_from([True, False, False]))
    def fail_step(self, really: bool) -> None:
        if really:
            self.service.fail_step()

    @rule(really=st.sampled_from([True, False, False, False]))
    def restart_workers(self, really: bool) -> None:
        if really:
            self.service.restart_workers()

    @rule()
    def flush_cache(self) -> None:
        running = self.service.scheduler.stats().running
        assert self.service.scheduler.flush_cache() == (running == 0)

    @invariant()
    def books_add_up(self) -> None:
        if hasattr(self, "service"):
            check_integrity(self.service.scheduler)

    def teardown(self) -> None:
        if not hasattr(self, "service"):
            return
        self.service.drain()
        for request in self.service.requests.values():
            check_request(request, self.service.config)
        scheduler = self.service.scheduler
        check_integrity(scheduler)
        assert scheduler.stats().pages_active == 0
        assert scheduler.flush_cache()
        assert scheduler.stats().pages_free == self.service.config.capacity.num_pages
        snapshots, windows = scheduler.snapshot_stats(), scheduler.kv.window_stats()
        assert scheduler.schedule() is None  # which forgets the sequences that the last plan has begun
        assert not self.service.store.contents, "tiles are kept"
        assert snapshots is None or snapshots.free == self.service.config.capacity.num_snapshots
        assert windows is None or windows.free == sum(each.num_pages for each in self.service.config.window_tables)


def with_pictures(prompt: list[int], shown: list[tuple[int, int]], rows: int) -> tuple[list[int], dict[int, int]]:
    """A prompt with placeholders for tiles, and what these show, by their first positions."""
    prompt, pictures = list(prompt), {}
    for number, (place, picture) in enumerate(sorted(shown)):
        start = min(place, len(prompt) - number * rows) + number * rows
        prompt[start:start] = [0] * rows
        pictures[start] = picture
    return prompt, pictures


def check_request(request: Request, config: SchedulerConfig) -> None:
    assert len(request.ends) == 1
    assert request.received == request.tokens[len(request.prompt) :][: len(request.received)]
    expected_rows = request.prompt[1:] if request.prompt_logprobs else []
    assert request.rows == expected_rows[: len(request.rows)]
    if NAN_TOKEN in request.prompt:
        assert request.received == []
        assert request.ends != ["length"] or request.max_new_tokens == 0
    else:
        assert request.ends != ["nan"]
    if request.ends == ["length"]:
        longest = min(len(request.prompt) + request.max_new_tokens, config.max_sequence_tokens)
        assert len(request.prompt) + len(request.received) == longest
    if request.ends in (["length"], ["stop"]):
        assert request.rows == expected_rows


TestRandomService = RandomService.TestCase
TestRandomService.settings = settings(max_examples=150, stateful_step_count=40)
