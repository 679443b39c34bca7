"""The rows of ``numaserve bench offline``'s table, from the measurements of the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import TYPE_CHECKING

import msgspec
from numaserve.server.profiling.figures import PhaseFigures, RankFigures, between, phase_figures
from numaserve.workers.bench.rows import Figure, Row, Times
from numaserve.workers.bench.tasks import MeasuredPhase
from numaserve.workers.interface.protocol import RankProfile

if TYPE_CHECKING:
    from numaserve.server.cli.bench_estimate import RunEstimate

_COLLECTIVE = "add_all_reduce"


def figures_of(phases: Sequence[MeasuredPhase]) -> list[PhaseFigures]:
    """Return the figures of a phase, by rank."""
    before = [_figures(phase.before) for phase in phases]
    after = [_figures(phase.after) for phase in phases]
    return [
        phase_figures(each.name, grown, each.ceilings)
        for grown, each in zip(between(before, after), phases, strict=True)
    ]


def step_row(
    about: dict[str, str | int], phases: Sequence[MeasuredPhase], figures: Sequence[PhaseFigures], estimate: RunEstimate
) -> Row:
    """Return the row of a phase, TTFT (prefill of a batch's prompts) or TPOT (decode), with its bound and estimate.

    Ranks wait because of imbalance, and for data. The other ranks wait for the rank that waits least, whose own waiting
    time is almost only for data.
    """
    phase, steps = phases[0], [each.costs[-1] for each in figures]
    times, repetitions = Times.of(phase.seconds), len(phase.seconds)
    prefill = phase.name == "prefill"
    tokens = phase.batch * (estimate.input_len if prefill else 1)
    bound_ms = mean(
        step.ms * (step.of_ceiling or 0.0) * each.steps / repetitions for step, each in zip(steps, figures, strict=True)
    )
    what = about | {"phase": phase.name, "batch": phase.batch}
    what["context"] = estimate.input_len if prefill else estimate.input_len + estimate.output_len // 2
    estimated_s = estimate.seconds(phases)
    shown: dict[str, Figure] = {
        "best_ms": times.best * 1e3,
        "median_ms": times.median * 1e3,
        "tok_s": tokens / times.best,
        "bound_ms": bound_ms,
        "ceiling": steps[0].ceiling,
        "of_bound": bound_ms / times.best / 1e3,
        "of_bound_median": bound_ms / times.median / 1e3,
        "planned_ms": estimated_s * 1e3,
        "of_planned": times.best / estimated_s,
        "share_native": steps[0].ms * figures[0].steps / sum(phase.seconds) / 1e3,
    }
    if len(phases) > 1:
        moving = [sum(cost.ms - cost.wait_ms for cost in each.costs if cost.name == _COLLECTIVE) for each in figures]
        shown["share_moving"] = max(ms / step.ms for ms, step in zip(moving, steps, strict=True))
        shown["share_waiting_least"] = min(step.wait_ms / step.ms for step in steps)
        shown["share_waiting_most"] = max(step.wait_ms / step.ms for step in steps)
    return Row("steps", what, shown)


def _figures(profile: RankProfile) -> RankFigures:
    """Return a rank's profile in the form of a server's response."""
    # Without the CPU times of its threads, which a front end reads.
    return msgspec.convert(profile, RankFigures, from_attributes=True)
