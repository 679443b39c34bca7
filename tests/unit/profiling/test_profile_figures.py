"""From snapshots to costs, and to a table."""

import msgspec
import pytest
from numaserve.server.profiling.figures import OperationFigures, RankFigures, best_of, between, phase_figures
from numaserve.server.profiling.table import ceilings_view, phase_view
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import Ceilings, OperationProfile
from rich.console import Console

MS = 1_000_000
CEILINGS = Ceilings("amx", 4, read_bytes_s=1e9, flops_s={"bf16": 1e9, "int8": 2e9})


def figures(steps: int, *, rank: int = 0, ceilings: Ceilings | None = None) -> RankFigures:
    """10 ms a step: 4 ms bound by reading, 3 by computing, 2 ms of moving rows, 1.5 of them waiting, 1 ms between."""
    operations = [
        OperationProfile("reduce", "bf16", 2 * steps, 2 * MS * steps, 1_500_000 * steps, 0, 0, 0, 500_000 * steps),
        OperationProfile("linear", "int8", 2 * steps, 4 * MS * steps, 0, 7, 2_000_000 * steps, 1_000_000 * steps),
        OperationProfile("attention", "bf16", steps, 3 * MS * steps, 0, 0, 1_000_000 * steps, 1_500_000 * steps),
        OperationProfile("unused", "bf16", steps, 0, 0, 0, 0, 0),
    ]
    return RankFigures(rank, steps, 5 * steps, 10 * MS * steps, operations, ceilings)


def costs(steps: int = 3) -> dict[str, OperationFigures]:
    (grown,) = between([figures(2)], [figures(2 + steps)])
    return {cost.name: cost for cost in phase_figures("decode", grown, CEILINGS).costs}


def test_the_difference_of_two_snapshots_is_what_the_steps_between_them_cost() -> None:
    assert between([figures(2), figures(2, rank=1)], [figures(5), figures(6, rank=1)]) == [
        figures(3),
        figures(4, rank=1),
    ]


@pytest.mark.parametrize("after", [[figures(1)], [figures(5), figures(5, rank=1)], []])
def test_workers_that_were_started_again_in_between_are_noticed(after: list[RankFigures]) -> None:
    with pytest.raises(OperatorError, match="were restarted"):
        between([figures(2)], after)


def test_operations_come_by_falling_time_then_the_rest_then_the_whole_step() -> None:
    found = costs()
    assert list(found) == ["linear", "attention", "reduce", "(between operations)", "whole step"]
    assert [cost.share for cost in found.values()] == pytest.approx([0.4, 0.3, 0.2, 0.1, 1.0])
    assert [cost.ms for cost in found.values()] == pytest.approx([4, 3, 2, 1, 10])
    assert (found["reduce"].wait_ms, found["whole step"].wait_ms) == (1.5, 1.5)


def test_an_operation_is_measured_by_what_bounds_it_and_by_the_peak_of_its_format() -> None:
    found = costs()
    assert (found["linear"].ceiling, found["linear"].of_ceiling) == ("read", pytest.approx(0.5))
    assert (found["attention"].ceiling, found["attention"].of_ceiling) == ("flops", pytest.approx(0.5))
    assert (found["reduce"].ceiling, found["reduce"].of_ceiling) == ("move", pytest.approx(0.25))
    assert (found["reduce"].mbytes, found["reduce"].gb_s) == (pytest.approx(0.5), pytest.approx(0.25))
    assert found["(between operations)"].ceiling is None
    # 3 MB at 1 GB/s, without the rows that are moved; computing takes 0.5 ms of int8 and 1.5 ms of bf16.
    assert (found["whole step"].ceiling, found["whole step"].of_ceiling) == ("read", pytest.approx(0.3))
    assert (found["linear"].gb_s, found["linear"].gflop_s) == (pytest.approx(0.5), pytest.approx(0.25))


def test_without_ceilings_there_are_no_fractions() -> None:
    phase = phase_figures("traffic", figures(2), None)
    assert {cost.of_ceiling for cost in phase.costs} == {None}


def test_no_step_is_a_mistake_of_the_operator() -> None:
    with pytest.raises(OperatorError, match="no step ran"):
        phase_figures("traffic", between([figures(2)], [figures(2)])[0], None)


@pytest.mark.parametrize(
    ("waited", "shown"), [(0, ""), (1, ""), (25, "the threads of rank 1 waited 20% of their time")]
)
def test_other_load_on_the_cores_is_reported_with_its_figure(waited: int, shown: str) -> None:
    before = [figures(2, rank=rank) for rank in range(2)]
    after = [figures(4, rank=rank) for rank in range(2)]
    after[1] = msgspec.structs.replace(after[1], cpu_ns=100 * MS, cpu_wait_ns=waited * MS)
    phases = [phase_figures("decode", grown, CEILINGS) for grown in between(before, after)]
    assert [phase.cpu_wait for phase in phases] == [None, waited / (100 + waited)]
    console = Console(width=200)
    with console.capture() as captured:
        console.print(phase_view(phases[0], phases))
    assert ("other load: " in captured.get()) == bool(shown)
    assert shown in captured.get()


def test_the_best_of_two_measurements_counts() -> None:
    worse = msgspec.structs.replace(CEILINGS, read_bytes_s=5e8, flops_s={"bf16": 3e9, "int8": 1e9})
    assert best_of(worse, CEILINGS) == msgspec.structs.replace(CEILINGS, flops_s={"bf16": 3e9, "int8": 2e9})
    assert best_of(None, worse) == worse
    assert best_of(None, None) is None


def test_the_table_has_a_row_for_each_operation_and_a_line_for_each_other_rank() -> None:
    phases = [phase_figures("decode", figures(4, rank=rank), CEILINGS) for rank in (0, 1)]
    console = Console(width=100)
    with console.capture() as captured:
        console.print(phase_view(phases[0], phases))
        console.print(ceilings_view(phases[0].ceilings))
        console.print(ceilings_view(None))
    lines = [line.split() for line in captured.get().splitlines() if line.strip()]
    assert lines[0][:6] == ["decode,", "rank", "0:", "4", "steps", "of"]
    assert ["linear", "int8", "2", "4.000", "40.0%", "2", "0.5", "0.001", "0.2", "50.0%", "read"] in lines
    assert ["reduce", "2", "2.000", "20.0%", "1.500", "0.5", "0.2", "25.0%", "move"] in lines
    assert ["whole", "step", "5", "10.000", "100.0%", "1.500", "3", "0.3", "0.0025", "0.2", "30.0%", "read"] in lines
    assert "rank 1: 10 ms per step, including 1.500 ms (15.0%) of waiting for other ranks" in captured.get()
    assert "reads 1 GB/s, bf16 0.001 TFLOP/s, int8 0.002 TFLOP/s" in captured.get()
    assert "not measured" in captured.get()
