"""Cost and gain of the workers' draft tokens, by their number, compared with the predictions of the cost models.

python tests/bench/bench_draft_model.py [--mtp] [--tokens 96] [--rounds 2] [--json FILE]

One sequence on one rank of all cores, without a front end: a model of a billion parameters whose draft model is the
demo, which mostly agrees with it (larger_demo.py), or with `--mtp` one of experts and latents with a layer that
predicts, which is always right (predicting_model.py): each draft token is taken for right with a given probability.
Its text is what the model samples without draft tokens; what is kept has to be that. `step` is the time of a step
divided by the time of one without draft tokens, `drafting` the part of it that makes draft tokens, `speed` tokens a
second divided by those without draft tokens, and `of_predicted` the measured time divided by the time that the cost
models predict from the steps before.
"""

import argparse
import itertools
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from larger_demo import save_larger
from numaserve.server.cli.bench_report import MachineReport
from numaserve.server.scheduler.step import InFlight
from numaserve.server.scheduler.step_costs import StepCosts
from numaserve.server.speculation.worker_reading import Reading, terms_of_passes
from numaserve.server.tokenizer import load_tokenizer
from numaserve.workers.bench.rows import Row, Rows
from numaserve.workers.interface.protocol import (
    PAGE_SIZE,
    TO_BE_DRAFTED,
    DraftWork,
    SamplingParams,
    SeqPlan,
    SlotInit,
    StepPlan,
)
from numaserve.workers.weights.hub import resolve_model
from predicting_model import save_predicting

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.rank_group import RankGroup

RIGHT = (0.0, 0.6, 0.85, 1.0)
QUESTION = "Tell Anna from Oslo something about volcanoes."
DEPTHS = range(9)
SAMPLING = SamplingParams(temperature=0.7, seed=1)


@dataclass
class Series:
    """Steps with one number of draft tokens, of which each is taken for right with a probability."""

    depth: int
    right: float = 1.0
    seconds: list[float] = field(default_factory=list)
    drafting: list[float] = field(default_factory=list)
    predicted: list[float] = field(default_factory=list)
    tokens: int = 0


class Text:
    """The sequence: what comes next is known, and may be computed again."""

    def __init__(self, group: RankGroup, prompt: list[int], tokens: int, *, rereads: bool) -> None:
        """`rereads`: draft tokens have to be read again once they are known to be right."""
        self._group = group
        self._rereads = rereads
        self._chance = random.Random(0)
        self._steps = itertools.count()
        self._costs = StepCosts(draft_model=True)
        self._costs.describe([each.terms for each in group.ready], [each.draft_terms for each in group.ready])
        self._prompt = len(prompt)
        self._text = list(prompt)
        self._read = 0  # by the draft model
        pages = list(range(-(-(len(prompt) + tokens + len(DEPTHS)) // PAGE_SIZE)))
        init = SlotInit(SAMPLING)
        whole = SeqPlan(0, 0, list(prompt), pages=pages, init=init, sample=True)
        answer = group.run(StepPlan(next(self._steps), [whole], draft_work=[DraftWork(0)]))
        self._text.append(answer.seqs[0].token)
        for _ in range(tokens):
            self._text += self._step(Series(0), len(self._text) - 1)

    def run(self, series: Series) -> None:
        """Go through the text once."""
        position, self._read = self._prompt, self._prompt
        while position + series.depth + 1 < len(self._text):
            kept = self._step(series, position)
            assert kept == self._text[position + 1 : position + 1 + len(kept)], "another text"
            position += len(kept)

    def _step(self, series: Series, position: int) -> list[int]:
        depth, step = series.depth, InFlight(next(self._steps))
        plan = StepPlan(step.step_id, [SeqPlan(0, position, [self._text[position]], sample=True)])
        work = self._costs.served.begin()
        work.add(position, 1 + depth, 1 + depth)
        step.terms = work.terms()
        if depth:
            assert self._costs.draft_model is not None
            drafts = [self._text[position], *[TO_BE_DRAFTED] * depth]
            lacking = DraftWork(0, self._text[self._read : position])
            plan = StepPlan(
                step.step_id, [SeqPlan(0, position, drafts, sample=True)], drafts=[depth], draft_work=[lacking]
            )
            readings = [Reading(self._read, position + 1 - self._read, depth)]
            step.draft_terms = terms_of_passes(self._costs.draft_model, readings)
        predicted = self._costs.expected(step)
        result = self._group.run(plan)
        answer = result.seqs[0]
        taken = itertools.takewhile(lambda _: self._chance.random() < series.right, answer.following)
        kept = [answer.token, *(each.token for each in taken)]
        if depth:
            self._read = position + 1 + (0 if self._rereads else min(len(kept) - 1, depth - 1))
        if predicted is not None:
            series.seconds.append(result.worker_ns * 1e-9)
            series.drafting.append(result.draft_ns * 1e-9)
            series.predicted.append(predicted)
            series.tokens += len(kept)
        self._costs.observe(step, result)
        return kept


def bench(text: Text, rounds: int, name: str, all_right: Sequence[float]) -> Rows:
    """Every depth and probability, by turns."""
    all_series = [Series(depth, right) for right in all_right for depth in DEPTHS]
    for _ in range(1 + rounds):
        for series in all_series:
            text.run(series)
    for index, series in enumerate(all_series):
        plain = all_series[index - series.depth]
        figures = {
            "step": statistics.median(series.seconds) / statistics.median(plain.seconds),
            "drafting": sum(series.drafting) / sum(series.seconds),
            "tokens_a_step": series.tokens / len(series.seconds),
            "speed": series.tokens / sum(series.seconds) * sum(plain.seconds) / plain.tokens,
            "of_predicted": sum(series.seconds) / sum(series.predicted),
        }
        yield Row(f"draft tokens of {name}", {"right": str(series.right), "depth": series.depth}, figures)


@contextmanager
def predicting() -> Iterator[tuple[RankGroup, list[int]]]:
    """A group of workers that predict, and what it is asked."""
    cpus = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="numaserve-bench-") as folder:
        model = save_predicting(Path(folder))
        with RankGroup(model, threads=len(cpus), cpus=[cpus], mtp=True) as group:
            yield group, list(range(3, 67))


@contextmanager
def larger_and_demo() -> Iterator[tuple[RankGroup, list[int]]]:
    """The group of workers, and what it is asked."""
    demo, cpus = resolve_model("demo"), sorted(os.sched_getaffinity(0))
    tokenizer = load_tokenizer(demo)
    asked = tokenizer.encode(tokenizer.render_chat([{"role": "user", "content": QUESTION}]), add_special_tokens=False)
    tokenizer.close()
    with tempfile.TemporaryDirectory(prefix="numaserve-bench-") as folder:
        larger = save_larger(demo, Path(folder) / "larger")
        with RankGroup(larger, threads=len(cpus), cpus=[cpus], draft_model=demo) as group:
            yield group, asked


def main() -> int:
    """Measure it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--mtp", action="store_true")
    given = parser.parse_args()
    name, played = ("a layer that predicts", RIGHT) if given.mtp else ("a draft model", (1.0,))
    with ExitStack() as stack:
        report = stack.enter_context(MachineReport(name, given.json))
        group, asked = stack.enter_context(predicting() if given.mtp else larger_and_demo())
        text = Text(group, asked, given.tokens, rereads=given.mtp)
        report.add(bench(text, given.rounds, name, played))
    return 0


if __name__ == "__main__":
    sys.exit(main())
