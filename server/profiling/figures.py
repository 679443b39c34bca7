"""Figures of steps, from two snapshots of a server's profile."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import msgspec
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import Ceilings, OperationProfile


class RankFigures(msgspec.Struct, frozen=True):
    """A rank's part of `GET /server_info?profile=1`: totals since it was loaded, or between two snapshots."""

    rank: int
    steps: int
    tokens: int
    native_ns: int
    operations: list[OperationProfile]
    ceilings: Ceilings | None = None
    cpu_ns: int = 0  # for which its threads ran
    cpu_wait_ns: int = 0  # for which they were ready to run, and other threads had their cores


@dataclass(frozen=True)
class OperationFigures:
    """An operation in an average step. Times are in ms; `share` is the part of the whole step. `of_ceiling` is the best
    time that the machine allows divided by the actual time; `ceiling` is the limiting resource.

    The bytes of an operation that only moves activations are those of the activations. The bytes of the whole step do
    not include activations.
    """

    name: str
    format: str
    calls: float
    ms: float
    share: float
    wait_ms: float
    mbytes: float
    gb_s: float | None
    mflops: float
    gflop_s: float | None
    of_ceiling: float | None
    ceiling: str | None


@dataclass(frozen=True)
class PhaseFigures:
    """The steps of one rank between two snapshots. `costs` are in order of falling time; the time between operations
    and the whole step come last.

    `cpu_wait` is the part of their time that the threads of the rank waited for a core. None if it is unknown.
    """

    name: str
    rank: int
    steps: int
    tokens: int
    costs: list[OperationFigures]
    ceilings: Ceilings | None
    cpu_wait: float | None = None

    def record(self) -> dict[str, object]:
        """Return the figures as they are written to JSON."""
        return asdict(self) | {"ceilings": self.ceilings and msgspec.structs.asdict(self.ceilings)}


def between(before: Sequence[RankFigures], after: Sequence[RankFigures]) -> list[RankFigures]:
    """Return the growth of each rank's totals. Raises `OperatorError` when the workers were restarted in between."""
    if [rank.rank for rank in before] != [rank.rank for rank in after] or any(
        new.steps < old.steps for old, new in zip(before, after, strict=True)
    ):
        raise OperatorError("the server's workers were restarted during the measurement. Run the command again")
    return [_grown(old, new) for old, new in zip(before, after, strict=True)]


def _grown(old: RankFigures, new: RankFigures) -> RankFigures:
    known = {(each.name, each.format): each for each in old.operations}
    operations = []
    for each in new.operations:
        was = known[each.name, each.format]
        operations.append(
            OperationProfile(
                each.name,
                each.format,
                calls=each.calls - was.calls,
                ns=each.ns - was.ns,
                wait_ns=each.wait_ns - was.wait_ns,
                weight_bytes=each.weight_bytes,
                bytes=each.bytes - was.bytes,
                flops=each.flops - was.flops,
                moved_bytes=each.moved_bytes - was.moved_bytes,
            )
        )
    return RankFigures(
        new.rank,
        new.steps - old.steps,
        new.tokens - old.tokens,
        new.native_ns - old.native_ns,
        operations,
        best_of(old.ceilings, new.ceilings),
        max(0, new.cpu_ns - old.cpu_ns),  # a thread may have ended
        max(0, new.cpu_wait_ns - old.cpu_wait_ns),
    )


def best_of(one: Ceilings | None, other: Ceilings | None) -> Ceilings | None:
    """Return the best of two measurements, either of which may be missing."""
    return one or other if one is None or other is None else one.better(other)


def phase_figures(name: str, figures: RankFigures, ceilings: Ceilings | None) -> PhaseFigures:
    """Return the figures of an average step. Raises `OperatorError` when there was no step."""
    if figures.steps == 0:
        raise OperatorError(
            "no step ran during the measurement. With --seconds, the server needs traffic. Without --seconds, "
            "raise --output-tokens"
        )
    ran = sorted((each for each in figures.operations if each.ns > 0), key=lambda each: -each.ns)
    bounds = {id(each): _bounds(each, ceilings) for each in ran}
    known = sum(each.ns for each in ran)
    outside = OperationProfile("(between operations)", "", 0, figures.native_ns - known, 0, 0, 0, 0)
    whole = OperationProfile(
        "whole step",
        "",
        calls=sum(each.calls for each in ran),
        ns=figures.native_ns,
        wait_ns=sum(each.wait_ns for each in ran),
        weight_bytes=0,
        bytes=sum(each.bytes for each in ran),
        flops=sum(each.flops for each in ran),
    )
    # At best, reading and computing overlap, within an operation and in the whole step. The whole step has no bound of
    # moving activations, most of which lie in caches.
    step_bounds = {kind: sum(bound.get(kind, 0.0) for bound in bounds.values()) for kind in ("read", "flops")}
    costs = [_averages(each, figures, bounds[id(each)]) for each in ran]
    costs += [_averages(outside, figures, {}), _averages(whole, figures, step_bounds if ceilings else {})]
    wanted_ns = figures.cpu_ns + figures.cpu_wait_ns
    cpu_wait = figures.cpu_wait_ns / wanted_ns if wanted_ns else None
    return PhaseFigures(name, figures.rank, figures.steps, figures.tokens, costs, ceilings, cpu_wait)


def _bounds(operation: OperationProfile, ceilings: Ceilings | None) -> dict[str, float]:
    """Return the least seconds that reading and computing take, and that moving activations takes from memory."""
    if ceilings is None:
        return {}
    peak = ceilings.flops_s.get(operation.format)
    found = {"flops": operation.flops / peak} if peak else {}
    if ceilings.read_bytes_s:
        found["read"] = operation.bytes / ceilings.read_bytes_s
        found["move"] = operation.moved_bytes / ceilings.read_bytes_s
    return found


def _averages(operation: OperationProfile, figures: RankFigures, bounds: dict[str, float]) -> OperationFigures:
    steps, ns = figures.steps, max(operation.ns, 1)
    nbytes = operation.bytes + operation.moved_bytes
    ceiling, bound = max(bounds.items(), key=lambda item: item[1], default=(None, 0.0))
    return OperationFigures(
        operation.name,
        operation.format,
        calls=operation.calls / steps,
        ms=operation.ns / steps / 1e6,
        share=operation.ns / max(figures.native_ns, 1),
        wait_ms=operation.wait_ns / steps / 1e6,
        mbytes=nbytes / steps / 1e6,
        gb_s=nbytes / ns if nbytes else None,
        mflops=operation.flops / steps / 1e6,
        gflop_s=operation.flops / ns if operation.flops else None,
        of_ceiling=bound * 1e9 / ns if bound else None,
        ceiling=ceiling if bound else None,
    )
