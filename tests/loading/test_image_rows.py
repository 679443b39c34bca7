"""The rows of image input in a program: patches that become one row, and features in place of embeddings."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from driven_programs import NONE, AnyProgram, RandomWeights, both, start, widened
from numaserve.kernels import Counter, Team
from numaserve.workers.program.native import make_program
from numaserve.workers.program.outside import OutsideRows
from numaserve.workers.program.recording.builder import ProgramBuilder
from numaserve.workers.program.setup import RankShape

from tests.support.recorded_programs import EPS, HIDDEN, VOCAB, Part, tower

SIDE, FACTOR = 4, 2
PATCHES = SIDE * SIDE
ROWS, TILES = 8, 2  # of a tile, and of the pool
Placed = tuple[int, int, int, int]


def rounded(values: np.ndarray) -> np.ndarray:
    """fp32 as bf16 has it, to the nearest and ties to even."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def shuffled(x: np.ndarray, side: int, factor: int) -> np.ndarray:
    """`pixel_shuffle` of Idefics3's connector in transformers, of one image."""
    columns = x.shape[1]
    wide = x.reshape(side, side // factor, columns * factor).transpose(1, 0, 2)
    high = wide.reshape(side // factor, side // factor, columns * factor**2).transpose(1, 0, 2)
    return high.reshape(-1, columns * factor**2)


def step(program: AnyProgram, sequences: Sequence[tuple[int, int, int]], placed: Sequence[Placed] = ()) -> None:
    """Run a step of (slot, start, count), whose tokens are numbers of their rows."""
    plan = np.array([(*each, 0, 0, 0) for each in sequences], np.int32)
    program.step(plan, np.arange(plan[:, 2].sum(), dtype=np.int32), NONE, placed=placed)


def poison(program: AnyProgram) -> None:
    """Fill the memory of a native program with what is not a number."""
    if program.isa != "reference":
        program.arena[:] = 0xFF  # type: ignore[union-attr]


def merging(w: RandomWeights, columns: int) -> ProgramBuilder:
    b = Part(weights=w).builder(RankShape(HIDDEN, [0, VOCAB]))
    merged = b.merge_rows(b.rounded(b.given("patches", columns)), side=SIDE, factor=FACTOR)
    b.keep("merged", merged)
    b.keep("product", b.linear(merged, w.matrix(HIDDEN, merged.cols)))
    return b


@pytest.mark.parametrize("columns", [5, 40])
def test_the_patches_of_each_block_become_one_row(columns: int, team: Team) -> None:
    tiles = np.random.default_rng(0).standard_normal((3, PATCHES, columns), np.float32)
    expected = np.concatenate([shuffled(rounded(each), SIDE, FACTOR) for each in tiles])
    products = []
    for program, outside in both(merging(RandomWeights(team), columns), team):
        poison(program)
        for slot in range(len(tiles)):
            start(program, slot, [slot])
        outside.given("patches")[: tiles.shape[0] * PATCHES] = tiles.reshape(-1, columns)
        step(program, [(2, 0, PATCHES), (0, 0, PATCHES), (1, 0, PATCHES)])
        np.testing.assert_array_equal(widened(outside.kept("merged")[: len(expected)]), expected)
        products.append(outside.kept("product")[: len(expected)].copy())
    np.testing.assert_allclose(products[0], products[1], rtol=1e-3, atol=1e-4)


def test_operations_after_merging_are_counted_by_merged_rows(team: Team) -> None:
    b = merging(RandomWeights(team), 40)
    profiles = []
    for program, outside in both(b, team):
        start(program, 0, [0])
        outside.given("patches")[:] = 0
        step(program, [(0, 0, PATCHES)])
        profiles.append({row[0]: row[-2:] for row in program.profile() if row[-1]})
    rows, weight = PATCHES // FACTOR**2, HIDDEN * 40 * FACTOR**2
    assert profiles == [{"linear": (2 * weight, 2 * weight * rows)}] * 2
    (terms,) = [cost.terms for cost in b.costs() if cost.name == "linear"]
    assert terms is not None
    assert (terms.weight_bytes, terms.row_flops * PATCHES) == (2 * weight, 2 * weight * rows)


def test_the_copies_of_merging_are_counted(team: Team) -> None:
    b, counter = merging(RandomWeights(team), 40), Counter()
    program = make_program(b.setup, b.fused(), Team.in_turns(2), counter=counter)
    start(program, 0, [0])
    step(program, [(0, 0, PATCHES)])
    (node,) = [index for index, row in enumerate(program.profile()) if row[0] == "merge_rows"]
    moved = sum(work[1] for phase, threads, *_ in counter.phases for work in threads if phase == node)
    (cost,) = [cost for cost in b.costs() if cost.name == "merge_rows"]
    assert moved == cost.moves.token * PATCHES == 2 * 40 * 2 * PATCHES


@pytest.mark.parametrize("sequence", [(0, 0, PATCHES - 1), (0, 0, 2 * PATCHES), (0, PATCHES, PATCHES)])
def test_a_sequence_that_is_not_a_whole_tile_is_refused(sequence: tuple[int, int, int], team: Team) -> None:
    for program, _ in both(merging(RandomWeights(team), 8), team):
        start(program, 0, [0, 1, 2])
        with pytest.raises(ValueError, match=r"^slot 0 of the step is not a whole tile of 16 patches$"):
            step(program, [sequence])


@pytest.mark.parametrize("extra", [1, 3])
def test_rows_after_a_lone_tile_become_nothing(extra: int, team: Team) -> None:
    b = Part(weights=RandomWeights(team)).builder(RankShape(HIDDEN, [0, VOCAB]))
    b.keep("merged", b.merge_rows(b.rounded(b.given("patches", 8)), side=SIDE, factor=FACTOR, extra=extra))
    rows = np.random.default_rng(0).standard_normal((PATCHES + extra, 8), np.float32)
    expected = shuffled(rounded(rows[:PATCHES]), SIDE, FACTOR)
    for program, outside in both(b, team):
        poison(program)
        for slot in range(2):
            start(program, slot, [slot])
        outside.given("patches")[: len(rows)] = rows
        step(program, [(0, 0, len(rows))])
        np.testing.assert_array_equal(widened(outside.kept("merged")[: len(expected)]), expected)
        with pytest.raises(ValueError, match="not a whole tile"):
            step(program, [(0, 0, PATCHES)])
        with pytest.raises(ValueError, match="more than one tile with tokens that are no patches"):
            step(program, [(0, 0, len(rows)), (1, 0, len(rows))])


@pytest.mark.parametrize("factor", [0, 3])
def test_blocks_that_do_not_fill_a_tile_are_refused(factor: int) -> None:
    b = Part().builder(RankShape(HIDDEN, [0, VOCAB]))
    x = b.rounded(b.given("patches", 8))
    with pytest.raises(ValueError, match=f"the side of a tile must be a multiple of {factor} patches, not 4"):
        b.merge_rows(x, side=SIDE, factor=factor)


def test_a_tower_makes_the_same_features_natively_and_in_the_reference(team: Team) -> None:
    patches = np.random.default_rng(1).standard_normal((64, 192), np.float32)
    found = []
    for program, outside in both(tower(Part(weights=RandomWeights(team))), team):
        start(program, 0, [0, 1])
        for _ in range(2):  # the second run reads nothing of the first
            outside.given("patches")[:] = patches
            program.step(np.array([[0, 0, 64, 0, 0, 0]], np.int32), np.zeros(64, np.int32), NONE)
            found.append(widened(outside.kept("features")[:16]).copy())
    np.testing.assert_array_equal(found[0], found[1])
    assert np.linalg.norm(found[0] - found[2]) < 0.02 * np.linalg.norm(found[2])


def placing(w: RandomWeights, tiles: int = TILES) -> ProgramBuilder:
    """Embeddings, rows of a pool in place of some, and a result that keeps every bit of both."""
    b = Part(weights=w).builder(RankShape(HIDDEN, [0, VOCAB]), feature_tiles=tiles)
    residual = b.embed(w.matrix(VOCAB, HIDDEN), first_row=0)
    b.place_rows("pool", residual, ROWS)
    b.keep("rows", b.rounded(residual))
    b.rms_norm(b.linear(b.rounded(residual), w.matrix(HIDDEN, HIDDEN)), w.vector(), EPS)  # wants memory, too
    return b


def placed_rows(outside: OutsideRows, count: int) -> np.ndarray:
    return outside.kept("rows")[:count].copy()


def test_the_rows_that_a_step_names_replace_embeddings_and_no_others(team: Team) -> None:
    pool = np.random.default_rng(2).integers(0, 0x4000, (TILES * ROWS, HIDDEN)).astype(np.uint16)
    sequences = [(3, 5, 4), (1, 0, 20)]
    placed = [(1, 10, 8, 8), (1, 2, 3, 0), (0, 8, 1, 15)]
    for program, outside in both(placing(RandomWeights(team)), team):
        for slot in range(4):
            start(program, slot, [slot])
        outside.given("pool")[:] = pool
        step(program, sequences)
        embeddings = placed_rows(outside, 24)
        for _ in range(2):  # the pool keeps its rows from step to step
            step(program, sequences, placed)
            expected = embeddings.copy()
            expected[4 + 10 : 4 + 18], expected[4 + 2 : 4 + 5], expected[3] = pool[8:16], pool[:3], pool[15]
            np.testing.assert_array_equal(placed_rows(outside, 24), expected)
        step(program, sequences)
        np.testing.assert_array_equal(placed_rows(outside, 24), embeddings)


def test_a_step_that_names_no_rows_does_nothing_for_them(team: Team) -> None:
    b = placing(RandomWeights(team))
    program, _ = both(b, team)[0]
    start(program, 0, [0])
    step(program, [(0, 0, 20)])
    (took,) = [row[2] for row in program.profile() if row[0] == "place_rows"]
    assert took == 0
    step(program, [(0, 0, 20)], [(0, 0, 8, 0)])
    (took,) = [row[2] for row in program.profile() if row[0] == "place_rows"]
    assert took > 0


def test_a_model_without_places_for_features_has_no_operation_for_them() -> None:
    names = [type(each).__name__ for each in placing(RandomWeights(Team([-1])), tiles=0).operations]
    assert "PlaceRows" not in names
    assert "Given" not in names


REFUSED: dict[str, tuple[Placed, str]] = {
    "a sequence that is not there": ((2, 0, 1, 0), "places image features in a sequence that is not in it"),
    "a negative sequence": ((-1, 0, 1, 0), "places image features in a sequence that is not in it"),
    "a position before the new tokens": ((0, 4, 2, 0), "at positions that are not among its new tokens"),
    "a position after the new tokens": ((0, 8, 2, 0), "at positions that are not among its new tokens"),
    "no position": ((0, 5, 0, 0), "at positions that are not among its new tokens"),
    "very many positions": ((0, 5, 2**31 - 1, 0), "at positions that are not among its new tokens"),
    "a row after the pool": ((0, 5, 2, 15), "image features that are not in the pool of 16 rows"),
    "a negative row": ((0, 5, 2, -1), "image features that are not in the pool of 16 rows"),
    "a token twice": ((1, 3, 2, 0), "slot 1 of the step has two image features for one token"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rows_that_cannot_be_placed_are_refused_before_anything_changes(name: str, team: Team) -> None:
    wrong, message = REFUSED[name]
    for program, outside in both(placing(RandomWeights(team)), team):
        for slot in range(2):
            start(program, slot, [slot])
        step(program, [(0, 5, 4), (1, 0, 20)])
        before = placed_rows(outside, 24)
        program.append_pages(0, [2])
        with pytest.raises(ValueError, match=message):
            step(program, [(0, 5, 4), (1, 0, 20)], [(1, 4, 1, 0), wrong])
        program.revert()
        np.testing.assert_array_equal(placed_rows(outside, 24), before)
        step(program, [(0, 5, 4), (1, 0, 20)])
        np.testing.assert_array_equal(placed_rows(outside, 24), before)


def test_a_program_without_a_pool_refuses_rows(team: Team) -> None:
    for program, _ in both(placing(RandomWeights(team), tiles=0), team):
        start(program, 0, [0])
        with pytest.raises(ValueError, match="image features that are not in the pool of 0 rows"):
            step(program, [(0, 0, 4)], [(0, 0, 1, 0)])


WRONG_TYPES: dict[str, Any] = {"a row of 40 bits": [(0, 0, 1, 1 << 40)], "three numbers": [(0, 0, 1)], "none": None}


@pytest.mark.parametrize("name", WRONG_TYPES)
def test_placed_rows_of_another_type_are_refused(name: str, team: Team) -> None:
    native: Callable[..., Any] = both(placing(RandomWeights(team)), team)[0][0].step
    with pytest.raises(TypeError):
        native(np.array([[0, 0, 1, 0, 0, 0]], np.int32), np.zeros(1, np.int32), NONE, placed=WRONG_TYPES[name])
