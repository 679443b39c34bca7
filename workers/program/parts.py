"""Parts of a step that run one after the other, with steps of other Programs between them."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from numaserve.workers.program.cost import OperationCost, StepWork
from numaserve.workers.program.layout import lifetimes
from numaserve.workers.program.ops.attention import Attention
from numaserve.workers.program.ops.base import Joining, Operation
from numaserve.workers.program.ops.products import Linear
from numaserve.workers.program.ops.rows import has_node


class StepPart(NamedTuple):
    """The nodes of a part of a step, and its collectives: the first and the end of each."""

    first: int
    end: int
    first_collective: int
    end_collective: int


def parts_of(
    costed: Iterable[tuple[Operation, Sequence[OperationCost]]], step: StepWork
) -> tuple[list[StepPart], list[float]]:
    """Return the smallest parts of a `step` of operations, given the costs of each, and the share of the step's
    multiplies in each part. A part has one product or attention.

    All ranks have the same parts, since they have the same operations. A collective lies in one part.
    """
    operations, costs = map(list, zip(*costed, strict=True))
    flops = [sum(cost.amount(step).flops for cost in of_each) for of_each in costs]
    bounds = list(pairwise(_cuts(operations)))
    shares = [sum(flops[first:end]) / sum(flops) for first, end in bounds]
    return [_part(operations, first, end) for first, end in bounds], shares


def joined(parts: Sequence[StepPart]) -> StepPart:
    """Return consecutive parts as one."""
    first, last = parts[0], parts[-1]
    return StepPart(first.first, last.end, first.first_collective, last.end_collective)


def _cuts(operations: Sequence[Operation]) -> list[int]:
    """Return the first operation of each part, and the end of the last part."""
    lives = [life for buffer, life in lifetimes(operations).items() if buffer.collective]
    cuts, multiplies = [0], False
    for index, operation in enumerate(operations):
        joins = isinstance(operation, Joining) and operation.before is not None
        within = any(life.first < index <= life.last for life in lives)
        if multiplies and not joins and not within and has_node(operation):
            cuts.append(index)
            multiplies = False
        multiplies = multiplies or isinstance(operation, Linear | Attention)
    if not multiplies and len(cuts) > 1:
        cuts.pop()  # what follows the last product belongs to its part
    return [*cuts, len(operations)]


def _part(operations: Sequence[Operation], first: int, end: int) -> StepPart:
    before, until = operations[:first], operations[:end]
    return StepPart(*(sum(map(has_node, each)) for each in (before, until)), *map(_collectives, (before, until)))


def _collectives(operations: Sequence[Operation]) -> int:
    return len({buffer.whole for operation in operations for buffer in operation.writes if buffer.collective})
