"""The peaks of instruction sets count the same operations with equal and with random operands."""

import numaserve_kernel_tests as ops
import pytest
from numaserve.kernels import Team, isa, nest_flops, peak_flops

# Operations of a round: 4 products of tiles, 16 of registers, and 4 x 6 of pairs of registers, each of 16 columns.
OPERATIONS = {
    "amx": {"bf16": 4 * 2 * 16 * 16 * 32, "int8": 4 * 2 * 16 * 16 * 64},
    "avx512": {"bf16": 16 * 2 * 16 * 2, "int8": 16 * 2 * 16 * 4},
    "portable": {"bf16": 24 * 2 * 16, "int8": 24 * 2 * 16 * 2},
}
MULTIPLIED_AS = {"bf16": "bf16", "fp8": "bf16", "nvfp4": "bf16", "int8": "int8", "int4": "int8", "mxfp4": "int8"}


@pytest.mark.parametrize("format", MULTIPLIED_AS)
@pytest.mark.parametrize("rounds", [1, 7, 300])
def test_random_operands_are_counted_like_equal_ones(isa: str, format: str, rounds: int) -> None:
    expected = rounds * OPERATIONS[isa.partition("_")[0]][MULTIPLIED_AS[format]]
    assert [ops.peak(isa, format, random, rounds) for random in (False, True)] == [expected, expected]


@pytest.mark.parametrize("format", [*MULTIPLIED_AS, "fp32"])
def test_a_peak_is_measured_in_as_many_rounds_as_asked(format: str) -> None:
    rates = [peak_flops(Team([-1]), format, 2, random, 5000) for random in (False, True)]
    assert all(0 < rate < 1e14 for rate in rates)


@pytest.mark.parametrize(("format", "depth"), [("bf16", 32), ("int8", 64), ("fp8", 32)])
def test_a_nest_multiplies_all_rows_by_all_pairs(isa: str, format: str, depth: int) -> None:
    if not isa.startswith("amx"):
        assert ops.nest(isa, format, 3) is None
        return
    operations, filled = ops.nest(isa, format, 3)
    assert operations == 3 * 2 * 256 * 32 * (5 * 13 * depth)
    assert filled  # the sums of the three pairs, and no others


def test_a_nest_is_measured_where_there_are_tile_registers() -> None:
    found = nest_flops(Team([-1]), "bf16", 1)
    assert (found is not None and found > 0) == isa().startswith("amx")
