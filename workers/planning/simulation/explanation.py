"""The time of a load's phases on a host, with what its threads and ranks wait for."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.needs import max_logit_rows, pages_of, ring_slot_bytes, step_tokens
from numaserve.workers.planning.options import DeploymentOptions
from numaserve.workers.planning.roofline.efficiency import Efficiencies
from numaserve.workers.planning.roofline.estimate import STEP_S, Estimate, phase_steps
from numaserve.workers.planning.simulation.layers import CountedModel
from numaserve.workers.planning.simulation.times import HostTimes, StepTime, StepTotals
from numaserve.workers.program.cost import StepWork
from numaserve.workers.program.setup import ProgramLimits


@dataclass(frozen=True)
class Explanation:
    """The time of the prefill of one prompt, and of a step of decoding; None without an answer."""

    prefill: StepTime
    decode: StepTime | None


def explain(
    options: DeploymentOptions,
    config: ModelConfig,
    estimate: Estimate,
    efficiencies: Efficiencies,
    *,
    skew: float = 0.0,
) -> Explanation:
    """Return the explanation of an `estimate`. `skew`: of the routing to experts; see `CountedGroup`."""
    load, partition = estimate.load, config.partition(estimate.cores, options.settings)
    limits = ProgramLimits(
        max_step_tokens=step_tokens(options, config),
        max_logit_rows=0 if options.settings.pooled else max_logit_rows(options),
        max_slots=options.max_running_requests,
        pages_per_slot=pages_of(load.context),
        num_pages=pages_of(load.context) + 1,
    )
    times = HostTimes(estimate.ranks, efficiencies, STEP_S)
    prefill, decode = phase_steps(options, config, load)
    with CountedModel(config, partition, limits, ring_slot_bytes(options, config, partition), skew) as model:
        return Explanation(_time(model, times, prefill), _time(model, times, decode) if decode else None)


def _time(model: CountedModel, times: HostTimes, steps: Sequence[StepWork]) -> StepTime:
    return reduce(StepTotals.plus, (model.step(step, times) for step in steps)).report()
