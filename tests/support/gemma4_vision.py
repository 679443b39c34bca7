"""Tiny random checkpoints of Gemma 4 with its vision tower, as they are published, and images for them."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf
from torch.nn.utils.rnn import pad_sequence
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

from tests.support import checkpoints, gemma4
from tests.support.gemma_vision import BEGIN, END, IMAGE_TOKEN, Pixels
from tests.support.source_functions import functions_of
from tests.support.tokenizer_builders import save_image_tokenizer

BEGINS, ENDS, PLACEHOLDER = "<|image>", "<image|>", "<|image|>"
PATCH, ROWS = 8, 280  # pixels of a side, and rows of features of the largest image
TEMPLATE = """{%- for message in messages -%}
{{ message.role + ":" }}
{%- if message.content is string -%}{{ message.content }}
{%- else -%}{%- for part in message.content -%}
{%- if part.type == "image" -%}<|image|>
{%- elif part.type == "text" -%}{{ part.text }}{%- endif -%}
{%- endfor -%}{%- endif -%}{{ "\\n" }}
{%- endfor -%}
{%- if add_generation_prompt -%}model:{%- endif -%}"""


_UNIFIED = functions_of("transformers.models.gemma4_unified.image_processing_gemma4_unified", "patches_merge")
_TOKENS = {"boi_token_id": BEGIN, "eoi_token_id": END, "image_token_id": IMAGE_TOKEN}
_TOKENS |= {"video_token_id": 491, "audio_token_id": 492}


def _model(text: hf.PreTrainedConfig, factor: int, **vision: Any) -> hf.PreTrainedConfig:
    sizes = {"patch_size": PATCH, "pooling_kernel_size": factor, "position_embedding_size": ROWS * factor}
    return hf.Gemma4Config(text_config=text.to_dict(), vision_config=sizes | vision, **_TOKENS)


def _unified(text: hf.PreTrainedConfig, factor: int, hidden: int) -> hf.PreTrainedConfig:
    sizes = {"mm_embed_dim": hidden, "output_proj_dims": hidden, "mm_posemb_size": ROWS}
    return gemma4.unified_around(text, {"patch_size": PATCH, "pooling_kernel_size": factor, **sizes}, **_TOKENS)


def _heads(hidden: int, heads: int, dim: int) -> dict[str, int]:
    of_heads = {"num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": dim}
    return {"hidden_size": hidden, "intermediate_size": 136, "num_hidden_layers": 2, **of_heads}


_SIZES: dict[str, Any] = {"head_dim": 16, "global_head_dim": 32, "sliding_window": 16}
# Heads that no number of ranks divides, widths that are no multiple of a tile, and windows shorter than most images.
CASES: dict[str, Callable[[], hf.PreTrainedConfig]] = {
    # As E2B and E4B: inputs of layers, and products of the tower that are clipped.
    "gemma4-inputs": lambda: _model(
        gemma4.text_config(checkpoints.sizes(96, 6, 3, 96, layers=7, **_SIZES), **gemma4.SHARED, pad_token_id=5),
        2,
        **_heads(120, 5, 24),
        use_clipped_linears=True,
    ),
    # As 26B and 31B: tokens of an image see each other in sliding layers.
    "gemma4-whole": lambda: _model(
        gemma4.text_config(
            checkpoints.sizes(96, 6, 3, 96, layers=3, **_SIZES),
            **gemma4.KEYS_ONLY,
            use_bidirectional_attention="vision",
        ),
        3,
        **_heads(96, 3, 32),
        standardize=True,
    ),
    # As 12B, without a tower.
    "gemma4-unified": lambda: _unified(
        gemma4.unified_config(checkpoints.sizes(96, 6, 3, 96, layers=3, **_SIZES)), 3, 72
    ),
}


def build(case: str) -> hf.PreTrainedModel:
    """Return a model of a case, whose bounds clip some values and whose means are standardised."""
    model = checkpoints.build(CASES[case]())
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, buffer in model.model.named_buffers():
            if "vision_tower" not in name:
                continue
            noise = torch.rand(buffer.shape, generator=generator)
            if name.endswith(("_min", "_max")):
                bound = (1.5 if "input" in name else 3.0) * (0.8 + 0.4 * noise)
                value = -bound if name.endswith("_min") else bound
            elif name.startswith("std_"):
                value = noise + 0.5 if name == "std_scale" else 8 * (noise - 0.5)
            else:
                continue
            buffer.copy_(value.to(torch.bfloat16).float())
    return model


def processor_settings(model: hf.PreTrainedConfig) -> dict[str, Any]:
    """Return the settings of the image processor as published processor_config.json files have them."""
    unified = "Unified" if is_unified(model) else ""
    return {
        "do_convert_rgb": True,
        "do_normalize": False,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.0, 0.0, 0.0],
        "image_processor_type": f"Gemma4{unified}ImageProcessor",
        "image_seq_length": ROWS,
        "image_std": [1.0, 1.0, 1.0],
        "max_soft_tokens": ROWS,
        "patch_size": PATCH,
        "pooling_kernel_size": factor_of(model),
        "resample": 3,
        "rescale_factor": 0.00392156862745098,
    }


def is_unified(model: hf.PreTrainedConfig) -> bool:
    """Return whether a model has an embedder of images in place of a tower."""
    return bool(model.model_type == "gemma4_unified")


def factor_of(model: hf.PreTrainedConfig) -> int:
    """Return the patches of a side of a square."""
    return int(model.vision_config.pooling_kernel_size)


def save(model: hf.PreTrainedModel, folder: Path) -> Path:
    """Save a model with the settings of its processor."""
    checkpoints.save(model, folder)
    processor = {"image_processor": processor_settings(model.config), "processor_class": "Gemma4Processor"}
    (folder / "processor_config.json").write_text(json.dumps(processor))
    return folder


def save_served(model: hf.PreTrainedModel, folder: Path) -> Path:
    """Save a model with a tokenizer, and with a chat template that writes images as published ones do."""
    save(model, folder)
    save_image_tokenizer(folder, [BEGINS, ENDS, PLACEHOLDER], IMAGE_TOKEN, TEMPLATE)
    return folder


def random_images(shapes: Sequence[tuple[int, int]], factor: int, seed: int = 0) -> list[Pixels]:
    """Return images, uint8 [height, width, 3], with these numbers of features: noise over a slope."""
    rng, square = np.random.default_rng(seed), PATCH * factor

    def image(rows: int, cols: int) -> Pixels:
        height, width = rows * square, cols * square
        slope = np.linspace(0, 1, height)[:, None, None] * rng.uniform(0, 200, (1, width, 3))
        return (slope + rng.uniform(0, 55, (height, width, 3))).astype(np.uint8)

    return [image(*shape) for shape in shapes]


def in_store(images: Sequence[Pixels], factor: int) -> Pixels:
    """Return the pixels of images as the image store has them, uint8 [images, the most bytes of an image]."""
    found = np.zeros((len(images), ROWS * (PATCH * factor) ** 2 * 3), np.uint8)
    for row, image in zip(found, images, strict=True):
        row[: image.size] = image.reshape(-1)
    return found


def processed(model: hf.PreTrainedConfig, images: Sequence[Any], **changes: Any) -> dict[str, torch.Tensor]:
    """Return what transformers' image processor makes of images: patches and their places, padded, and the rows of
    features of each.

    The processor of unified models needs torchvision. It is that of the others, with the patches of squares merged.
    """
    dropped = ("image_processor_type",)
    kept = {name: value for name, value in processor_settings(model).items() if name not in dropped}
    made = dict(Gemma4ImageProcessorPil(**kept | changes)([*images], return_tensors="pt"))
    if is_unified(model):
        padded = zip(made["pixel_values"], made["image_position_ids"], strict=True)
        merged = [_merged(*each, factor_of(model)) for each in padded]
        values, places = ([*each] for each in zip(*merged, strict=True))
        assert [len(each) for each in places] == [*made["num_soft_tokens_per_image"]]
        made["pixel_values"] = pad_sequence(values, batch_first=True)
        made["image_position_ids"] = pad_sequence(places, batch_first=True, padding_value=-1)
    return made


def _merged(values: torch.Tensor, places: torch.Tensor, factor: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The squares of an image, without padding, and their places."""
    there = (places >= 0).all(-1)
    squares = int(there.sum()) // factor**2
    merged, found = _UNIFIED["patches_merge"](values[there][None], places[there][None], squares)
    return merged[0], found[0]


def inputs_of(model: hf.PreTrainedConfig, images: Sequence[Pixels], tokens: torch.Tensor) -> Mapping[str, torch.Tensor]:
    """Return what transformers' image processor makes of images that need no resizing, and where they are in
    `tokens`."""
    made = processed(model, images, do_resize=False)
    given = {name: made[name] for name in ("pixel_values", "image_position_ids")}
    return {**given, "mm_token_type_ids": (tokens == IMAGE_TOKEN).int()[None]}


def logits_of(model: hf.PreTrainedModel, ids: torch.Tensor, given: Mapping[str, Any]) -> torch.Tensor:
    """Return the logits of a text, [tokens, vocabulary]. `ids` is [1, tokens].

    A unified model has the masks that transformers makes when it generates: those of its plain forward pass let tokens
    of an image see each other in all layers.
    """
    if is_unified(model.config):
        embedded, types = model.get_input_embeddings()(ids), given["mm_token_type_ids"]
        masks = model.create_masks_for_generate(model.config, embedded, None, None, None, mm_token_type_ids=types)
        given = {**given, "attention_mask": masks}
    found: torch.Tensor = model(ids, **given).logits[0]
    return found
