"""A service of whole prompts."""

from collections import Counter

from numaserve.server.scheduler.sequence import SchedulerConfig, Sequence, SequenceUpdate
from numaserve.workers.interface.protocol import StepPlan
from scheduler_simulation import Service
from simulated_requests import EMBEDDING, NAN_TOKEN, VOCABULARY, Request

from tests.support.plan_limits import plan_limits
from tests.support.scheduler_integrity import check_integrity

PAGE = 4


def config(**limits: int) -> SchedulerConfig:
    """Limits with pages for one step of the largest size, and no more."""
    sizes = {"context_length": 48, "max_slots": 6, "max_step_tokens": 16, "page_size": PAGE, **limits}
    tokens = sizes["max_step_tokens"]
    sizes.setdefault("num_pages", max(-(-sizes["context_length"] // PAGE), tokens // PAGE + 6))
    return plan_limits(**sizes, enable_prefix_cache=False, whole_prompts=True)  # type: ignore[arg-type]


class WholePrompts(Service):
    """Runs plans of whole prompts, at most `ahead` + 1 of them in flight."""

    def __init__(self, limits: SchedulerConfig, *, ahead: bool = True) -> None:
        super().__init__(limits, ahead)
        self.lengths: dict[str, int] = {}
        self.planned: list[str] = []  # requests in the order of plans
        self.answered = Counter[str]()  # answers to plans of a request, of sequences that lived
        self.embedded: list[str] = []

    def add_prompt(self, name: str, tokens: int, *, nan: bool = False, **options: object) -> None:
        """Add a prompt. `nan`: its embedding is not numbers."""
        prompt = [*(index % VOCABULARY for index in range(tokens - 1)), NAN_TOKEN if nan else 0]
        self.add(prompt, 0, name=name, pooled=True, **options)
        self.lengths[name] = tokens

    def plan(self) -> list[str]:
        """Make a plan. Return the requests in it."""
        begin = len(self.planned)
        if len(self.sent) <= self.ahead:
            self.schedule()
        return self.planned[begin:]

    def schedule(self) -> StepPlan | None:
        plan = super().schedule()
        check_integrity(self.scheduler)
        running = {seq.slot: seq for seq in self.scheduler.running}
        assert len(running) <= self.config.max_running
        for each in plan.seqs if plan else ():
            seq = running[each.slot]
            assert (each.start, len(each.tokens), each.pool) == (0, seq.prompt_len, True), "it is not the whole prompt"
            assert each.init is not None and not each.sample
            assert len(each.pages) == -(-seq.prompt_len // PAGE)
            self.planned.append(seq.request_id)
        return plan

    def take_in(self, request: Request, update: SequenceUpdate) -> None:
        super().take_in(request, update)
        assert update.finished and update.token is None
        self.answered[request.name] += 1
        if not update.nan:
            assert update.embedding == EMBEDDING
            self.embedded.append(request.name)
        check_integrity(self.scheduler)

    def live(self) -> list[Sequence]:
        return list(self.scheduler.live.by_id.values())
