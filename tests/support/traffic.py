"""Requests through the real scheduler and real workers, in whatever company, chunks and order the scheduler makes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from numaserve.server.scheduler.adapter import Adapter
from numaserve.server.scheduler.images import PlacedTile
from numaserve.server.scheduler.request import Pooling
from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.server.scheduler.sequence import SchedulerConfig
from numaserve.server.speculation.drafter import Drafters
from numaserve.workers.interface.protocol import SamplingParams, StepPlan, TokenLogprobs

from tests.support.rank_group import RankGroup
from tests.support.sequences import sequence


@dataclass(frozen=True)
class Request:
    """A prompt, how it is sampled, and how many tokens are wanted."""

    prompt: list[int]
    sampling: SamplingParams
    max_new_tokens: int
    prompt_logprobs: bool = False
    pool: bool = False
    images: tuple[PlacedTile, ...] = ()
    adapter: Adapter | None = None


@dataclass
class Answer:
    """Everything that a request was told: equal answers are equal to the last bit, for floats are compared as such."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    named: list[list[float]] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    nan: bool = False
    embedding: bytes = b""


class Traffic:
    """A scheduler before a group of workers. `ahead` plans are in flight at once: 1 is the plain loop."""

    def __init__(
        self,
        group: RankGroup,
        config: SchedulerConfig,
        *,
        ahead: int = 1,
        drafters: Drafters | None = None,
    ) -> None:
        self.scheduler = Scheduler(config, drafters=drafters)
        if drafters is None:  # else a few draft tokens are always verified, whether they pay or not
            self.scheduler.step_costs.describe(
                [each.terms for each in group.ready],
                [each.draft_terms for each in group.ready],
                [each.tower_terms for each in group.ready],
                [each.tower_parts for each in group.ready],
            )
        self.plans: list[StepPlan] = []
        self._group = group
        self._ahead = ahead
        self._requests = 0

    def serve(self, requests: Iterable[Request]) -> list[Answer]:
        """The answers to requests that all come at once, in their order."""
        answers: dict[str, Answer] = {}
        for request in requests:
            name = str(self._requests)
            self._requests += 1
            answers[name] = Answer()
            self.scheduler.add(
                sequence(
                    name,
                    request.prompt,
                    request.sampling,
                    request.max_new_tokens,
                    prompt_logprobs=request.prompt_logprobs,
                    pooling=Pooling() if request.pool else None,
                    images=request.images,
                    adapter=request.adapter,
                )
            )
        while self.scheduler.running or self.scheduler.waiting:
            self._step(answers)
        # A plan may be in flight whose sequences have all ended.
        while self.scheduler.in_flight:
            self.scheduler.apply(self._group.receive())
        return list(answers.values())

    def _step(self, answers: dict[str, Answer]) -> None:
        while len(self.scheduler.in_flight) < self._ahead:
            plan = self.scheduler.schedule()
            if plan is None:
                break
            self.plans.append(plan)
            self._group.send(plan)
        for update in self.scheduler.apply(self._group.receive()):
            answer = answers[update.sequence.request_id]
            answer.prompt_logprobs += update.prompt_logprobs
            answer.nan = update.nan
            answer.embedding += update.embedding
            if update.token is not None:
                answer.tokens.append(update.token)
                answer.logprobs.append(update.logprobs)
                answer.named.append(list(update.token_logprobs))


def one_by_one(traffic: Traffic, requests: Sequence[Request]) -> list[Answer]:
    """The answers to requests of which each comes when the one before it has been answered."""
    return [answer for request in requests for answer in traffic.serve([request])]


def each_alone(group: RankGroup, config: SchedulerConfig, requests: Sequence[Request]) -> list[Answer]:
    """Serve each request alone and return the answers. A step is planned ahead, as the server does.

    The plain loop was rejected for references: it takes half as long again, and other tests serve requests with it.
    """
    return one_by_one(Traffic(group, config, ahead=2), requests)


def assert_serves(traffic: Traffic, requests: Sequence[Request], expected: Sequence[Answer]) -> None:
    """Serve all requests at once, and once more where the prefix cache knows them by then."""
    assert traffic.serve(requests) == expected
    if traffic.scheduler.config.enable_prefix_cache:
        assert traffic.serve(requests) == expected
