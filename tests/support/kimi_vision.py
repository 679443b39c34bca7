"""A tiny random checkpoint of Kimi K2.5 with its vision tower, as it is published, and images for it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf
from PIL import Image

from tests.support import checkpoints, kimi
from tests.support.grid_vision import IMAGE_TOKEN, SQUARE, Pixels
from tests.support.source_functions import functions_of
from tests.support.tokenizer_builders import save_image_tokenizer

PATCH, FACTOR = 4, 2  # pixels of a side, and patches of one
PATCHES, LONGEST = 400, 512  # of an image, and of its edge: files do not state the latter
MOST = PATCHES // FACTOR**2 + LONGEST  # squares of an image
_MODULE = "transformers.models.kimi_k25.image_processing_kimi_k25"
navit_resize = functions_of(_MODULE, "navit_resize")["navit_resize"]
PLACEHOLDER, BEGIN, CONTENT, END = "<|media_pad|>", "<|media_begin|>", "<|media_content|>", "<|media_end|>"
# The parts of the published one that write turns and images.
TEMPLATE = """{%- macro render_content(msg) -%}
    {%- set c = msg.get('content') -%}
    {%- if c is string -%}{{ c }}
    {%- elif c is not none -%}
        {%- for content in c -%}
            {%- if content['type'] in ['image', 'image_url'] or 'image' in content -%}
                <|media_begin|>image<|media_content|><|media_pad|><|media_end|>
            {%- else -%}{{ content['text'] }}{%- endif -%}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- for message in messages -%}
    <|im_{{ message.role }}|>{{ message.role }}<|im_middle|>{{ render_content(message) }}<|im_end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>{%- endif -%}"""


def config() -> hf.PreTrainedConfig:
    """Return its configuration. Heads that no number of ranks divides, widths that are no multiple of a tile."""
    text = kimi.k25_text(96, 5, n_routed_experts=12)
    vision = {
        "hidden_size": 120,
        "intermediate_size": 136,
        "num_hidden_layers": 3,
        "num_attention_heads": 5,
        "patch_size": PATCH,
        "pos_emb_height": 7,
        "pos_emb_width": 7,
    }
    return hf.Kimi_K25Config(
        text_config=text.to_dict(),
        vision_config=vision,
        projection_hidden_size=vision["hidden_size"],
        image_token_id=IMAGE_TOKEN,
        video_token_id=498,  # no other token: transformers takes it for a token without an embedding
        tie_word_embeddings=False,
    )


CASES = {"kimi_k25": config}


def processor_settings() -> dict[str, Any]:
    """Return a preprocessor_config.json as published ones are."""
    return {
        "auto_map": {
            "AutoProcessor": "kimi_k25_processor.KimiK25Processor",
            "AutoImageProcessor": "kimi_k25_vision_processing.KimiK25VisionProcessor",
        },
        "media_proc_cfg": {
            "in_patch_limit": PATCHES,
            "patch_size": PATCH,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "merge_kernel_size": FACTOR,
            "fixed_output_tokens": None,
            "patch_limit_on_one_side": LONGEST,
            "in_patch_limit_each_frame": 4096,
            "in_patch_limit_video": None,
            "sample_fps": 2.0,
            "max_num_frames_each_video": None,
            "temporal_merge_kernel_size": 4,
            "timestamp_mode": "hh:mm:ss.fff",
        },
    }


def save(model: hf.PreTrainedModel, folder: Path) -> Path:
    """Save a model with the settings of its image processor."""
    checkpoints.save(model, folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor_settings()))
    return folder


def save_served(model: hf.PreTrainedModel, folder: Path) -> Path:
    """Save a model with a tokenizer, and with a chat template that writes images as the published one does."""
    save(model, folder)
    turns = ["<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|im_end|>"]
    special = [*turns, BEGIN, CONTENT, END, PLACEHOLDER]
    save_image_tokenizer(folder, special, IMAGE_TOKEN, TEMPLATE)
    return folder


def in_store(images: Sequence[Pixels]) -> Pixels:
    """Return the pixels of images as the image store has them, uint8 [images, the most bytes of an image]."""
    found = np.zeros((len(images), MOST * SQUARE**2 * 3), np.uint8)
    for row, image in zip(found, images, strict=True):
        row[: image.size] = image.reshape(-1)
    return found


def fitted(image: Image.Image) -> Pixels:
    """Return the pixels of an image as the model's own processor makes them with Pillow, uint8 [height, width, 3]. The
    sizes are those of transformers."""
    (high, wide), (all_high, all_wide) = navit_resize(image.height, image.width, PATCH, FACTOR, PATCHES, LONGEST)
    black = Image.new("RGB", (all_wide, all_high))
    black.paste(image.resize((wide, high), Image.Resampling.BICUBIC))
    return np.array(black)


def inputs_of(images: Sequence[Pixels], dtype: torch.dtype = torch.float32) -> Mapping[str, torch.Tensor]:
    """Return what transformers' image processor makes of images of whole squares: patches in the order of rows, and
    grids. Its module needs torchvision."""
    if not images:
        return {}
    patches, grids = [], []
    for image in images:
        height, width = (edge // PATCH for edge in image.shape[:2])
        values = (torch.from_numpy(image).permute(2, 0, 1).double() * (1 / 255)).float()
        values = (values - 0.5) / 0.5
        rows = values.reshape(3, height, PATCH, width, PATCH).permute(1, 3, 0, 2, 4)
        patches.append(rows.reshape(height * width, 3, PATCH, PATCH))
        grids.append([1, height, width])
    return {"pixel_values": torch.cat(patches).to(dtype), "image_grid_thw": torch.tensor(grids)}
