"""The planned memory of image input."""

from dataclasses import replace

import pytest
from numaserve.workers.interface.capacity import PAGE_SIZE, Capacity
from numaserve.workers.interface.images import ImageInput, Tiles
from numaserve.workers.layers.partition import RankPart
from numaserve.workers.models.load import load_model_config
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.deployment import make_deployment
from numaserve.workers.planning.images import NO_IMAGES, feature_tiles, image_memory
from numaserve.workers.planning.needs import message_bytes, pages_of, rank_needs
from numaserve.workers.planning.placement import place_ranks
from numaserve.workers.planning.pools import TooLittleMemory
from numaserve.workers.planning.roofline.memory import node_memory
from numaserve.workers.program.layout import layout
from numaserve.workers.program.recording.builder import ProgramBuilder
from numaserve.workers.program.rope import UNROTATED
from numaserve.workers.program.setup import ProgramSetup, Ranks

from tests.support import checkpoints, vision
from tests.support.machines import OPTIONS, machine

PLAIN = ImageInput(Tiles(512, 2048, True, 64), 1, True, 1 / 255, (0.5,) * 3, (0.5,) * 3, token=7)


@pytest.fixture(scope="module", params=vision.CASES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    folder = tmp_path_factory.mktemp("model")
    return load_model_config(vision.save(checkpoints.build(vision.CASES[request.param]()), folder))


@pytest.mark.parametrize(
    ("images", "tiles"),
    [
        (replace(PLAIN, sizes=Tiles(512, 6 * 512, True, 64)), 2 * (6 * 6 + 1)),
        (replace(PLAIN, sizes=Tiles(512, 6 * 512 + 1, True, 64)), 2 * (7 * 7 + 1)),
        (PLAIN, 64),
        (PLAIN.low(), 64),
    ],
)
def test_features_of_two_of_the_largest_images_are_held(images: ImageInput, tiles: int, model: ModelConfig) -> None:
    assert feature_tiles(replace(model, images=images)) == tiles


def recorded(model: ModelConfig, part: RankPart) -> ProgramBuilder:
    tower, partition = model.decoder.tower, part.partition
    assert tower is not None
    pages = -(-tower.patches // PAGE_SIZE)
    ranks = Ranks(partition.shares, part.rank, 1 << 30)
    limits = Capacity.of_program(tower.patches, 0, 1, pages, pages)
    b = ProgramBuilder(ProgramSetup(tower.shape(part), limits, ranks))
    tower.forward(b, part)
    return b


@pytest.mark.parametrize("tp", [1, 2, 3])
def test_a_tower_fits_the_memory_that_is_planned_for_it(tp: int, model: ModelConfig) -> None:
    partition, images = model.partition([1] * tp), model.images
    assert images is not None
    assert model.decoder.tower is not None
    message = message_bytes(model, partition, 1, 1, 1)
    for part in partition.ranks:
        operations = recorded(model, part).fused()
        found = layout(operations)
        assert 0 < found.arena_bytes <= image_memory(model, part, 0).runs
        sizes = [buffer.nbytes for each in operations for buffer in each.buffers if buffer.collective]
        assert max(sizes, default=0) <= message


def test_ranks_need_the_memory_of_image_input(model: ModelConfig) -> None:
    text, images = model.text_only(), model.images
    assert images is not None
    needs, without = (rank_needs(OPTIONS, each, each.partition([1])) for each in (model, text))
    (own,) = needs.images
    tables = UNROTATED.table_bytes(PAGE_SIZE * pages_of(model.max_position))  # of the tower alone
    assert needs.scratch[0] - without.scratch[0] == tables
    assert needs.weights[0] - without.weights[0] == own.tower
    assert own.features == 2 * feature_tiles(model) * images.rows_per_tile * model.hidden_size
    assert needs.fixed[0] - without.fixed[0] == tables + own.tower + own.runs + own.features
    assert without.images == [NO_IMAGES]
    assert image_memory(text, text.partition([1]).ranks[0], 1 << 20) == NO_IMAGES
    assert needs.per_page == without.per_page


def test_the_image_store_is_counted_once(model: ModelConfig) -> None:
    partition = model.partition([1, 1])
    without, with_store = (
        rank_needs(replace(OPTIONS, image_store_bytes=size), model, partition) for size in (0, 1 << 24)
    )
    assert [each.pixels for each in with_store.images] == [1 << 24, 0]
    assert [more - less for more, less in zip(with_store.fixed, without.fixed, strict=True)] == [1 << 24, 0]


def test_a_plan_names_the_memory_of_images_on_each_node(model: ModelConfig) -> None:
    options, two = replace(OPTIONS, tp=2, image_store_bytes=1 << 24), machine(2, 2)
    ranks = make_deployment(options, model, two).ranks
    placed, partition = place_ranks(two, 2, None, False).ranks, model.partition([2, 2])
    nodes = node_memory(options, model, two, placed, partition=partition, context=128)
    assert [node.images for node in nodes] == [rank.images for rank in ranks]
    assert [node.images.pixels for node in nodes] == [1 << 24, 0]
    for node in nodes:
        others = node.weights + node.kv_cache + node.states + node.scratch
        assert node.needed == others + node.images.runs + node.images.features + node.images.pixels


def test_a_model_that_lacks_memory_states_what_its_images_take(model: ModelConfig) -> None:
    with pytest.raises(TooLittleMemory, match=r"scratch \(.* MiB\) and image input \(8\.0 GiB\) do not fit"):
        make_deployment(replace(OPTIONS, image_store_bytes=8 << 30), model, machine(4, free_gib=4))


def test_a_deployment_holds_features_only_for_a_model_with_images(model: ModelConfig) -> None:
    tiles = [make_deployment(OPTIONS, each, machine(4)).capacity.feature_tiles for each in (model, model.text_only())]
    assert tiles == [feature_tiles(model), 0]
