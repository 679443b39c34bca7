"""What the passes make of a recorded list, and what they leave alone."""

from collections.abc import Sequence
from typing import TypeVar

import pytest
from numaserve.workers.program.buffers import Operand
from numaserve.workers.program.fuse import fuse, joined, with_lone_readers, with_norms_in_int8, without_sums
from numaserve.workers.program.layout import lifetimes
from numaserve.workers.program.ops.attention import Attention, RopeStore
from numaserve.workers.program.ops.base import Joining, Operation
from numaserve.workers.program.ops.exchange import Reduce
from numaserve.workers.program.ops.experts import CombineExperts
from numaserve.workers.program.ops.products import Linear
from numaserve.workers.program.ops.rows import Embed, Quantize, RmsNorm
from numaserve.workers.program.setup import Ranks

from tests.support.recorded_programs import (
    EPS,
    HIDDEN,
    MatrixShape,
    Part,
    VectorShape,
    all_programs,
    dense,
    mixture,
)

Some = TypeVar("Some", bound=Operation)
PROGRAMS = all_programs() | all_programs(Part(2))


def names(operations: Sequence[Operation]) -> list[str]:
    return [type(each).__name__ for each in operations]


def of(kind: type[Some], operations: Sequence[Operation]) -> list[Some]:
    return [each for each in operations if isinstance(each, kind)]


def test_one_rank_adds_to_the_residual_stream_where_a_part_is_made() -> None:
    b = dense()
    sums, fused = of(Reduce, b.operations), b.fused()
    residual = sums[0].residual
    assert of(Reduce, fused) == []
    assert of(Embed, fused)[0].out is residual
    added = [each for each in of(Linear, fused) if each.out is residual]
    assert [(each.accumulate, each.bias) for each in added] == [(True, sums[1].bias), (True, None)]
    assert sums[1].bias is not None
    assert not any(each.accumulate for each in of(Linear, b.operations))


def test_one_rank_adds_the_experts_where_they_are_combined() -> None:
    b = mixture()
    (combined,) = of(CombineExperts, b.fused())
    assert combined.accumulate
    assert combined.out is of(Reduce, b.operations)[0].residual


def test_a_sum_with_a_norm_after_it_stays() -> None:
    b = dense(post_norm=True)
    assert len(of(Reduce, b.fused())) == 2
    assert all(each.post_norm is not None for each in of(Reduce, b.fused()))


def test_several_ranks_keep_their_sums() -> None:
    b = dense(Part(2))
    assert fuse(b.operations, b.setup.ranks) == joined(with_lone_readers(b.operations), b.setup.ranks)


def test_a_bias_that_nothing_can_add_keeps_its_sum() -> None:
    b = mixture()
    (made,) = [each.partial for each in of(Reduce, b.operations) if not each.assign]
    b.add_all_reduce(of(Reduce, b.operations)[0].residual, made, bias=VectorShape())
    assert [each.bias is not None for each in of(Reduce, without_sums(b.operations))] == [True]


def test_a_residual_stream_that_is_read_in_between_keeps_its_sum() -> None:
    b = dense()
    residual = of(Reduce, b.operations)[0].residual
    part = b.linear_partial(Operand(32, HIDDEN, 2), MatrixShape(HIDDEN, HIDDEN))
    b.rms_norm(residual, VectorShape(), EPS)
    b.add_all_reduce(residual, part)
    assert [each.partial for each in of(Reduce, b.fused())] == [part]


def test_a_norm_writes_the_first_layout_that_is_wanted_of_it_in_int8() -> None:
    b = dense()
    x = of(RmsNorm, b.operations)[0].out
    for group in (32, 64, 32):
        b.linear(x, MatrixShape(32, HIDDEN, "int4", group))
    first, second = of(Quantize, b.operations)
    fused = with_norms_in_int8(b.operations)
    assert of(RmsNorm, fused)[0].quantized is first.out
    assert of(Quantize, fused) == [second]
    assert [each.x for each in of(Linear, fused)[-3:]] == [first.out, second.out, first.out]


def test_rows_of_logits_are_quantized_for_themselves() -> None:
    fused = dense(format="int8").fused()
    assert [each.logits for each in of(Quantize, fused)] == [False, False, True]  # attention, MLP, head
    assert [each.quantized is not None for each in of(RmsNorm, fused)] == [True, True, False]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_fused_list_is_fused(name: str) -> None:
    b = PROGRAMS[name]
    assert fuse(b.fused(), b.setup.ranks) == b.fused()


