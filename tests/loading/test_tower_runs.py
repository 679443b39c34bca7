"""Runs of the vision tower: from pixels in the image store to features in the pool."""

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from driven_programs import RandomWeights, both, widened
from msgspec import structs
from numaserve.kernels import Team
from numaserve.workers.interface.images import ImageInput, Tiles
from numaserve.workers.interface.protocol import Launch, TowerWork
from numaserve.workers.layers.norm import LayerNorm
from numaserve.workers.layers.position_embedding import Table
from numaserve.workers.layers.vision import FEATURES, Connector, PatchEmbedding, TileTower
from numaserve.workers.process.tower import TowerRunner, map_pixels
from numaserve.workers.program.cost import StepWork, merged_terms
from numaserve.workers.program.parts import parts_of

from tests.support.plan_limits import capacity
from tests.support.recorded_programs import HIDDEN, Part, tower

SIDE, PATCH, ROWS, PLACES = 8, 8, 16, 3
LAUNCH = Launch(0, 1, "m", [[0]], [0], [1], capacity(), -1, 0, 5.0)


def images(tile: int = SIDE * PATCH) -> ImageInput:
    mean, std = (0.5, 0.4, 0.3), (0.5, 0.6, 0.7)
    return ImageInput(Tiles(tile, 4 * tile, True, ROWS), 1, True, 1 / 255, mean, std, token=7)


def layers(tile: int) -> TileTower:
    embedding = PatchEmbedding("", PATCH, Table("position", "", SIDE * SIDE, HIDDEN, ""))
    return TileTower((), 2, tile, embedding, LayerNorm("", HIDDEN, 1e-6), Connector("", 4 * HIDDEN, HIDDEN))


def tiles(tile: int = SIDE * PATCH) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 256, (4, tile, tile, 3)).astype(np.uint8)


def runners(team: Team, tile: int = SIDE * PATCH) -> Iterator[tuple[TowerRunner, np.ndarray, Any]]:
    """A tower by each backend, its pool, and the rows of its program."""
    b = tower(Part(weights=RandomWeights(team)))
    for program, outside in both(b, team):
        limits = structs.replace(b.limits, num_pages=2)
        parts, shares = parts_of(b.costed(), StepWork([(0, SIDE * SIDE)], 0))
        of_rank: Any = SimpleNamespace(
            program=program, outside=outside, limits=limits, terms=merged_terms(b.costs()), parts=parts, shares=shares
        )
        pool = np.full((PLACES * ROWS, HIDDEN), 0x7FC0, np.uint16)
        of_tower = layers(tile)
        pixels = tiles(tile).reshape(len(tiles(tile)), -1)
        yield TowerRunner(of_rank, of_tower, images(tile), [(FEATURES, pool)], pixels), pool, outside


@pytest.mark.parametrize("tile", [64, 71])
def test_the_tower_gets_the_patches_of_a_convolution(tile: int, team: Team) -> None:
    _, (runner, _, outside) = runners(team, tile)  # native memory is used again once the patches are read
    runner.run([TowerWork(2, 0)])
    values = images(tile).table()[np.arange(3)[:, None, None], tiles(tile)[2].transpose(2, 0, 1)]
    expected = torch.nn.functional.unfold(torch.from_numpy(values)[None], PATCH, stride=PATCH)[0].T
    np.testing.assert_array_equal(outside.given("patches"), expected.numpy())


def test_features_of_tiles_lie_in_their_places(team: Team) -> None:
    found = []
    for runner, pool, outside in runners(team):
        assert runner.run([TowerWork(1, 2), TowerWork(3, 0)]) > 0
        np.testing.assert_array_equal(pool[:ROWS], outside.kept("features")[:ROWS])
        assert (pool[ROWS : 2 * ROWS] == 0x7FC0).all()
        before = pool.copy()
        runner.run([TowerWork(1, 1)])
        np.testing.assert_array_equal(pool[ROWS : 2 * ROWS], before[2 * ROWS :])  # whatever ran before it
        assert not np.array_equal(pool[:ROWS], pool[ROWS : 2 * ROWS])
        found.append(widened(pool))
    assert np.linalg.norm(found[0] - found[1]) < 0.02 * np.linalg.norm(found[1])


