"""Models that see images of any size as two GGUF files, a text model and a tower, as llama.cpp's converter writes
them."""

from collections.abc import Iterator, Mapping
from math import isqrt
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import transformers as hf

from tests.support import checkpoints, grid_vision
from tests.support.gguf_files import Array, add, begin, finish

# The class that is a model's text model without a tower, by the type of the text model.
_TEXTS: dict[str, tuple[type[hf.PreTrainedConfig], str]] = {
    "qwen3_vl_text": (hf.Qwen3Config, "qwen3"),
    "qwen3_vl_moe_text": (hf.Qwen3MoeConfig, "qwen3_moe"),
    "paddleocr_vl_text": (hf.Ernie4_5Config, "ernie4_5"),
}
FIRST, SECOND = "v.patch_embd.weight", "v.patch_embd.weight.1"  # frames of the convolution
_MERGER = {"norm": "v.post_ln", "linear_fc1": "mm.0", "linear_fc2": "mm.2"}
_DEEP = {"norm": "norm", "linear_fc1": "fc1", "linear_fc2": "fc2"}


def save(model: hf.PreTrainedModel, folder: Path, **changes: Any) -> Path:
    """Write both files into `folder`, with `changes` of the tower's metadata, and return that of the text model."""
    save_tower(model, folder / "mmproj-model.gguf", **changes)
    return save_text(model, folder / "model.gguf")


def save_text(model: hf.PreTrainedModel, path: Path) -> Path:
    """Write the text model, with a vocabulary that has the placeholder of images."""
    config = model.config.text_config
    text = checkpoints.build(_text_config(config))
    state = {f"model.{name}": value for name, value in model.model.language_model.state_dict().items()}
    text.load_state_dict(state | {"lm_head.weight": model.lm_head.weight})
    text.config.model_type = config.model_type
    tokens = [f"token{index}" for index in range(checkpoints.VOCAB)]
    tokens[grid_vision.IMAGE_TOKEN] = grid_vision.form_of(model.config).placeholder
    changes = {
        "rope.dimension_sections": [*config.rope_parameters["mrope_section"], 0],
        "tokenizer.ggml.tokens": tokens,
    }
    if hasattr(model.config.vision_config, "deepstack_visual_indexes") and config.model_type in _TEXTS:
        changes["n_deepstack_layers"] = len(model.config.vision_config.deepstack_visual_indexes)
    return checkpoints.save_gguf(text, path, "BF16", changes=changes)


def _text_config(config: hf.PreTrainedConfig) -> hf.PreTrainedConfig:
    if config.model_type not in _TEXTS:
        return config
    made, kind = _TEXTS[config.model_type]
    return made(**config.to_dict() | {"model_type": kind})


def save_tower(
    model: hf.PreTrainedModel,
    path: Path,
    kind: str = "BF16",
    replaced: Mapping[str, Array | None] | None = None,
    **changes: Any,
) -> Path:
    """Write the tower, with `changes` of its metadata. `replaced` are other values of tensors; None leaves one out."""
    config, settings = model.config.vision_config, grid_vision.form_of(model.config).settings
    values = {
        "clip.has_vision_encoder": True,
        "clip.vision.projection_dim": model.config.text_config.hidden_size,
        "clip.vision.patch_size": config.patch_size,
        "clip.vision.embedding_length": config.hidden_size,
        "clip.vision.feed_forward_length": config.intermediate_size,
        "clip.vision.image_mean": settings["image_mean"],
        "clip.vision.image_std": settings["image_std"],
        "clip.vision.image_min_pixels": grid_vision.LEAST,
        "clip.vision.image_max_pixels": grid_vision.MOST,
        "clip.use_gelu": True,
        **(_of_paddleocr(config) if _is_paddleocr(model) else _of_qwen(model)),
    } | {key.replace("__", "."): value for key, value in changes.items()}
    writer = begin(path, "clip", values)
    for name, array in (dict(tensors(model)) | dict(replaced or {})).items():
        if array is not None:
            add(writer, name, array, "F32" if array.ndim == 1 else kind)
    finish(writer)
    return path


def _is_paddleocr(model: hf.PreTrainedModel) -> bool:
    return bool(model.config.model_type == "paddleocr_vl")


def _of_qwen(model: hf.PreTrainedModel) -> dict[str, Any]:
    config = model.config.vision_config
    deep = set(getattr(config, "deepstack_visual_indexes", ()))
    return {
        "clip.projector_type": "qwen3vl_merger",
        "clip.vision.image_size": isqrt(config.num_position_embeddings) * config.patch_size,
        "clip.vision.block_count": config.depth,
        "clip.vision.attention.head_count": config.num_heads,
        "clip.vision.attention.layer_norm_epsilon": model.config.text_config.rms_norm_eps,
        "clip.vision.spatial_merge_size": config.spatial_merge_size,
        "clip.vision.is_deepstack_layers": [block in deep for block in range(config.depth)],
    }


def _of_paddleocr(config: hf.PreTrainedConfig) -> dict[str, Any]:
    """The side of the largest image, and no side of squares."""
    return {
        "clip.projector_type": "paddleocr",
        "clip.vision.image_size": isqrt(grid_vision.MOST),
        "clip.vision.block_count": config.num_hidden_layers,
        "clip.vision.attention.head_count": config.num_attention_heads,
        "clip.vision.attention.layer_norm_epsilon": config.layer_norm_eps,
    }


def tensors(model: hf.PreTrainedModel) -> Iterator[tuple[str, Array]]:
    """Yield the tensors of the tower by their names in a file."""
    config = model.config.vision_config
    if _is_paddleocr(model):
        yield from _tensors_of_paddleocr(model)
        return
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, config.depth)
    for name, parameter in model.model.visual.named_parameters():
        array, parts = parameter.detach().numpy(), name.split(".")
        if parts[0] == "deepstack_merger_list":
            block = config.deepstack_visual_indexes[int(parts[1])]
            yield f"v.deepstack.{block}.{_DEEP[parts[2]]}.{parts[3]}", array
        elif parts[0] == "merger":
            yield f"{_MERGER[parts[1]]}.{parts[2]}", array
        elif array.ndim == 5:
            yield FIRST, array[:, :, 0]
            yield SECOND, array[:, :, 1]
        else:
            yield names.get_name(f"visual.{name}", try_suffixes=(".weight", ".bias")), np.asarray(array)


def _tensors_of_paddleocr(model: hf.PreTrainedModel) -> Iterator[tuple[str, Array]]:
    layers = max(3, model.config.vision_config.num_hidden_layers)  # the projector has numbers up to 2
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, layers)
    for name, parameter in model.model.named_parameters():
        if not name.startswith("language_model."):
            published = name.replace("visual.", "model.").replace("projector.", "mlp_AR.")
            yield names.get_name(published, try_suffixes=(".weight", ".bias")), parameter.detach().numpy()
