import pytest
from numaserve.workers.planning.roofline.efficiency import Curve, Efficiencies, RowTime
from numaserve.workers.planning.roofline.machine import Machine
from numaserve.workers.planning.roofline.phases import PhaseEstimate, RankMachine, Roofline, decode_step, prefill_steps
from numaserve.workers.program.cost import Amount, Kind, OperationCost, StepWork

MACHINE = Machine(
    name="round numbers",
    node_cores=[4, 4],
    node_memory_gib=1,
    node_read_gb_s=10,
    core_gflop_s={"bf16": 1, "int8": 2},
    link_gb_s=1,
    meeting_us=5,
    barrier_us=3,
)
EFFICIENCIES = Efficiencies(
    "some",
    {("gemm", "bf16", "read"): Curve([(1, 0.5)]), ("gemm", "bf16", "flops"): Curve([(1, 0.8)])},
    {"norm": RowTime(1e-6, Curve([(1, 1e9)]))},
    barrier_s=1e-6,
)
RANK = RankMachine(MACHINE, 4, 10e9)
STEP = decode_step(1, 100)
BARRIER = 2e-6  # what the machine's barrier takes longer


def estimate_of(*amounts: Amount, kind: Kind = "gemm", name: str = "linear", step_s: float = 0.0) -> PhaseEstimate:
    operations = [[OperationCost(name, kind, lambda _, each=each: each)] for each in amounts]
    return Roofline([RANK] * len(amounts), operations, EFFICIENCIES, step_s).phase("decode", [STEP])


def test_a_product_takes_the_longer_of_reading_and_computing() -> None:
    reading = estimate_of(Amount(nbytes=1e9, flops=1e6, rows=1))
    assert reading.seconds == pytest.approx(0.2 + BARRIER)
    assert (reading.costs[0].bound, reading.bound_s) == ("read", 0.1)
    computing = estimate_of(Amount(nbytes=1e6, flops=1.6e9, rows=1))
    assert computing.seconds == pytest.approx(0.5 + BARRIER)
    assert (computing.costs[0].bound, computing.bound_s) == ("flops", 0.4)


def test_nothing_is_done_for_no_rows() -> None:
    assert estimate_of(Amount()).seconds == 0.0


def test_a_step_takes_as_long_as_the_rank_with_the_most_to_do() -> None:
    phase = estimate_of(Amount(nbytes=1e9, rows=1), Amount(nbytes=2e9, rows=1), step_s=0.25)
    assert phase.rank == 1
    assert phase.nbytes == 2e9
    assert phase.seconds == pytest.approx(0.4 + BARRIER + 0.25)


def test_rows_are_divided_over_the_cores_as_whole_pieces() -> None:
    # Five pieces on four cores: one core has two of them.
    phase = estimate_of(Amount(rows=5, touched=5e6, pieces=5), kind="rows", name="norm")
    assert phase.seconds == pytest.approx(1e-6 + 2e6 / 1e9 + BARRIER)
    assert phase.costs[0].bound == "cores"


def test_states_are_divided_over_the_cores_as_whole_pieces() -> None:
    # Computing bounds five pieces on four cores: one core has two of them. Reading is as fast with fewer cores.
    fp32 = 0.5e9
    phase = estimate_of(Amount(nbytes=1e6, flops=4e9, rows=1, pieces=5), kind="recurrent")
    assert phase.seconds == pytest.approx(4e9 * 2 / 5 / fp32 + BARRIER)
    phase = estimate_of(Amount(nbytes=1e9, flops=1e6, rows=1, pieces=5), kind="recurrent")
    assert phase.seconds == pytest.approx(0.1 + BARRIER)
    assert estimate_of(Amount(rows=1, pieces=0), kind="recurrent").seconds == 0.0


def test_what_every_core_reads_counts_where_there_are_fewer_rows_than_cores() -> None:
    few = estimate_of(Amount(rows=1, touched=4e6, pieces=1000, repeated=1e6), kind="rows", name="norm")
    assert few.seconds == pytest.approx(1e-6 + 2e6 / 1e9 + BARRIER)
    many = estimate_of(Amount(rows=1000, touched=4e6, pieces=1000, repeated=1e6), kind="rows", name="norm")
    assert many.seconds == pytest.approx(1e-6 + 1e6 / 1e9 + BARRIER)


def test_ranks_meet_and_fetch_over_the_link() -> None:
    phase = estimate_of(Amount(rows=1, pieces=1, fetched=1e6, meetings=2), kind="exchange", name="norm")
    assert phase.seconds == pytest.approx(1e-6 + BARRIER + 10e-6 + 1e-3)
    assert phase.costs[0].bound == "ranks"


def test_a_prompt_is_cut_into_chunks_and_its_last_one_samples() -> None:
    assert prefill_steps(1100, 512) == [
        StepWork([(0, 512)], 0),
        StepWork([(512, 512)], 0),
        StepWork([(1024, 76)], 1),
    ]
    assert prefill_steps(512, 512) == [StepWork([(0, 512)], 1)]
    assert decode_step(2, 7) == StepWork([(7, 1), (7, 1)], 2)
