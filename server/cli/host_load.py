"""The loads of ``numaserve bench host`` on the server that it has started, and the estimate of the highest rate."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count, takewhile

from numaserve.server.client.remote import RemoteServer
from numaserve.server.loadtest.options import Traffic, Workload
from numaserve.server.loadtest.rate_search import RateRun, is_within, run_rates
from numaserve.server.loadtest.report.stats import Summary
from numaserve.server.loadtest.server_load import Say, server_load
from numaserve.workers.bench.mlperf import MlperfTask
from numaserve.workers.planning.estimate import Estimate
from numaserve.workers.planning.rate import rate_within


@dataclass(frozen=True)
class Scenario:
    """The server scenario: the limits of a task, the seconds of a run, and the estimated rate."""

    task: MlperfTask
    duration_s: float
    planned_rate: float  # requests per second; 0: one request alone would exceed a limit

    @property
    def limits(self) -> dict[str, float]:
        """The limits in milliseconds, by the names of latencies."""
        return {"ttft": self.task.ttft_ms, "tpot": self.task.tpot_ms}


@dataclass(frozen=True)
class Measured:
    """The results: one request at a time, the runs of the server scenario, and the run at the highest rate within its
    limits."""

    requests: Summary
    runs: Sequence[RateRun] = ()
    best: RateRun | None = None


def plan_scenario(
    task: MlperfTask, duration_s: float, alone: Estimate, most: int, estimate: Callable[[int], Estimate]
) -> Scenario:
    """Return the scenario with its estimated rate. `alone` is the estimate of one sequence, and `estimate` is called
    with larger numbers of sequences up to `most`."""
    steps: dict[int, float] = {}
    for batch in (*takewhile(lambda each: each < most, (1 << power for power in count())), most):
        decode = (alone if batch == 1 else estimate(batch)).decode
        assert decode is not None  # noqa: S101  the command generates at least two tokens
        steps[batch] = decode.seconds
        if decode.seconds * 1e3 > task.tpot_ms:
            break  # more sequences take more time
    limits = {"ttft_s": task.ttft_ms / 1e3, "tpot_s": task.tpot_ms / 1e3}
    return Scenario(task, duration_s, rate_within(alone.prefill.seconds, steps, alone.load.output_len, **limits))


async def measure_server(
    remote: RemoteServer, workload: Workload, traffic: Traffic, *, num_prompts: int, scenario: Scenario | None, say: Say
) -> Measured:
    """Send `num_prompts` requests one at a time, then run the scenario if there is one.

    Raises `OperatorError` if the server does not answer a warm-up request.
    """
    async with server_load(remote, workload, traffic, say) as load:
        requests = await load.one_at_a_time(num_prompts)
        whole = requests.latencies["e2el"]
        # If a request alone takes too long, no rate is low enough.
        if scenario is None or whole is None or requests.failed or not is_within(requests, scenario.limits, "median"):
            return Measured(requests)
        first = scenario.planned_rate or 1e3 / whole.median
        return Measured(requests, *await run_rates(load, scenario.limits, first, scenario.duration_s))
