"""What a rank can do at best, measured with memory of its own or with what it holds anyway."""

from collections.abc import Generator

import numpy as np
import psutil
import pytest
from numaserve.kernels import Team, isa, read_seconds
from numaserve.workers.interface.protocol import Ceilings
from numaserve.workers.planning import ceilings as module
from numaserve.workers.planning.ceilings import ceilings_in_slices, rank_ceilings


def test_ceilings_are_measured_with_what_memory_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def read_bandwidth(_team: Team, nbytes: int) -> float:
        read.append(nbytes)
        return 1.0

    monkeypatch.setattr("numaserve.workers.planning.ceilings.read_bandwidth", read_bandwidth)
    peaks = {"bf16": 2.0, "int8": 4.0}
    monkeypatch.setattr("numaserve.workers.planning.ceilings.peak_flops", lambda _team, format: peaks[format])
    monkeypatch.setattr("numaserve.workers.planning.ceilings.spare_bytes", lambda: 1 << 20)
    team = Team([-1])
    ceilings = rank_ceilings(team, ["int8", "bf16", "int8"], teams=4)
    assert read == [1 << 18]
    assert ceilings == Ceilings(isa(), 1, 1.0, peaks)


CACHE_BYTES = 24 << 20


def measured(slices: Generator[None, None, Ceilings]) -> tuple[Ceilings, int]:
    """What comes of it, and in how many slices."""
    count = 0
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return end.value, count
        count += 1


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[int, int]]]:
    """What is read in each slice; the processor's last cache is small, and its peaks are quickly known."""
    made: list[list[tuple[int, int]]] = []

    def read(team: Team, ranges: list[tuple[int, int]], fetch_ahead: bool) -> float:
        made.append(ranges)
        return read_seconds(team, ranges, fetch_ahead)

    monkeypatch.setattr(module, "read_seconds", read)
    monkeypatch.setattr(module, "peak_flops", lambda _team, _format, passes: float(passes))
    monkeypatch.setattr(module, "last_level_cache_bytes", lambda: CACHE_BYTES)
    return made


def test_bandwidth_is_that_of_memory_which_is_there(reads: list[list[tuple[int, int]]]) -> None:
    weights = [np.ones(nbytes, np.uint8) for nbytes in (70 << 20, 1 << 10, 9 << 20)]
    resident = [(each.ctypes.data, each.nbytes) for each in weights]
    process = psutil.Process()
    before = process.memory_info().rss
    ceilings, slices = measured(ceilings_in_slices(Team([-1]), ["bf16"], resident))
    assert process.memory_info().rss < before + (8 << 20)
    assert ceilings.read_bytes_s is not None
    assert ceilings.read_bytes_s > 0
    assert ceilings.flops_s == {"bf16": 1.0}
    assert slices == len(reads) + module._PEAK_PASSES
    for ranges in reads:
        assert 0 < sum(nbytes for _, nbytes in ranges) <= module._SLICE_BYTES
        for address, nbytes in ranges:
            assert any(start <= address and address + nbytes <= start + size for start, size in resident)
    # All of it, before anything is read again.
    once = [each for ranges in reads[:3] for each in ranges]
    assert sum(nbytes for _, nbytes in once) == sum(nbytes for _, nbytes in resident)
    assert len({address for address, _ in once}) == len(once)


def test_bandwidth_is_not_measured_where_the_cache_could_hold_half_of_the_weights(
    reads: list[list[tuple[int, int]]],
) -> None:
    weights = np.ones(2 * CACHE_BYTES - 4096, np.uint8)
    ceilings, _ = measured(ceilings_in_slices(Team([-1]), ["bf16"], [(weights.ctypes.data, weights.nbytes)]))
    assert (ceilings.read_bytes_s, ceilings.flops_s, reads) == (None, {"bf16": 1.0}, [])
    with pytest.raises(ValueError, match="not measured"):
        ceilings.read_rate  # noqa: B018


def test_the_better_of_two_measurements_is_the_one_that_there_is() -> None:
    some, none = (Ceilings("a", 1, read, {"bf16": 1.0}) for read in (2.0, None))
    assert some.better(none) == none.better(some) == some
    assert none.better(none) == none
