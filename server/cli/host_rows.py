"""The rows of ``numaserve bench host``: measurements, next to estimates, bounds and published figures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from numaserve.server.loadtest.rate_search import RateRun
from numaserve.server.loadtest.report.stats import Summary
from numaserve.workers.bench.mlperf import MlperfTask
from numaserve.workers.bench.published import PublishedFigures, published_for
from numaserve.workers.bench.rows import Figure, Row
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.estimate import Estimate

_REQUESTS, _RATES, _SERVER = "one request at a time", "rates", "server scenario"


@dataclass(frozen=True)
class OwnFigures:
    """The figures of numaserve with a model: the model's name and configuration, the format of its weights, and the
    estimate of one request at a time."""

    model: str
    weights: str
    config: ModelConfig
    estimate: Estimate

    def request_rows(self, summary: Summary) -> Iterator[Row]:
        """Yield the latencies of one request at a time: measured (medians), estimated, the lower bound, published."""
        prefill, decode = self.estimate.prefill, self.estimate.decode
        assert decode is not None  # noqa: S101  the command generates at least two tokens
        ttft, tpot = summary.latencies["ttft"], summary.latencies["tpot"]
        assert ttft is not None and tpot is not None  # noqa: S101  all requests were completed
        planned = {"ttft_ms": prefill.seconds * 1e3, "tpot_ms": decode.seconds * 1e3}
        ratios = {
            "of_planned_ttft": ttft.median / planned["ttft_ms"],
            "of_planned_tpot": tpot.median / planned["tpot_ms"],
        }
        yield self._row("measured", {"ttft_ms": ttft.median, "tpot_ms": tpot.median, **ratios})
        yield self._row("estimate", {**planned})
        yield self._row("lower bound", {"ttft_ms": prefill.bound_s * 1e3, "tpot_ms": decode.bound_s * 1e3})
        yield from map(_published_row, published_for(self.config))

    def server_rows(self, task: MlperfTask, best: RateRun | None, planned: float) -> Iterator[Row]:
        """Yield the highest rate within the limits of `task`: measured and estimated."""
        output_len, rate = self.estimate.load.output_len, 0.0 if best is None else best.rate
        limits: dict[str, Figure] = {"task": task.name, "ttft_limit_ms": task.ttft_ms, "tpot_limit_ms": task.tpot_ms}
        run = {} if best is None else _percentiles(best)
        for kind, each in {"measured": rate, "estimate": planned}.items():
            more = {**run, "of_planned": rate / planned if planned else None} if kind == "measured" else {}
            figures = {**limits, "queries_s": each, "output_tokens_s": each * output_len, **more}
            yield Row(_SERVER, {"figures": kind, **self._about()}, figures)

    def _row(self, kind: str, figures: dict[str, Figure]) -> Row:
        what: dict[str, str | int] = {"figures": kind, "server": "numaserve", "host": self.estimate.machine.name}
        return Row(_REQUESTS, what | self._about(), figures)

    def _about(self) -> dict[str, str | int]:
        load = self.estimate.load
        tokens: dict[str, str | int] = {"input_len": load.input_len, "output_len": load.output_len}
        return {"model": self.model, "weights": self.weights} | tokens


def rate_rows(runs: Sequence[RateRun]) -> Iterator[Row]:
    """Yield the runs of the search for the highest rate, in their order."""
    for run in runs:
        counts = {"queries": run.summary.completed, "failed": run.summary.failed}
        kept = {"within_limits": "yes" if run.kept else "no"}
        yield Row(_RATES, {}, {"queries_s": run.rate, **counts, **_percentiles(run), **kept})


def _percentiles(run: RateRun) -> dict[str, Figure]:
    ttft, tpot = run.summary.latencies["ttft"], run.summary.latencies["tpot"]
    return {"ttft_p99_ms": None if ttft is None else ttft.p99, "tpot_p99_ms": None if tpot is None else tpot.p99}


def _published_row(each: PublishedFigures) -> Row:
    publication, figures = each.publication, each.figures
    what = {"figures": "published", "server": publication.server, "host": each.host, "model": each.model}
    tokens = {"input_len": publication.input_len, "output_len": publication.output_len}
    latencies: dict[str, Figure] = {"ttft_ms": figures.ttft_ms, "tpot_ms": figures.tpot_ms}
    return Row(_REQUESTS, what | {"weights": figures.weights} | tokens, latencies)
