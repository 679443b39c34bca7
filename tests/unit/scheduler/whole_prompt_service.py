"""A scheduler of whole prompts, with workers that check each plan."""

from collections import Counter, deque

from numaserve.server.scheduler.client import EVERYBODY, Client
from numaserve.server.scheduler.request import Pooling
from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.server.scheduler.sequence import SchedulerConfig, Sequence, SequenceState
from numaserve.workers.interface.protocol import SamplingParams, SeqPlan, SeqResult, StepPlan, StepResult

from tests.support.plan_limits import plan_limits
from tests.support.scheduler_integrity import check_integrity
from tests.support.sequences import sequence

EMBEDDING = b"\0\0\x80?"
PAGE = 4


def config(**limits: int) -> SchedulerConfig:
    """Limits with pages for one step of the largest size, and no more."""
    sizes = {"context_length": 48, "max_slots": 6, "max_step_tokens": 16, "page_size": PAGE, **limits}
    tokens = sizes["max_step_tokens"]
    sizes.setdefault("num_pages", max(-(-sizes["context_length"] // PAGE), tokens // PAGE + 6))
    return plan_limits(**sizes, enable_prefix_cache=False, whole_prompts=True)  # type: ignore[arg-type]


class WholePrompts:
    """Runs plans of whole prompts, at most `ahead` + 1 of them in flight."""

    def __init__(self, limits: SchedulerConfig, *, ahead: bool = True) -> None:
        self.config = limits
        self.scheduler = Scheduler(limits)
        self.ahead = ahead
        self.sequences: dict[str, Sequence] = {}
        self.sent: deque[StepPlan | StepResult] = deque()  # plans, or results that mean nothing
        self.planned: list[str] = []  # requests in the order of plans
        self.answered = Counter[str]()  # answers to plans of a request, of sequences that lived
        self.embedded: list[str] = []

    def add(self, name: str, tokens: int, client: Client = EVERYBODY, priority: int = 0) -> Sequence:
        seq = sequence(name, range(tokens), SamplingParams(), 0, pooling=Pooling(), client=client, priority=priority)
        self.scheduler.add(seq)
        self.sequences[name] = seq
        return seq

    def schedule(self) -> list[str]:
        """Make a plan. Return the requests in it."""
        if len(self.sent) > self.ahead:
            return []
        plan = self.scheduler.schedule()
        check_integrity(self.scheduler)
        if plan is None:
            return []
        self.sent.append(plan)
        names = self._check(plan)
        self.planned += names
        return names

    def receive(self, *, nan: bool = False) -> None:
        """Answer the oldest plan. `nan`: the first embedding of the plan is not numbers."""
        sent = self.sent.popleft()
        if isinstance(sent, StepPlan):
            results = [SeqResult(embedding=EMBEDDING, nan=nan and not index) for index in range(len(sent.seqs))]
            sent = StepResult(sent.step_id, 0, results, 0, 0, 0)
        for update in self.scheduler.apply(sent):
            assert update.finished and update.token is None
            self.answered[update.sequence.request_id] += 1
            if not update.nan:
                assert update.embedding == EMBEDDING
                self.embedded.append(update.sequence.request_id)
        check_integrity(self.scheduler)

    def try_fail_step(self) -> bool:
        """Let the oldest plan in flight fail, if there is one that counts."""
        if not self.sent or isinstance(self.sent[0], StepResult):
            return False
        failed, *later = self.sent
        self.sent = deque(StepResult(each.step_id, 0, [], 0, 0, 0) for each in later)
        self.scheduler.fail_step(failed.step_id)
        check_integrity(self.scheduler)
        return True

    def die(self) -> None:
        """Let the workers die with all plans in flight."""
        self.sent.clear()
        self.scheduler.workers_died()
        check_integrity(self.scheduler)

    def drain(self, max_steps: int = 1000) -> None:
        """Run until no sequence lives."""
        for _ in range(max_steps):
            if not self.scheduler.live.by_id and not self.sent:
                return
            if not self.schedule() or len(self.sent) > self.ahead:
                self.receive()
        raise AssertionError("the sequences do not come to an end")

    def live(self) -> list[Sequence]:
        return [seq for seq in self.sequences.values() if seq.state is not SequenceState.FINISHED]

    def _check(self, plan: StepPlan) -> list[str]:
        """Check a plan by what workers may rely on. Return the requests in it."""
        running = {seq.slot: seq for seq in self.scheduler.running}
        seqs = [running[each.slot] for each in plan.seqs]
        assert len(running) <= self.config.max_running
        for each, seq in zip(plan.seqs, seqs, strict=True):
            assert (each.start, each.tokens) == (0, list(range(seq.prompt_len))), "it is not the whole prompt"
            assert each.init is not None and each.pool
            assert not (each.sample or each.from_previous or each.prompt_logprobs)
            assert len(each.pages) == pages_of(each)
        pages = [page for each in plan.seqs for page in each.pages]
        assert len(pages) == len(set(pages)) and set(pages) <= set(range(self.config.capacity.num_pages))
        total = sum(each.num_tokens for each in plan.seqs)
        assert total <= self.config.shared_step_tokens or len(plan.seqs) == 1
        return [seq.request_id for seq in seqs]


def pages_of(plan: SeqPlan) -> int:
    return -(-plan.num_tokens // PAGE)
