"""Log-probabilities of the unmodified distribution, against float64."""

import kernel_ops
import numaserve_kernel_tests as ops
import numpy as np
import pytest
from kernel_reference import FP32, accumulation
from numaserve.kernels import available_isas
from numaserve.workers.interface.protocol import MAX_LOGPROBS, SamplingParams
from numaserve.workers.program.reference import sampling as reference

# A block sums 64 times sixteen lanes and then the lanes, blocks are summed in fp64; an exponent up to about 30 is
# rounded once.
SUM_ERROR = accumulation(68) + 32 * FP32


@pytest.mark.parametrize("vocab", [1, 7, 20, 21, 1000, 1025, 49152])
@pytest.mark.parametrize("scale", [0.01, 3.0, 12.0])
def test_the_top_ones_are_those_of_float64(isa: str, rng: np.random.Generator, vocab: int, scale: float) -> None:
    logits = (rng.standard_normal(vocab) * scale).astype(np.float32)
    expected = reference.log_softmax(logits)
    order = np.argsort(-logits, kind="stable")[:MAX_LOGPROBS]
    token = int(rng.integers(vocab))
    row = kernel_ops.token_logprobs(isa, logits, token, MAX_LOGPROBS)
    assert row.token == token
    assert row.top_ids == order.tolist()
    kernel_ops.assert_within(np.array(row.top_logprobs), expected[order], SUM_ERROR + FP32 * np.abs(expected[order]))
    kernel_ops.assert_within(np.array([row.logprob]), expected[[token]], SUM_ERROR + FP32 * np.abs(expected[[token]]))


@pytest.mark.parametrize("num_top", [0, 1, 5, 20])
def test_as_many_are_told_as_were_wanted(isa: str, rng: np.random.Generator, num_top: int) -> None:
    logits = rng.standard_normal(3000).astype(np.float32)
    row = kernel_ops.token_logprobs(isa, logits, 17, num_top)
    assert row.top_ids == np.argsort(-logits, kind="stable")[:num_top].tolist()
    assert len(row.top_logprobs) == num_top


def test_never_more_than_twenty_are_told(isa: str, rng: np.random.Generator) -> None:
    row = kernel_ops.token_logprobs(isa, rng.standard_normal(100).astype(np.float32), 0, 1000)
    assert len(row.top_ids) == MAX_LOGPROBS


def test_of_equal_tokens_the_lowest_ids_come_first(isa: str) -> None:
    logits = np.zeros(5000, np.float32)
    logits[[4000, 300]] = 1.0
    row = kernel_ops.token_logprobs(isa, logits, 0, 5)
    assert row.top_ids == [300, 4000, 0, 1, 2]


def test_a_forbidden_token_has_a_logprob_of_minus_infinity(isa: str) -> None:
    logits = np.array([0.0, -np.inf, 1.0], np.float32)
    row = kernel_ops.token_logprobs(isa, logits, 1, 3)
    assert row.logprob == -np.inf
    assert row.top_ids == [2, 0, 1]


def test_nan_is_not_among_the_top_ones(isa: str) -> None:
    logits = np.array([np.nan, 1.0, np.nan, 2.0], np.float32)
    row = kernel_ops.token_logprobs(isa, logits, 1, 4)
    assert row.top_ids == [3, 1]


@pytest.mark.parametrize("vocab", [1, 37, 1024, 5003])
def test_a_row_with_a_nan_or_without_a_finite_maximum_is_told_of(
    isa: str, rng: np.random.Generator, vocab: int
) -> None:
    logits = (rng.standard_normal(vocab) * 3).astype(np.float32)
    assert ops.usable(isa, logits, 0.0) == (True, True)
    for place in {0, vocab // 2, vocab - 1}:
        for poison in (np.nan, -np.nan, np.inf):
            spoiled = logits.copy()
            spoiled[place] = poison
            assert ops.usable(isa, spoiled, 0.0) == (False, False)
    assert ops.usable(isa, np.full(vocab, -np.inf, np.float32), 0.0) == (False, False)
    extremes = np.where(np.arange(vocab) % 2 == 0, np.float32(3.4e38), np.float32(-3.4e38))
    assert ops.usable(isa, extremes, 0.0) == (True, True)
    assert ops.usable(isa, np.append(logits, np.float32(-np.inf)), 0.0) == (True, True)


@pytest.mark.parametrize("bias", [np.nan, np.inf])
def test_a_bias_that_is_no_number_does_not_speak_for_the_logits(isa: str, bias: float) -> None:
    assert ops.usable(isa, np.array([1.0, 2.0], np.float32), bias) == (True, True)
    assert ops.usable(isa, np.array([1.0, np.nan], np.float32), bias) == (False, False)


def test_a_softcap_hides_no_nan(isa: str) -> None:
    x = np.array([1.0, np.nan, 2.0], np.float32)
    ops.softcap(isa, x, 30.0)
    assert np.isnan(x).tolist() == [False, True, False]


def test_a_sample_reports_the_distribution_before_anything_changed_it(isa: str, rng: np.random.Generator) -> None:
    logits = (rng.standard_normal(2000) * 3).astype(np.float32)
    params = SamplingParams(
        temperature=0.5,
        top_k=30,
        repetition_penalty=1.5,
        logit_bias={5: 20.0},
        suppress=[int(np.argmax(logits))],
        min_position=100,
        logprobs=20,
    )
    for position in range(10):
        row = kernel_ops.sample(isa, logits, params, position, prompt=[1, 2], output=[3])
        assert row == kernel_ops.token_logprobs(isa, logits, row.token, 20)
        assert row.top_ids[0] == int(np.argmax(logits))


def test_logprobs_that_nobody_wants_are_not_computed(isa: str, rng: np.random.Generator) -> None:
    logits = rng.standard_normal(100).astype(np.float32)
    row = kernel_ops.sample(isa, logits, SamplingParams(temperature=0.0), 0)
    assert (row.logprob, row.top_ids, row.top_logprobs) == (0.0, [], [])


def test_all_instruction_sets_give_the_same_bits(rng: np.random.Generator) -> None:
    logits = (rng.standard_normal(50001) * 5).astype(np.float32)
    rows = [kernel_ops.token_logprobs(isa, logits, 77, 20) for isa in available_isas()]
    assert all(row == rows[0] for row in rows)


@pytest.mark.parametrize("count", [1, 16, 1000, 1003])
def test_a_softcap_bounds_logits_smoothly(isa: str, rng: np.random.Generator, count: int) -> None:
    x = (rng.standard_normal(count) * 100).astype(np.float32)
    result = x.copy()
    ops.softcap(isa, result, 30.0)
    kernel_ops.assert_within(result, 30 * np.tanh(x.astype(np.float64) / 30), 16 * FP32 * 30)
    extremes = np.array([np.inf, -np.inf, 3e38, -3e38, 0.0], np.float32)
    ops.softcap(isa, extremes, 30.0)
    np.testing.assert_array_equal(extremes, np.array([30, -30, 30, -30, 0], np.float32))
