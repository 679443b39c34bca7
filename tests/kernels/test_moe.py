"""Routing to experts, also of logits that are no numbers."""

import kernel_reference as reference
import numpy as np
import pytest
from kernel_reference import F32
from numaserve.kernels import Vector
from numaserve.workers.program.buffers import Operand, Tensor
from numaserve.workers.program.ops.experts import RouteExperts, Routing
from numaserve.workers.program.recording.builder import ProgramBuilder
from numpy.typing import NDArray
from one_operation import Case, OneOperation, normal


def rule(num_experts: int, top_k: int, scoring: str = "softmax", **more: object) -> Routing:
    return Routing(num_experts=num_experts, top_k=top_k, scoring=scoring, **more)  # type: ignore[arg-type]


ROUTINGS = [
    (rule(8, 2), False),
    (rule(8, 2, renormalize=False), False),
    (rule(60, 4, renormalize=False), False),
    (rule(128, 8), False),
    (rule(5, 5), False),
    (rule(1, 1), False),
    (rule(160, 6, renormalize=False, scale=16.0, num_groups=8, top_groups=3), False),
    (rule(256, 8, "sigmoid", scale=2.5, num_groups=8, top_groups=4, group_score="top2"), True),
    (rule(64, 6, "sigmoid"), True),
    (rule(1000, 64, "sigmoid", renormalize=False), False),
]
ALL_APART = rule(16, 4, "sigmoid", num_groups=16, top_groups=6, group_score="top2")


def route(
    interpreter: str, logits: F32, routing: Routing, correction: F32 | None = None, factors: F32 | None = None
) -> tuple[NDArray[np.int64], F32]:
    """Each row's experts and their weights, [tokens, top_k]. Each expert has consecutive rows of those that are
    sorted."""
    tokens, top_k, held, threads = len(logits), routing.top_k, range(routing.num_experts), 2

    def record(b: ProgramBuilder, x: Tensor, logits: Tensor) -> Tensor:
        routes, counts = Tensor(x.rows, 2 * top_k + 1, 4), Tensor(threads + 3, len(held) + 1, 4)
        more = {
            "correction": None if correction is None else Vector(correction),
            "factors": None if factors is None else Vector(factors),
        }
        places = {"x": b.rounded(x), "sorted": Operand(top_k * x.rows + 15, x.cols, 2)}
        b.operations.append(
            RouteExperts(logits=logits, routes=routes, counts=counts, routing=routing, held=held, **places, **more)
        )
        b.keep("counts", counts)
        return routes

    given = {"x": np.zeros((tokens, 32), np.float32), "logits": logits}
    program = OneOperation(Case(given=given, record=record, expected=[]), interpreter, threads)
    routes, counts = program.run()[0], program.outside.kept("counts")
    rows = routes[:, :top_k].astype(np.int64)
    firsts = counts[0]
    if interpreter != "reference":  # whole numbers, after those of each thread
        rows, firsts = routes[:, :top_k].view(np.int32), counts[threads].view(np.int32)
    assert sorted(rows.reshape(-1)) == list(range(tokens * top_k))
    return np.searchsorted(firsts, rows, side="right") - 1, routes[:, top_k : 2 * top_k]


@pytest.mark.parametrize(("routing", "corrected"), ROUTINGS, ids=str)
def test_the_best_experts_are_chosen_and_weighted(
    interpreter: str, rng: np.random.Generator, routing: Routing, corrected: bool
) -> None:
    logits = 3 * normal(rng, 23, routing.num_experts)
    correction = normal(rng, routing.num_experts) * np.float32(0.1) if corrected else None
    experts, weights = route(interpreter, logits, routing, correction)
    scores, choice = reference.expert_scores(logits, routing, correction)
    best = np.sort(choice, axis=1)[:, ::-1][:, : routing.top_k]
    chosen = np.sort(np.take_along_axis(choice, experts, axis=1), axis=1)[:, ::-1]
    assert (np.diff(experts, axis=1) > 0).all()
    np.testing.assert_allclose(chosen, best, rtol=3e-6)  # of experts that score alike either may be taken
    expected = np.take_along_axis(scores, experts, axis=1)
    if routing.renormalize:
        expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(weights, expected * routing.scale, rtol=1e-5)


def test_factors_of_experts_multiply_the_weights_last(interpreter: str, rng: np.random.Generator) -> None:
    logits, factors = (rng.standard_normal(shape).astype(np.float32) for shape in ((9, 40), 40))
    experts, weights = route(interpreter, logits, rule(40, 5))
    same, scaled = route(interpreter, logits, rule(40, 5), factors=factors)
    np.testing.assert_array_equal(same, experts)
    np.testing.assert_allclose(scaled, weights * factors[experts], rtol=3e-7)


def test_of_equal_experts_the_first_are_chosen(interpreter: str) -> None:
    experts, weights = route(interpreter, np.zeros((2, 40), np.float32), rule(40, 3))
    np.testing.assert_array_equal(experts, [[0, 1, 2], [0, 1, 2]])
    np.testing.assert_allclose(weights, 1 / 3, rtol=1e-6)


def test_logits_far_apart_overflow_nothing(interpreter: str) -> None:
    logits = np.array([[1e30, 0.0, -1e30, 5.0], [-1e30, -1e30, -1e30, -1e30]], np.float32)
    for scoring in ("softmax", "sigmoid"):
        experts, weights = route(interpreter, logits, rule(4, 2, scoring))
        assert experts[0, 0] == 0
        assert np.isfinite(weights).all()


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("routing", [*(routing for routing, _ in ROUTINGS), ALL_APART], ids=str)
def test_a_token_goes_to_different_experts_whatever_its_logits(
    interpreter: str, rng: np.random.Generator, routing: Routing, poison: float
) -> None:
    logits = 3 * normal(rng, 12, routing.num_experts)
    for token, row in enumerate(logits):
        row[rng.random(routing.num_experts) < token / 10] = poison  # none of the first one's, all of the last ones'
    corrections = [None, np.full(routing.num_experts, poison, np.float32), np.zeros(routing.num_experts, np.float32)]
    for correction in corrections:
        experts, weights = route(interpreter, logits, routing, correction)
        assert ((experts >= 0) & (experts < routing.num_experts)).all()
        assert (np.diff(experts, axis=1) > 0).all()
        if np.isnan(poison):
            assert np.isnan(weights[-1]).all()


def test_logits_that_are_no_numbers_show_in_the_weights(interpreter: str) -> None:
    logits = np.zeros((1, 40), np.float32)
    logits[0, 33] = np.nan
    for scoring in ("softmax", "sigmoid"):
        _, weights = route(interpreter, logits, rule(40, 3, scoring))
        assert np.isnan(weights).any()


def test_other_tokens_are_routed_as_without_one_that_is_no_number(interpreter: str, rng: np.random.Generator) -> None:
    logits = rng.standard_normal((3, 64)).astype(np.float32)
    alone = route(interpreter, logits[1:], rule(64, 6))
    logits[0] = np.nan
    for found, expected in zip(route(interpreter, logits, rule(64, 6)), alone, strict=True):
        np.testing.assert_array_equal(found[1:], expected)