@pytest.mark.parametrize("work", [TowerWork(4, 0), TowerWork(-1, 0), TowerWork(0, PLACES), TowerWork(0, -1)])
def test_tiles_and_places_that_do_not_exist_are_refused_before_any_run(work: TowerWork, team: Team) -> None:
    what = (
        "tile .* of an image, but the image store has 4 tiles" if work.place == 0 else "place .* of a pool of 3 places"
    )
    for runner, pool, _ in runners(team):
        with pytest.raises(ValueError, match=what):
            runner.run([TowerWork(0, 0), work])
        assert (pool == 0x7FC0).all()


def test_a_run_in_parts_has_the_bits_of_a_whole_run(team: Team) -> None:
    for runner, pool, _ in runners(team):
        parts = len(runner.shares)
        assert parts == 1 + 2 * 3 + 1  # the patches, two layers, and the connector
        assert sum(runner.shares) == pytest.approx(1)
        runner.run([TowerWork(1, 0), TowerWork(3, 1)])
        whole = pool.copy()
        pool[:] = 0
        runner.run([TowerWork(1, 2, 0, 3)])  # never goes on
        for part in range(parts):
            assert not pool.any()
            runner.run([TowerWork(1, 0, part, part + 1)])
        np.testing.assert_array_equal(pool[:ROWS], whole[:ROWS])
        runner.run([TowerWork(3, 1, 0, 2), TowerWork(3, 1, 2, 5), TowerWork(3, 1, 5)])
        np.testing.assert_array_equal(pool[: 2 * ROWS], whole[: 2 * ROWS])
        totals = runner.program.program.totals
        assert totals[:2] == (5, 5 * SIDE * SIDE)


@pytest.mark.parametrize(
    "works",
    [
        [TowerWork(0, 0, 3, 4)],
        [TowerWork(0, 0, 0, 2), TowerWork(0, 0, 3, 4)],
        [TowerWork(0, 0, 0, 2), TowerWork(1, 0, 2, 4)],
        [TowerWork(0, 0, 0, 2), TowerWork(1, 0), TowerWork(0, 0, 2, 4)],
        [TowerWork(0, 0, 2, 2)],
        [TowerWork(0, 0, 0, 9)],
        [TowerWork(0, 0, -1, 1)],
        [TowerWork(0, 0, 0, -1)],
    ],
)
def test_parts_that_do_not_follow_each_other_are_refused_before_any_run(works: list[TowerWork], team: Team) -> None:
    for runner, *_ in runners(team):
        runner.run([TowerWork(2, 0, 0, 1)])
        with pytest.raises(ValueError, match="the step has part"):
            runner.run(works)
        assert runner.program.program.totals[0] == 1
        runner.run([TowerWork(2, 0, 1)])


def test_the_terms_of_a_tile_are_what_a_run_counts(team: Team) -> None:
    for runner, *_ in runners(team):
        runner.run([TowerWork(0, 0)])
        counted = [row[-2:] for row in runner.program.program.profile() if row[-1]]  # bytes and operations
        terms = runner.terms
        assert sum(each.row_flops for each in terms) == sum(flops for _, flops in counted)
        assert sum(each.weight_bytes + each.sequence_bytes for each in terms) == sum(nbytes for nbytes, _ in counted)


def test_pixels_are_those_that_the_front_end_writes_and_cannot_be_written_here() -> None:
    written = tiles()
    fd = os.memfd_create("images")
    try:
        os.truncate(fd, written.nbytes)
        pixels = map_pixels(structs.replace(LAUNCH, image_fd=fd, image_tiles=4), images())
        os.pwrite(fd, written.tobytes(), 0)
    finally:
        os.close(fd)
    np.testing.assert_array_equal(pixels, written.reshape(len(written), -1))
    assert not pixels.flags.writeable


def test_without_an_image_store_there_are_no_tiles() -> None:
    assert map_pixels(LAUNCH, images()).shape == (0, 64 * 64 * 3)
