"""A Program points into weights, vectors and tables: it keeps each of them alive, whoever else lets it go."""

from __future__ import annotations

import sys
from collections.abc import Callable

import kernel_ops
import numpy as np
import pytest
from numaserve.kernels import PackedMatrix, Program, RopeTable, Team, Vector

HIDDEN, DIM = 64, 32
PLACE = (0, 256, -1)
HEADS = (0, DIM, -1)
QKV = (0, 3 * DIM, -1)


def vector(size: int = HIDDEN) -> Vector:
    return Vector(np.ones(size, np.float32))


def matrix(rows: int = HIDDEN, columns: int = HIDDEN) -> PackedMatrix:
    return kernel_ops.packed(np.zeros((rows, columns), np.uint16))


def rope(half: int = DIM // 2) -> RopeTable:
    table = np.ones((64, half), np.float32)
    return RopeTable(table, table)


def program(*, latent: bool = False) -> Program:
    dims = (2 * DIM, DIM) if latent else (DIM, 0)
    return Program(Team([-1]), None, 32, 8, 2, 2, 4, 16, 1, 1, *dims, None, 1, "bf16", 1 << 20)


def routed(p: Program, correction: Vector) -> None:
    args = {"item_bytes": 2, "first_expert": 0, "local_experts": 4, "shared_gate": False, "num_experts": 4, "top_k": 2}
    places = dict.fromkeys(("logits", "x", "sorted", "routes", "counts"), PLACE)
    groups = {"correction": correction, "num_groups": 1, "top_groups": 1, "group_score": "max"}
    p.moe_route(**places, **args, scoring="sigmoid", renormalize=True, scale=1.0, **groups)


def experts(p: Program, weights: list[PackedMatrix], bias: Vector, shared: PackedMatrix) -> None:
    places = dict.fromkeys(("x", "out", "counts", "shared_x", "shared_out"), PLACE)
    options = {"activation": "none", "limit": 0.0, "item_bytes": 2, "widened": False, "shared_widened": False}
    p.moe_experts(name="moe", weights=weights, bias=bias, shared=shared, **places, **options)


ADDED: dict[str, tuple[Callable[..., None], list[Callable[[], object]]]] = {
    "embed": (lambda p, table: p.embed(table, 0, 1.0, (0, HIDDEN, -1)), [matrix]),
    "rms_norm": (lambda p, weight: p.rms_norm(PLACE, weight, PLACE, 1e-5, None), [vector]),
    "linear": (
        lambda p, weight, bias: p.linear("linear", PLACE, weight, bias, "none", False, False, False, PLACE),
        [matrix, vector],
    ),
    "reduce": (
        lambda p, bias, norm: p.reduce(PLACE, PLACE, PLACE, HIDDEN, False, bias, norm, 1e-5),
        [vector, vector],
    ),
    "rope_store": (
        lambda p, table, q_norm, k_norm: p.rope_store(QKV, HEADS, 0, table, q_norm, k_norm, 1e-5),
        [rope, lambda: vector(DIM), lambda: vector(DIM)],
    ),
    "attention": (
        lambda p, sinks: p.attention(HEADS, PLACE, PLACE, 0, 1.0, 0, 0.0, sinks),
        [lambda: vector(1)],
    ),
    "moe_route": (routed, [lambda: vector(4)]),
    "moe_experts": (experts, [lambda: [matrix()], vector, matrix]),
    "mla_store": (
        lambda p, table, norm: p.mla_store(PLACE, PLACE, PLACE, (0, 2 * DIM, -1), 0, DIM, table, norm, 1e-5),
        [rope, lambda: vector(DIM)],
    ),
    "head_linear": (
        lambda p, weight: p.head_linear("heads", PLACE, HIDDEN, weight, 1, False, PLACE, HIDDEN),
        [matrix],
    ),
}


@pytest.mark.parametrize("name", ADDED)
def test_a_program_holds_what_its_nodes_point_into(name: str) -> None:
    add, makers = ADDED[name]
    p = program(latent=name == "mla_store")
    arguments = [make() for make in makers]
    before = [sys.getrefcount(each) for each in arguments]
    add(p, *arguments)
    assert [sys.getrefcount(each) for each in arguments] == [count + 1 for count in before]
    del p
    assert [sys.getrefcount(each) for each in arguments] == before
