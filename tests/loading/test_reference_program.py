"""The reference beside native code: what fusions and kernels are compared with, and what it says of itself."""

from dataclasses import replace
from functools import partial

import numpy as np
import psutil
import pytest
import torch
from driven_programs import (
    AnyProgram,
    RandomWeights,
    Row,
    Told,
    answers,
    logprobs,
    packed,
    reference,
    reference_group,
    run,
    start,
)
from msgspec import structs
from numaserve.kernels import PackedMatrix, Team, Vector
from numaserve.workers.interface.protocol import SamplingParams
from numaserve.workers.interface.settings import KvCacheDtype, ModelSettings
from numaserve.workers.program.buffers import Tensor
from numaserve.workers.program.caches import CacheKind, Heads
from numaserve.workers.program.native import make_program, native_rows
from numaserve.workers.program.ops.exchange import DividedNorm
from numaserve.workers.program.ops.rows import GroupNorm, RmsNorm
from numaserve.workers.program.recording.builder import ProgramBuilder
from numaserve.workers.program.reference.caches import KvCache
from numaserve.workers.program.reference.numbers import DECLARED, Numbers
from numaserve.workers.program.reference.program import ReferenceProgram
from numaserve.workers.program.setup import RankShape
from numaserve.workers.program.slots import END_POOL, END_POOL_TOKENS

from tests.support.recorded_programs import (
    HIDDEN,
    LIMITS,
    VOCAB,
    Part,
    Shapes,
    dense,
    encoder,
    latent,
    mixture,
    pooled,
    recorders,
    spaces,
    tokens,
)

NAMES = [name for name in recorders() if not name.startswith("pooled")]  # those that sample
EXACT = Numbers(torch.float64, rounded=False)


@pytest.fixture
def part(team: Team) -> Part:
    return Part(weights=RandomWeights(team))


@pytest.mark.parametrize("name", NAMES)
def test_fused_operations_give_the_same_bits_natively(name: str, part: Part, team: Team) -> None:
    b = recorders(part)[name]()
    assert len(b.fused()) < len(b.operations)
    fused, unfused = (make_program(b.setup, each, team) for each in (b.fused(), b.operations))
    assert answers(fused) == answers(unfused)


def test_a_norm_of_groups_has_the_bits_of_a_norm_that_ranks_divide(part: Part, team: Team) -> None:
    b = spaces(part, is_local=True)
    (norm,) = (each for each in b.operations if isinstance(each, GroupNorm))
    sizes = tuple(weight.size for weight in norm.weights)
    message = Tensor(norm.x.rows, len(sizes), 4)
    divided = (
        DividedNorm(x=norm.x, message=message, weights=norm.weights, counted=sizes, columns=sizes, eps=norm.eps),
        RmsNorm(x=norm.x, out=norm.out, weight=None, eps=0.0),
    )
    at = b.operations.index(norm)
    others = [*b.operations[:at], *divided, *b.operations[at + 1 :]]
    assert answers(make_program(b.setup, b.operations, team)) == answers(make_program(b.setup, others, team))


