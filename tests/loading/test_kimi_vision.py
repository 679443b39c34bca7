"""Kimi K2.5 with its vision tower: GGUF files, published names of fields, and configurations that are refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numaserve.kernels import Team
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.models.load import load_model_config

from tests.support import checkpoints, gguf_kimi_vision, kimi_vision
from tests.support.loaded import load_part

PUBLISHED = {
    "vt_hidden_size": "hidden_size",
    "vt_intermediate_size": "intermediate_size",
    "vt_num_attention_heads": "num_attention_heads",
    "vt_num_hidden_layers": "num_hidden_layers",
    "init_pos_emb_height": "pos_emb_height",
    "init_pos_emb_width": "pos_emb_width",
}
KINDS = {
    "init_pos_emb_time": 4,
    "merge_type": "sd2_tpool",
    "mm_projector_type": "patchmerger",
    "pos_emb_type": "divided_fixed",
    "projector_hidden_act": "gelu",
    "projector_ln_eps": 1e-5,
    "video_attn_type": "spatial_temporal",
    "model_type": "",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kimi_vision.save(checkpoints.build(kimi_vision.config()), tmp_path_factory.mktemp("kimi"))


def changed(folder: Path, target: Path, change: dict[str, Any], **vision: Any) -> Path:
    """A folder with changes of the configuration."""
    fields = json.loads((folder / "config.json").read_text()) | change
    fields["vision_config"] |= vision
    (target / "config.json").write_text(json.dumps(fields))
    (target / "preprocessor_config.json").write_bytes((folder / "preprocessor_config.json").read_bytes())
    return target


def test_published_names_of_fields_mean_the_same(folder: Path, tmp_path: Path) -> None:
    fields = json.loads((folder / "config.json").read_text())
    vision = fields["vision_config"]
    renamed = {theirs: vision.pop(ours) for theirs, ours in PUBLISHED.items()}
    kept = {name: vision[name] for name in ("patch_size", "merge_kernel_size")}
    fields["vision_config"] = renamed | kept | KINDS | {"mm_hidden_size": renamed["vt_hidden_size"]}
    fields["media_placeholder_token_id"] = fields.pop("image_token_id")
    (tmp_path / "config.json").write_text(json.dumps(fields))
    found, whole = load_model_config(tmp_path), load_model_config(folder)
    assert found.decoder.tower == whole.decoder.tower.bounded(found.decoder.tower.most)
    assert (found.images.token, found.images.text) == (whole.images.token, "plain")
    assert (found.images.sizes.patches, found.images.sizes.longest) == (16384, 512)


@pytest.mark.parametrize("kind", ["BF16", "F32"])
def test_gguf_files_are_the_model_of_the_folder(kind: str, folder: Path, tmp_path: Path, team: Team) -> None:
    model = checkpoints.build(kimi_vision.config())
    file = gguf_kimi_vision.save_text(model, tmp_path / "model.gguf")
    gguf_kimi_vision.save_tower(model, tmp_path / "mmproj.gguf", kind)
    whole, found = load_model_config(folder), load_model_config(file)
    assert (found.family, found.notes, found.images) == ("kimi_k25", (), whole.images)
    for rank in (0, 1):
        np.testing.assert_equal(*(load_part(path, team, [2, 1], rank).tower_weights() for path in (file, folder)))
    (tmp_path / "mmproj.gguf").unlink()
    text = load_model_config(file)
    assert (text.family, text.images) == ("deepseek_v3", None)


@pytest.mark.parametrize(
    ("vision", "says"),
    [
        ({"mm_projector_type": "patchmergerv2"}, "mm_projector_type='patchmergerv2' is not supported"),
        ({"merge_kernel_size": [2, 4]}, "must be two equal numbers"),
        ({"merge_kernel_size": [1, 1]}, "merge_kernel_size"),
        ({"pos_emb_width": 8}, "pos_emb_width=8 is not supported"),
        ({"mm_hidden_size": 64}, "the projector takes 64 columns, and the tower has 120"),
        ({"num_attention_heads": 60}, "heads have 2 dimensions, which must be a multiple of 4"),
    ],
)
def test_towers_that_are_not_supported_are_refused(
    vision: dict[str, Any], says: str, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(OperatorError, match=says):
        load_model_config(changed(folder, tmp_path, {}, **vision))


def test_images_of_a_fixed_number_of_tokens_are_refused(folder: Path, tmp_path: Path) -> None:
    changed(folder, tmp_path, {})
    settings = kimi_vision.processor_settings()
    settings["media_proc_cfg"]["fixed_output_tokens"] = 64
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(OperatorError, match="fixed_output_tokens=64 is not supported"):
        load_model_config(tmp_path)