def test_a_dense_layer_is_these_operations() -> None:
    layer = ["RmsNorm", "Linear", "RopeStore", "Attention", "Linear", "RmsNorm", "Linear", "Linear"]
    assert names(dense().fused()) == ["Embed", *layer, "RmsNorm", "Gather", "Linear", "Sample"]


def joins(operations: Sequence[Operation]) -> list[tuple[str, str]]:
    """Operations that can do the work of the one before them, with that."""
    known = [(each.before, each) for each in operations if isinstance(each, Joining) and each.before is not None]
    return [(type(before).__name__, type(each).__name__) for before, each in known]


def test_a_dense_layer_joins_what_makes_rows_and_what_stores_keys_with_what_comes_after() -> None:
    norm, rows = ("RmsNorm", "Linear"), ("Quantize", "Linear")
    assert joins(dense().fused()) == [norm, ("RopeStore", "Attention"), norm]
    assert joins(dense(format="int8").fused()) == [norm, ("RopeStore", "Attention"), rows, norm, rows]


def test_a_quantized_operand_that_several_read_is_joined_with_none() -> None:
    b = dense(format="int8")
    hidden = of(Quantize, b.operations)[-2]  # the last one is of the rows of logits
    b.linear(hidden.x, MatrixShape(32, hidden.out.cols, "int8"))
    assert joins(b.fused())[-1] == ("RmsNorm", "Linear")


@pytest.mark.parametrize(("cores", "overlaps"), [((17, 16, 17), True), ((16, 15, 15), True), ((15, 14, 15), False)])
def test_sums_join_their_products_where_three_ranks_have_about_as_many_threads(
    cores: tuple[int, ...], overlaps: bool
) -> None:
    b = dense(Part(3))
    sums = [each for each in fuse(b.operations, Ranks(cores)) if isinstance(each, Reduce)]
    made = with_lone_readers(b.operations)
    products = [each for each in made if isinstance(each, Linear) and each.name == "linear_partial"]
    assert [each.before for each in sums] == [None, *(products if overlaps else [None, None])]  # first the embedding's


def test_two_ranks_and_sums_of_experts_join_no_products() -> None:
    for b in (dense(Part(2)), mixture(Part(3))):
        assert ("Linear", "Reduce") not in joins(b.fused())


def test_a_product_that_a_sum_joins_keeps_its_input() -> None:
    operations = dense(Part(3)).fused()
    lives = lifetimes(operations)
    inputs = [each.before.x for each in operations if isinstance(each, Reduce) and isinstance(each.before, Linear)]
    sums = [index for index, each in enumerate(operations) if isinstance(each, Reduce)]
    assert [lives[x].last for x in inputs] == sums[1:]


def test_a_norm_that_several_read_is_joined_with_none() -> None:
    b = dense()
    b.linear(of(RmsNorm, b.operations)[0].out, MatrixShape(32, HIDDEN))
    assert joins(b.fused()) == [("RopeStore", "Attention"), ("RmsNorm", "Linear")]
    assert joins(mixture().fused()) == []


def test_a_product_in_bf16_or_int8_reads_alone_what_is_made_before_it() -> None:
    def alone(operations: Sequence[Operation]) -> list[str]:
        return [each.name for each in of(Linear, operations) if each.reads_alone]

    for format in ("bf16", "int8"):
        assert alone(dense(format=format).fused()) == ["linear", "linear_partial", "gate_up", "linear_partial"]
    assert not alone(dense(format="int4", group=32).fused())
    b = dense()
    norm, hidden = (
        of(RmsNorm, b.operations)[0].out,
        next(each.out for each in of(Linear, b.operations) if each.name == "gate_up"),
    )
    assert isinstance(hidden, Operand)
    for x in (norm, hidden):
        b.linear(x, MatrixShape(32, x.cols))
    assert alone(b.fused()) == ["linear_partial", "gate_up"]


def test_a_product_that_changes_what_its_norm_reads_is_not_joined_with_it() -> None:
    b = dense()
    (residual,) = {each.residual for each in of(Reduce, b.operations)}
    b.add_all_reduce(residual, b.linear_partial(b.rms_norm(residual, VectorShape(), EPS), MatrixShape(HIDDEN, HIDDEN)))
    assert joins(b.fused()) == joins(dense().fused())


def test_what_is_joined_keeps_the_buffers_of_what_it_is_joined_with() -> None:
    operations = dense().fused()
    (index,) = (i for i, each in enumerate(operations) if isinstance(each, Attention))
    store, lives = of(RopeStore, operations)[0], lifetimes(operations)
    assert lives[store.qkv].last == index
