"""Routing to experts, and the weighted sum of what they give."""

import kernel_ops
import kernel_reference as reference
import numpy as np
import pytest
from kernel_reference import Routing, from_bf16, to_bf16

ROUTINGS = [
    Routing(8, 2),
    Routing(8, 2, renormalize=False),
    Routing(60, 4, renormalize=False),
    Routing(128, 8),
    Routing(5, 5),
    Routing(1, 1),
    Routing(160, 6, renormalize=False, scale=16.0, num_groups=8, top_groups=3),
    Routing(256, 8, "sigmoid", scale=2.5, correction=True, num_groups=8, top_groups=4, group_score="top2"),
    Routing(64, 6, "sigmoid", correction=True),
    Routing(1000, 64, "sigmoid", renormalize=False),
]


@pytest.mark.parametrize("routing", ROUTINGS, ids=str)
def test_the_best_experts_are_chosen_and_weighted(isa: str, rng: np.random.Generator, routing: Routing) -> None:
    logits = (rng.standard_normal((23, routing.num_experts)) * 3).astype(np.float32)
    correction = rng.standard_normal(routing.num_experts).astype(np.float32) * 0.1 if routing.correction else None
    experts, weights = kernel_ops.route(isa, logits, routing, correction)
    scores, choice = reference.expert_scores(logits, routing, correction)
    best = np.sort(choice, axis=1)[:, ::-1][:, : routing.top_k]
    chosen = np.sort(np.take_along_axis(choice, experts, axis=1), axis=1)[:, ::-1]
    assert (np.diff(experts, axis=1) > 0).all()
    np.testing.assert_allclose(chosen, best, rtol=3e-6)  # of experts that score alike either may be taken
    expected = np.take_along_axis(scores, experts, axis=1)
    if routing.renormalize:
        expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(weights, expected * routing.scale, rtol=1e-5)


def test_factors_of_experts_multiply_the_weights_last(isa: str, rng: np.random.Generator) -> None:
    logits, factors = (rng.standard_normal(shape).astype(np.float32) for shape in ((9, 40), 40))
    experts, weights = kernel_ops.route(isa, logits, Routing(40, 5))
    same, scaled = kernel_ops.route(isa, logits, Routing(40, 5), factors=factors)
    np.testing.assert_array_equal(same, experts)
    np.testing.assert_allclose(scaled, weights * factors[experts], rtol=3e-7)


def test_of_equal_experts_the_first_are_chosen(isa: str) -> None:
    experts, weights = kernel_ops.route(isa, np.zeros((2, 40), np.float32), Routing(40, 3))
    np.testing.assert_array_equal(experts, [[0, 1, 2], [0, 1, 2]])
    np.testing.assert_allclose(weights, 1 / 3, rtol=1e-6)


def test_logits_far_apart_overflow_nothing(isa: str) -> None:
    logits = np.array([[1e30, 0.0, -1e30, 5.0], [-1e30, -1e30, -1e30, -1e30]], np.float32)
    for scoring in ("softmax", "sigmoid"):
        experts, weights = kernel_ops.route(isa, logits, Routing(4, 2, scoring))
        assert experts[0, 0] == 0
        assert np.isfinite(weights).all()


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize(
    "routing", [*ROUTINGS, Routing(16, 4, "sigmoid", num_groups=16, top_groups=6, group_score="top2")], ids=str
)
def test_a_token_goes_to_different_experts_whatever_its_logits(
    isa: str, rng: np.random.Generator, routing: Routing, poison: float
) -> None:
    logits = (rng.standard_normal((12, routing.num_experts)) * 3).astype(np.float32)
    for token, row in enumerate(logits):
        row[rng.random(routing.num_experts) < token / 10] = poison  # none of the first one's, all of the last ones'
    corrections = [None, np.full(routing.num_experts, poison, np.float32), np.zeros(routing.num_experts, np.float32)]
    for correction in corrections:
        experts, weights = kernel_ops.route(isa, logits, routing, correction)
        assert ((experts >= 0) & (experts < routing.num_experts)).all()
        assert (np.diff(experts, axis=1) > 0).all()
        if np.isnan(poison):
            assert np.isnan(weights[-1]).all()


def test_logits_that_are_no_numbers_show_in_the_weights(isa: str) -> None:
    logits = np.zeros((1, 40), np.float32)
    logits[0, 33] = np.nan
    for scoring in ("softmax", "sigmoid"):
        _, weights = kernel_ops.route(isa, logits, Routing(40, 3, scoring))
        assert np.isnan(weights).any()


def test_other_tokens_are_routed_as_without_one_that_is_no_number(isa: str, rng: np.random.Generator) -> None:
    logits = rng.standard_normal((3, 64)).astype(np.float32)
    alone = kernel_ops.route(isa, logits[1:], Routing(64, 6))
    logits[0] = np.nan
    for found, expected in zip(kernel_ops.route(isa, logits, Routing(64, 6)), alone, strict=True):
        np.testing.assert_array_equal(found[1:], expected)


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize(("tokens", "top_k", "cols"), [(1, 8, 100), (5, 1, 33), (9, 4, 576)])
@pytest.mark.parametrize("accumulate", [False, True])
def test_results_are_weighted_and_summed_in_the_order_of_the_experts(
    isa: str, rng: np.random.Generator, tokens: int, top_k: int, cols: int, threads: int, accumulate: bool
) -> None:
    y = rng.standard_normal((tokens * top_k, cols)).astype(np.float32)
    shared = rng.standard_normal((tokens, cols)).astype(np.float32)
    rows = rng.permutation(tokens * top_k).astype(np.int32).reshape(tokens, top_k)
    rows[0, top_k // 2] = -1  # on another rank
    weights = rng.standard_normal((tokens, top_k + 1)).astype(np.float32)
    before = rng.standard_normal((tokens, cols)).astype(np.float32)
    terms = np.where(rows[..., None] >= 0, y[rows].astype(np.float64) * weights[:, :top_k, None], 0.0)
    for more in (None, shared):
        out = kernel_ops.combine(isa, y, rows, weights, more, before if accumulate else None, threads)
        last = np.zeros_like(before, np.float64) if more is None else more * weights[:, top_k:].astype(np.float64)
        expected = terms.sum(axis=1) + last + (before if accumulate else 0.0)
        bound = (top_k + 3) * 2.0**-24 * (np.abs(terms).sum(axis=1) + np.abs(last) + np.abs(expected) + 1)
        kernel_ops.assert_within(out, expected, bound)
        alone = kernel_ops.combine(
            isa, y, rows[-1:], weights[-1:], None if more is None else more[-1:], before[-1:] if accumulate else None, 1
        )
        np.testing.assert_array_equal(alone[0], out[-1])


@pytest.mark.parametrize("columns", [16, 96, 5120])
def test_a_weighted_row_is_rounded_once(isa: str, rng: np.random.Generator, columns: int) -> None:
    row = to_bf16(rng.standard_normal(columns).astype(np.float32))
    for weight in (0.7310586, 1.0, 3e-5, np.float32(np.nan)):
        expected = to_bf16(from_bf16(row) * np.float32(weight))
        np.testing.assert_array_equal(from_bf16(kernel_ops.weigh_row(isa, row, weight)), from_bf16(expected))
