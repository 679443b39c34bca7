"""Cost of verifying draft tokens, and their gain when a given part of them is right.

python tests/bench/bench_verification.py [--model demo | --shape llama-1b] [--quantization int8] [--json FILE]

One sequence on one rank of all cores, without a front end. Its text is what the model samples without draft tokens.
Then the same text is drafted to a fixed depth, and each draft token is right with a given probability. `speed` is
tokens a second divided by those without draft tokens, `step` the time of a step divided by that of one without draft
tokens (the cost of rows), and `of_predicted` the measured time divided by the time that the scheduler's cost model
predicts from the steps before. What is kept has to be the text.
"""

import argparse
import itertools
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from numaserve.server.cli.bench_report import MachineReport
from numaserve.server.costs.cost_model import CostModel
from numaserve.workers.bench.rows import Row, Rows
from numaserve.workers.bench.shapes import MODEL_SHAPES, random_checkpoint
from numaserve.workers.interface.protocol import PAGE_SIZE, SamplingParams, SeqPlan, SeqResult, SlotInit, StepPlan
from numaserve.workers.interface.settings import AS_PUBLISHED, WeightFormats
from numaserve.workers.weights.hub import resolve_model

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.rank_group import RankGroup

PROMPT = 64
DEPTHS = range(9)
RIGHT = (0.0, 0.6, 0.85, 1.0)
# At a temperature: what models of random weights say greedily soon goes round in circles.
SAMPLING = SamplingParams(temperature=1.0, seed=1)


@dataclass
class Series:
    """Steps of one depth, whose draft tokens are right equally often."""

    depth: int
    right: float
    seconds: list[float] = field(default_factory=list)
    worked: list[float] = field(default_factory=list)  # of those, by the worker: what is predicted
    predicted: list[float] = field(default_factory=list)
    tokens: int = 0


class Text:
    """The sequence: what comes next is known, and may be computed again."""

    def __init__(self, group: RankGroup, tokens: int) -> None:
        self._group = group
        self._chance = random.Random(0)
        self._steps = itertools.count()
        self._costs = CostModel()
        self._costs.describe([each.terms for each in group.ready])
        self._text = [self._chance.randrange(3, 300) for _ in range(PROMPT)]
        pages = list(range(-(-(PROMPT + tokens + len(DEPTHS)) // PAGE_SIZE)))
        prompt = SeqPlan(0, 0, self._text, pages=pages, init=SlotInit(SAMPLING), sample=True)
        self._text.append(self._run(prompt, [])[0].token)
        for _ in range(tokens):
            self._text.append(self._run(self._plan(len(self._text) - 1, []), [])[0].token)

    def run(self, series: Series) -> None:
        """Go through the text once. The model of costs has seen a step of as many rows before."""
        position, last = PROMPT, len(self._text) - 1
        while position < last:
            true = self._text[position + 1 : last][: series.depth]  # behind them comes one that is sampled
            drafts = [token if self._chance.random() < series.right else token ^ 1 for token in true]
            answer, seconds, worked, predicted = self._run(self._plan(position, drafts), drafts)
            kept = [answer.token, *(each.token for each in answer.following)]
            assert kept == self._text[position + 1 : position + 1 + len(kept)], "another text"
            position += len(kept)
            if len(drafts) == series.depth:
                series.seconds.append(seconds)
                series.worked.append(worked)
                series.predicted.append(predicted)
                series.tokens += len(kept)

    def _plan(self, position: int, drafts: Sequence[int]) -> SeqPlan:
        return SeqPlan(0, position, [self._text[position], *drafts], sample=True)

    def _run(self, plan: SeqPlan, drafts: Sequence[int]) -> tuple[SeqResult, float, float, float]:
        work = self._costs.begin()
        work.add(plan.start, len(plan.tokens), 1 + len(drafts))
        predicted = self._costs.predict(work.terms())
        step = (
            StepPlan(next(self._steps), [plan], drafts=[len(drafts)]) if drafts else StepPlan(next(self._steps), [plan])
        )
        begin = time.perf_counter()
        result = self._group.run(step)
        seconds = time.perf_counter() - begin
        worked = result.worker_ns * 1e-9
        self._costs.observe(work.terms(), worked)
        return result.seqs[0], seconds, worked, predicted


def bench(text: Text, name: str, rounds: int) -> Rows:
    """Every depth and probability, by turns."""
    all_series = {(right, depth): Series(depth, right) for right in RIGHT for depth in DEPTHS}
    for _ in range(rounds):
        for series in all_series.values():
            text.run(series)
    for right in RIGHT:
        plain = all_series[right, 0]
        for depth in DEPTHS:
            series = all_series[right, depth]
            figures = {
                "step": statistics.median(series.seconds) / statistics.median(plain.seconds),
                "tokens_a_step": series.tokens / len(series.seconds),
                "speed": series.tokens / sum(series.seconds) * sum(plain.seconds) / plain.tokens,
                "of_predicted": sum(series.worked) / sum(series.predicted),
            }
            yield Row("draft tokens verified", {"model": name, "right": str(right), "depth": depth}, figures)


def main() -> int:
    """Measure one model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--model", default="demo")
    which.add_argument("--shape", choices=MODEL_SHAPES)
    parser.add_argument("--quantization")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    formats = WeightFormats(given.quantization, given.quantization) if given.quantization else AS_PUBLISHED
    cpus = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        report = stack.enter_context(MachineReport("verification", given.json))
        path = stack.enter_context(random_checkpoint(given.shape)) if given.shape else resolve_model(given.model)
        group = RankGroup(path, threads=len(cpus), cpus=[cpus], formats=formats)
        text = Text(stack.enter_context(group), given.tokens)
        name = f"{given.shape or given.model} {given.quantization or 'as published'}"
        report.add(bench(text, name, given.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
