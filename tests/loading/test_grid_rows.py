"""The rows of images of any size in a program: rotary coordinates, interpolated positions, and squares of patches."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from driven_programs import NONE, AnyProgram, RandomWeights, both, widened
from numaserve.kernels import Team, Vector
from numaserve.workers.interface.protocol import SamplingParams, SlotInit
from numaserve.workers.interface.windows import Window
from numaserve.workers.program.caches import CacheIndex, CacheKind, Heads
from numaserve.workers.program.recording.builder import ProgramBuilder
from numaserve.workers.program.setup import RankShape
from numaserve.workers.program.slots import RowIndex, slot_settings
from test_image_rows import rounded

from tests.support.recorded_programs import HIDDEN, VOCAB, Part

AXES: tuple[RowIndex, ...] = ("time", "height", "width")
GRIDS = ([], [0, 2, 3], [3, 1, 7, 12, 4, 2], [5, 6, 1, 11, 2, 2])


def start(program: AnyProgram, slot: int, pages: list[int], grids: list[int]) -> None:
    program.init_slot(slot, slot_settings(SlotInit(SamplingParams(temperature=0.0), grids=grids)))
    program.append_pages(slot, pages)


def step(program: AnyProgram, sequences: Sequence[tuple[int, int, int]]) -> None:
    plan = np.array([(*each, 0, 0, 0) for each in sequences], np.int32)
    program.step(plan, np.zeros(plan[:, 2].sum(), np.int32), NONE)


def coordinates(grids: list[int], count: int) -> list[tuple[int, int, int]]:
    """The coordinates of the first positions of a sequence, as `get_rope_index` of transformers makes them."""
    found: list[tuple[int, int, int]] = []
    at = 0
    images = {first: (height, width) for first, height, width in zip(grids[::3], grids[1::3], grids[2::3], strict=True)}
    while len(found) < count:
        if len(found) in images:
            height, width = images[len(found)]
            found += [(at, at + row, at + column) for row in range(height) for column in range(width)]
            at += max(height, width)
        else:
            found.append((at, at, at))
            at += 1
    return found[:count]


def builder(team: Team) -> ProgramBuilder:
    w = RandomWeights(team)
    b = Part(weights=w).builder(RankShape(HIDDEN, [0, VOCAB]))
    rope = w.rope()
    b.rotate_by(rope, tuple(AXES[pair % 3] for pair in range(16)))
    b.keep("rotary", b.rotary[rope])
    return b


def test_pairs_have_the_values_of_their_coordinates_in_any_chunk(team: Team) -> None:
    cos, sin = RandomWeights(team).rope().to_numpy()
    cuts = (7, 13, 1, 9)
    for program, outside in both(builder(team), team):
        for slot, grids in enumerate(GRIDS):
            start(program, slot, [slot], grids)
        done = 0
        for count in cuts:
            step(program, [(slot, done, count) for slot in (2, 0, 3, 1)])
            found = outside.kept("rotary")[: 4 * count].reshape(4, count, 32)
            for rows, slot in zip(found, (2, 0, 3, 1), strict=True):
                places = np.array(coordinates(GRIDS[slot], done + count)[done:])
                indices = places[:, np.arange(16) % 3]
                expected = np.concatenate([table[indices, np.arange(16)] for table in (cos, sin)], axis=1)
                np.testing.assert_array_equal(rows, expected)
            done += count


@pytest.mark.parametrize("grids", [[0, 2], [3, 2, 2, 6, 1, 1], [-1, 1, 1], [0, 0, 3], [0, 3, 0]])
def test_grids_that_no_prompt_has_are_refused(grids: list[int], team: Team) -> None:
    (program, _), _ = both(builder(team), team)
    with pytest.raises(ValueError, match="grid"):
        start(program, 0, [0], grids)


def test_weighted_rows_of_a_table_are_added(team: Team) -> None:
    w, rng, count = RandomWeights(team), np.random.default_rng(1), 5
    b = Part(weights=w).builder(RankShape(HIDDEN, [0, VOCAB]))
    table = w.matrix(48, HIDDEN)
    partial = b.linear_partial(b.rounded(b.given("x", HIDDEN)), w.matrix(HIDDEN, HIDDEN))
    b.add_taps(partial, table, name="taps", first_row=16, taps=4)
    b.keep("sum", b.summed(partial))
    numbers = rng.integers(0, 80, (count, 4)).astype(np.int32)  # the table has rows 16 to 63
    weights = rng.uniform(0, 1, (count, 4)).astype(np.float32)
    found = []
    for program, outside in both(b, team):
        start(program, 0, [0], [])
        outside.given("x")[:] = 0
        outside.given("taps")[:count, :4] = numbers.view(np.float32)
        outside.given("taps")[:count, 4:] = weights
        step(program, [(0, 0, count)])
        found.append(outside.kept("sum")[:count].copy())
    rows = np.pad(unpacked(table), ((16, 32), (0, 0)))
    expected = (rows[numbers] * weights[:, :, None]).sum(axis=1)
    for each in found:
        np.testing.assert_allclose(each, expected, rtol=1e-5, atol=1e-6)


def unpacked(table: Any) -> np.ndarray:
    values: np.ndarray = table.to_numpy()
    return widened(values) if values.dtype == np.uint16 else values


@pytest.mark.parametrize(("side", "many"), [(4, False), (2, True)])
def test_the_mean_of_each_square_is_shifted_and_weighted(side: int, many: bool, team: Team) -> None:
    w = RandomWeights(team)
    b = Part(weights=w).builder(RankShape(HIDDEN, [0, VOCAB]))
    patches = b.summed(b.linear_partial(b.rounded(b.given("patches", HIDDEN)), w.matrix(HIDDEN, HIDDEN)))
    shift, weight = w.vector(), w.vector()
    b.keep("patches", b.activated(patches, "none"))
    b.keep("plain", b.activated(b.mean_rows(patches, side=side, factor=2, many=many), "none"))
    b.keep(
        "mean", b.activated(b.mean_rows(patches, side=side, factor=2, many=many, shift=shift, weight=weight), "none")
    )
    b.keep("norm", b.activated(b.mean_rows(patches, side=side, factor=2, many=many, eps=0.1), "none"))
    values = np.random.default_rng(3).standard_normal((16, HIDDEN)).astype(np.float32)
    for program, outside in both(b, team):
        start(program, 0, [0], [])
        outside.given("patches")[:16] = values
        step(program, [(0, 0, 16)])
        rows = outside.kept("patches")[:16].reshape(-1, side // 2, 2, side // 2, 2, HIDDEN)
        mean = rows.mean(axis=(2, 4)).reshape(4, HIDDEN)
        np.testing.assert_allclose(outside.kept("plain")[:4], mean, atol=1e-6)
        norm = mean / np.sqrt((mean**2).mean(axis=1, keepdims=True) + 0.1)
        np.testing.assert_allclose(outside.kept("norm")[:4], norm, atol=1e-5)
        expected = (mean - unpacked(shift)) * unpacked(weight)
        np.testing.assert_allclose(outside.kept("mean")[:4], expected, atol=1e-5)


def test_values_are_clamped_in_fp32_and_in_bf16(team: Team) -> None:
    w = RandomWeights(team)
    b = Part(weights=w).builder(RankShape(HIDDEN, [0, VOCAB]))
    given = b.given("x", HIDDEN)
    exact = b.activated(given, "none")
    bounds = [Vector(np.array(each, np.float32)) for each in ((-1.5, 0.75), (-np.inf, np.inf))]
    b.keep("rounded", b.clamped(b.rounded(given), bounds[0]))
    b.keep("both", b.clamped_beside([(exact, each) for each in bounds]))
    values = (3 * np.random.default_rng(4).standard_normal((9, HIDDEN))).astype(np.float32)
    for program, outside in both(b, team):
        start(program, 0, [0], [])
        outside.given("x")[:9] = values
        step(program, [(0, 0, 9)])
        clamped = values.clip(-1.5, 0.75)
        np.testing.assert_array_equal(outside.kept("both")[:9], np.hstack([clamped, values]))
        np.testing.assert_array_equal(widened(outside.kept("rounded")[:9]), rounded(clamped))


def test_an_image_whose_tokens_see_each_other_is_whole_in_a_step(team: Team) -> None:
    kind = CacheKind(Heads(2, 2, 32), Window(8, images=True))
    w = RandomWeights(team)
    b = Part(weights=w).builder(RankShape(HIDDEN, [0, VOCAB], (kind,)))
    qkv = b.linear(b.rounded(b.given("x", HIDDEN)), w.matrix(192, HIDDEN))
    b.attention(b.qkv_rope(qkv, cache=CacheIndex(0, 0), rope=w.rope()), cache=CacheIndex(0, 0), scale=0.2)
    for program, _ in both(b, team):
        start(program, 0, [0], [3, 2, 2, 9, 1, 3])
        for first, count in ((0, 4), (4, 3), (6, 5), (10, 5)):
            with pytest.raises(ValueError, match="has a part of an image, whose tokens see each other"):
                step(program, [(0, first, count)])
        for first, count in ((0, 3), (3, 4), (7, 6), (7, 2), (9, 3)):
            step(program, [(0, first, count)])


@pytest.mark.parametrize("many", [1, 3])
def test_squares_of_any_number_become_rows_in_fp32(many: int, team: Team) -> None:
    b = Part(weights=RandomWeights(team)).builder(RankShape(HIDDEN, [0, VOCAB]))
    patches = b.given("patches", 12)
    exact, rounded = b.activated(patches, "none"), b.rounded(patches)
    b.keep("first", b.merge_rows(exact, side=2, factor=2, many=True))
    b.keep("second", b.merge_rows(rounded, side=2, factor=2, many=True))
    values = np.random.default_rng(2).integers(-99, 99, (4 * many, 12)).astype(np.float32)
    for program, outside in both(b, team):
        start(program, 0, [0], [])
        outside.given("patches")[: 4 * many] = values
        step(program, [(0, 0, 4 * many)])
        np.testing.assert_array_equal(outside.kept("first")[:many], values.reshape(many, 48))
        np.testing.assert_array_equal(widened(outside.kept("second")[:many]), values.reshape(many, 48))
        with pytest.raises(ValueError, match="is not a whole tile of 4 patches"):
            step(program, [(0, 0, 5)])
