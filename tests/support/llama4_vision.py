"""A tiny random checkpoint of Llama 4 with its vision tower, as it is published, and tiles for it."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers as hf

from tests.support import checkpoints
from tests.support.families.row import LLAMA4, rope
from tests.support.tokenizer_builders import save_image_tokenizer
from tests.support.vision import Pixels

IMAGE_TOKEN = 497
TILE, PATCH = 42, 7  # pixels
FEATURES = 9  # of a tile: squares of 2 x 2 patches
PLACEHOLDER, MARKER = "<|patch|>", "<|image|>"
BEGIN, END, NEXT, ROW_END = "<|image_start|>", "<|image_end|>", "<|tile_x_separator|>", "<|tile_y_separator|>"
# The parts of the published one that write turns.
TEMPLATE = """{%- for message in messages %}
    {{- '<|header_start|>' + message['role'] + '<|header_end|>\\n\\n' }}
    {%- if message['content'] is string %}
        {{- message['content'] }}
    {%- else %}
        {%- for content in message['content'] %}
            {%- if content['type'] == 'image' %}
                {{- '<|image|>' }}
            {%- elif content['type'] == 'text' %}
                {{- content['text'] }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- "<|eot|>" }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|header_start|>assistant<|header_end|>\\n\\n' }}
{%- endif %}"""


def config(*, in_gguf: bool = False) -> hf.PreTrainedConfig:
    """Return its configuration, or one that a GGUF file can have. Heads that no number of ranks divides, widths that
    are no multiple of a tile."""
    scaled = rope("llama3", factor=16.0, low_freq_factor=1.0, high_freq_factor=1.0, original_max_position_embeddings=64)
    text = hf.Llama4TextConfig(
        **checkpoints.sizes(120, 5, 1, 72, layers=4, head_dim=24, intermediate_size_mlp=160, num_local_experts=5),
        **({} if in_gguf else scaled | LLAMA4),
        interleave_moe_layer_step=2,
    )
    vision = {
        "hidden_size": 96,
        "intermediate_size": 4 * 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "image_size": TILE,
        "patch_size": PATCH,
        "vision_output_dim": 80,
        "projector_input_dim": 80,
        "projector_output_dim": 80,
    }
    return hf.Llama4Config(text_config=text.to_dict(), vision_config=vision, image_token_index=IMAGE_TOKEN)


CASES = {"llama4": config}


def processor_settings(tiles: int = 16) -> dict[str, Any]:
    """Return a preprocessor_config.json as published ones are."""
    return {
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_processor_type": "Llama4ImageProcessorFast",
        "image_std": [0.5, 0.5, 0.5],
        "max_patches": tiles,
        "processor_class": "Llama4Processor",
        "resample": 2,
        "rescale_factor": 0.00392156862745098,
        "resize_to_max_canvas": False,
        "size": {"height": TILE, "width": TILE},
    }


def save(model: hf.PreTrainedModel, folder: Path) -> Path:
    """Save a model with the settings of its image processor."""
    checkpoints.save(model, folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor_settings()))
    return folder


def save_served(model: hf.PreTrainedModel, folder: Path) -> Path:
    """Save a model with a tokenizer, and with a chat template that writes images as the published one does."""
    save(model, folder)
    marks = ["<|header_start|>", "<|header_end|>", "<|eot|>"]
    special = [*marks, BEGIN, END, NEXT, ROW_END, MARKER, PLACEHOLDER]
    save_image_tokenizer(folder, special, IMAGE_TOKEN, TEMPLATE)
    return folder


def values_of(tiles: Pixels) -> torch.Tensor:
    """Return what transformers' image processor makes of the pixels of tiles, bf16 [tiles, 3, side, side]: its
    `rescale_and_normalize`, whose module needs torchvision."""
    settings = processor_settings()
    pixels = torch.from_numpy(tiles).permute(0, 3, 1, 2).to(torch.bfloat16) * settings["rescale_factor"]
    mean, std = (torch.tensor(settings[f"image_{name}"], dtype=torch.bfloat16) for name in ("mean", "std"))
    return pixels.sub(mean[:, None, None]).div_(std[:, None, None])


def text_of(rows: int, cols: int) -> str:
    """Return the text of an image (`Llama4Processor._prompt_split_image`)."""
    patches = PLACEHOLDER * FEATURES
    tiles = "".join(NEXT.join([patches] * cols) + ROW_END for _ in range(rows)) if rows * cols > 1 else ""
    return f"{BEGIN}{tiles}{MARKER}{patches}{END}"


def logits_of(model: hf.PreTrainedModel, tokens: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return the logits of a text with tiles, [tokens, vocabulary]: the forward pass of the whole class, which cannot
    make its own output in transformers 5.24."""
    embeddings = model.get_input_embeddings()(tokens[None])
    features = model.vision_model(values).last_hidden_state.flatten(0, 1)
    places = (tokens == IMAGE_TOKEN)[None, :, None].expand_as(embeddings)
    embeddings = embeddings.masked_scatter(places, model.multi_modal_projector(features).to(embeddings.dtype))
    found: torch.Tensor = model.language_model(inputs_embeds=embeddings).logits[0]
    return found
