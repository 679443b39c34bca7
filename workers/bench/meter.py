"""The meter of rows: a team, its ceilings, and steps whose data lie in memory alone.

A figure says little on a machine that is not described, and less on one that is shared: its bandwidth can halve for
minutes. So each row has ceilings of its own time: the best of the last few seconds, the last of them measured within a
second of the row. The best repetition is compared with them; the median shows how much the machine was disturbed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numaserve.kernels import PackedMatrix, Program, Team, evict, isa, nest_flops, peak_flops, read_seconds
from numaserve.workers.bench.programs import SlotTokens, place, spent_in_step
from numaserve.workers.bench.rows import Limits
from numaserve.workers.interface.protocol import Ceilings
from numaserve.workers.planning.ceilings import Range, spare_bytes

# Passes are as short as the steps that are compared with them: on a shared machine some escape other load. There are
# enough of them to last for longer than a sleeping processor of a virtual machine takes to run at its full speed.
_THREAD_BYTES = 16 << 20  # evicted before they are read, so they need not exceed a cache
_READ_PASSES = 16  # for each of the two ways of reading
_PEAK_S, _PEAK_PASSES, _PEAK_ROUNDS = 0.04, 4, 250_000  # a pass takes a millisecond; with AMX five
_NEST_PASSES = 8  # each takes a millisecond or two, and evicts its weights before
_CURRENT_S, _KEPT_S = 1.0, 5.0
_COLUMNS = 4096


class Meter:
    """Measures the steps and the ceilings of a team."""

    def __init__(self, team: Team, *, evicts: bool = True) -> None:
        """Make the meter of a team. Without `evicts`, caches keep the data of a step for the next one."""
        self.team = team
        self._evicts = evicts
        self._memory: PackedMatrix | None = None
        self._read = _Rate(self._read_rate)
        self._peaks: dict[tuple[str, str], _Rate] = {}  # by operands and format

    def seconds(
        self, program: Program, names: Sequence[str], run: Sequence[SlotTokens], data: Sequence[Range]
    ) -> list[float]:
        """Return the seconds that the nodes of each name take in a step that finds `data` in no cache."""
        if self._evicts:
            evict(self.team, data)
        return [spent.seconds for spent in spent_in_step(program, names, run)]

    def around(self, *formats: str) -> Ceiling:
        """Return the ceilings around a measurement of products in `formats`."""
        return Ceiling(partial(self.limits, formats))

    def limits(self, formats: Sequence[str]) -> Limits:
        """Return the ceilings of this moment, and the peaks of random operands and of nests in all formats but
        fp32."""
        peaks = {format: self._peak(format, random=False) for format in sorted(set(formats))}
        ceilings = Ceilings(isa(), self.team.size, self._read.now(), peaks)
        others = [format for format in peaks if format != "fp32"]
        nests = {format: self._nest(format) for format in others if has_tile_registers(isa())}
        return Limits(ceilings, {format: self._peak(format, random=True) for format in others}, nests)

    def _peak(self, format: str, *, random: bool) -> float:
        return self._now(("random" if random else "equal", format), partial(self._best_peak, format, random=random))

    def _nest(self, format: str) -> float:
        return self._now(("nest", format), lambda: nest_flops(self.team, format, _NEST_PASSES) or 0.0)

    def _now(self, key: tuple[str, str], measure: Callable[[], float]) -> float:
        if key not in self._peaks:
            self._peaks[key] = _Rate(measure)
        return self._peaks[key].now()

    def _best_peak(self, format: str, *, random: bool) -> float:
        best, end = 0.0, time.monotonic() + _PEAK_S
        while not best or time.monotonic() < end:
            best = max(best, peak_flops(self.team, format, _PEAK_PASSES, random, _PEAK_ROUNDS))
        return best

    def _read_rate(self) -> float:
        if self._memory is None:
            nbytes = min(self.team.size * _THREAD_BYTES, spare_bytes())
            self._memory = PackedMatrix(max(nbytes // (2 * _COLUMNS), 1), _COLUMNS)
            # All untouched memory is one shared page of zeros.
            np.frombuffer(self._memory.buffer(), np.uint8).fill(1)
        memory = place(self._memory)
        best = float("inf")
        # Which of the two ways reads more differs between processors.
        for number in range(2 * _READ_PASSES):
            evict(self.team, [memory])
            best = min(best, read_seconds(self.team, [memory], fetch_ahead=number % 2 == 0))
        return memory[1] / best


def has_tile_registers(isa: str) -> bool:
    """Return whether an instruction set multiplies in tile registers."""
    return isa.startswith("amx")


@dataclass
class Ceiling:
    """The ceilings around a measurement: the best of those before and after it."""

    measure: Callable[[], Limits]
    best: Limits = field(init=False)

    def __enter__(self) -> Ceiling:
        self.best = self.measure()
        return self

    def __exit__(self, *_: object) -> None:
        self.best = self.best.better(self.measure())


class _Rate:
    """A rate, measured again when the last measurement is older than a second; the best of the last seconds counts."""

    def __init__(self, measure: Callable[[], float]) -> None:
        self._measure = measure
        self._found: list[tuple[float, float]] = []  # when each was measured, and the rate

    def now(self) -> float:
        if not self._found or time.monotonic() - self._found[-1][0] >= _CURRENT_S:
            rate = self._measure()
            now = time.monotonic()
            self._found = [*((at, old) for at, old in self._found if now - at < _KEPT_S), (now, rate)]
        return max(rate for _, rate in self._found)
