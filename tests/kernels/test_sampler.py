"""Sampling: what may be drawn, how often, and always the same for the same seed and position."""

import kernel_ops
import msgspec
import numpy as np
import pytest
from numaserve.kernels import _native
from numaserve.workers.interface.protocol import SamplingParams
from numaserve.workers.program.reference import sampling as reference

GREEDY = SamplingParams(temperature=0.0)

FILTERS = {
    "plain": SamplingParams(),
    "cold": SamplingParams(temperature=0.3),
    "hot": SamplingParams(temperature=5.0),
    "top-k": SamplingParams(top_k=7),
    "top-k beyond the groups": SamplingParams(top_k=400, temperature=3.0),
    "top-k beyond the vocabulary": SamplingParams(top_k=10**9),
    "top-p": SamplingParams(top_p=0.9),
    "top-p of a flat distribution": SamplingParams(top_p=0.95, temperature=10.0),
    "min-p": SamplingParams(min_p=0.02),
    "all filters": SamplingParams(temperature=1.5, top_k=50, top_p=0.8, min_p=0.001),
    "penalties": SamplingParams(repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.25),
    "bias and suppression": SamplingParams(logit_bias={0: 3.0, 2: -100.0}, suppress=[1, 3], min_position=10**6),
    "everything": SamplingParams(
        temperature=0.8,
        top_k=40,
        top_p=0.95,
        min_p=0.01,
        repetition_penalty=1.1,
        frequency_penalty=0.5,
        logit_bias={2: 4.0},
        suppress=[0],
        min_position=10**6,
    ),
}


def _logits(rng: np.random.Generator, vocab: int) -> np.ndarray:
    return (rng.standard_normal(vocab) * 2.5).astype(np.float32)


def _seeded(params: SamplingParams, seed: int) -> SamplingParams:
    return SamplingParams(**{f: getattr(params, f) for f in params.__struct_fields__} | {"seed": seed})


def test_philox_gives_the_published_vectors() -> None:
    """From kat_vectors of Random123."""
    assert reference.philox((0,) * 4, (0,) * 2) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    ones = 0xFFFFFFFF
    assert reference.philox((ones,) * 4, (ones,) * 2) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    assert reference.philox(pi, (0xA4093822, 0x299F31D0)) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


def possible_tokens(x: reference.F32, params: SamplingParams, position: int, slack: float = 1e-6) -> set[int]:
    """The token that the draw of a position gives; two where rounding decides between neighbours."""
    ids, probabilities = reference.distribution(x, params)
    u = reference.uniform(params.seed, position)
    first, last = np.searchsorted(np.cumsum(probabilities), [u - slack, u + slack], side="right")
    return {int(token) for token in ids[first : min(int(last), len(ids) - 1) + 1]}


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("vocab", [5, 16, 1023, 1025, 9001])
def test_the_draw_inverts_the_cumulative_distribution_at_philox(
    isa: str, rng: np.random.Generator, name: str, vocab: int
) -> None:
    prompt, output = rng.integers(0, vocab, 30).tolist(), rng.integers(0, vocab, 60).tolist()
    logits = _logits(rng, vocab)
    for draw in range(40):
        params = _seeded(FILTERS[name], draw * 0x123456789ABCDEF % 2**64)
        position = draw * 977
        history = (prompt, output) if params.has_penalties else ()
        x = reference.adjusted(logits, params, position, *history)
        token = kernel_ops.sample(isa, logits, params, position, *history).token
        possible = possible_tokens(x, params, position)
        assert {token, reference.sampled_token(x, params, position)} <= possible


@pytest.mark.parametrize("name", ["plain", "top-p", "top-k"])
@pytest.mark.parametrize("over", ["positions", "seeds"])
def test_the_frequencies_of_draws_pass_a_chi_square_test(
    isa: str, rng: np.random.Generator, name: str, over: str
) -> None:
    logits = (rng.standard_normal(24) * 1.2).astype(np.float32)
    draws = 6000
    counts = np.zeros(24)
    for i in range(draws):
        seed, position = (7, i) if over == "positions" else (i, 7)
        counts[kernel_ops.sample(isa, logits, _seeded(FILTERS[name], seed), position).token] += 1
    ids, probabilities = reference.distribution(logits, FILTERS[name])
    assert counts.sum() == counts[ids].sum()
    statistic = ((counts[ids] - draws * probabilities) ** 2 / (draws * probabilities)).sum()
    # The upper 1e-4 quantile of chi-square, by Wilson and Hilferty's approximation.
    freedom = len(ids) - 1
    assert statistic < freedom * (1 - 2 / (9 * freedom) + 3.72 * np.sqrt(2 / (9 * freedom))) ** 3


