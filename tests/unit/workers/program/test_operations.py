"""Operations as data: what they say of their buffers, and what they cost."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import pytest
from numaserve.workers.program.buffers import Buffer, Tensor
from numaserve.workers.program.caches import CacheKind, Heads
from numaserve.workers.program.cost import Amount, RowBytes, StepWork
from numaserve.workers.program.ops.adapters import Shrink
from numaserve.workers.program.ops.base import Operation, Reads, Updates, Writes
from numaserve.workers.program.ops.experts import MultiplyExperts, Routing
from numaserve.workers.program.ops.images import PlaceRows
from numaserve.workers.program.ops.products import Linear
from numaserve.workers.program.ops.rows import Given, Keep, Pooled, TokenRows
from numaserve.workers.program.recording.builder import ProgramBuilder
from numaserve.workers.program.recording.experts import ExpertMatrices, Router
from numaserve.workers.program.setup import RankShape

from tests.support.recorded_programs import (
    ALONE,
    EPS,
    HIDDEN,
    VOCAB,
    MatrixShape,
    Part,
    VectorShape,
    adapting,
    all_programs,
    dense,
    grid_tower,
    latent,
    mixture,
    placing,
    predicting,
    tower,
)

PROGRAMS = all_programs() | all_programs(Part(2))
PROGRAMS |= {
    f"{make.__name__}, {part.world}": make(part)
    for make in (predicting, placing, adapting, tower, grid_tower)
    for part in (Part(), Part(2))
}
STEP = StepWork([(10, 3), (40, 1)], 2)  # four new tokens
FAR = StepWork([(10, 3), (100_000, 2)], 2, pooled=1)  # the second sequence is one that ranks divide


def kinds(of: type[Operation] = Operation) -> Iterator[type[Operation]]:
    """All operations of the package."""
    for kind in of.__subclasses__():
        if kind.__module__.startswith("numaserve"):
            yield from kinds(kind)
            if "cost" in vars(kind):
                yield kind


def recorded(b: ProgramBuilder) -> list[Operation]:
    return [*b.operations, *b.fused()]


def test_the_programs_here_have_every_operation_there_is() -> None:
    assert {type(each) for b in PROGRAMS.values() for each in recorded(b)} == set(kinds())


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_buffer_of_an_operation_is_read_or_written(name: str) -> None:
    for operation in recorded(PROGRAMS[name]):
        held = [getattr(operation, each.name) for each in fields(operation)]
        before = [each for each in held if isinstance(each, Operation)]
        own = [each for each in held if isinstance(each, Buffer)]
        assert [*own, *(buffer for each in before for buffer in each.buffers)] == operation.buffers
        assert {*operation.reads, *operation.writes} == set(operation.buffers)
        assert operation.writes or isinstance(operation, Keep | Pooled)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_read_was_written_before(name: str) -> None:
    for operations in (PROGRAMS[name].operations, PROGRAMS[name].fused()):
        written: set[Buffer] = set()
        for operation in operations:
            assert written.issuperset(buffer.whole for buffer in operation.reads), operation
            written.update(buffer.whole for buffer in operation.writes)


def test_an_operation_tells_its_buffers_by_their_marks() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Three(Operation):
        a: Reads[Tensor]
        b: Writes[Tensor]
        c: Updates[Tensor | None] = None
        d: int = 0

        def cost(self, program: object) -> list[object]:  # type: ignore[override]
            return []

    x, y, z = (Tensor(1, 1, 4) for _ in range(3))
    assert (Three(a=x, b=y).reads, Three(a=x, b=y).writes) == ([x], [y])
    three = Three(a=x, b=y, c=z)
    assert (three.buffers, three.reads, three.writes) == ([x, y, z], [x, z], [y, z])


def test_a_product_that_accumulates_reads_what_it_writes() -> None:
    x, out = Tensor(1, 8, 2), Tensor(1, 4, 4)
    linear = Linear(name="l", x=x, out=out, weight=MatrixShape(4, 8), widened=False, accumulate=True)  # type: ignore[arg-type]
    assert linear.reads == [x, out]


def test_buffers_are_told_apart_by_identity() -> None:
    first, second = Tensor(2, 2, 4), Tensor(2, 2, 4)
    assert first != second
    assert len({first, second}) == 2


def test_experts_of_two_formats_are_refused() -> None:
    x = Tensor(1, 8, 2)
    with pytest.raises(ValueError, match="moe: all experts of a layer must have the same format"):
        MultiplyExperts(
            name="moe",
            x=x,  # type: ignore[arg-type]
            out=x,
            counts=x,
            weights=(MatrixShape(4, 8), MatrixShape(4, 8, "int8")),
            shared=None,
            widened=False,
            shared_widened=False,
            routing=Routing(num_experts=2, top_k=1),
        )


def amounts(b: ProgramBuilder, name: str) -> list[Amount]:
    costs = [cost for each in b.fused() for cost in each.cost(b.setup)]
    return [cost.amount(STEP) for cost in costs if cost.name == name]


def moves(b: ProgramBuilder, name: str) -> list[RowBytes]:
    return [cost.moves for cost in b.costs() if cost.name == name]


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_operation_reads_weights_or_states_or_moves_rows(name: str) -> None:
    b = PROGRAMS[name]
    for operation in recorded(b):
        costs = operation.cost(b.setup)
        counted = [cost for cost in costs if cost.amount(FAR).nbytes or any(cost.moves)]
        assert counted == costs
        assert bool(costs) != isinstance(operation, Given | Keep | Pooled | TokenRows | PlaceRows | Shrink)


def test_a_product_reads_its_weights_once_for_all_rows() -> None:
    assert amounts(dense(), "gate_up") == [Amount(2 * 128 * HIDDEN, 2 * 128 * HIDDEN * 4, 4)]
    assert amounts(dense(), "lm_head") == [Amount(2 * 96 * HIDDEN, 2 * 96 * HIDDEN * 2, 2)]


def test_attention_reads_the_cache_and_a_norm_its_row() -> None:
    # Positions 0..12 and 0..40 of a key and a value of 32 columns; pairs of 11 + 12 + 13 and 41.
    (found,) = amounts(dense(), "attention")
    assert (found.nbytes, found.flops) == ((13 + 41) * 2 * 32 * 2, (11 + 12 + 13 + 41) * 2 * 2 * 64)
    assert moves(dense(), "rms_norm")[0] == RowBytes(token=HIDDEN * (4 + 2))
    assert moves(dense(format="int8"), "rms_norm")[0] == RowBytes(token=HIDDEN * (4 + 2 + 1))


def test_two_ranks_meet_for_each_sum() -> None:
    assert [each.meetings for each in amounts(dense(Part(2)), "add_all_reduce")] == [1] * 3
    assert amounts(dense(), "add_all_reduce") == []


def test_three_ranks_meet_twice_for_a_large_sum() -> None:
    few, many = StepWork([(0, 512)], 1), StepWork([(0, 256 * 1024 // HIDDEN // 4 + 1)], 1)
    costs = [cost for cost in dense(Part(3)).costs() if cost.name == "add_all_reduce"]
    assert 512 * HIDDEN * 4 <= 256 * 1024
    assert [[cost.amount(step).meetings for cost in costs[:2]] for step in (few, many)] == [[1, 1], [2, 2]]


def test_a_large_sum_overlaps_its_product_but_for_a_piece() -> None:
    rows = 32 * 256  # of blocks of 256; each of two lanes has 64 columns of all of them, half a piece
    costs = [cost for cost in dense(Part(3)).costs() if cost.name == "add_all_reduce"]
    assert HIDDEN == 64
    assert [cost.amount(StepWork([(0, rows)], 1)).overlapped for cost in costs] == [0.0, *[1 - 1 / 8] * 2]
    assert [cost.amount(StepWork([(0, 127)], 1)).overlapped for cost in costs] == [0.0] * 3


def test_ranks_that_divide_a_norm_meet_once() -> None:
    programs = [dense(part, divided_norm=True) for part in (ALONE, Part(3))]
    assert [[each.meetings for each in amounts(b, "divided_norm")] for b in programs] == [[0], [1]]
    assert [moves(b, "divided_norm") for b in programs] == [[RowBytes(token=3 * (64 + 32) * 4)]] * 2


def test_experts_that_no_token_goes_to_are_not_read() -> None:
    (found,) = amounts(mixture(shared=False), "moe_gate_up")
    nbytes, share = 4 * 2 * 64 * HIDDEN, 1 - 0.5**4
    assert (found.nbytes, found.flops) == (nbytes * share, nbytes * 4 * 2 / 4)


def test_a_rank_divides_only_long_sequences() -> None:
    b = latent(Part(2))
    assert b.setup.context_parallel is not None
    far = StepWork([(b.setup.context_parallel.from_tokens, 1)], 1)
    (cost,) = [cost for each in b.fused() for cost in each.cost(b.setup) if cost.name == "divided_attention"]
    assert [(amount.rows, amount.meetings) for amount in map(cost.amount, (STEP, far))] == [(0, 0), (1, 1)]


def test_a_divided_sequence_is_read_once_for_all_its_new_tokens() -> None:
    b = latent(Part(2))
    assert b.setup.context_parallel is not None
    enough = b.setup.context_parallel.from_tokens * 3
    (cost,) = [cost for each in b.fused() for cost in each.cost(b.setup) if cost.name == "divided_attention"]
    one, three, short = (cost.amount(StepWork([each], 1)) for each in ((enough, 1), (enough, 3), (enough - 4, 3)))
    assert one.nbytes <= three.nbytes < 1.01 * one.nbytes
    assert 2.99 * one.flops < three.flops < 3.01 * one.flops
    assert short.nbytes == 0


def test_gates_that_leave_columns_of_a_product_unwritten_are_refused() -> None:
    b = ALONE.builder(RankShape(HIDDEN, [0, VOCAB], (CacheKind(Heads(1, 1, 32)),)))
    x = b.rms_norm(b.embed(**ALONE.embedding()), VectorShape(), EPS)
    with pytest.raises(ValueError, match="the gate_up weight of 48 columns must have 128 padded rows, not 96"):
        b.gated_mlp(x, MatrixShape(96, HIDDEN), MatrixShape(HIDDEN, 48), "silu")
    with pytest.raises(ValueError, match="not 96"):
        b.experts(
            x,
            Routing(num_experts=1, top_k=1),
            Router(MatrixShape(1, HIDDEN)),
            held=range(1),
            gate_up=ExpertMatrices((MatrixShape(96, HIDDEN),), None),
            down=ExpertMatrices((MatrixShape(HIDDEN, 48),), None),
        )
