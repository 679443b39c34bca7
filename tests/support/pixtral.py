"""Tiny random checkpoints of models with Pixtral's vision tower, as they are published, and images for them."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

from tests.support import checkpoints
from tests.support.families.row import LATENT_HEADS, MINISTRAL, rope
from tests.support.grid_vision import IMAGE_TOKEN, SQUARE, Pixels
from tests.support.tokenizer_builders import save_image_tokenizer

EDGE = 10 * SQUARE  # pixels, the longest of an image
PLACEHOLDER, BREAK, END, EOS = "[IMG]", "[IMG_BREAK]", "[IMG_END]", "</s>"
BREAK_TOKEN, END_TOKEN = 495, 496
# The parts of that of Mistral Small 3.1 that write turns of users and of the model.
TEMPLATE = """{%- if messages[0]['role'] == 'system' %}
    {%- if messages[0]['content'] is string %}
        {%- set system_message = messages[0]['content'] %}
    {%- else %}
        {%- set system_message = messages[0]['content'][0]['text'] %}
    {%- endif %}
    {%- set loop_messages = messages[1:] %}
    {{- '[SYSTEM_PROMPT]' + system_message + '[/SYSTEM_PROMPT]' }}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- for message in loop_messages %}
    {%- if message['role'] == 'user' %}
        {%- if message['content'] is string %}
            {{- '[INST]' + message['content'] + '[/INST]' }}
        {%- else %}
            {{- '[INST]' }}
            {%- for block in message['content'] %}
                {%- if block['type'] == 'text' %}
                    {{- block['text'] }}
                {%- elif block['type'] in ['image', 'image_url'] %}
                    {{- '[IMG]' }}
                {%- else %}
                    {{- raise_exception('Only text and image blocks are supported in message content!') }}
                {%- endif %}
            {%- endfor %}
            {{- '[/INST]' }}
        {%- endif %}
    {%- elif message['role'] == 'assistant' %}
        {%- if message['content'] is string %}
            {{- message['content'] + eos_token }}
        {%- else %}
            {{- message['content'][0]['text'] + eos_token }}
        {%- endif %}
    {%- else %}
        {{- raise_exception('Only user, system and assistant roles are supported!') }}
    {%- endif %}
{%- endfor %}"""
CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}


def _vision(hidden: int, heads: int, patch: int, layers: int = 3) -> dict[str, Any]:
    sizes = {"hidden_size": hidden, "intermediate_size": 136, "num_hidden_layers": layers, "num_attention_heads": heads}
    return {"model_type": "pixtral", "image_size": EDGE, "patch_size": patch, "hidden_act": "silu", **sizes}


def _mistral3(text: hf.PreTrainedConfig, vision: dict[str, Any], factor: int) -> hf.PreTrainedConfig:
    return hf.Mistral3Config(
        text_config=text.to_dict(),
        vision_config=vision,
        spatial_merge_size=factor,
        image_token_index=IMAGE_TOKEN,
        tie_word_embeddings=False,
    )


# Heads that no number of ranks divides, widths that are no multiple of a tile.
CASES: dict[str, Callable[[], hf.PreTrainedConfig]] = {
    "mistral3": lambda: _mistral3(
        hf.Ministral3Config(
            **checkpoints.sizes(96, 3, 1, 160, head_dim=32),
            **rope("yarn", factor=4.0, original_max_position_embeddings=64, **MINISTRAL),
        ),
        _vision(96, 3, 4),
        2,
    ),
    "pixtral": lambda: hf.LlavaConfig(
        text_config=hf.MistralConfig(**checkpoints.sizes(160, 5, 1, 96, head_dim=32, sliding_window=None)).to_dict(),
        vision_config=_vision(120, 5, SQUARE),
        image_token_index=IMAGE_TOKEN,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    ),
    "mistral4": lambda: _mistral3(
        hf.Mistral4Config(
            **checkpoints.sizes(
                96, 6, 6, 160, q_lora_rank=40, kv_lora_rank=64, n_routed_experts=12, n_shared_experts=1
            ),
            **LATENT_HEADS,
            **rope("yarn", factor=4.0, original_max_position_embeddings=64, **MINISTRAL),
            moe_intermediate_size=72,
            num_experts_per_tok=4,
        ),
        _vision(96, 3, 4, 2),
        2,
    ),
}


def processor_settings(config: hf.PreTrainedConfig) -> dict[str, Any]:
    """Return a preprocessor_config.json as published ones are."""
    patch = config.vision_config.patch_size
    return {
        "crop_size": None,
        "data_format": "channels_first",
        "do_center_crop": None,
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_processor_type": "PixtralImageProcessorFast",
        "patch_size": {"height": patch, "width": patch},
        "processor_class": "PixtralProcessor",
        "resample": 3,
        "rescale_factor": 0.00392156862745098,
        "size": {"longest_edge": EDGE},
        **CLIP,
    }


def save(model: hf.PreTrainedModel, folder: Path) -> Path:
    """Save a model with the settings of its image processor, and with those of the processor around it."""
    checkpoints.save(model, folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor_settings(model.config)))
    whole = {
        "image_break_token": BREAK,
        "image_end_token": END,
        "image_token": PLACEHOLDER,
        "patch_size": model.config.vision_config.patch_size,
        "processor_class": "PixtralProcessor",
        "spatial_merge_size": factor_of(model.config),
    }
    (folder / "processor_config.json").write_text(json.dumps(whole))
    return folder


def factor_of(config: hf.PreTrainedConfig) -> int:
    """Return the side of a square in patches."""
    return int(getattr(config, "spatial_merge_size", 1))


def processor_of(config: hf.PreTrainedConfig, **changes: Any) -> PixtralImageProcessorPil:
    """Return transformers' image processor, with the patches that the whole processor gives it."""
    settings = processor_settings(config)
    kept = {name: each for name, each in settings.items() if name not in ("image_processor_type", "processor_class")}
    return PixtralImageProcessorPil(**kept | {"patch_size": {"height": SQUARE, "width": SQUARE}} | changes)


def inputs_of(config: hf.PreTrainedConfig, images: Sequence[Pixels]) -> Mapping[str, torch.Tensor]:
    """Return what transformers' image processor makes of images that need no resizing."""
    return dict(processor_of(config, do_resize=False)([*images], return_tensors="pt")) if images else {}


def in_store(images: Sequence[Pixels]) -> Pixels:
    """Return the pixels of images as the image store has them, uint8 [images, the most bytes of an image]."""
    found = np.zeros((len(images), EDGE**2 * 3), np.uint8)
    for row, image in zip(found, images, strict=True):
        row[: image.size] = image.reshape(-1)
    return found


def save_served(model: hf.PreTrainedModel, folder: Path) -> Path:
    """Save a model with a tokenizer, and with a chat template that writes images as that of Mistral Small 3.1 does."""
    save(model, folder)
    marks = ["[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"]
    special = [*marks, BREAK, END, PLACEHOLDER]
    save_image_tokenizer(folder, special, IMAGE_TOKEN, TEMPLATE, eos_token=EOS)
    return folder


def text_of(rows: int, cols: int) -> str:
    """Return the text of an image (`PixtralProcessor.replace_image_token`)."""
    tokens = ([PLACEHOLDER] * cols + [BREAK]) * rows
    return "".join([*tokens[:-1], END])
