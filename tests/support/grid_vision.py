"""Tiny random checkpoints of models that see images of any size, as they are published, and images for them."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from transformers.models.paddleocr_vl.image_processing_pil_paddleocr_vl import PaddleOCRVLImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from tests.support import checkpoints
from tests.support.tokenizer_builders import save_image_tokenizer

IMAGE_TOKEN = 497
PATCH, FACTOR = 4, 2
SQUARE = PATCH * FACTOR  # pixels of a side, which become a row of features
LEAST, MOST = 4 * SQUARE**2, 64 * SQUARE**2  # pixels of an image
_TOKENS = {"video_token_id": 494, "vision_start_token_id": 495, "vision_end_token_id": 496}

Pixels = npt.NDArray[np.uint8]
Shape = tuple[int, int]  # rows and columns of features


def _vision(hidden: int, heads: int, outputs: int, **more: Any) -> dict[str, Any]:
    sizes = {"intermediate_size": 136, "patch_size": PATCH, "num_position_embeddings": 49, "out_hidden_size": outputs}
    return {"hidden_size": hidden, "num_heads": heads, **sizes, **more}


def _text(sections: list[int], **more: Any) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": 5e5, "mrope_section": sections, "mrope_interleaved": True}
    return checkpoints.sizes(96, 3, 1, 160, rope_parameters=rope, **more)


@dataclass(frozen=True)
class Form:
    """The settings of image processors as published, transformers' class, special tokens from the first one for images
    to the placeholder, and the chat template."""

    settings: Mapping[str, Any]
    processor: type[Qwen2VLImageProcessorPil | PaddleOCRVLImageProcessorPil]
    special: Sequence[str]
    template: str

    @property
    def placeholder(self) -> str:
        return self.special[-1]

    def processor_of(self, **changes: Any) -> Qwen2VLImageProcessorPil | PaddleOCRVLImageProcessorPil:
        """Return transformers' image processor."""
        names = "processor_class", "image_processor_type"
        kept = {name: each for name, each in self.settings.items() if name not in names}
        return self.processor(**kept | changes)


