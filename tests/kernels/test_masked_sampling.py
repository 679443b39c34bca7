"""Samples of which a mask tells what they may be, against the reference."""

import kernel_ops
import numpy as np
import pytest
from kernel_ops import sampled_row
from numaserve.kernels import available_isas
from numaserve.workers.interface.protocol import SamplingParams
from numaserve.workers.program.reference import sampling as reference
from test_sampler import FILTERS, GREEDY, _logits, _seeded, possible_tokens


def mask_of(allowed: np.ndarray) -> np.ndarray:
    """The words of a mask; bits behind the vocabulary are set, and mean nothing."""
    words = np.full(-(-len(allowed) // 32) * 32, True)
    words[: len(allowed)] = allowed
    return np.packbits(words, bitorder="little").view(np.uint32)


def only(vocab: int, *tokens: int) -> np.ndarray:
    allowed = np.zeros(vocab, bool)
    allowed[list(tokens)] = True
    return allowed


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("vocab", [5, 32, 1023, 1057, 9001])
def test_a_masked_draw_is_that_of_the_reference(isa: str, rng: np.random.Generator, name: str, vocab: int) -> None:
    prompt, output = rng.integers(0, vocab, 30).tolist(), rng.integers(0, vocab, 60).tolist()
    logits = _logits(rng, vocab)
    for draw in range(30):
        params = _seeded(FILTERS[name], draw * 0x123456789ABCDEF % 2**64)
        allowed = rng.random(vocab) < (0.5, 0.05, 3 / vocab)[draw % 3]
        allowed[rng.integers(vocab)] = True
        history = (prompt, output) if params.has_penalties else ()
        x = reference.adjusted(logits, params, draw, *history, allowed=allowed)
        row, dropped, _ = sampled_row(isa, logits, params, draw, *history, mask=mask_of(allowed))
        assert not dropped
        assert not reference.is_dropped(x, allowed)
        assert allowed[row.token]
        assert {row.token, reference.sampled_token(x, params, draw)} <= possible_tokens(x, params, draw)


@pytest.mark.parametrize("name", FILTERS)
def test_a_mask_that_allows_every_token_changes_nothing(isa: str, rng: np.random.Generator, name: str) -> None:
    logits = _logits(rng, 3000)
    every = mask_of(np.full(3000, True))
    for seed in range(20):
        params = _seeded(FILTERS[name], seed)
        assert sampled_row(isa, logits, params, seed, mask=every) == sampled_row(isa, logits, params, seed)


@pytest.mark.parametrize("token", [0, 31, 32, 1023, 1024, 1999])
def test_the_only_token_that_is_allowed_is_sampled(isa: str, rng: np.random.Generator, token: int) -> None:
    logits = _logits(rng, 2000)
    logits[token] = -1000.0
    for params in FILTERS.values():
        assert sampled_row(isa, logits, params, 3, mask=mask_of(only(2000, token)))[0].token == token


@pytest.mark.parametrize("params", [GREEDY, *FILTERS.values()])
def test_a_mask_that_allows_nothing_drops_the_row(isa: str, rng: np.random.Generator, params: SamplingParams) -> None:
    logits = _logits(rng, 100)
    nothing = np.zeros(100, bool)
    row, dropped, _ = sampled_row(isa, logits, params, 0, mask=mask_of(nothing))
    assert (row.token, dropped) == (0, True)
    assert reference.is_dropped(reference.adjusted(logits, params, 0, allowed=nothing), nothing)


def test_a_mask_that_allows_only_what_cannot_be_drops_the_row(isa: str) -> None:
    logits = np.array([1.0, -np.inf, 2.0, -np.inf], np.float32)
    allowed = only(4, 1, 3)
    assert sampled_row(isa, logits, SamplingParams(), 0, mask=mask_of(allowed))[1]
    assert reference.is_dropped(reference.adjusted(logits, SamplingParams(), 0, allowed=allowed), allowed)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_suppression_gives_way_to_a_mask_only_where_nothing_is_left(isa: str, temperature: float) -> None:
    logits = np.array([5.0, 1.0, 0.5, 9.0], np.float32)
    params = SamplingParams(temperature=temperature, suppress=[0, 2], min_position=10, logit_bias={1: 0.25})
    for allowed, possible in ((only(4, 0, 1), {1}), (only(4, 0, 2), {0, 2}), (only(4, 0), {0}), (only(4, 2, 3), {3})):
        for position in range(5):
            x = reference.adjusted(logits, params, position, allowed=allowed)
            token = reference.sampled_token(x, params, position)
            row, dropped, _ = sampled_row(isa, logits, params, position, mask=mask_of(allowed))
            assert (row.token, dropped) == (token, False)
            assert token in possible


def test_a_nan_spoils_a_masked_row_as_it_does_any(isa: str) -> None:
    logits = np.array([1.0, np.nan, 3.0, 2.0], np.float32)
    for allowed in (only(4, 0, 3), only(4, 1, 3), np.full(4, True)):
        row, dropped, _ = sampled_row(isa, logits, SamplingParams(), 0, mask=mask_of(allowed))
        assert allowed[row.token]
        assert not dropped


@pytest.mark.parametrize("bias", [np.inf, -np.inf, np.nan])
def test_a_bias_that_is_no_number_leads_to_no_token_that_is_forbidden(isa: str, bias: float) -> None:
    logits = np.array([1.0, 2.0, 3.0, 2.5], np.float32)
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, logit_bias={0: bias})
        row, dropped, _ = sampled_row(isa, logits, params, 0, mask=mask_of(only(4, 0, 1)))
        assert row.token in {0, 1}
        assert not dropped


def test_log_probabilities_are_those_of_the_unmasked_distribution(isa: str, rng: np.random.Generator) -> None:
    logits = _logits(rng, 2000)
    params = SamplingParams(temperature=0.7, logprobs=20, token_ids_logprob=[7, 1999, 7, 0])
    for position in range(10):
        allowed = rng.random(2000) < 0.1
        row, _, named = sampled_row(isa, logits, params, position, mask=mask_of(allowed))
        assert row == kernel_ops.token_logprobs(isa, logits, row.token, 20)
        assert named == [kernel_ops.token_logprobs(isa, logits, token, 0).logprob for token in (7, 1999, 7, 0)]


def test_named_tokens_have_the_log_probabilities_of_the_reference(isa: str, rng: np.random.Generator) -> None:
    logits = _logits(rng, 5000)
    tokens = rng.integers(0, 5000, 300).tolist()
    named = sampled_row(isa, logits, SamplingParams(temperature=0.0, token_ids_logprob=tokens), 0)[2]
    np.testing.assert_allclose(named, reference.named_logprobs(logits, tokens), rtol=1e-6, atol=1e-5)


def test_all_instruction_sets_sample_masked_rows_alike(rng: np.random.Generator) -> None:
    logits = _logits(rng, 50_001)
    mask = mask_of(rng.random(50_001) < 0.01)
    for name in FILTERS:
        tokens = [
            [sampled_row(isa, logits, _seeded(FILTERS[name], 3), i, mask=mask)[0].token for i in range(20)]
            for isa in available_isas()
        ]
        assert all(each == tokens[0] for each in tokens)
