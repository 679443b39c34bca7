"""What steps will take, learnt from what steps took."""

import random

import pytest
from numaserve.server.costs.cost_model import CostModel
from numaserve.server.costs.cost_table import Terms
from numaserve.workers.interface.protocol import OperationTerms

MODEL = [
    OperationTerms("linear", weight_bytes=80_000_000, row_flops=2.1e8),
    OperationTerms("lm_head", of_logits=True, weight_bytes=28_000_000, row_flops=5.6e7),
    OperationTerms("attention", position_bytes=23_040, pair_flops=69_120),
]
RATES = (2e-3, 1 / 15e9, 1 / 200e9, 1 / 8e9, 1 / 60e9)


def learning() -> CostModel:
    model = CostModel()
    model.describe([MODEL])
    return model


def decodes(model: CostModel, rng: random.Random) -> Terms:
    work = model.begin()
    for _ in range(8):
        work.add(rng.randrange(1, 800), 1, 1)
    return work.terms()


def mixed(model: CostModel, rng: random.Random) -> Terms:
    work = model.begin()
    for _ in range(8):
        work.add(rng.randrange(1, 800), 1, 1)
    return work.terms(rng.randrange(7000), rng.choice([32, 64, 128, 256, 512]))


def truth(terms: Terms, slower: float = 1.0) -> float:
    return slower * sum(rate * term for rate, term in zip(RATES, terms, strict=True))


def mean_error(model: CostModel, steps: list[Terms], slower: float = 1.0) -> float:
    return sum(abs(model.predict(step) / truth(step, slower) - 1.0) for step in steps) / len(steps)


def test_nothing_is_predicted_before_a_step_was_seen_or_without_a_table() -> None:
    model = CostModel()
    model.observe((1.0, 1.0, 1.0, 1.0, 1.0), 1.0)
    assert not model.predicts
    model = learning()
    assert not model.predicts
    model.observe(decodes(model, random.Random(0)), 0.01)
    assert model.predicts and model.expected(decodes(model, random.Random(0))) is None


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.2])
def test_decodes_and_chunks_are_predicted_within_a_tenth(noise: float) -> None:
    rng, model = random.Random(1), learning()
    for index in range(300):
        terms = (mixed if index % 10 > 5 else decodes)(model, rng)
        slow = 5.0 if noise and rng.random() < 0.03 else 1.0  # somebody else had the cores
        model.observe(terms, truth(terms) * slow * max(0.1, rng.gauss(1.0, noise)))
    assert model.expected(decodes(model, rng)) is not None
    assert mean_error(model, [decodes(model, rng) for _ in range(50)]) < 0.1
    assert mean_error(model, [mixed(model, rng) for _ in range(50)]) < 0.1


def test_the_first_step_of_a_cold_machine_says_little() -> None:
    rng, model = random.Random(5), learning()
    model.observe(first := decodes(model, rng), truth(first, 50.0))
    for _ in range(3):
        model.observe(terms := decodes(model, rng), truth(terms))
    assert mean_error(model, [decodes(model, rng) for _ in range(50)]) < 0.2


def test_a_machine_that_becomes_slower_is_followed_and_decodes_do_not_wear_chunks_out() -> None:
    rng, model = random.Random(2), learning()
    for index in range(200):
        terms = (mixed if index % 2 else decodes)(model, rng)
        model.observe(terms, truth(terms))
    before = mean_error(model, [mixed(model, rng) for _ in range(50)])
    for _ in range(2000):
        terms = decodes(model, rng)
        model.observe(terms, truth(terms) * rng.gauss(1.0, 0.05))
    assert mean_error(model, [mixed(model, rng) for _ in range(50)]) < before + 0.1
    for _ in range(60):
        terms = mixed(model, rng)
        model.observe(terms, truth(terms, 3.0))
    assert mean_error(model, [mixed(model, rng) for _ in range(50)], 3.0) < 0.15


def test_no_time_makes_a_prediction_negative_and_the_same_times_make_the_same_ones() -> None:
    models = learning(), learning()
    for model in models:
        rng = random.Random(3)
        for _ in range(300):
            model.observe(mixed(model, rng), rng.choice([1e-6, 1e-3, 10.0]))
            assert model.predict(decodes(model, rng)) >= 0.0
    step = mixed(models[0], random.Random(4))
    assert models[0].predict(step) == models[1].predict(step)


def test_workers_that_are_the_same_again_need_not_be_learnt_again() -> None:
    model = learning()
    model.observe(decodes(model, random.Random(0)), 0.01)
    model.describe([MODEL])
    assert model.predicts
    model.describe([MODEL[:1]])
    assert not model.predicts


def test_a_branch_goes_on_from_reliable_rates_by_itself() -> None:
    rng, model = random.Random(6), learning()
    assert model.branch() is None
    for _ in range(60):
        model.observe(terms := mixed(model, rng), truth(terms))
    branch, step = model.branch(), mixed(model, rng)
    assert branch is not None
    before = model.predict(step)
    assert branch.expected(step) == before == pytest.approx(truth(step), rel=0.1)
    for _ in range(100):
        branch.observe(terms := mixed(branch, rng), truth(terms, 3.0))
    assert branch.predict(step) == pytest.approx(truth(step, 3.0), rel=0.1)
    assert model.predict(step) == before
