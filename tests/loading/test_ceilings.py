import pytest
from numaserve.kernels import Team, isa
from numaserve.workers.planning.ceilings import rank_ceilings
from numaserve.workers.protocol import Ceilings


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
