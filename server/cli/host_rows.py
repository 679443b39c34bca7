"""The rows of ``numaserve bench host``: measurements, next to estimates, bounds and published figures."""

from collections.abc import Iterator
from dataclasses import dataclass

from numaserve.server.loadtest.report.stats import Summary
from numaserve.workers.bench.published import PublishedFigures, published_for
from numaserve.workers.bench.rows import Figure, Row
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.estimate import Estimate

_REQUESTS = "one request at a time"


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

    def _row(self, kind: str, figures: dict[str, Figure]) -> Row:
        load = self.estimate.load
        what = {"figures": kind, "server": "numaserve", "host": self.estimate.machine.name, "model": self.model}
        tokens = {"input_len": load.input_len, "output_len": load.output_len}
        return Row(_REQUESTS, what | {"weights": self.weights} | tokens, figures)


def _published_row(each: PublishedFigures) -> Row:
    publication, figures = each.publication, each.figures
    what = {"figures": "published", "server": publication.server, "host": each.host, "model": each.model}
    tokens = {"input_len": publication.input_len, "output_len": publication.output_len}
    latencies: dict[str, Figure] = {"ttft_ms": figures.ttft_ms, "tpot_ms": figures.tpot_ms}
    return Row(_REQUESTS, what | {"weights": figures.weights} | tokens, latencies)
