"""Ceilings that neighbouring rows share, steps that find their data in no cache, and the number of repetitions."""

import itertools
from collections.abc import Sequence

import pytest
from numaserve.kernels import Team, isa
from numaserve.workers.bench import meter as module
from numaserve.workers.bench import rows as rows_module
from numaserve.workers.bench.meter import Ceiling, Meter
from numaserve.workers.bench.programs import BF16, begin, built, make_builder, place, random_matrix, start_slot
from numaserve.workers.bench.rows import Effort, Limits
from numaserve.workers.interface.protocol import Ceilings

CEILINGS = Ceilings("amx", 4, read_bytes_s=1e9, flops_s={"bf16": 1e9, "int8": 2e9})


class _Clock:
    """The seconds that a test lets pass."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    made = _Clock()
    monkeypatch.setattr(module.time, "monotonic", made)
    monkeypatch.setattr(rows_module.time, "perf_counter", made)
    return made


@pytest.fixture
def peaks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The formats whose peaks were measured; each peak is lower than the one before."""
    measured: list[str] = []

    def peak(_team: Team, format: str, _passes: int, random: bool, _rounds: int) -> float:
        if random:
            return 0.25
        measured.append(format)
        return 1.0 / len(measured)

    monkeypatch.setattr(module, "peak_flops", peak)
    monkeypatch.setattr(module, "_THREAD_BYTES", 1 << 20)
    monkeypatch.setattr(module, "_PEAK_S", 0.0)
    return measured


def test_peaks_are_measured_for_as_long_as_a_processor_takes_to_wake(
    clock: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = iter([1.0, 2.0, 4.0, 3.0])

    def peak(*_: object) -> float:
        clock.now += 0.015
        return next(rates)

    monkeypatch.setattr(module, "peak_flops", peak)
    assert Meter(Team([-1]))._best_peak("bf16", random=False) == 4.0
    assert list(rates) == [3.0]


def test_the_best_ceilings_around_a_measurement_count() -> None:
    first, second = CEILINGS, Ceilings("amx", 4, 3e9, {"bf16": 5e8, "int8": 4e9})
    before = Limits(first, {"bf16": 7e8}, {"bf16": 1e8})
    measured = iter([before, Limits(second, {"bf16": 4e8}, {"bf16": 2e8})])
    with Ceiling(lambda: next(measured)) as ceiling:
        assert ceiling.best == before
    assert ceiling.best == Limits(Ceilings("amx", 4, 3e9, {"bf16": 1e9, "int8": 4e9}), {"bf16": 7e8}, {"bf16": 2e8})


def test_rows_within_a_second_share_ceilings(clock: _Clock, peaks: list[str]) -> None:
    meter = Meter(Team([-1]))
    with meter.around("bf16") as first:
        clock.now += 0.5
    assert (peaks, first.best.ceilings.flops_s) == (["bf16"], {"bf16": 1.0})
    assert first.best.random_flops_s == {"bf16": 0.25}
    assert (first.best.ceilings.isa, first.best.ceilings.threads) == (isa(), 1)
    assert first.best.ceilings.read_rate > 0
    with meter.around("bf16", "int8") as second:
        clock.now += 0.6
    # The first peak is older than a second after the row, the other one is not.
    assert peaks == ["bf16", "int8", "bf16"]
    assert second.best.ceilings.flops_s == {"bf16": 1.0, "int8": 1 / 2}
    clock.now += 4.8
    with meter.around("bf16") as third:
        pass
    # The best of five seconds counts, and the first is older by now.
    assert peaks[3:] == ["bf16"]
    with meter.around("bf16", "fp32") as fourth:
        pass
    assert fourth.best.random_flops_s == {"bf16": 0.25}
    assert third.best.ceilings.flops_s == {"bf16": 1 / 3}


@pytest.mark.parametrize("evicts", [True, False])
def test_a_step_finds_its_data_in_no_cache(evicts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    team, evicted = Team([-1]), list[Sequence[tuple[int, int]]]()
    monkeypatch.setattr(module, "evict", lambda _, ranges: evicted.append(list(ranges)))
    matrix = random_matrix(team, 64, 32, BF16)
    b = make_builder(team, hidden=32, step_tokens=2)
    _, x = begin(b, team)
    b.linear(x, matrix)
    program = built(b, team)
    start_slot(program, 0, [0])
    names, run = ["linear", "embed"], [(0, 0, 2, 0)]
    assert all(seconds > 0 for seconds in Meter(team, evicts=evicts).seconds(program, names, run, [place(matrix)]))
    assert evicted == [[(matrix.address, matrix.nbytes)]] * evicts


def repeated(effort: Effort, clock: _Clock, *rows: Sequence[float], step: float = 0.1) -> int:
    """The number of rounds that an effort takes, each of `step` seconds, over rows that repeat these times."""
    times, count = zip(*map(itertools.cycle, rows), strict=True), itertools.count(1)
    done = 0

    def work() -> list[float]:
        nonlocal done
        done = next(count)
        clock.now += step
        return list(next(times))

    found = effort.repeat(work)
    assert [each.best for each in found] == [min(row[:done]) for row in rows]
    return done


def test_rows_are_repeated_until_their_best_times_are_confirmed(clock: _Clock) -> None:
    effort = Effort(seconds=10.0, least=2, most=40)
    assert repeated(effort, clock, [1.0], step=0.5) == 3
    assert repeated(effort, clock, [1.0], step=0.125) == 5  # a part of the time passes in any case
    assert repeated(effort, clock, [1.0, 1.01, 1.5, 1.02], step=0.5) == 4
    assert repeated(effort, clock, [1.0], [2.0, 3.0], step=0.5) == 5  # both rows
    growing = [1.0 / (1 + number) for number in range(100)]
    assert repeated(effort, clock, growing, step=0.5) == 20
    assert repeated(effort, clock, growing, step=0.125) == 40
    assert repeated(effort, clock, [1.0], step=30.0) == 2
