"""Efficiencies: the fraction of its ceiling that each kind of operation reaches.

``numaserve bench kernels --json`` writes the file from which they are read.

An operation's time is its bound, of reading or of computing, divided by the fraction of the ceiling that was measured
under the same bound. Fractions are interpolated over the logarithm of the number of rows; beyond the measured numbers,
the nearest counts.

A file may have rows of several processors. A format that the processor of the first row was measured with takes the
rows of that processor alone: fractions of different ceilings have no mean.

If reading is the bound and more rows reach less of it than fewer rows do, computing is the bound. Reading would be as
fast as before, and the measured computation is the maximum. A host whose cores read less each has both bounds at once.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.planning.roofline.expert_shapes import EXPERT_SHAPES
from numaserve.workers.planning.roofline.measured_rows import read_rows
from numaserve.workers.program.cost import Kind, expected_share

BEST = 1.0  # the fraction where nothing was measured
_ByRows = dict[float, list[Mapping[str, Any]]]  # measurements, by the number of rows
_HELD_UP = 0.9  # of the fraction that fewer rows reach: a smaller value is more than noise
_SMALL = "small operations"
# Formats with the same number of bits, widened by a table of the same size.
_STAND_IN = dict.fromkeys(("mxfp4", "iq4", "iq3", "iq2", "nvfp4"), "int4/32")


@dataclass(frozen=True)
class Curve:
    """Fractions over numbers of rows, rising."""

    points: Sequence[tuple[float, float]]

    def at(self, rows: float) -> float:
        """Return the fraction for a number of rows."""
        points = self.points
        if rows <= points[0][0]:
            return points[0][1]
        for (low, first), (high, second) in itertools.pairwise(points):
            if rows <= high:
                part = math.log(rows / low) / math.log(high / low)
                return first + part * (second - first)
        return points[-1][1]


@dataclass(frozen=True)
class RowTime:
    """The time of a row-wise operation: a fixed time, and the bytes per second of a core by its number of rows.

    A few rows, which a core reads from its caches, pass many times faster.
    """

    fixed_s: float
    core_bytes_s: Curve


_UNKNOWN = RowTime(0.0, Curve([(1.0, 4e9)]))


@dataclass(frozen=True)
class Efficiencies:
    """Efficiencies by kind of operation, format of weights, and bound: "read" or "flops"."""

    source: str
    curves: Mapping[tuple[Kind, str, str], Curve]
    row_times: Mapping[str, RowTime]
    barrier_s: float = 0.0
    _found: dict[tuple[Kind, str, str], Curve | None] = field(default_factory=dict, repr=False)

    def of(self, kind: Kind, weights: str, bound: str, rows: float) -> float:
        """Return the fraction of a ceiling. For products that were not measured, the same format with other groups
        stands in, then with other activations, then a similar format, then bf16."""
        key = (kind, weights, bound)
        if key not in self._found:
            self._found[key] = self._nearest(*key)
        curve = self._found[key]
        return BEST if curve is None else curve.at(max(rows, 1.0))

    def more_barrier_s(self, barrier_s: float) -> float:
        """Return the seconds that a barrier of `barrier_s` takes in addition to the one that the efficiencies
        include."""
        return max(barrier_s - self.barrier_s, 0.0)

    def _nearest(self, kind: Kind, weights: str, bound: str) -> Curve | None:
        names = _broader_names(weights)
        # Experts are also products, of fewer rows each.
        for like in (kind, "gemm") if kind == "experts" else (kind,):
            for place, name in enumerate(names):
                for key, curve in self.curves.items():
                    if key[0] == like and key[2] == bound and _broader_names(key[1])[place] == name:
                        return curve
        format = names[-1]
        if format in _STAND_IN:
            return self._nearest(kind, weights.replace(weights.partition(" ")[0], _STAND_IN[format]), bound)
        return None if weights == "bf16" else self._nearest(kind, "bf16", bound)

    def row_time(self, name: str) -> RowTime:
        """Return the time of rows of the operation of that name, or of a similar one."""
        return self.row_times.get(name) or self.row_times.get("rms_norm") or _UNKNOWN


def _broader_names(products: str) -> tuple[str, str, str]:
    """Return a name of products, the name without the group, and the name without the activations too."""
    held, by, activations = products.partition(" x ")
    format = held.partition("/")[0]
    return products, f"{format}{by}{activations}", format


def load_efficiencies(path: Path) -> Efficiencies:
    """Return the efficiencies in a file. Raises `OperatorError` for a file that the benchmark did not write."""
    try:
        rows = read_rows(path)
        return _efficiencies(rows, str(rows[0].get("processor", "")))
    except OSError as error:
        raise OperatorError(f"--efficiencies: cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise OperatorError(
            f"--efficiencies {path}: not valid ({error!r}); give a file that"
            " `numaserve bench kernels --json FILE` wrote"
        ) from None


def _efficiencies(rows: Sequence[Mapping[str, Any]], source: str) -> Efficiencies:
    measured: dict[tuple[Kind, str], _ByRows] = {}
    products = list(_products(rows))
    own = {(kind, weights) for kind, weights, _, row in products if row.get("processor", "") == source}
    for kind, weights, count, row in products:
        if row.get("of_ceiling") and (row.get("processor", "") == source or (kind, weights) not in own):
            measured.setdefault((kind, weights), {}).setdefault(count, []).append(row)
    peaks = _peaks(measured)
    curves = {
        (kind, weights, bound): Curve(points)
        for (kind, weights), by_rows in measured.items()
        for bound, points in _points(by_rows, peaks.get(peak_format(kind, weights))).items()
    }
    barriers = [row for row in rows if row["table"] == "barrier"]
    barrier_s = min((row["team_ns"] for row in barriers), default=0.0) * 1e-9
    threads = max((row["threads"] for row in barriers), default=1)
    return Efficiencies(source, curves, dict(_row_times(rows, threads)), barrier_s)


def peak_format(kind: Kind, weights: str) -> str:
    """Return the format whose peak was the measured ceiling: that of the weights, widened or not."""
    if kind == "recurrent":
        return "fp32"
    return weights if kind in ("gemm", "experts") else "bf16"


def _peaks(measured: Mapping[tuple[Kind, str], _ByRows]) -> dict[str, float]:
    """Return the GFLOP/s of the ceilings of computing, by format, from the rows that computing bounds."""
    found: dict[str, list[float]] = {}
    for (kind, weights), by_rows in measured.items():
        for row in itertools.chain.from_iterable(by_rows.values()):
            if row["ceiling"] == "flops" and row.get("gflop_s"):
                found.setdefault(peak_format(kind, weights), []).append(row["gflop_s"] / row["of_ceiling"])
    return {format: mean(each) for format, each in found.items()}


def _points(by_rows: _ByRows, peak: float | None) -> dict[str, list[tuple[float, float]]]:
    """Return fractions of both ceilings by the number of rows, for one kind of operation and format."""
    points: dict[str, list[tuple[float, float]]] = {}
    best = 0.0
    for count, rows in sorted(by_rows.items()):
        reads, computes = ([row for row in rows if row["ceiling"] == bound] for bound in ("read", "flops"))
        computed = [_of_ceiling(row) for row in computes]
        if reads:
            reached = mean(_of_ceiling(row) for row in reads)
            known = [row["gflop_s"] / peak for row in reads if row.get("gflop_s")] if peak else []
            if reached < _HELD_UP * best and known:
                computed += known
                reached = best
            best = max(best, reached)
            points.setdefault("read", []).append((count, reached))
        if computed:
            points.setdefault("flops", []).append((count, mean(computed)))
    return points


def _of_ceiling(row: Mapping[str, Any]) -> float:
    # A fraction above the ceiling is noise: row and ceiling were not measured at the same moment. States that are read
    # and written also exceed it, because a few cores write in addition to what they read. A whole socket is not assumed
    # to: its reads and writes share the memory.
    return min(float(row["of_ceiling"]), BEST)


def _products(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Kind, str, float, Mapping[str, Any]]]:
    for row in rows:
        table = str(row["table"]).partition(",")[0]
        if table == "gemm":
            yield "gemm", row["format"], row["M"], row
        elif table == "experts" and row["operation"] in ("moe_gate_up", "moe_down"):
            routing = EXPERT_SHAPES[row["model"]].routing
            read = routing.num_experts * expected_share(routing.num_experts, routing.top_k, row["M"])
            yield "experts", row["format"], row["M"] * routing.top_k / read, row
        elif table == "attention":
            yield "attention", row["kv"], row["new"], row
        elif table == "latent attention" and row["operation"] != "latent_store":
            yield "latent", "bf16", row["new"], row
        elif table == "recurrent":
            yield "recurrent", "bf16", row["new"], row


def _row_times(rows: Iterable[Mapping[str, Any]], threads: int) -> Iterator[tuple[str, RowTime]]:
    measured: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for row in rows:
        name, _, method = str(row.get("operation", "")).partition(", ")
        experts = str(row["table"]).startswith("experts") and name in ("moe_route", "moe_combine")
        if row["table"] != _SMALL and not experts:
            continue
        if method not in ("", "greedy"):
            continue
        count = row["M"] if experts else row["rows"]
        # Samplers are measured per row.
        seconds, repeated = row["best_us"] * 1e-6, count if method else 1
        found = measured.setdefault(name, {}).setdefault(count, [])
        found.append((seconds * repeated, row["gb_s"] * 1e9 * seconds * repeated))
    for name, by_count in measured.items():
        yield name, _row_time({count: min(found) for count, found in by_count.items()}, threads)


def _row_time(measured: Mapping[int, tuple[float, float]], threads: int) -> RowTime:
    """Return the time of rows, from seconds and bytes by their number. The time of one row beyond its bytes is
    fixed."""
    few = min(measured)
    many = {count: found for count, found in measured.items() if count >= threads and count > few} or measured
    rates = Curve(sorted((count / threads, nbytes / seconds / threads) for count, (seconds, nbytes) in many.items()))
    seconds, nbytes = measured[few]
    return RowTime(max(seconds - nbytes / rates.at(1) / min(few, threads), 0.0), rates)