@pytest.mark.parametrize("vocab", [1, 3, 16, 1024, 1030, 5000])
def test_greedy_takes_the_largest_logit(isa: str, rng: np.random.Generator, vocab: int) -> None:
    for _ in range(20):
        logits = _logits(rng, vocab)
        assert kernel_ops.sample(isa, logits, GREEDY, 0).token == int(np.argmax(logits))


@pytest.mark.parametrize("tied", [[3, 4], [15, 16], [1023, 1024], [70, 2000, 4999], [4998, 4999]])
def test_greedy_takes_the_lowest_of_equal_ids(isa: str, rng: np.random.Generator, tied: list[int]) -> None:
    logits = _logits(rng, 5000)
    logits[tied] = 50.0
    assert kernel_ops.sample(isa, logits, GREEDY, 0).token == tied[0]


def test_the_two_zeros_are_equal(isa: str) -> None:
    logits = np.full(40, -1.0, np.float32)
    logits[[5, 21]] = [-0.0, 0.0]
    assert kernel_ops.sample(isa, logits, GREEDY, 0).token == 5
    tokens = {kernel_ops.sample(isa, logits, SamplingParams(top_k=1), i).token for i in range(20)}
    assert tokens == {5}


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1e-6),
        SamplingParams(top_k=1),
        SamplingParams(top_p=0.0),
        SamplingParams(top_p=1e-6),
        SamplingParams(min_p=1.0),
        SamplingParams(temperature=1e-5, top_p=0.5),
    ],
)
def test_a_filter_that_leaves_one_token_is_greedy(isa: str, rng: np.random.Generator, params: SamplingParams) -> None:
    logits = _logits(rng, 3000)
    assert {kernel_ops.sample(isa, logits, params, i).token for i in range(50)} == {int(np.argmax(logits))}


