"""The configurations of Idefics3 and SmolVLM, and what their checkpoints must hold."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.images import Tiles
from numaserve.workers.interface.settings import ModelSettings, WeightFormats
from numaserve.workers.layers.layer import Layer
from numaserve.workers.layers.parameters import MatrixParameter
from numaserve.workers.layers.vision import TileTower
from numaserve.workers.models.load import load_model_config, open_model, read_config
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.deployment import make_deployment
from numaserve.workers.planning.images import NO_IMAGES
from numaserve.workers.weights.checkpoint import check_checkpoint

from tests.support import checkpoints, vision
from tests.support.machines import OPTIONS, machine
from tests.support.published import LAYOUTS

# As they are published: what equals the defaults of transformers' classes is left out.
_SMALL_TEXT = {
    "architectures": ["VLlama3ForCausalLM"],
    "head_dim": 64,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "pad_token_id": 2,
    "qk_layer_norms": False,
    "rms_norm_eps": 1e-05,
    "rope_interleaved": False,
    "rope_theta": 100000,
    "use_resampler": False,
    "vocab_size": 49280,
}
_SMALL_VISION = {
    "hidden_size": 768,
    "image_size": 512,
    "max_image_size": {"longest_edge": 512},
    "model_type": "idefics3",
    "num_attention_heads": 12,
    "patch_size": 16,
    "size": {"longest_edge": 2048},
    "tie_word_embeddings": False,
    "use_base_siglip": False,
}
_LARGE_VISION = {"image_size": 384, "intermediate_size": 4304, "num_hidden_layers": 27, "patch_size": 14}
PUBLISHED: dict[str, dict[str, Any]] = {
    "SmolVLM-256M": {
        "architectures": ["Idefics3ForConditionalGeneration"],
        "image_token_id": 49190,
        "model_type": "idefics3",
        "scale_factor": 4,
        "text_config": _SMALL_TEXT,
        "tie_word_embeddings": False,
        "vision_config": _SMALL_VISION,
        "vocab_size": 49280,
    },
    "SmolVLM2-2.2B": {
        "architectures": ["SmolVLMForConditionalGeneration"],
        "image_token_id": 49190,
        "model_type": "smolvlm",
        "scale_factor": 3,
        "text_config": _SMALL_TEXT
        | {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 32}
        | {"num_hidden_layers": 24, "rope_theta": 130000},
        "tie_word_embeddings": False,
        "vision_config": _LARGE_VISION | {"hidden_size": 1152, "model_type": "smolvlm_vision"},
    },
    "Idefics3-8B": {
        "architectures": ["Idefics3ForConditionalGeneration"],
        "image_token_id": 128257,
        "model_type": "idefics3",
        "scale_factor": 2,
        "text_config": {
            "bos_token_id": 128000,
            "eos_token_id": 128009,
            "intermediate_size": 14336,
            "max_position_embeddings": 131072,
            "model_type": "llama",
            "num_key_value_heads": 8,
            "pad_token_id": 128002,
            "rms_norm_eps": 1e-05,
            "rope_theta": 500000.0,
            "vocab_size": 128259,
        },
        "tie_word_embeddings": False,
        "vision_config": _LARGE_VISION | {"image_size": 364, "model_type": "idefics3"},
    },
}


def write(folder: Path, values: dict[str, Any], processor: dict[str, Any] | None) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(values))
    if processor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


def published(folder: Path, name: str) -> ModelConfig:
    values = PUBLISHED[name]
    return load_model_config(write(folder, values, vision.processor_settings(values["vision_config"]["image_size"])))


def matrices(layer: Layer) -> list[MatrixParameter]:
    return [each for each in layer.parameters() if isinstance(each, MatrixParameter)]


def tower_of(config: ModelConfig) -> TileTower:
    assert isinstance(config.decoder.tower, TileTower)
    return config.decoder.tower


@pytest.mark.parametrize(
    ("name", "layers", "heads", "features", "token"),
    [
        ("SmolVLM-256M", 12, 12, 64, 49190),
        ("SmolVLM2-2.2B", 27, 16, 81, 49190),
        ("Idefics3-8B", 27, 16, 169, 128257),
    ],
)
def test_a_published_configuration_has_the_sizes_of_the_model(
    name: str, layers: int, heads: int, features: int, token: int, tmp_path: Path
) -> None:
    config = published(tmp_path, name)
    tower, images = tower_of(config), config.images
    assert len(tower.blocks) == layers
    assert tower.blocks[0].attention.queries.count == heads  # type: ignore[attr-defined]
    assert tower.features == features
    assert images is not None
    assert images.sizes == Tiles(tower.tile, 4 * tower.tile, True, features)
    assert images.token == token
    assert not config.bidirectional
    assert config.notes == ()
    assert config.prefixes == ("model.text_model.",)


def test_the_tower_widens_no_message_of_the_decoder(tmp_path: Path) -> None:
    config = published(tmp_path, "SmolVLM-256M")
    whole, text = (each.partition([1, 1]).ranks[0] for each in (config, config.text_only()))
    assert config.decoder.message_columns(whole) == config.text_only().decoder.message_columns(text)
    assert tower_of(config).message_columns(whole) == 768


def test_a_tower_that_config_json_leaves_out_has_the_defaults(tmp_path: Path) -> None:
    values = {name: value for name, value in PUBLISHED["SmolVLM-256M"].items() if name != "vision_config"}
    folder = write(tmp_path, values | {"scale_factor": 7}, vision.processor_settings(224))
    assert tower_of(load_model_config(folder)).hidden == 1152


def test_the_end_of_a_text_is_that_of_transformers_class(tmp_path: Path) -> None:
    assert published(tmp_path / "small", "SmolVLM-256M").eos_token_ids == (2,)
    assert published(tmp_path / "large", "Idefics3-8B").eos_token_ids == (128009,)


@pytest.mark.parametrize("case", vision.CASES)
def test_what_transformers_writes_is_read(case: str, tmp_path: Path) -> None:
    expected = vision.CASES[case]()
    config = load_model_config(vision.save(checkpoints.build(expected), tmp_path))
    tower = tower_of(config)
    assert config.hidden_size == expected.text_config.hidden_size
    assert tower.hidden == expected.vision_config.hidden_size
    assert tower.factor == expected.scale_factor
    assert config.images is not None
    assert config.images.token == vision.IMAGE_TOKEN


@pytest.mark.parametrize(
    ("ignored", "expected"),
    [(["lm_head", "re:.*vision_model.*", "re:.*connector.*"], False), (["lm_head"], True)],
)
def test_a_tower_is_quantized_where_the_checkpoint_says_so(ignored: list[str], expected: bool, tmp_path: Path) -> None:
    quantization = LAYOUTS["w4a16 groups of 32"].config | {"ignore": ignored}
    values = PUBLISHED["SmolVLM-256M"] | {"quantization_config": quantization}
    config = load_model_config(write(tmp_path, values, vision.processor_settings(512)))
    assert "layers.0.mlp.up_proj" in config.stored
    towers = {"vision_model.encoder.layers.0.mlp.fc1", "connector.modality_projection.proj"}
    assert (towers <= config.stored.keys()) == expected
    assert not any("embedding" in module for module in config.stored)
    part = config.partition([1, 1]).ranks[1]
    assert all(part.format(each).format in ("int4", "bf16") for each in matrices(tower_of(config)))
    assert (part.format(tower_of(config).connector.weight).format == "int4") == expected


def test_a_quantization_by_the_operator_leaves_the_tower_as_it_is(tmp_path: Path) -> None:
    config = load_model_config(vision.save(checkpoints.build(vision.CASES["idefics3"]()), tmp_path))
    part = config.partition([1], ModelSettings(formats=WeightFormats(linear="int4"))).ranks[0]
    formats = [part.format(each).format for each in matrices(config.decoder.blocks[0])]
    assert set(formats) == {"int4"}
    assert {part.format(each).format for each in matrices(tower_of(config))} == {"bf16"}


@pytest.mark.parametrize("pooled", [False, True])
def test_a_model_of_text_alone_needs_no_tensor_of_the_tower(pooled: bool, tmp_path: Path) -> None:
    files = open_model(vision.save(checkpoints.build(vision.CASES["smolvlm"]()), tmp_path))
    config = read_config(files, ModelSettings(pooled=pooled)).text_only()
    assert config.images is None
    assert config.decoder.tower is None
    assert config.notes == ("the checkpoint's vision tower is not loaded: only text is served",)
    if not pooled:
        check_checkpoint(files, config)
    check_checkpoint(files, read_config(files, ModelSettings(pooled=pooled)))


def test_a_pooled_model_needs_no_settings_of_images_and_no_memory_for_them(tmp_path: Path) -> None:
    folder = vision.save(checkpoints.build(vision.CASES["smolvlm"]()), tmp_path)
    (folder / "preprocessor_config.json").unlink()
    settings = ModelSettings(pooled=True)
    config = load_model_config(folder, settings)
    options = replace(OPTIONS, settings=settings, image_store_bytes=1 << 30)
    deployment = make_deployment(options, config, machine(4))
    assert deployment.notes == ("the checkpoint's vision tower is not loaded: only text is served",)
    assert deployment.capacity.feature_tiles == 0
    assert deployment.ranks[0].images == NO_IMAGES


def test_settings_within_the_whole_processor_are_read_first(tmp_path: Path) -> None:
    values = PUBLISHED["SmolVLM-256M"]
    folder = write(tmp_path, values, vision.processor_settings(512))
    nested = {"image_processor": vision.processor_settings(512, tiles=2), "processor_class": "Idefics3Processor"}
    (folder / "processor_config.json").write_text(json.dumps(nested))
    images = load_model_config(folder).images
    assert images is not None
    assert images.sizes.longest_edge == 1024


def test_settings_that_are_left_out_have_transformers_defaults(tmp_path: Path) -> None:
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    processor = Idefics3ImageProcessorPil()
    values = PUBLISHED["Idefics3-8B"]
    images = load_model_config(write(tmp_path, values, {})).images
    assert images is not None
    assert images.sizes.side == processor.max_image_size["longest_edge"]
    assert images.sizes.longest_edge == processor.size["longest_edge"]
    assert images.sizes.split == processor.do_image_splitting
    assert images.resample == processor.resample
    assert images.rescale == processor.rescale_factor
    assert list(images.mean) == list(processor.image_mean)
    assert list(images.std) == list(processor.image_std)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image_processor_type": "Qwen2VLImageProcessor"}, "image_processor_type='Qwen2VLImageProcessor' is not"),
        ({"do_rescale": False}, "do_rescale=False is not supported"),
        ({"do_normalize": False}, "do_normalize=False is not supported"),
        ({"do_resize": False}, "do_resize=False is not supported"),
        ({"size": {"height": 512, "width": 512}}, "height=512 is not supported"),
        ({"max_image_size": {"longest_edge": 364}}, "must be image_size of config.json, 512"),
        ({"resample": 9}, "resample must be an integer from 0 to 5"),
        ({"image_std": [0.5, 0.0, 0.5]}, "image_std must be from 0.001 to 1000, not 0.0"),
    ],
)
def test_settings_that_are_not_implemented_are_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = write(tmp_path, PUBLISHED["SmolVLM-256M"], vision.processor_settings(512) | changes)
    with pytest.raises(OperatorError, match=words):
        load_model_config(folder)


def test_a_missing_file_of_settings_is_named(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"preprocessor_config\.json: missing"):
        load_model_config(write(tmp_path, PUBLISHED["SmolVLM-256M"], None))


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"image_size": 350, "patch_size": 14}, "25 patches in a row, which is not supported"),
        ({"image_size": 490, "patch_size": 14}, "no multiple of scale_factor=4"),
        ({"num_channels": 4}, "num_channels=4 is not supported"),
        ({"hidden_act": "quick_gelu"}, "hidden_act='quick_gelu' is not supported"),
    ],
)
def test_towers_that_are_not_implemented_are_refused(sizes: dict[str, Any], words: str, tmp_path: Path) -> None:
    values = PUBLISHED["SmolVLM-256M"]
    factor = 5 if sizes.get("image_size") == 350 else 4
    changed = values | {"vision_config": values["vision_config"] | sizes, "scale_factor": factor}
    with pytest.raises(OperatorError, match=words):
        load_model_config(write(tmp_path, changed, vision.processor_settings(512)))


@pytest.mark.parametrize("side", [16, 26, 27, 32])
def test_patches_have_the_positions_that_transformers_gives_them(side: int) -> None:
    import torch
    from transformers.models.smolvlm.configuration_smolvlm import SmolVLMVisionConfig
    from transformers.models.smolvlm.modeling_smolvlm import SmolVLMVisionEmbeddings

    config = SmolVLMVisionConfig(hidden_size=1, num_attention_heads=1, image_size=2 * side, patch_size=2)
    embeddings = SmolVLMVisionEmbeddings(config)
    with torch.no_grad():
        embeddings.patch_embedding.weight.zero_()
        embeddings.patch_embedding.bias.zero_()
        embeddings.position_embedding.weight.copy_(torch.arange(side * side)[:, None])
        pixels, mask = torch.zeros(1, 3, 2 * side, 2 * side), torch.ones(1, side, side, dtype=torch.bool)
        found = embeddings(pixels, mask)[0, :, 0]
    assert found.tolist() == list(range(side * side))
