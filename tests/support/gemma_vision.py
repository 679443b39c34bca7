"""Tiny random checkpoints of Gemma 3 with its vision tower, as they are published, and images for them."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

from tests.support import checkpoints
from tests.support.tokenizer_builders import save_image_tokenizer

BEGIN, END, IMAGE_TOKEN = 495, 496, 497
BEGINS, ENDS, PLACEHOLDER = "<start_of_image>", "<end_of_image>", "<image_soft_token>"
TEMPLATE = """{%- for message in messages -%}
{{ message.role + ":" }}
{%- if message.content is string -%}{{ message.content }}
{%- else -%}{%- for part in message.content -%}
{%- if part.type == "image" -%}<start_of_image>
{%- elif part.type == "text" -%}{{ part.text }}{%- endif -%}
{%- endfor -%}{%- endif -%}{{ "\\n" }}
{%- endfor -%}
{%- if add_generation_prompt -%}model:{%- endif -%}"""
_SLIDING, _FULL = "sliding_attention", "full_attention"

Pixels = npt.NDArray[np.uint8]


def _gemma3(text: dict[str, Any], rows: int, **vision: Any) -> hf.PreTrainedConfig:
    tokens = {"boi_token_index": BEGIN, "eoi_token_index": END, "image_token_index": IMAGE_TOKEN}
    sizes = {"model_type": "siglip_vision_model", **vision}
    return hf.Gemma3Config(text_config=text, vision_config=sizes, mm_tokens_per_image=rows, **tokens)


# Heads that no number of ranks divides, widths that are no multiple of a tile, and windows shorter than an image.
CASES: dict[str, Callable[[], hf.PreTrainedConfig]] = {
    "gemma3": lambda: _gemma3(
        checkpoints.sizes(96, 3, 1, 160, layers=4, head_dim=32, sliding_window=12, query_pre_attn_scalar=32)
        | {"layer_types": [_SLIDING, _FULL, _SLIDING, _SLIDING]},
        25,
        hidden_size=120,
        intermediate_size=200,
        num_hidden_layers=3,
        num_attention_heads=5,
        image_size=80,
        vision_use_head=False,
        patch_size=8,
    ),
}


def processor_settings(tile: int) -> dict[str, Any]:
    """Return a preprocessor_config.json as published ones are."""
    return {
        "do_convert_rgb": None,
        "do_normalize": True,
        "do_pan_and_scan": None,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_processor_type": "Gemma3ImageProcessor",
        "image_seq_length": 25,
        "image_std": [0.5, 0.5, 0.5],
        "pan_and_scan_max_num_crops": None,
        "pan_and_scan_min_crop_size": None,
        "pan_and_scan_min_ratio_to_activate": None,
        "processor_class": "Gemma3Processor",
        "resample": 2,
        "rescale_factor": 0.00392156862745098,
        "size": {"height": tile, "width": tile},
    }


def save(model: hf.PreTrainedModel, folder: Path) -> Path:
    """Save a model with the settings of its image processor."""
    checkpoints.save(model, folder)
    file = folder / "model.safetensors"
    tensors = {name.replace("tower.", "tower.vision_model."): each for name, each in load_file(file).items()}
    save_file(tensors, file, {"format": "pt"})
    settings = processor_settings(model.config.vision_config.image_size)
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def save_served(model: hf.PreTrainedModel, folder: Path) -> Path:
    """Save a model with a tokenizer, and with a chat template that writes images as published ones do."""
    save(model, folder)
    save_image_tokenizer(folder, [BEGINS, ENDS, PLACEHOLDER], IMAGE_TOKEN, TEMPLATE)
    return folder


def features_of(config: hf.PreTrainedConfig) -> int:
    """Return the number of feature rows of an image."""
    return int(config.mm_tokens_per_image)


def processor_of(tile: int, **changes: Any) -> Gemma3ImageProcessorPil:
    """Return transformers' image processor for images of a size."""
    kept = {
        name: value
        for name, value in processor_settings(tile).items()
        if value is not None and name not in ("image_processor_type", "image_seq_length", "processor_class")
    }
    return Gemma3ImageProcessorPil(**kept | changes)


def inputs_of(images: Sequence[Pixels], tokens: torch.Tensor) -> Mapping[str, torch.Tensor]:
    """Return what transformers' image processor makes of images of the model's size, and where they are in
    `tokens`."""
    processor = processor_of(images[0].shape[0], do_resize=False)
    made = processor([*images], return_tensors="pt")
    return {"pixel_values": made["pixel_values"], "token_type_ids": (tokens == IMAGE_TOKEN).int()[None]}
