"""Whole steps of a model on one rank, without a front end.

All ranks run the same list of steps over random texts, so that nothing needs to be sent between them. Sampled tokens
are not continued, and each sequence has a text of its own. Equal tokens go to the same experts, so a batch of them
would read only one token's experts, and text generated from random weights soon repeats itself.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numaserve.workers.bench.tasks import MeasuredPhase, RunSteps, StepsRan
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import (
    PAGE_SIZE,
    Ceilings,
    ProfileRequest,
    SamplingParams,
    SeqPlan,
    SlotInit,
    StepPlan,
)
from numaserve.workers.planning.ceilings import rank_ceilings
from numaserve.workers.process.model import RankModel
from numaserve.workers.process.node import NodeContext

_GREEDY = SamplingParams(temperature=0.0)
_PROGRESS = 10  # messages while a model is loaded


def run_steps(task: RunSteps, say: Callable[[str], None]) -> StepsRan:
    """Load the model, then run all batch sizes. Raises `OperatorError` when there is too little KV cache for one."""
    launch = task.launch
    pages = -(-(task.input_len + task.output_len) // PAGE_SIZE)
    if max(task.batch_sizes) * pages > launch.capacity.num_pages:
        raise OperatorError(
            f"--batch-size {max(task.batch_sizes)}: the KV cache holds only {launch.capacity.num_pages * PAGE_SIZE}"
            " tokens; lower --batch-size, --input-len or --output-len"
        )
    said = -1

    def loading(done: int, total: int) -> None:
        nonlocal said
        part = _PROGRESS * done // max(total, 1)
        if part != said:
            said = part
            say(f"loading: {100 * part // _PROGRESS} %")

    node = NodeContext.enter(launch)
    rank = _Rank(task, node, RankModel(launch, node, loading), pages)
    rank.prefill(1)  # so that the first touch of memory is not measured
    phases: list[MeasuredPhase] = []
    for batch in task.batch_sizes:
        say(f"prefill of {task.input_len} tokens, batch {batch}")
        phases.append(rank.phase("prefill", batch, rank.settle, partial(rank.prefill, batch), task.prefills))
        say(f"decode of {task.output_len} tokens, batch {batch}")
        decode = rank.decoding(range(batch))
        phases.append(rank.phase("decode", batch, decode, decode, task.output_len - 1))
    return StepsRan(rank.model.isa, rank.model.weight_bytes, phases)


class _Rank:
    def __init__(self, task: RunSteps, node: NodeContext, model: RankModel, pages: int) -> None:
        self.model = model
        self._node = node
        self._task = task
        self._pages = pages  # of a sequence
        # Low ids, which every vocabulary has.
        shape = (max(task.batch_sizes), task.input_len + task.output_len)
        self._texts: list[list[int]] = np.random.default_rng(0).integers(3, 300, shape).tolist()
        self._steps = 0

    def settle(self) -> None:
        """Run a step of one token."""
        self._run([self._piece(0, 0, 1)])

    def prefill(self, batch: int) -> None:
        """Run the prompts, one after the other in chunks, as the scheduler cuts them."""
        chunk = self._task.launch.capacity.max_step_tokens
        for slot in range(batch):
            for start in range(0, self._task.input_len, chunk):
                self._run([self._piece(slot, start, min(self._task.input_len, start + chunk))])

    def decoding(self, slots: Sequence[int]) -> Callable[[], None]:
        """Return a function that runs, at each call, a step with one more token for all `slots`."""
        positions = iter(range(self._task.input_len, self._task.input_len + self._task.output_len))

        def one() -> None:
            position = next(positions)
            self._run(
                [SeqPlan(slot, position, self._texts[slot][position : position + 1], sample=True) for slot in slots]
            )

        return one

    def phase(
        self, name: str, batch: int, settle: Callable[[], None], work: Callable[[], None], count: int
    ) -> MeasuredPhase:
        """Repeat `work` `count` times after `settle`, a step that brings the ranks into step."""
        ceilings = self._ceilings()
        settle()
        before = self.model.profile(ProfileRequest(0))
        seconds: list[float] = []
        for _ in range(count):
            begin = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - begin)
        after = self.model.profile(ProfileRequest(0))
        return MeasuredPhase(name, batch, seconds, before, after, ceilings.better(self._ceilings()))

    def _ceilings(self) -> Ceilings:
        # With a buffer of its own: the weights of a benchmark may fit a cache.
        return rank_ceilings(self._node.team, self.model.formats, teams=self._task.launch.world_size)

    def _piece(self, slot: int, start: int, end: int) -> SeqPlan:
        first = slot * self._pages
        begins = start == 0
        return SeqPlan(
            slot,
            start,
            self._texts[slot][start:end],
            pages=list(range(first, first + self._pages)) if begins else [],
            init=SlotInit(_GREEDY) if begins else None,
            sample=end == self._task.input_len,
        )

    def _run(self, seqs: list[SeqPlan]) -> None:
        self.model.run(StepPlan(self._steps, seqs))
        self._steps += 1
