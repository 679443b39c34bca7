"""The report of a run: tables for people, and JSON lines for programs."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from numaserve.server.loadtest.options import Traffic, Workload
from numaserve.server.loadtest.report.speculation import Speculation
from numaserve.server.loadtest.report.stats import LATENCIES, Latency, Summary
from numaserve.server.loadtest.workload.requests import Outcome
from numaserve.workers.interface.errors import OperatorError
from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

TITLES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "inter-token latency",
    "e2el": "end to end",
}


@dataclass(frozen=True)
class Setting:
    """The setting of a run, as named in its report."""

    base_url: str
    model: str
    workload: Workload
    traffic: Traffic
    request_rate: float | None
    seed: int


def rate_text(rate: float | None) -> str:
    """Return a request rate in the spelling of the command line."""
    return "trace" if rate is None else f"{rate:g}"


def summary_view(setting: Setting, summary: Summary) -> Group:
    """Return tables of counts and throughputs, then of latencies."""
    counts = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    counts.add_column()
    counts.add_column(justify="right")
    for name, value in _counts(summary):
        counts.add_row(name, value)
    latencies = Table("ms", *(_right(field.name) for field in fields(Latency)))
    for name in LATENCIES:
        latency = summary.latencies[name]
        cells = ("-",) * len(fields(Latency)) if latency is None else map(number, asdict(latency).values())
        latencies.add_row(f"{TITLES[name]} ({name.upper()})", *cells)
    # Not a table's title, which would be wrapped at the table's width.
    return Group(Text(f"\n{_title(setting)}", style="bold"), counts, latencies)


def sweep_table(rates: Sequence[float | None], summaries: Sequence[Summary]) -> Table:
    """Return a table with one row for each rate."""
    names = ("requested req/s", "done", "output tok/s", "TTFT median", "TTFT p99", "TPOT median", "TPOT p99", "goodput")
    table = Table(*map(_right, names), title="By request rate (latencies in ms)", title_justify="left")
    for rate, summary in zip(rates, summaries, strict=True):
        cells = [rate_text(rate), number(summary.request_throughput), number(summary.output_throughput)]
        for latency in (summary.latencies["ttft"], summary.latencies["tpot"]):
            cells += ["-", "-"] if latency is None else [number(latency.median), number(latency.p99)]
        table.add_row(*cells, "-" if summary.goodput is None else number(summary.goodput))
    return table


def json_record(setting: Setting, summary: Summary, notes: Sequence[str]) -> dict[str, Any]:
    """Return the record of a JSON line. Names of figures are those of vLLM's and SGLang's clients."""
    record: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "base_url": setting.base_url,
        "model_id": setting.model,
        # JSON has no infinity; both clients write it as text.
        "request_rate": rate_text(setting.request_rate)
        if setting.request_rate is None or math.isinf(setting.request_rate)
        else setting.request_rate,
        "max_concurrency": setting.traffic.max_concurrency,
        "seed": setting.seed,
        "ignore_eos": setting.traffic.ignore_eos,
        "extra_request_body": setting.traffic.extra_body,
        "workload": asdict(setting.workload) | {"dataset_path": str(setting.workload.dataset_path or "") or None},
        "notes": list(notes),
        "completed": summary.completed,
        "failed": summary.failed,
        "first_error": summary.first_error,
        "duration": summary.duration_s,
        "total_input_tokens": summary.input_tokens,
        "total_output_tokens": summary.output_tokens,
        "total_cached_tokens": summary.cached_tokens,
        "shorter_than_asked": summary.shorter,
        "concurrency": summary.concurrency,
        "request_throughput": summary.request_throughput,
        "input_throughput": summary.input_throughput,
        "output_throughput": summary.output_throughput,
        "total_throughput": summary.input_throughput + summary.output_throughput,
        "request_goodput": summary.goodput,
        **_drafts_record(summary.speculation),
    }
    for name, latency in summary.latencies.items():
        for field in fields(Latency):
            record[f"{field.name}_{name}_ms"] = None if latency is None else getattr(latency, field.name)
    return record


def json_details(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the figures of every request, in seconds, in the order of the dataset."""
    return {
        "input_lens": [outcome.input_tokens for outcome in outcomes],
        "output_lens": [outcome.output_tokens for outcome in outcomes],
        "ttfts": [outcome.ttft_s for outcome in outcomes],
        "itls": [outcome.itls_s for outcome in outcomes],
        "e2els": [outcome.e2e_s for outcome in outcomes],
        "errors": [outcome.error for outcome in outcomes],
    }


class JsonLines:
    """A file of JSON lines to which records are appended; without a path, records are dropped."""

    def __init__(self, path: Path | None, option: str = "--output-file") -> None:
        """Open the file. Raises `OperatorError`, before the load and not after it, if the file cannot be written."""
        self._path = path
        if path is not None:
            try:
                path.open("ab").close()
            except OSError as error:
                raise OperatorError(f"cannot write {option} {path}: {error.strerror}") from None

    def write(self, record: dict[str, Any]) -> None:
        """Append one line."""
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(record) + b"\n")


def number(value: float) -> str:
    """Return a figure with at least three significant digits and no spurious ones."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{1 if abs(value) >= 100 else 2}f}"


def _title(setting: Setting) -> str:
    rate, limit = rate_text(setting.request_rate), setting.traffic.max_concurrency
    return f"{setting.model} at {setting.base_url}: request rate {rate}, max concurrency {limit or 'none'}"


def _counts(summary: Summary) -> list[tuple[str, str]]:
    rows = [
        ("completed requests", str(summary.completed)),
        ("failed requests", str(summary.failed)),
        ("duration (s)", number(summary.duration_s)),
        ("average concurrency", number(summary.concurrency)),
        ("input tokens", f"{summary.input_tokens:,} ({summary.cached_tokens:,} cached)"),
        ("output tokens", f"{summary.output_tokens:,}"),
        ("outputs shorter than requested", str(summary.shorter)),
        ("requests/s", number(summary.request_throughput)),
        ("input tokens/s", number(summary.input_throughput)),
        ("output tokens/s", number(summary.output_throughput)),
    ]
    rows += [] if summary.goodput is None else [("goodput (requests/s)", number(summary.goodput))]
    return rows if summary.speculation is None else [*rows, *_drafts(summary.speculation)]


def _drafts(told: Speculation) -> list[tuple[str, str]]:
    per_step, acceptance = told.tokens_per_step, told.acceptance
    fraction = "" if acceptance is None else f" ({acceptance:.0%})"
    return [
        ("output tokens per step and sequence", "-" if per_step is None else number(per_step)),
        ("draft tokens accepted", f"{told.accepted:,} of {told.verified:,}{fraction}"),
    ]


def _drafts_record(told: Speculation | None) -> dict[str, float | None]:
    """Return the figures of speculative decoding; the acceptance rate is in percent.

    The tokens per step have SGLang's name, the other figures vLLM's.
    """
    acceptance = None if told is None else told.acceptance
    return {
        "accept_length": None if told is None else told.tokens_per_step,
        "spec_decode_draft_tokens": None if told is None else told.verified,
        "spec_decode_accepted_tokens": None if told is None else told.accepted,
        "spec_decode_acceptance_rate": None if acceptance is None else 100 * acceptance,
    }


def _right(name: str) -> Column:
    return Column(name, justify="right")
