"""The plot of latency against throughput. Needs matplotlib, which only the extra `bench` installs."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from numaserve.server.loadtest.report.report import TITLES, rate_text
from numaserve.server.loadtest.report.stats import Summary
from numaserve.workers.interface.errors import OperatorError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".html")
_PANELS = ("ttft", "tpot", "e2el")
_QUANTILES = ("median", "p99")


def check_plot(path: Path) -> None:
    """Raise `OperatorError`, before the load rather than after it, if the plot could not be written."""
    if path.suffix not in SUFFIXES:
        raise OperatorError(f"--plot {path} has an unknown suffix: use one of {', '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise OperatorError(f"--plot {path}: the folder {path.parent} does not exist: create it, or name another file")
    if importlib.util.find_spec("matplotlib") is None:
        raise OperatorError("--plot needs matplotlib, which is not installed: run `pip install matplotlib`")


def write_plot(path: Path, title: str, rates: Sequence[float | None], summaries: Sequence[Summary]) -> None:
    """Draw `summaries`, one for each rate, in the format that the suffix of `path` names."""
    figure = _draw(title, rates, summaries)
    if path.suffix != ".html":
        figure.savefig(path)
        return
    svg = io.StringIO()
    figure.savefig(svg, format="svg")
    drawing = svg.getvalue()
    head = '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>numaserve bench</title></head><body>\n'
    path.write_text(f"{head}{drawing[drawing.index('<svg') :]}</body></html>\n", encoding="utf-8")


def _draw(title: str, rates: Sequence[float | None], summaries: Sequence[Summary]) -> Figure:
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(13, 4.2), layout="constrained")
    figure.suptitle(title)
    for axes, name in zip(figure.subplots(1, len(_PANELS)), _PANELS, strict=True):
        _draw_panel(axes, name, rates, summaries)
    return figure


def _draw_panel(axes: Axes, name: str, rates: Sequence[float | None], summaries: Sequence[Summary]) -> None:
    points = [
        (rate, summary.output_throughput, latency)
        for rate, summary in zip(rates, summaries, strict=True)
        if (latency := summary.latencies[name]) is not None
    ]
    for quantile in _QUANTILES:
        x, y = [point[1] for point in points], [getattr(point[2], quantile) for point in points]
        axes.plot(x, y, marker="o", label=quantile)
    for rate, throughput, latency in points:
        axes.annotate(rate_text(rate), (throughput, latency.median), textcoords="offset points", xytext=(4, -11))
    axes.set(xlabel="output tokens/s (number at a point: request rate)", ylabel="ms", title=TITLES[name])
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