@pytest.mark.parametrize("numbers", [DECLARED, EXACT], ids=["declared", "exact"])
@pytest.mark.parametrize("name", NAMES)
def test_fused_operations_mean_the_same(name: str, numbers: Numbers, part: Part) -> None:
    b = recorders(part)[name]()
    fused, unfused = (answers(reference(b, each, numbers)) for each in (b.fused(), b.operations))
    np.testing.assert_allclose(logprobs(fused), logprobs(unfused), rtol=1e-5 if numbers is DECLARED else 1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_native_code_is_as_near_to_exact_numbers_as_the_declared_roundings_are(
    name: str, part: Part, team: Team
) -> None:
    assert_as_near(recorders(part)[name](), team)


@pytest.mark.parametrize("dtype", ["int8", "fp8_e4m3"])
def test_so_it_is_with_a_quantized_kv_cache(dtype: KvCacheDtype, part: Part, team: Team) -> None:
    assert_as_near(dense(replace(part, settings=ModelSettings(kv_cache_dtype=dtype))), team)


def assert_as_near(b: ProgramBuilder, team: Team) -> None:
    """Roundings that fall otherwise come to as much as the roundings do: in the norm of many log-probabilities native
    code is no further from exact numbers than 1.5 times what the declared roundings make of them."""
    exact = logprobs(answers(reference(b, b.operations, EXACT)))
    declared = logprobs(answers(reference(b, b.fused(), DECLARED)))
    native = logprobs(answers(make_program(b.setup, b.fused(), team)))
    size = np.linalg.norm(declared - exact)
    assert 0 < size < 0.05 * np.linalg.norm(exact)
    assert np.linalg.norm(native - exact) < 1.5 * size


def test_rows_of_a_step_do_not_depend_on_each_other(part: Part) -> None:
    b = latent(part)
    together = reference(b, b.fused(), EXACT)
    expected = answers(together)
    alone = reference(b, b.fused(), EXACT)
    start(alone, 3, range(20, 36))
    prompt = np.random.default_rng(0).integers(0, 96, (2, 48)).tolist()[1]
    found = [run(alone, [(3, at, [token], at == 47, prompt[at + 1 : at + 2])])[0] for at, token in enumerate(prompt)]
    of_second = [target for sequence, _, target, _ in expected[48:] if target is not None][: len(prompt) - 1]
    assert len(of_second) == 47
    for (_, _, one, _), other in zip(found, of_second, strict=False):
        assert one[:1] == other[:1]
        np.testing.assert_allclose(one[1], other[1], rtol=1e-10)


@pytest.mark.parametrize("make", [dense, partial(dense, divided_norm=True), latent, mixture])
def test_ranks_agree_on_what_is_sampled(make: object, team: Team) -> None:
    builders = [make(Part(2, rank, RandomWeights(team, rank))) for rank in range(2)]  # type: ignore[operator]
    first, second = reference_group(builders, DECLARED)
    assert len(first) == 4 + 2 * 47 + 2
    assert second == []


def test_ranks_that_divide_a_sequence_attend_to_what_each_would_alone(team: Team) -> None:
    found = []
    for begin in (1, None):
        settings = ModelSettings(context_parallel_from=begin)
        builders = [latent(Part(2, rank, RandomWeights(team, rank), settings)) for rank in range(2)]
        found.append(reference_group(builders, EXACT)[0])
    divided, whole = ([sampled for _, sampled, *_ in each if sampled] for each in found)
    for one, other in zip(divided, whole, strict=True):
        assert (one[0], one[2]) == (other[0], other[2])
        np.testing.assert_allclose(one[3], other[3], rtol=1e-10)


def programs(part: Part, team: Team) -> list[AnyProgram]:
    b = dense(part)
    return [make_program(b.setup, b.fused(), team), reference(b, b.fused(), DECLARED)]


def said(found: list[Told]) -> list[tuple[int, float, list[float]]]:
    """The tokens that were kept, with their log-probabilities and those of named ones."""
    return [(sampled[0], sampled[1], named) for _, sampled, _, named in found if sampled is not None]


PENALTIES = {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.7}


@pytest.mark.parametrize("sampling", [{}, PENALTIES, {"temperature": 1.3, "seed": 4}], ids=str)
@pytest.mark.parametrize("index", [0, 1], ids=["native", "reference"])
def test_right_drafts_are_kept_and_what_rests_on_a_wrong_one_is_forgotten(
    index: int, sampling: dict[str, float], part: Part, team: Team
) -> None:
    program = programs(part, team)[index]
    params = SamplingParams(**{"temperature": 0.0, "logprobs": 0, "token_ids_logprob": [7, 90], **sampling})  # type: ignore[arg-type]
    start(program, 0, range(8), params)
    alone = said(run(program, [(0, 0, [5, 6, 7], True, ())]))
    for position in range(3, 9):
        alone += said(run(program, [(0, position, None, True, ())]))
    tokens = [token for token, *_ in alone]
    start(program, 1, range(8, 16), params)
    found = said(run(program, [(1, 0, [5, 6, 7], True, ())]))
    wrong = tokens[3] ^ 1
    found += said(run(program, [(1, 3, [tokens[0], tokens[1], tokens[2], wrong, 9], True, ())], [4]))
    assert len(found) == 4
    found += said(run(program, [(1, 6, None, True, ())]))
    found += said(run(program, [(1, 7, [tokens[4], tokens[5]], True, ())], [1]))
    assert [token for token, *_ in found] == tokens
    if index == 0:
        assert found == alone
    np.testing.assert_allclose(*([[one, *named] for _, one, named in each] for each in (found, alone)), rtol=1e-5)


@pytest.mark.parametrize("index", [0, 1], ids=["native", "reference"])
def test_a_wrong_draft_whose_logits_are_not_numbers_spoils_nothing(index: int, team: Team) -> None:
    program = programs(Part(weights=RandomWeights(team, spoiled_token=9)), team)[index]
    start(program, 0, range(8))
    ((first, *_),) = said(run(program, [(0, 0, [5, 6, 7], True, ())]))
    assert len(said(run(program, [(0, 3, [first, 9], True, ())], [1]))) == 1
    assert list(program.nan_sequences) == []
    run(program, [(0, 4, [9], True, ())])
    assert list(program.nan_sequences) == [0]


@pytest.mark.parametrize("index", [0, 1], ids=["native", "reference"])
def test_a_right_draft_behind_which_logits_are_not_numbers_ends_what_is_kept(index: int, team: Team) -> None:
    program = programs(Part(weights=RandomWeights(team, spoiled_token=9)), team)[index]
    start(program, 0, range(8), SamplingParams(temperature=0.0, logprobs=0, logit_bias={9: 1e4}))
    run(program, [(0, 0, [5, 6], False, ())])
    found = run(program, [(0, 2, [7, 9, 9], True, ())], [2])
    assert [token for token, *_ in said(found)] == [9]
    assert list(program.nan_sequences) == []
    run(program, [(0, 3, None, True, ())])
    assert list(program.nan_sequences) == [0]


REFUSED: dict[str, list[Row]] = {
    "no new token": [(0, 3, [], False, ())],
    "nothing sampled before": [(0, 3, None, False, ())],
    "no page": [(0, 64, [1], False, ())],
    "a slot twice": [(0, 3, [1], False, ()), (0, 4, [1], False, ())],
    "no slot": [(4, 0, [1], False, ())],
    "no token": [(0, 3, [96], False, ())],
    "no target": [(0, 3, [1], False, [-1])],
    "more targets than tokens": [(0, 3, [1], False, [1, 2])],
    "too many tokens": [(0, 0, [1] * 40, False, ()), (1, 0, [1] * 40, False, ())],
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_plan_that_native_code_refuses_is_refused_and_taken_back(name: str, part: Part, team: Team) -> None:
    after = []
    for program in programs(part, team):
        for slot in range(2):
            start(program, slot, [2 * slot, 2 * slot + 1])
        run(program, [(0, 0, [1, 2, 3], False, ())])
        start(program, 0, [6])
        with pytest.raises(ValueError):
            run(program, REFUSED[name])
        program.revert()
        ((_, sampled, *_),) = run(program, [(0, 3, [5] * 40, True, ())])  # on the two pages that it had
        after.append(sampled[0])
        assert program.totals[:2] == (2, 43)
    assert after[0] == after[1]


@pytest.mark.parametrize("change", ["slot", "page", "full", "token"])
def test_a_slot_that_native_code_refuses_is_refused(change: str, part: Part, team: Team) -> None:
    pages = {"page": [LIMITS.num_pages], "full": [0] * (LIMITS.pages_per_slot + 1)}.get(change, [0])
    bias = {96: 1.0} if change == "token" else {}
    for program in programs(part, team):
        with pytest.raises(ValueError):
            start(program, 4 if change == "slot" else 0, pages, SamplingParams(logit_bias=bias))


def test_a_kv_cache_takes_memory_when_it_is_written(part: Part) -> None:
    b = dense(part)
    setup = replace(b.setup, limits=structs.replace(b.limits, num_pages=1 << 18))
    before = psutil.Process().memory_info().rss
    layers = KvCache(setup, DECLARED).layers
    assert sum(nbytes for _, nbytes in layers) == 1 << 30
    assert psutil.Process().memory_info().rss - before < 1 << 26


class ExactWeights(Shapes):
    """Of which logits are made without any rounding: an embedding of ones, a head of eighths."""

    def __init__(self, team: Team) -> None:
        self._team = team

    def matrix(self, n: int, k: int, format: str = "bf16", group: int = 0, *, whole: bool = False) -> PackedMatrix:
        random = np.random.default_rng(group)
        return packed(self._team, random.choice([-1, 1], (n, k)) if group == 0 else random.integers(-8, 8, (n, k)) / 8)

    def vector(self, size: int = HIDDEN) -> Vector:
        return Vector(np.ones(size, np.float32))


def test_seeds_penalties_and_biases_sample_what_native_code_does(team: Team) -> None:
    w = ExactWeights(team)
    b = Part(weights=w).builder(RankShape(HIDDEN, [0, VOCAB], (CacheKind(Heads(1, 1, 32)),)))
    x = b.rms_norm(b.embed(w.matrix(VOCAB, HIDDEN), first_row=0), w.vector(), 0.0)
    b.sample(b.lm_head(x, w.matrix(VOCAB, HIDDEN, group=1)), softcap=5.0)
    everything = SamplingParams(
        temperature=0.9,
        top_k=40,
        top_p=0.95,
        min_p=0.001,
        repetition_penalty=1.3,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        seed=7,
        logit_bias={5: 2.0},
        suppress=[1, 2],
        min_position=30,
    )
    for sampling in (everything, SamplingParams(temperature=3.0, seed=2), SamplingParams(temperature=0.0, logprobs=20)):
        found = []
        for program in (make_program(b.setup, b.fused(), team), reference(b, b.fused(), DECLARED)):
            start(program, 0, range(8), sampling)
            rows = [run(program, [(0, 0, [1, 2, 3], True, [2])])[-1]]
            rows += [run(program, [(0, at, None, True, ())])[0] for at in range(3, 200)]
            found.append([(token, ids) for _, (token, _, ids, _), *_ in rows])
        assert found[0] == found[1]
        if sampling.temperature > 0:
            assert len({token for token, _ in found[0]}) > 30


def test_a_sequence_that_is_spoiled_spoils_no_other(team: Team) -> None:
    spoiled = 5
    for program in programs(Part(weights=RandomWeights(team, spoiled_token=spoiled)), team):
        for slot in range(2):
            start(program, slot, [2 * slot, 2 * slot + 1])
        run(program, [(0, 0, [1, spoiled, 2], True, [spoiled, 2]), (1, 0, [3], True, ())])
        assert program.nan_sequences == [0]
        start(program, 0, [0])
        run(program, [(0, 0, [1], True, ()), (1, 1, None, True, ())])
        assert program.nan_sequences == []


def test_a_step_of_nothing_costs_nothing(part: Part, team: Team) -> None:
    for program in programs(part, team):
        start(program, 0, [0])
        run(program, [(0, 0, [1, 2], True, ())])
        before = program.totals, program.profile()
        assert run(program, []) == []
        assert (program.totals, program.profile()) == before


def test_what_steps_cost_is_told_as_native_code_tells_it(part: Part, team: Team) -> None:
    told, shapes = [], []
    for program in programs(part, team):
        answers(program)
        told.append([(name, format, nbytes, flops) for name, format, _, _, _, nbytes, flops in program.profile()])
        assert program.totals[:2] == (4, 48 + 24 + 1 + 24 + 1 + 2)
        shapes.append(program.shape_totals)
    assert shapes[0] == shapes[1]
    counted = [[row for row in each if row[2:] != (0, 0)] for each in told]
    assert counted[0] == counted[1]
    assert [row[0] for row in told[0]] == [row[0] for row in told[1]]


def embeddings(program: AnyProgram, rows: list[Row]) -> dict[int, np.ndarray]:
    """What each of the sequences that a step pools gets, by its index in the plan."""
    assert run(program, rows) == []
    return {index: np.frombuffer(values, np.float32) for index, values in program.pooled}


def pooling(b: ProgramBuilder, team: Team) -> list[AnyProgram]:
    made: list[AnyProgram] = [make_program(b.setup, b.fused(), team), reference(b, b.fused(), EXACT)]
    for program in made:
        for slot in range(3):
            start(program, slot, range(slot, 30, 3))
    return made


def test_the_last_tokens_of_some_sequences_are_pooled(part: Part, team: Team) -> None:
    first, second = np.random.default_rng(0).integers(0, VOCAB, (2, 30)).tolist()
    rows: list[Row] = [(0, 0, first, END_POOL, ()), (1, 0, [3], 0, ()), (2, 0, second, END_POOL, ())]
    programs = pooling(pooled(part), team)
    native, exact = (embeddings(program, rows) for program in programs)
    assert [*native] == [*exact] == [0, 2]
    assert [program.shape_totals for program in programs] == [(1, 3, 61, 0, 2, 0)] * 2
    for index, values in exact.items():
        assert native[index].shape == (HIDDEN,)
        assert np.linalg.norm(native[index] - values) < 0.02 * np.linalg.norm(values)


def test_whole_sequences_of_an_encoder_are_pooled(part: Part, team: Team) -> None:
    rng = np.random.default_rng(2)
    first, second, third = (rng.integers(0, VOCAB, count).tolist() for count in (40, 1, 19))
    rows: list[Row] = [(0, 0, first, END_POOL, ()), (1, 0, second, END_POOL, ()), (2, 0, third, END_POOL, ())]
    programs = pooling(encoder(part), team)
    native, exact = (embeddings(program, rows) for program in programs)
    assert [*native] == [*exact] == [0, 1, 2]
    for index, values in exact.items():
        assert np.linalg.norm(native[index] - values) < 0.02 * np.linalg.norm(values)
    told = [[row[-2:] for row in program.profile() if row[-1]] for program in programs]  # bytes and operations
    assert told[0] == told[1]
    alone = embeddings(programs[0], [(1, 0, first, END_POOL, ())])
    np.testing.assert_array_equal(alone[0], native[0])


def columns(program: AnyProgram, b: ProgramBuilder, count: int) -> np.ndarray:
    """The columns of the first `count` tokens of the last step, fp32."""
    rows = program.outside if isinstance(program, ReferenceProgram) else native_rows(program, b.fused())
    return rows.kept("columns")[:count].copy()


def test_columns_of_tokens_are_computed_in_steps_that_ask_for_them(part: Part, team: Team) -> None:
    rng = np.random.default_rng(2)
    first, second = (rng.integers(0, VOCAB, count).tolist() for count in (40, 3))
    b = tokens(part)
    native, exact = pooling(b, team)
    both: list[Row] = [(0, 0, first, END_POOL, ()), (1, 0, second, END_POOL_TOKENS, ())]
    vectors = [embeddings(program, both) for program in (native, exact)]
    found, expected = columns(native, b, 43), columns(exact, b, 43)
    assert found.shape == (43, 41)
    assert np.linalg.norm(found - expected) < 0.02 * np.linalg.norm(expected)
    assert [*vectors[0]] == [0, 1]
    took = [row[2] for row in native.profile()[-2:]]
    again = embeddings(native, [(0, 0, first[::-1], END_POOL, ()), (1, 0, second, END_POOL, ())])
    np.testing.assert_array_equal(again[1], vectors[0][1])
    assert [row[2] for row in native.profile()[-2:]] == took  # nothing was computed
    alone = embeddings(native, [(1, 0, second, END_POOL_TOKENS, ())])
    np.testing.assert_array_equal(alone[0], vectors[0][1])
    np.testing.assert_array_equal(columns(native, b, 3), found[40:])
    assert all(row[-2:] == (0, 0) for row in native.profile()[-2:])


def test_columns_of_tokens_are_refused_where_there_are_none(part: Part, team: Team) -> None:
    for program in pooling(encoder(part), team):
        with pytest.raises(ValueError, match=r"asks for vectors of .*tokens, but the model has none"):
            run(program, [(0, 0, [1, 2], END_POOL_TOKENS, ())])
        assert [*embeddings(program, [(0, 0, [1, 2], END_POOL, ())])] == [0]


def test_a_part_of_a_sequence_is_refused_by_an_encoder(part: Part, team: Team) -> None:
    for program in pooling(encoder(part), team):
        for row in ((0, 0, [1, 2], 0, ()), (0, 2, [3], END_POOL, ())):
            with pytest.raises(ValueError, match="not a whole sequence to be pooled, which bidirectional"):
                run(program, [row])
        assert [*embeddings(program, [(0, 0, [1, 2], END_POOL, ())])] == [0]


def test_a_pooled_row_is_the_same_alone_and_after_a_part_of_the_prompt(part: Part, team: Team) -> None:
    prompt = np.random.default_rng(1).integers(0, VOCAB, 40).tolist()
    b = pooled(part)
    together, apart = (pooling(b, team)[0] for _ in range(2))
    whole = embeddings(together, [(1, 0, [4, 5], END_POOL, ()), (0, 0, prompt, END_POOL, ())])[1]
    assert embeddings(apart, [(0, 0, prompt[:33], 0, ())]) == {}
    np.testing.assert_array_equal(embeddings(apart, [(0, 33, prompt[33:], END_POOL, ())])[0], whole)


def test_pooled_values_that_are_not_numbers_are_told(team: Team) -> None:
    for program in pooling(pooled(Part(weights=RandomWeights(team, spoiled_token=5))), team):
        run(program, [(0, 0, [1], END_POOL, ()), (1, 0, [5], END_POOL, ())])
        assert program.nan_sequences == [1]
        run(program, [(0, 1, [1], END_POOL, ()), (1, 1, [2], 0, ())])
        assert program.nan_sequences == []


def test_a_program_that_does_not_pool_refuses_to(part: Part, team: Team) -> None:
    for program in programs(part, team):
        start(program, 0, [0])
        with pytest.raises(ValueError, match="without support for embeddings"):
            run(program, [(0, 0, [1], END_POOL, ())])
