"""Parts of a step: together they are the step, and none of them takes long."""

from itertools import pairwise

import pytest
from numaserve.workers.program.cost import StepWork
from numaserve.workers.program.layout import layout, lifetimes
from numaserve.workers.program.ops.attention import Attention
from numaserve.workers.program.ops.base import Operation
from numaserve.workers.program.ops.products import Linear
from numaserve.workers.program.ops.rows import has_node
from numaserve.workers.program.parts import StepPart, joined, parts_of

from tests.support.recorded_programs import Part, tower

STEP = StepWork([(0, 64)], 0)
WORLDS = [1, 2, 3]


def recorded(world: int) -> tuple[list[Operation], list[StepPart], list[float]]:
    b = tower(Part(world))
    return list(filter(has_node, b.fused())), *parts_of(b.costed(), STEP)


@pytest.mark.parametrize("world", WORLDS)
def test_parts_follow_each_other_and_are_the_whole_step(world: int) -> None:
    nodes, parts, shares = recorded(world)
    whole = StepPart(0, len(nodes), 0, layout(tower(Part(world)).fused()).collectives)
    assert joined(parts) == whole
    assert joined(parts[2:5]) == StepPart(parts[2].first, parts[4].end, *parts[2][2:3], *parts[4][3:])
    for before, after in pairwise(parts):
        assert (before.end, before.end_collective) == (after.first, after.first_collective)
    assert sum(shares) == pytest.approx(1)


@pytest.mark.parametrize("world", WORLDS)
def test_a_part_has_one_product_or_attention(world: int) -> None:
    nodes, parts, shares = recorded(world)
    for part, share in zip(parts, shares, strict=True):
        assert sum(isinstance(each, Linear | Attention) for each in nodes[part.first : part.end]) == 1
        assert share > 0


@pytest.mark.parametrize("world", WORLDS)
def test_no_message_and_no_joined_operation_is_cut(world: int) -> None:
    nodes, parts, _ = recorded(world)
    lives = [life for buffer, life in lifetimes(nodes).items() if buffer.collective]
    for part in parts[1:]:
        assert all(life.last < part.first or life.first >= part.first for life in lives)
        assert getattr(nodes[part.first], "before", None) is None
