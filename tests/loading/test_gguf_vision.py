"""GGUF models with a vision tower in a file next to them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numaserve.kernels import Team
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import DEFAULT_SETTINGS, ModelSettings
from numaserve.workers.models.load import load_model_config, open_model, read_config
from numaserve.workers.weights.cache.key import look_at
from numaserve.workers.weights.checkpoint import check_checkpoint, open_source

from tests.support import checkpoints, gguf_vision, vision
from tests.support.image_features import of_ranks
from tests.support.loaded import load_part


def save(case: str, folder: Path, text: str = "model.gguf", tower: str = "mmproj-f16.gguf", **changes: Any) -> Path:
    """Write a model in two files, and return that of its text model."""
    model = checkpoints.build(vision.CASES[case]())
    gguf_vision.save_tower(model, folder / tower, **changes)
    return gguf_vision.save_text(model, folder / text)


def features(path: Path, settings: ModelSettings, tiles: vision.Pixels, team: Team) -> Any:
    files = open_model(path, settings.mmproj)
    config = read_config(files, settings)
    part = load_part(path, team, [1], settings=settings, config=config, source=open_source(files, config))
    return of_ranks([part], vision.values_of(tiles))[0]


@pytest.mark.parametrize("case", vision.CASES)
def test_the_files_describe_the_model_of_the_folder(case: str, tmp_path: Path) -> None:
    whole = load_model_config(vision.save(checkpoints.build(vision.CASES[case]()), tmp_path / "folder"))
    found = load_model_config(save(case, tmp_path))
    assert whole.images is not None
    assert found.images == replace(whole.images, rescale=1 / 255)
    assert found.decoder.tower is not None
    assert whole.decoder.tower is not None
    assert (found.decoder.tower.side, found.decoder.tower.features) == (
        whole.decoder.tower.side,
        whole.decoder.tower.features,
    )
    assert len(found.decoder.tower.blocks) == len(whole.decoder.tower.blocks)
    assert found.notes == ()


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("case", vision.CASES)
def test_features_have_the_bits_of_the_folder(case: str, swapped: bool, tmp_path: Path, team: Team) -> None:
    model = checkpoints.build(vision.CASES[case]())
    paths = vision.save(model, tmp_path / "folder"), save(case, tmp_path, kind="F32", swapped=swapped)
    values = vision.values_of(vision.random_tiles(model.config, 1))
    expected, found = (of_ranks([load_part(path, team, [1, 1], rank) for rank in (0, 1)], values) for path in paths)
    np.testing.assert_array_equal(found[0], expected[0])


@pytest.mark.parametrize("kind", ["F16", "Q8_0"])
def test_types_that_are_published_are_close(kind: str, tmp_path: Path, team: Team) -> None:
    model = checkpoints.build(vision.CASES["idefics3"]())
    paths = vision.save(model, tmp_path / "folder"), save("idefics3", tmp_path, kind=kind)
    values = vision.values_of(vision.random_tiles(model.config, 1))
    expected, found = (of_ranks([load_part(path, team, [1])], values)[0] for path in paths)
    distance = np.abs(found - expected).mean() / np.abs(expected).mean()
    assert distance < (0.002 if kind == "F16" else 0.03)


def test_a_tower_for_another_model_is_left_alone(tmp_path: Path) -> None:
    assert load_model_config(save("smolvlm", tmp_path, clip__projector_type="gemma3")).images is None
    assert load_model_config(save("smolvlm", tmp_path, clip__vision__projection_dim=95)).images is None


def test_the_tower_that_is_named_after_the_model_is_chosen(tmp_path: Path) -> None:
    model = checkpoints.build(vision.CASES["smolvlm"]())
    path = save("smolvlm", tmp_path, "model-Q8_0.gguf", "mmproj-a.gguf", clip__vision__preproc_image_size=88)
    gguf_vision.save_tower(model, tmp_path / "mmproj-b.gguf")
    with pytest.raises(OperatorError, match=r"mmproj-a\.gguf, mmproj-b\.gguf\. Set mmproj"):
        load_model_config(path)
    (tmp_path / "mmproj-a.gguf").rename(tmp_path / "mmproj-model-Q8_0.gguf")
    images = load_model_config(path).images
    assert images is not None
    assert images.sizes.longest_edge == 88


def test_a_named_tower_lies_anywhere_and_comes_before_those_next_to_the_model(tmp_path: Path, team: Team) -> None:
    model = checkpoints.build(vision.CASES["smolvlm"]())
    path, named = save("smolvlm", tmp_path), tmp_path / "towers" / "of-the-model.gguf"
    named.parent.mkdir()
    gguf_vision.save_tower(checkpoints.build(vision.CASES["smolvlm"](), seed=1), named)
    tiles = vision.random_tiles(model.config, 1)
    settings = ModelSettings(mmproj=str(named))
    own, others = (features(path, each, tiles, team) for each in (DEFAULT_SETTINGS, settings))
    assert (own != others).any()
    assert look_at(path, mmproj=settings.mmproj).digest != look_at(path).digest
    (tmp_path / "mmproj-f16.gguf").unlink()
    np.testing.assert_array_equal(features(path, settings, tiles, team), others)
    named.write_bytes(b"")
    with pytest.raises(OperatorError, match=r"of-the-model\.gguf: not a valid GGUF file"):
        load_model_config(path, settings)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"clip__projector_type": None}, "not a vision tower; set mmproj"),
        ({"clip__projector_type": "gemma3"}, "a projector of type 'gemma3'; supported are idefics3"),
        ({"clip__vision__projection_dim": 95}, "features of size 95, and the model has a hidden size of 96"),
    ],
)
def test_a_named_file_that_is_no_tower_of_the_model_is_refused(
    changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    path = save("smolvlm", tmp_path, tower="tower.gguf", **changes)
    with pytest.raises(OperatorError, match=rf"tower\.gguf: .*{says}"):
        load_model_config(path, ModelSettings(mmproj=str(tmp_path / "tower.gguf")))


def test_a_named_tower_must_exist_and_the_model_must_be_a_gguf_file(tmp_path: Path) -> None:
    path, settings = save("smolvlm", tmp_path), ModelSettings(mmproj=str(tmp_path / "none.gguf"))
    with pytest.raises(OperatorError, match=r"none\.gguf: cannot be read \(No such file or directory\)"):
        load_model_config(path, settings)
    with pytest.raises(OperatorError, match="is a folder, which has its vision tower in its own files; leave mmproj"):
        load_model_config(tmp_path, settings)


def test_older_files_have_the_edge_of_published_models(tmp_path: Path) -> None:
    images = load_model_config(save("smolvlm", tmp_path, clip__vision__preproc_image_size=None)).images
    assert images is not None
    assert images.sizes.longest_edge == 4 * 88


def test_a_model_of_text_alone_needs_no_tensor_of_the_tower(tmp_path: Path) -> None:
    files = open_model(save("smolvlm", tmp_path))
    check_checkpoint(files, read_config(files))
    check_checkpoint(files, read_config(files).text_only())
    check_checkpoint(files, read_config(files, ModelSettings(pooled=True)))


def test_another_tower_is_another_checkpoint(tmp_path: Path) -> None:
    path = save("smolvlm", tmp_path)
    before = look_at(path).digest
    gguf_vision.save_tower(checkpoints.build(vision.CASES["smolvlm"](), seed=1), tmp_path / "mmproj-f16.gguf")
    assert look_at(path).digest != before
