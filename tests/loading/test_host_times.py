"""Times of counted work on a host of round numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import pytest
from numaserve.workers.planning.roofline.efficiency import Curve, Efficiencies, RowTime
from numaserve.workers.planning.roofline.phases import RankMachine, decode_step
from numaserve.workers.planning.simulation.counting import CountedGroup, Phase, Work
from numaserve.workers.planning.simulation.times import HostTimes, OperationTime, StepTotals
from numaserve.workers.program.cost import Amount, Kind, OperationCost, StepWork
from numaserve.workers.program.ops.base import Operation

from tests.support.round_host import ROUND

EFFICIENCIES = Efficiencies(
    "some",
    {("gemm", "bf16", "read"): Curve([(1, 0.5)]), ("gemm", "bf16", "flops"): Curve([(1, 0.8)])},
    {"norm": RowTime(1e-6, Curve([(1, 1e9)]))},
    barrier_s=1e-6,
)
RANK = RankMachine(ROUND, 4, 10e9)
STEP = decode_step(1, 100)
BARRIER = 2e-6  # what the machine's barrier takes longer
NOTHING = Work(0, 0, 0, 0)


@dataclass
class Counted:
    """A group that has counted what it is given."""

    costs: list[list[OperationCost | None]]
    phases: list[list[Phase]]

    def step(self, _: StepWork) -> list[list[Phase]]:
        return self.phases


def times_of(
    *ranks: Sequence[Work], kind: Kind = "gemm", name: str = "linear", meetings: int = 0, step_s: float = 0.0
) -> StepTotals:
    """The times of one operation, of which the threads of each rank have this work."""
    cost = OperationCost(name, kind, lambda _: Amount(rows=1, meetings=meetings))
    phases = [[Phase(0, cast(Operation, None), threads, [])] if threads else [] for threads in ranks]
    group = cast(CountedGroup, Counted([[cost]] * len(ranks), phases))
    return HostTimes([RANK] * len(ranks), EFFICIENCIES, step_s).of(group, STEP)


def the_only(totals: StepTotals, rank: int = 0) -> OperationTime:
    ((name, weights),) = totals.names(rank)
    return totals.operation(name, weights, rank)


def test_a_product_takes_the_longer_of_reading_and_computing() -> None:
    reading = times_of([Work(int(0.25e9), 0, 0, 1000)] * 4)
    assert reading.seconds == pytest.approx(0.2 + BARRIER)
    assert the_only(reading).bound == "read"
    computing = times_of([Work(1000, 0, 0, int(0.4e9))] * 4)
    assert computing.seconds == pytest.approx(0.5 + BARRIER)
    assert the_only(computing).bound == "flops"


def test_nothing_is_done_without_work() -> None:
    assert times_of([]).seconds == 0.0


def test_a_step_takes_as_long_as_the_rank_with_most_to_do() -> None:
    one, two = Work(int(0.25e9), 0, 0, 0), Work(int(0.5e9), 0, 0, 0)
    totals = times_of([one] * 4, [two] * 4, step_s=0.25)
    assert totals.busiest == 1
    assert totals.seconds == pytest.approx(0.4 + BARRIER + 0.25)
    assert the_only(totals, 1).ranks == pytest.approx(0.75, rel=1e-4)


def test_an_operation_ends_with_its_busiest_thread() -> None:
    half = Work(0, 0, 0, int(0.4e9))
    found = the_only(times_of([half, half.plus(half), half, half]))
    assert found.seconds == pytest.approx(1.0 + BARRIER)
    assert found.threads == pytest.approx(5 / 8)


def test_rows_take_the_time_of_their_bytes_and_a_start() -> None:
    totals = times_of([Work(0, int(2e6), 0, 0), NOTHING], kind="rows", name="norm")
    assert totals.seconds == pytest.approx(1e-6 + 2e-3 + BARRIER)
    assert the_only(totals).bound == "cores"


def test_ranks_wait_for_the_last_one_and_fetch_over_the_link() -> None:
    late, early = Work(0, int(4e6), int(1e6), 0), Work(0, 0, int(1e6), 0)
    totals = times_of([late], [early], kind="exchange", name="norm", meetings=2)
    assert totals.seconds == pytest.approx(1e-6 + 4e-3 + BARRIER + 10e-6 + 1e-3)
    assert totals.waiting_s == pytest.approx(2e-3)
    found = the_only(totals, 1)
    assert (found.bound, found.meetings, found.remote) == ("ranks", 2, 1_000_000)


def overlapped(product_s: float, link_s: float, overlapped: float) -> StepTotals:
    """The times of a product and of the sum of its results, on two ranks of four threads."""
    link, product = int(link_s * ROUND.link_gb_s * 1e9 / 4), int(0.8 * 1e9 * product_s)
    costs: list[OperationCost | None] = [
        OperationCost("linear", "gemm", lambda _: Amount(rows=1)),
        OperationCost("norm", "exchange", lambda _: Amount(rows=1, meetings=2, overlapped=overlapped)),
    ]
    phases = [
        Phase(0, cast(Operation, None), [Work(0, 0, 0, product)] * 4, [], joins_next=True),
        Phase(1, cast(Operation, None), [Work(0, 0, link, 0)] * 4, []),
    ]
    group = cast(CountedGroup, Counted([costs] * 2, [phases] * 2))
    return HostTimes([RANK] * 2, EFFICIENCIES).of(group, STEP)


@pytest.mark.parametrize(("product_s", "link_s"), [(0.5, 1.5), (1.5, 0.5)])
def test_an_overlapped_sum_takes_the_longer_time_and_a_piece_of_the_shorter(product_s: float, link_s: float) -> None:
    fixed = 1e-6 + BARRIER + 10e-6  # of the sum alone: there is no barrier in between
    core_s = link_s * ROUND.link_gb_s * 1e9 / 4 / 10e9  # in which a core would fetch its part
    for fraction in (0.5, 0.875):
        totals = overlapped(product_s, link_s, fraction)
        thread_s = product_s + 1e-6 + BARRIER + core_s
        longer, shorter = max(thread_s, link_s), min(thread_s, link_s)
        assert totals.seconds == pytest.approx(longer + (1 - fraction) * shorter + 10e-6)
        assert totals.operation("linear", "bf16", 0).seconds == pytest.approx(product_s)
        assert totals.operation("linear", "bf16", 0).barriers == 0
    assert overlapped(product_s, link_s, 0.0).seconds == pytest.approx(product_s + link_s + fixed)
