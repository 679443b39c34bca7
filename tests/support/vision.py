"""Tiny random checkpoints of models that see, as they are published, and tiles for them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import transformers as hf
from transformers.models.smolvlm import processing_smolvlm

from tests.support import checkpoints
from tests.support.tokenizer_builders import byte_level_backend

IMAGE_TOKEN = 497
FAKE, GLOBAL, PLACEHOLDER = "<fake_token_around_image>", "<global-img>", "<image>"
LARGEST = 4  # tiles of a side
TAGS = "<doctag>", "<loc_155>"

Pixels = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def _config(made: type[hf.PreTrainedConfig], text: hf.PreTrainedConfig, factor: int, **vision: Any) -> Any:
    return made(
        text_config=text.to_dict(),
        vision_config=vision,
        scale_factor=factor,
        image_token_id=IMAGE_TOKEN,
        pad_token_id=0,
    )


# Heads that no number of ranks divides, widths that are no multiple of a tile. Patches of 14 leave pixels over.
CASES: dict[str, Callable[[], hf.PreTrainedConfig]] = {
    "smolvlm": lambda: _config(
        hf.SmolVLMConfig,
        hf.LlamaConfig(**checkpoints.sizes(96, 3, 1, 160)),
        2,
        hidden_size=120,
        intermediate_size=200,
        num_hidden_layers=3,
        num_attention_heads=5,
        image_size=88,
        patch_size=14,
    ),
    # Heads of 72 dimensions, as in SigLIP's largest model.
    "idefics3": lambda: _config(
        hf.Idefics3Config,
        hf.LlamaConfig(**checkpoints.sizes(160, 4, 2, 224, rms_norm_eps=1e-5)),
        4,
        hidden_size=288,
        intermediate_size=430,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=128,
        patch_size=16,
    ),
}
CONFIGS = (hf.SmolVLMConfig, hf.Idefics3Config)
_ARCHITECTURES = {"smolvlm": "SmolVLM", "idefics3": "Idefics3"}


def processor_settings(tile: int, name: str = "Idefics3", tiles: int = 4) -> dict[str, Any]:
    """Return a preprocessor_config.json as published ones are, for images of at most `tiles` tiles in a row."""
    return {
        "do_convert_rgb": True,
        "do_image_splitting": True,
        "do_normalize": True,
        "do_pad": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_processor_type": f"{name}ImageProcessor",
        "image_std": [0.5, 0.5, 0.5],
        "max_image_size": {"longest_edge": tile},
        "processor_class": f"{name}Processor",
        "resample": 1,
        "rescale_factor": 0.00392156862745098,
        "size": {"longest_edge": tiles * tile},
    }


def save(model: hf.PreTrainedModel, folder: Path) -> Path:
    """Save a model with the settings of its image processor."""
    checkpoints.save(model, folder)
    save_processor(model.config, folder)
    return folder


def text_model(model: hf.PreTrainedModel) -> hf.LlamaForCausalLM:
    """Return the language model of a model, without what sees."""
    text = hf.LlamaForCausalLM(model.config.text_config)
    text.model.load_state_dict(model.model.text_model.state_dict())
    text.lm_head.load_state_dict(model.lm_head.state_dict())
    return text.to(model.dtype)


def save_processor(config: hf.PreTrainedConfig, folder: Path) -> None:
    """Write the settings of the image processor of a model."""
    settings = processor_settings(config.vision_config.image_size, _ARCHITECTURES[config.model_type])
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))


def save_served(model: hf.PreTrainedModel, folder: Path) -> Path:
    """Save a model with a tokenizer and the chat template of SmolVLM."""
    save(model, folder)
    save_tokenizer(folder)
    template = {"chat_template": processing_smolvlm.DEFAULT_CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(template))
    return folder


def save_tokenizer(folder: Path, edge: str = FAKE) -> None:
    """Write a tokenizer with the special tokens of images, the last of which stands for an image."""
    backend = byte_level_backend()
    places = [f"<row_{row}_col_{col}>" for row in range(1, LARGEST + 1) for col in range(1, LARGEST + 1)]
    backend.add_special_tokens(["<end_of_utterance>", edge, GLOBAL, *places, *TAGS])
    unused = range(backend.get_vocab_size(), IMAGE_TOKEN)
    backend.add_special_tokens([*(f"<unused_{index}>" for index in unused), PLACEHOLDER])
    backend.save(str(folder / "tokenizer.json"))


def features_of(config: hf.PreTrainedConfig) -> int:
    """Return the number of feature rows of a tile."""
    side = config.vision_config.image_size // config.vision_config.patch_size
    return int(side // config.scale_factor) ** 2


def random_tiles(config: hf.PreTrainedConfig, count: int, seed: int = 0) -> Pixels:
    """Return uint8 [count, side, side, 3]: noise over a slope, in other colours for each tile."""
    rng, side = np.random.default_rng(seed), config.vision_config.image_size
    slope = np.linspace(0, 1, side)[:, None, None] * rng.uniform(0, 200, (count, 1, side, 3))
    return (slope + rng.uniform(0, 55, (count, side, side, 3))).astype(np.uint8)


def values_of(tiles: Pixels) -> Floats:
    """Return what transformers' image processor makes of the pixels of tiles: fp32 [tiles, 3, side, side]."""
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    processor, settings = Idefics3ImageProcessorPil(), processor_settings(tiles.shape[1])
    rescaled = (processor.rescale(each.transpose(2, 0, 1), settings["rescale_factor"]) for each in tiles)
    mean, std = settings["image_mean"], settings["image_std"]
    return np.stack([processor.normalize(each, mean, std) for each in rescaled])
