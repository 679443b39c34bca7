import json
import math
from pathlib import Path
from typing import Any, get_args

import pytest
from numaserve.configs import efficiencies
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.windows import Window
from numaserve.workers.planning.roofline.efficiency import Curve, Efficiencies, load_efficiencies
from numaserve.workers.planning.roofline.machine import Isa
from numaserve.workers.program.cost import StepWork, attended, expected_share

BARRIER = {"table": "barrier", "threads": 2, "team_ns": 100.0}


def gemm(format: str, rows: int, ceiling: str, fraction: float) -> dict[str, Any]:
    return {"table": f"gemm, {format}", "format": format, "M": rows, "ceiling": ceiling, "of_ceiling": fraction}


def written(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "kernels.jsonl"
    path.write_text("".join(json.dumps({"processor": "some", **row}) + "\n" for row in rows))
    return path


def test_fractions_between_measured_rows_follow_their_logarithm() -> None:
    curve = Curve([(1, 0.8), (16, 0.4)])
    assert curve.at(4) == pytest.approx(0.6)
    assert [curve.at(rows) for rows in (0.5, 1, 16, 100)] == [0.8, 0.8, 0.4, 0.4]


def test_reading_and_computing_have_fractions_of_their_own(tmp_path: Path) -> None:
    found = load_efficiencies(
        written(tmp_path, gemm("bf16", 1, "read", 0.9), gemm("bf16", 1, "read", 0.7), gemm("bf16", 512, "flops", 0.5))
    )
    assert found.of("gemm", "bf16", "read", 1000) == pytest.approx(0.8)
    assert found.of("gemm", "bf16", "flops", 1) == 0.5
    assert found.source == "some"


def test_rows_that_reach_less_of_reading_are_held_up_by_computing(tmp_path: Path) -> None:
    few, more = gemm("bf16", 1, "read", 0.9), gemm("bf16", 64, "read", 0.45) | {"gflop_s": 200.0}
    many = gemm("bf16", 512, "flops", 0.5) | {"gflop_s": 500.0}
    found = load_efficiencies(written(tmp_path, few, more, many))
    assert [found.of("gemm", "bf16", "read", rows) for rows in (1, 64, 512)] == pytest.approx([0.9, 0.9, 0.9])
    assert [found.of("gemm", "bf16", "flops", rows) for rows in (64, 512)] == pytest.approx([0.2, 0.5])
    unknown = load_efficiencies(written(tmp_path, few, more))  # nothing tells what could be computed
    assert unknown.of("gemm", "bf16", "read", 64) == 0.45
    near = load_efficiencies(written(tmp_path, few, more | {"of_ceiling": 0.85}, many))
    assert near.of("gemm", "bf16", "read", 64) == 0.85
    assert near.of("gemm", "bf16", "flops", 64) == 0.5


def test_more_than_the_ceiling_counts_as_the_ceiling(tmp_path: Path) -> None:
    assert load_efficiencies(written(tmp_path, gemm("bf16", 1, "read", 1.3))).of("gemm", "bf16", "read", 1) == 1.0


def test_a_format_that_was_not_measured_takes_its_nearest(tmp_path: Path) -> None:
    found = load_efficiencies(
        written(tmp_path, gemm("bf16", 1, "read", 0.9), gemm("int4/32", 1, "read", 0.6), gemm("int8", 1, "read", 0.8))
    )
    assert found.of("gemm", "int4/128", "read", 1) == 0.6
    assert found.of("gemm", "int8_group/32", "read", 1) == 0.9
    assert found.of("experts", "mxfp4/32", "read", 1) == 0.6
    assert found.of("experts", "int8", "read", 1) == 0.8
    assert found.of("attention", "bf16", "read", 1) == 1.0


def test_activations_of_products_count_more_than_the_group_of_weights(tmp_path: Path) -> None:
    others = gemm("int4/64 x int8", 1, "read", 0.7), gemm("int4/32", 1, "read", 0.6), gemm("fp8/128", 1, "read", 0.8)
    found = load_efficiencies(written(tmp_path, *others))
    assert found.of("gemm", "int4/32 x int8", "read", 1) == 0.7
    assert found.of("gemm", "int4/128", "read", 1) == 0.6
    assert found.of("gemm", "iq4/32 x int8", "read", 1) == 0.7
    assert found.of("gemm", "fp8/128 x int8", "read", 1) == 0.8


def test_a_format_has_the_fractions_of_the_first_processor_where_it_was_measured_there(tmp_path: Path) -> None:
    first, other = gemm("bf16", 1, "read", 0.9), gemm("bf16", 1, "read", 0.5) | {"processor": "other"}
    only = gemm("int4/32", 1, "read", 0.4) | {"processor": "other"}
    found = load_efficiencies(written(tmp_path, first, other, only))
    assert [found.of("gemm", format, "read", 1) for format in ("bf16", "int4/32")] == [0.9, 0.4]
    assert found.source == "some"


def test_experts_are_looked_up_by_the_rows_of_one_that_is_read(tmp_path: Path) -> None:
    row = {"table": "experts, bf16", "model": "tiny", "operation": "moe_down", "format": "bf16", "ceiling": "flops"}
    found = load_efficiencies(written(tmp_path, row | {"M": 1, "of_ceiling": 0.1}, row | {"M": 300, "of_ceiling": 0.5}))
    assert found.of("experts", "bf16", "flops", 1) == 0.1  # a token has two of six experts, and one row in each
    assert found.of("experts", "bf16", "flops", 100) == 0.5  # 300 tokens have 600 rows in six experts
    assert 0.1 < found.of("experts", "bf16", "flops", 50) < 0.5


def test_what_one_row_takes_beyond_its_bytes_is_fixed(tmp_path: Path) -> None:
    row = {"table": "small operations", "operation": "rms_norm"}
    # 1000 bytes a row; a core goes through 1 GB/s of them: 20 rows on two cores are 10 us.
    rows = [row | {"rows": 1, "best_us": 3.0, "gb_s": 1 / 3}, row | {"rows": 20, "best_us": 10.0, "gb_s": 2.0}]
    cost = load_efficiencies(written(tmp_path, BARRIER, *rows)).row_time("rms_norm")
    assert cost.core_bytes_s.at(1) == pytest.approx(1e9)
    assert cost.fixed_s == pytest.approx(2e-6)


def test_samplers_are_measured_by_the_row(tmp_path: Path) -> None:
    row = {"table": "small operations", "operation": "sample, greedy", "best_us": 2.0, "gb_s": 1.0}
    other = row | {"operation": "sample, top-p 0.95", "best_us": 50.0}
    found = load_efficiencies(written(tmp_path, BARRIER, row | {"rows": 1}, row | {"rows": 16, "best_us": 1.0}, other))
    # Two cores do sixteen rows of 2000 and 1000 bytes: each core a row of 1000 bytes in 2 us.
    assert found.row_time("sample").core_bytes_s.at(8) == pytest.approx(0.5e9)


@pytest.mark.parametrize("text", ["", "[]\n", "{\n", '{"table": "gemm, bf16"}\n', '{"ttft": 3}\n'])
def test_another_file_is_told_from_what_the_benchmark_writes(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text(text)
    with pytest.raises(OperatorError, match="bench kernels --json"):
        load_efficiencies(path)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"--efficiencies: cannot read .*nothing"):
        load_efficiencies(tmp_path / "nothing")


def test_figures_are_shipped_for_what_a_host_may_have() -> None:
    assert set(efficiencies()) == set(get_args(Isa))


@pytest.mark.parametrize("isa", efficiencies())
def test_the_shipped_figures_cover_every_kind_and_format(isa: str) -> None:
    found: Efficiencies = load_efficiencies(efficiencies()[isa])
    measured = {(kind, weights.partition("/")[0]) for kind, weights, _ in found.curves}
    formats = {"bf16", "int8", "int8_group", "int4", "fp8"}
    assert {("gemm", format) for format in formats} | {("experts", "bf16")} <= measured
    assert {("attention", kv) for kv in ("bf16", "int8", "fp8_e4m3")} | {("latent", "bf16")} <= measured
    assert {"rms_norm", "rope_store", "pool", "sample", "moe_route", "moe_combine"} <= found.row_times.keys()
    assert 0 < found.barrier_s < 1e-4


def test_one_token_reads_its_own_experts_and_many_read_all() -> None:
    assert expected_share(64, 8, 1) == 8 / 64
    assert expected_share(4, 2, 2) == 0.75
    assert math.isclose(expected_share(64, 8, 10_000), 1.0)


def test_a_window_bounds_what_is_attended_to() -> None:
    step = StepWork([(10, 2), (0, 3)], 0)
    assert attended(step, Window()) == (12 + 3, 11 + 12 + 1 + 2 + 3)
    assert attended(step, Window(4)) == (5 + 3, 4 + 4 + 1 + 2 + 3)
    assert attended(step, Window(4, aligned=True)) == (4 + 3, 3 + 4 + 1 + 2 + 3)
