"""Where buffers lie: those that are alive together do not overlap."""

from dataclasses import dataclass
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numaserve.workers.program.buffers import Buffer, Columns, Operand, Quantized, Tensor
from numaserve.workers.program.layout import ALIGNMENT, Layout, layout, lifetimes
from numaserve.workers.program.ops.base import Operation, Reads, Writes
from numaserve.workers.program.ops.images import PlaceRows

from tests.support.recorded_programs import Part, all_programs, placing

PROGRAMS = all_programs() | all_programs(Part(2))


@dataclass(frozen=True, kw_only=True)
class Step(Operation):
    """An operation that makes a buffer of another."""

    x: Reads[Buffer | None] = None
    out: Writes[Buffer]

    def cost(self, program: object) -> list[object]:  # type: ignore[override]
        return []


SIZES = st.tuples(st.integers(1, 200), st.integers(1, 300), st.sampled_from([1, 2, 4]))


@st.composite
def operations(draw: st.DrawFn) -> list[Operation]:
    """Each reads any buffer made before, or columns of it."""
    made: list[Tensor] = []
    found: list[Operation] = []
    for rows, cols, itemsize in draw(st.lists(SIZES, min_size=1, max_size=12)):
        x = draw(st.sampled_from([None, *made]))
        if x is not None and draw(st.booleans()):
            x = Columns(x.rows, 1, x.itemsize, of=x, first=x.cols - 1)
        made.append(Tensor(rows, cols, itemsize, draw(st.booleans())))
        found.append(Step(x=x, out=made[-1]))
    return found


def assert_apart(found: Layout, program: list[Operation]) -> None:
    lives = {buffer: life for buffer, life in lifetimes(program).items() if not buffer.collective}
    for one, other in combinations(lives, 2):
        if not lives[one].meets(lives[other]):
            continue
        first, second = (found.place(each)[0] - each.begin for each in (one, other))
        assert first + one.nbytes <= second or second + other.nbytes <= first
    for buffer in lives:
        offset, _, collective = found.place(buffer)
        assert collective == -1
        assert (offset - buffer.begin) % ALIGNMENT == 0
        assert offset - buffer.begin + buffer.nbytes <= found.arena_bytes


@given(operations())
def test_buffers_that_are_alive_together_do_not_overlap(program: list[Operation]) -> None:
    found = layout(program)
    assert_apart(found, program)
    whole = sum(-(-buffer.nbytes // ALIGNMENT) * ALIGNMENT for buffer in lifetimes(program) if not buffer.collective)
    assert found.arena_bytes <= whole
    numbers = [found.place(buffer)[2] for each in program for buffer in each.writes if buffer.collective]
    assert numbers == list(range(found.collectives))


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_forward_pass_overwrites_what_it_still_reads(name: str) -> None:
    for program in (PROGRAMS[name].operations, PROGRAMS[name].fused()):
        assert_apart(layout(program), program)


def test_buffers_that_are_never_alive_together_share_memory() -> None:
    a, b, c = (Tensor(32, 32, 4) for _ in range(3))
    found = layout([Step(out=a), Step(x=a, out=b), Step(x=b, out=c)])
    assert found.place(a) == found.place(c) != found.place(b)
    assert found.arena_bytes == 2 * ALIGNMENT


def test_columns_lie_within_their_tensor_and_keep_it_alive() -> None:
    whole = Tensor(32, 96, 4)
    columns = Columns(32, 32, 4, of=whole, first=64)
    within = Columns(32, 8, 4, of=columns, first=8)
    program = [Step(out=whole), Step(out=Tensor(1, 1, 4)), Step(x=within, out=Tensor(1, 1, 4))]
    found = layout(program)
    offset, ld, _ = found.place(whole)
    assert found.place(columns) == (offset + 64 * 4, ld, -1)
    assert found.place(within) == (offset + 72 * 4, ld, -1)
    assert lifetimes(program)[whole].last == 2


@pytest.mark.parametrize("columns", [1, 32, 33, 64, 576, 2048])
def test_rows_that_products_read_are_an_odd_number_of_cache_lines(columns: int) -> None:
    operand = Operand(1, columns, 2)
    assert operand.ld >= columns
    assert operand.ld * 2 // 64 % 2 == 1
    for group in (0, 32):
        for heads in (1, 3):
            in_int8 = Quantized(1, columns, 1, group=group, heads=heads)
            assert in_int8.ld // 64 % 2 == in_int8.head_ld // 64 % 2 == 1
            scales = 8 * -(-columns // group) if group else 4
            assert in_int8.ld >= heads * in_int8.head_ld >= heads * (columns + scales)


@pytest.mark.parametrize("part", [Part(), Part(2)], ids=["1", "2"])
def test_rows_that_stay_between_steps_share_no_memory(part: Part) -> None:
    b = placing(part)
    b.given("before them", 64)  # recorded first, and read by nothing
    operations = b.fused()
    found, (pool,) = layout(operations), [each.pool for each in operations if isinstance(each, PlaceRows)]
    begin = found.place(pool)[0]
    for buffer in lifetimes(operations):
        offset, _, collective = found.place(buffer)
        apart = offset + buffer.nbytes <= begin or begin + pool.nbytes <= offset
        assert buffer is pool or collective >= 0 or apart