@pytest.mark.parametrize("vocab", [8, 5000])
def test_of_equal_tokens_filters_keep_the_lowest_ids(isa: str, vocab: int) -> None:
    logits = np.zeros(vocab, np.float32)
    for params, kept in ((SamplingParams(top_k=3), 3), (SamplingParams(top_p=0.5), vocab // 2)):
        tokens = {kernel_ops.sample(isa, logits, params, i).token for i in range(300)}
        assert max(tokens) < kept
        assert kept > 3 or tokens == {0, 1, 2}


def test_a_repetition_penalty_makes_seen_tokens_less_likely_whatever_their_sign(isa: str) -> None:
    params = SamplingParams(temperature=0.0, repetition_penalty=2.0)
    assert kernel_ops.sample(isa, np.array([3.0, 2.0, 1.0], np.float32), params, 0, prompt=[0]).token == 1
    assert kernel_ops.sample(isa, np.array([-1.0, -1.5, -9.0], np.float32), params, 0, output=[0]).token == 1
    assert kernel_ops.sample(isa, np.array([3.0, 2.0, 1.0], np.float32), params, 0).token == 0


def test_presence_counts_once_and_frequency_each_time_and_only_output(isa: str) -> None:
    logits = np.array([3.0, 2.0, 1.0], np.float32)
    presence = SamplingParams(temperature=0.0, presence_penalty=0.75)
    frequency = SamplingParams(temperature=0.0, frequency_penalty=0.75)
    for params, output, token in (
        (presence, [0, 0, 0], 0),
        (frequency, [0], 0),
        (frequency, [0, 0], 1),
        (frequency, [0, 0, 0, 1, 1], 2),
    ):
        assert kernel_ops.sample(isa, logits, params, 0, output=output).token == token
        assert kernel_ops.sample(isa, logits, params, 0, prompt=output).token == 0


def test_a_bias_forces_or_forbids_a_token(isa: str, rng: np.random.Generator) -> None:
    logits = _logits(rng, 2000)
    best = int(np.argmax(logits))
    for temperature in (0.0, 1.0):
        forced = SamplingParams(temperature=temperature, logit_bias={1234: 100.0})
        assert {kernel_ops.sample(isa, logits, forced, i).token for i in range(20)} == {1234}
        forbidden = SamplingParams(temperature=temperature, logit_bias={best: -100.0})
        assert best not in {kernel_ops.sample(isa, logits, forbidden, i).token for i in range(20)}


def test_suppressed_tokens_return_at_their_position(isa: str) -> None:
    logits = np.array([9.0, 8.0, 7.0], np.float32)
    params = SamplingParams(temperature=0.0, suppress=[0, 1], min_position=10)
    assert [kernel_ops.sample(isa, logits, params, p).token for p in (0, 9, 10, 11)] == [2, 2, 0, 0]


@pytest.mark.parametrize("params", [GREEDY, *FILTERS.values()], ids=["greedy", *FILTERS])
def test_no_logit_leads_out_of_the_vocabulary(isa: str, rng: np.random.Generator, params: SamplingParams) -> None:
    poisons = [np.nan, np.inf, -np.inf, np.float32(3.4e38), np.float32(-3.4e38), np.float32(1e-45)]
    for vocab in (4, 37, 5000):
        for poison in poisons:
            for share in (0.1, 0.9, 1.0):
                logits = _logits(rng, vocab)
                logits[rng.random(vocab) < share] = poison
                history = ([0, 1], [2, 2]) if params.has_penalties else ()
                for position in range(3):
                    assert 0 <= kernel_ops.sample(isa, logits, params, position, *history).token < vocab


@pytest.mark.parametrize("params", [GREEDY, FILTERS["plain"], FILTERS["top-k"], FILTERS["top-p"], FILTERS["min-p"]])
def test_nan_is_never_chosen_while_there_is_a_number(isa: str, params: SamplingParams) -> None:
    logits = np.full(3000, np.nan, np.float32)
    logits[2222] = -5.0
    assert {kernel_ops.sample(isa, logits, params, i).token for i in range(10)} == {2222}


@pytest.mark.parametrize("name", ["plain", "top-k", "top-p", "min-p", "everything"])
def test_a_seed_and_a_position_fix_the_token(isa: str, rng: np.random.Generator, name: str) -> None:
    logits = _logits(rng, 4000)
    history = ([1], [2]) if FILTERS[name].has_penalties else ()
    draws = [
        [kernel_ops.sample(isa, logits, _seeded(FILTERS[name], seed), i, *history).token for i in range(40)]
        for seed in (1, 1, 2)
    ]
    assert draws[0] == draws[1]
    assert draws[0] != draws[2]
    assert len(set(draws[0])) > 1


@pytest.mark.parametrize("name", FILTERS)
def test_all_instruction_sets_sample_alike(rng: np.random.Generator, name: str) -> None:
    history = ([1, 2], [3, 3]) if FILTERS[name].has_penalties else ()
    for vocab in (100, 7001):
        logits = _logits(rng, vocab)
        rows = [
            [kernel_ops.sample(isa, logits, _seeded(FILTERS[name], 3), i, *history) for i in range(30)]
            for isa in _native.available_isas()
        ]
        assert all(row == rows[0] for row in rows)


@pytest.mark.parametrize("name", FILTERS)
def test_threads_that_share_a_row_change_no_bit(isa: str, rng: np.random.Generator, name: str) -> None:
    logits, params = _logits(rng, 5 * 1024 + 77), FILTERS[name]
    if name == "hot":
        logits[3000] = np.nan
    for wanted in (-1, 3):
        asked = msgspec.structs.replace(params, logprobs=wanted, token_ids_logprob=[5, 5000] if wanted > 0 else [])
        alone, *shared = (
            kernel_ops.sampled_row(isa, logits, asked, 17, prompt=[1, 2], output=[2, 2, 3000], parts=parts)
            for parts in (1, 2, 5, 9)
        )
        assert [repr(each) for each in shared] == [repr(alone)] * 3


@pytest.mark.parametrize("parts", [1, 3])
def test_drafts_count_for_penalties_as_tokens_of_the_output_do(isa: str, rng: np.random.Generator, parts: int) -> None:
    logits = _logits(rng, 3 * 1024)
    for seed in range(20):
        params = SamplingParams(
            temperature=1.5, seed=seed, repetition_penalty=1.4, presence_penalty=0.6, frequency_penalty=0.9, logprobs=2
        )
        likely = np.argsort(-logits)[:6].tolist()
        drafts = [likely[0], likely[1], likely[0], likely[2], 2500]
        known = kernel_ops.sampled_row(isa, logits, params, 9, [likely[3], likely[0]], [likely[1], *drafts])
        guessed = kernel_ops.sampled_row(
            isa, logits, params, 9, [likely[3], likely[0]], [likely[1]], drafts=drafts, parts=parts
        )
        assert guessed == known
        assert guessed != kernel_ops.sampled_row(isa, logits, params, 10, [likely[3], likely[0]], [likely[1]])