_SETTINGS = {
    "patch_size": PATCH,
    "merge_size": FACTOR,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
_QWEN = Form(
    {
        **_SETTINGS,
        "size": {"longest_edge": MOST, "shortest_edge": LEAST},
        "temporal_patch_size": 2,
        "processor_class": "Qwen3VLProcessor",
        "image_processor_type": "Qwen2VLImageProcessorFast",
    },
    Qwen2VLImageProcessorPil,
    ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>"),
    """{%- for message in messages -%}
{{ message.role + ":" }}
{%- if message.content is string -%}{{ message.content }}
{%- else -%}{%- for part in message.content -%}
{%- if part.type == "image" or "image" in part -%}<|vision_start|><|image_pad|><|vision_end|>
{%- elif "text" in part -%}{{ part.text }}{%- endif -%}
{%- endfor -%}{%- endif -%}{{ "\n" }}
{%- endfor -%}
{%- if add_generation_prompt -%}assistant:{%- endif -%}""",
)
_PADDLEOCR = Form(
    {
        **_SETTINGS,
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "max_pixels": MOST,
        "min_pixels": LEAST,
        "resample": 3,
        "rescale_factor": 0.00392156862745098,
        "temporal_patch_size": 1,
        "processor_class": "PaddleOCRVLProcessor",
        "image_processor_type": "PaddleOCRVLImageProcessor",
    },
    PaddleOCRVLImageProcessorPil,
    ("<|IMAGE_START|>", "<|IMAGE_END|>", "<|IMAGE_PLACEHOLDER|>"),
    # The published one writes the images of a turn before its texts, and knows contents as lists alone.
    """{%- for message in messages -%}
{%- if message["role"] == "user" -%}{{- "User: " -}}
{%- for content in message["content"] -%}
{%- if content["type"] == "image" -%}{{ "<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>" }}{%- endif -%}
{%- endfor -%}
{%- for content in message["content"] -%}
{%- if content["type"] == "text" -%}{{ content["text"] }}{%- endif -%}
{%- endfor -%}{{ "\n" -}}
{%- elif message["role"] == "assistant" -%}{{- "Assistant:\n" -}}
{%- for content in message["content"] -%}
{%- if content["type"] == "text" -%}{{ content["text"] }}{%- endif -%}
{%- endfor -%}{{ "</s>" -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "Assistant:\n" -}}{%- endif -%}""",
)
_FORMS = {"paddleocr_vl": _PADDLEOCR}
CONFIGS = (hf.PaddleOCRVLConfig,)  # of models that need the settings of their image processors


def form_of(config: hf.PreTrainedConfig) -> Form:
    """Return the form of models with this configuration."""
    return _FORMS.get(config.model_type, _QWEN)


def _model(
    kind: type[hf.PreTrainedConfig], text: dict[str, Any], vision: dict[str, Any], **more: Any
) -> hf.PreTrainedConfig:
    return kind(text_config=text, vision_config=vision, image_token_id=IMAGE_TOKEN, **_TOKENS, **more)


_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
_HYBRID = {
    "head_dim": 64,
    "num_hidden_layers": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
# Heads that no number of ranks divides, widths that are no multiple of a tile.
CASES: dict[str, Callable[[], hf.PreTrainedConfig]] = {
    "qwen3_vl_moe": lambda: _model(
        hf.Qwen3VLMoeConfig,
        _text([6, 5, 5], head_dim=32, tie_word_embeddings=False, **_EXPERTS),
        _vision(96, 3, 96, depth=3, deepstack_visual_indexes=[1]),
    ),
    "qwen3_5": lambda: _model(hf.Qwen3_5Config, _text([3, 3, 2], **_HYBRID), _vision(96, 3, 96, depth=2)),
    "qwen3_vl": lambda: _model(
        hf.Qwen3VLConfig,
        _text([6, 5, 5], head_dim=32, num_hidden_layers=3),
        _vision(120, 5, 96, depth=4, deepstack_visual_indexes=[0, 2]),
    ),
    "qwen3_5_moe": lambda: _model(
        hf.Qwen3_5MoeConfig,
        _text([3, 3, 2], shared_expert_intermediate_size=56, **_HYBRID, **_EXPERTS),
        _vision(96, 3, 96, depth=2),
    ),
    "paddleocr_vl": lambda: _model(
        hf.PaddleOCRVLConfig,
        checkpoints.sizes(
            96,
            3,
            1,
            160,
            head_dim=32,
            tie_word_embeddings=False,
            rope_parameters={"rope_type": "default", "rope_theta": 5e5, "mrope_section": [4, 5, 7]},
        ),
        {
            "hidden_size": 120,
            "num_attention_heads": 5,
            "num_hidden_layers": 3,
            "intermediate_size": 136,
            "patch_size": PATCH,
            "image_size": 7 * PATCH + 1,
            "layer_norm_eps": 2.0**-20,  # which fp32 holds too
        },
        tie_word_embeddings=False,
    ),
}


def save(model: hf.PreTrainedModel, folder: Path) -> Path:
    """Save a model with the settings of its image processor."""
    checkpoints.save(model, folder)
    if model.config.model_type == "qwen3_vl_moe":
        _turn_experts(folder / "model.safetensors")
    if model.config.model_type == "paddleocr_vl":
        _publish_paddleocr(folder)
    save_processor(model.config, folder)
    return folder


def save_processor(config: hf.PreTrainedConfig, folder: Path) -> None:
    """Write the settings of the image processor of a model."""
    (folder / "preprocessor_config.json").write_text(json.dumps(form_of(config).settings))


def _publish_paddleocr(folder: Path) -> None:
    """Put the fields of the text at the top of config.json, and add tensors that no class of transformers has."""
    path = folder / "config.json"
    values = json.loads(path.read_text())
    text = values.pop("text_config")
    rope = text.pop("rope_parameters")
    values |= {**text, "model_type": "paddleocr_vl", "rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}
    values["vision_config"] |= {
        "architectures": ["PaddleOCRVisionModel"],
        "model_type": "paddleocr_vl",
        "temporal_patch_size": 2,
    }
    path.write_text(json.dumps(values | {"tie_word_embeddings": False}))
    file, more = folder / "model.safetensors", ("head.probe", "embeddings.packing_position_embedding.weight")
    tensors = load_file(file) | {f"visual.vision_model.{name}": torch.zeros(1, 8) for name in more}
    save_file(tensors, file, {"format": "pt"})


def _turn_experts(file: Path) -> None:
    """Put the input columns of experts first, as published checkpoints have them."""
    tensors = load_file(file)
    turned = {name: each.transpose(1, 2).contiguous() if "experts" in name else each for name, each in tensors.items()}
    save_file(turned, file, {"format": "pt"})


def save_served(model: hf.PreTrainedModel, folder: Path) -> Path:
    """Save a model with a tokenizer, and with a chat template that writes images as published ones do."""
    save(model, folder)
    form = form_of(model.config)
    save_image_tokenizer(folder, form.special, IMAGE_TOKEN, form.template)
    return folder


def random_images(shapes: Sequence[Shape], seed: int = 0) -> list[Pixels]:
    """Return images, uint8 [height, width, 3], with these numbers of features: noise over a slope."""
    rng = np.random.default_rng(seed)

    def image(rows: int, cols: int) -> Pixels:
        height, width = rows * SQUARE, cols * SQUARE
        slope = np.linspace(0, 1, height)[:, None, None] * rng.uniform(0, 200, (1, width, 3))
        return (slope + rng.uniform(0, 55, (height, width, 3))).astype(np.uint8)

    return [image(*shape) for shape in shapes]


def in_squares(rows: int, cols: int, factor: int) -> torch.Tensor:
    """Return the number of each patch by rows, in the order of `rows` x `cols` squares."""
    numbers = torch.arange(rows * cols * factor**2).view(rows, factor, cols, factor)
    return numbers.transpose(1, 2).reshape(-1)


def in_store(images: Sequence[Pixels]) -> Pixels:
    """Return the pixels of images as the image store has them, uint8 [images, the most bytes of an image]."""
    found = np.zeros((len(images), MOST * 3), np.uint8)
    for row, image in zip(found, images, strict=True):
        row[: image.size] = image.reshape(-1)
    return found


def inputs_of(form: Form, images: Sequence[Pixels], tokens: torch.Tensor) -> Mapping[str, torch.Tensor]:
    """Return what transformers' image processor makes of images that need no resizing, and where they are in
    `tokens`."""
    made = form.processor_of(do_resize=False)([*images], return_tensors="pt")
    return {**made, "mm_token_type_ids": (tokens == IMAGE_TOKEN).int()[None]}
