"""The planned time of images, and their lines in a plan."""

from dataclasses import replace
from io import StringIO

import pytest
from numaserve.configs import efficiencies
from numaserve.server.cli.estimate_view import estimate_record, estimate_view
from numaserve.workers.models.load import load_model_config
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.estimate import Estimate, Load, make_estimate
from numaserve.workers.planning.images import NO_IMAGES
from numaserve.workers.planning.roofline.efficiency import load_efficiencies
from numaserve.workers.planning.roofline.machine import load_machine
from numaserve.workers.planning.roofline.ranks import rank_operations
from numaserve.workers.program.cost import merged_terms, of_whole
from rich.console import Console

from tests.support import checkpoints, vision
from tests.support.machines import OPTIONS

HOST = load_machine("epyc-9755")  # of one rank
RATES = load_efficiencies(efficiencies()[HOST.isa])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    folder = tmp_path_factory.mktemp("model")
    return load_model_config(vision.save(checkpoints.build(vision.CASES["idefics3"]()), folder))


def estimate_of(model: ModelConfig) -> Estimate:
    options = replace(OPTIONS, tp=None, max_running_requests=1)
    return make_estimate(options, model, HOST.topology(), machine=HOST, efficiencies=RATES, load=Load(32, 2, 1))


def test_the_estimate_of_a_tile_has_the_work_of_a_run_of_the_tower(model: ModelConfig) -> None:
    tower = model.decoder.tower
    assert tower is not None
    found = estimate_of(model)
    tile, text = found.tile, estimate_of(model.text_only())
    assert tile is not None
    (part,) = model.partition(found.cores).ranks
    terms = of_whole(merged_terms(rank_operations(tower, part)), tower.patches)
    assert sum(cost.flops for cost in tile.costs) >= sum(each.row_flops for each in terms) > 0
    assert tile.nbytes >= part.weight_bytes(tower) - part.weight_bytes(tower.embedding)
    assert tile.seconds > tile.bound_s > 0
    assert text.tile is None
    assert text.memory[0].images == NO_IMAGES
    assert found.prefill.costs == text.prefill.costs


def test_the_view_of_a_plan_has_lines_of_images_only_for_a_model_that_reads_them(model: ModelConfig) -> None:
    texts, records = [], []
    for each in (model, model.text_only()):
        found, console = estimate_of(each), Console(width=1000, record=True, file=StringIO())
        console.print(estimate_view("m", OPTIONS, found, RATES, explain=False, image_tiles=5))
        texts.append(console.export_text())
        records.append(estimate_record("m", OPTIONS, found, RATES, image_tiles=5))
    with_images, text = texts
    for line in ("Image input", "tower (part of weights)", "tile of an image, rank 0", "the largest image has 5 tiles"):
        assert line in with_images
        assert line not in text
    assert records[0]["memory"][0]["images"].keys() == {"tower", "runs", "features", "pixels"}
    assert records[0]["image"]["largest_image_s"] == pytest.approx(5 * records[0]["image"]["tile_s"])
    assert "image" not in records[1]
    assert "images" not in records[1]["memory"][0]
