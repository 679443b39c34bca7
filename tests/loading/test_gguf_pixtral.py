"""GGUF models with Pixtral's vision tower in a file next to them, and configurations of folders that have one."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numaserve.kernels import Team
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.images import Fitted
from numaserve.workers.models.load import load_model_config

from tests.support import checkpoints, gguf_pixtral, grid_vision, pixtral
from tests.support.loaded import load_part


@pytest.mark.parametrize("case", pixtral.CASES)
def test_the_files_describe_the_images_of_the_folder(case: str, tmp_path: Path) -> None:
    model = checkpoints.build(pixtral.CASES[case]())
    whole = load_model_config(pixtral.save(model, tmp_path / "folder"))
    found = load_model_config(gguf_pixtral.save(model, tmp_path))
    assert found.notes == ()
    assert found.images is not None
    assert whole.images is not None
    assert found.images.sizes == Fitted.within_edge(grid_vision.SQUARE, pixtral.EDGE)
    np.testing.assert_array_equal(found.images.table(), whole.images.table())
    # A file has the channels in fp32.
    assert replace(found.images, mean=whole.images.mean, std=whole.images.std) == whole.images


@pytest.mark.parametrize("kind", ["BF16", "F16", "F32"])
def test_all_weights_of_pixtrals_tower_have_the_bits_of_the_folder(kind: str, tmp_path: Path, team: Team) -> None:
    model = checkpoints.build(pixtral.CASES["mistral3"]())
    for name, parameter in model.model.named_parameters():
        if not name.startswith("language_model."):  # values that fp16 holds too
            parameter.data.copy_((parameter.data * 64).round() / 64)
    folder = pixtral.save(model, tmp_path / "folder")
    file = gguf_pixtral.save_text(model, tmp_path / "model.gguf")
    gguf_pixtral.save_tower(model, tmp_path / "mmproj.gguf", kind)
    for rank in (0, 1):
        np.testing.assert_equal(*(load_part(path, team, [2, 1], rank).tower_weights() for path in (file, folder)))


@pytest.mark.parametrize(
    ("case", "changes", "says"),
    [
        ("mistral3", {"vision_feature_layer": -2}, "vision_feature_layer=-2 is not supported; supported is -1"),
        ("mistral3", {"vision_feature_layer": [1, -1]}, "vision_feature_layer must be an integer"),
        ("pixtral", {"vision_feature_select_strategy": None}, "must be 'full', since Pixtral has no patch"),
        ("pixtral", {"vision_config": {"model_type": "clip_vision_model"}}, "'clip_vision_model' is not supported"),
        ("pixtral", {"text_config": {"hidden_size": 96}}, "model_type='llama' is not supported"),
        ("mistral3", {"vision_config": {"num_attention_heads": 512}}, "heads have 2 dimensions"),
        ("mistral3", {"image_token_index": 99999}, "image_token_index must be an integer"),
    ],
)
def test_towers_that_are_not_supported_are_refused(
    case: str, changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    values = json.loads(pixtral.CASES[case]().to_json_string(use_diff=False))
    architecture = checkpoints.architecture(pixtral.CASES[case]())
    (tmp_path / "config.json").write_text(json.dumps(values | {"architectures": [architecture]} | changes))
    with pytest.raises(OperatorError, match=says):
        load_model_config(tmp_path)


def test_a_folder_without_settings_has_the_published_ones(tmp_path: Path) -> None:
    model = checkpoints.build(pixtral.CASES["mistral3"]())
    folder = pixtral.save(model, tmp_path)
    expected = load_model_config(folder).images
    for name in ("preprocessor_config.json", "processor_config.json"):
        (folder / name).unlink()
    assert load_model_config(folder).images == expected
