"""Gemma 3 and 4 as two GGUF files, a text model and a tower, as llama.cpp's converter writes them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import transformers as hf

from tests.support import checkpoints, gemma4_vision, gemma_vision
from tests.support.gguf_files import Array, add, begin, finish

_EMBEDDER = {
    "model.embed_vision.patch_ln1.": "v.patch_norm.1",
    "model.embed_vision.patch_dense.": "v.patch_embd",
    "model.embed_vision.patch_ln2.": "v.patch_norm.2",
    "model.embed_vision.pos_embedding": "v.position_embd.weight",
    "model.embed_vision.pos_norm.": "v.patch_norm.3",
    "model.embed_vision.multimodal_embedder.": "mm.input_projection",
    "model.embed_audio.": "mm.a.input_projection",
}
_NO_BLOCKS = {f"clip.vision.{key}": 0 for key in ("feed_forward_length", "block_count", "attention.head_count")}
_SUFFIXES = (".weight", ".bias", ".input_max", ".input_min", ".output_max", ".output_min")


def is_gemma4(model: hf.PreTrainedModel) -> bool:
    return str(model.config.model_type).startswith("gemma4")


def save(model: hf.PreTrainedModel, folder: Path, **changes: Any) -> Path:
    """Write both files into `folder`, with `changes` of the tower's metadata, and return that of the text model."""
    save_tower(model, folder / "mmproj-model.gguf", **changes)
    return save_text(model, folder / "model.gguf")


def save_text(model: hf.PreTrainedModel, path: Path) -> Path:
    """Write the text model, with a vocabulary that has the special tokens of images."""
    config = model.config.text_config
    if gemma4_vision.is_unified(model.config):  # files do not distinguish them
        fields = config.to_dict() | {"model_type": "gemma4_text", "hidden_size_per_layer_input": 0}
        config = hf.Gemma4TextConfig(**fields)
    text = checkpoints.build(config)
    state = {f"model.{name}": value for name, value in model.model.language_model.state_dict().items()}
    text.load_state_dict(state | {"lm_head.weight": model.lm_head.weight})
    tokens = [f"token{index}" for index in range(checkpoints.VOCAB)]
    module = gemma4_vision if is_gemma4(model) else gemma_vision
    tokens[gemma_vision.BEGIN], tokens[gemma_vision.END] = module.BEGINS, module.ENDS
    tokens[gemma_vision.IMAGE_TOKEN] = module.PLACEHOLDER
    changes: dict[str, Any] = {"tokenizer.ggml.tokens": tokens}
    if is_gemma4(model):
        changes["tokenizer.ggml.padding_token_id"] = model.config.text_config.pad_token_id
    else:
        kinds = model.config.text_config.layer_types
        changes["attention.sliding_window_pattern"] = [kind == "sliding_attention" for kind in kinds]
    return checkpoints.save_gguf(text, path, "BF16", changes=changes)


def save_tower(model: hf.PreTrainedModel, path: Path, kind: str = "BF16", **changes: Any) -> Path:
    """Write the tower, with `changes` of its metadata."""
    config = model.config.vision_config
    own = _of_gemma4(model) if is_gemma4(model) else _of_gemma3(model)
    values = {
        "clip.has_vision_encoder": True,
        "clip.vision.projection_dim": model.config.text_config.hidden_size,
        "clip.vision.patch_size": config.patch_size,
        **(_NO_BLOCKS if gemma4_vision.is_unified(model.config) else _of_blocks(config)),
        **own,
    } | {key.replace("__", "."): value for key, value in changes.items()}
    writer = begin(path, "clip", values)
    for name, array in tensors(model):
        add(writer, name, array, "F32" if array.ndim == 1 or "position_embd" in name else kind)
    finish(writer)
    return path


def _of_gemma3(model: hf.PreTrainedModel) -> dict[str, Any]:
    config, settings = model.config.vision_config, gemma_vision.processor_settings(0)
    side = config.image_size // config.patch_size
    return {
        "clip.projector_type": "gemma3",
        "clip.vision.image_size": config.image_size,
        "clip.vision.attention.layer_norm_epsilon": config.layer_norm_eps,
        "clip.vision.projector.scale_factor": int(side // model.config.mm_tokens_per_image**0.5),
        "clip.vision.image_mean": settings["image_mean"],
        "clip.vision.image_std": settings["image_std"],
        "clip.use_gelu": True,
    }


def _of_blocks(config: hf.PreTrainedConfig) -> dict[str, Any]:
    return {
        "clip.vision.embedding_length": config.hidden_size,
        "clip.vision.feed_forward_length": config.intermediate_size,
        "clip.vision.block_count": config.num_hidden_layers,
        "clip.vision.attention.head_count": config.num_attention_heads,
    }


def _of_gemma4(model: hf.PreTrainedModel) -> dict[str, Any]:
    config, unified = model.config.vision_config, gemma4_vision.is_unified(model.config)
    factor = gemma4_vision.factor_of(model.config)
    of_unified = {"clip.has_audio_encoder": True, "clip.audio.projector_type": "gemma4ua"}
    of_unified["clip.vision.embedding_length"] = getattr(config, "mm_embed_dim", None)
    return {
        **(of_unified if unified else {}),
        "clip.vision.projector_type": "gemma4uv" if unified else "gemma4v",
        "clip.vision.image_size": 224,
        "clip.vision.attention.layer_norm_epsilon": 1e-6,
        # The converter does not state 3.
        **({} if factor == 3 else {"clip.vision.projector.scale_factor": factor}),
        "clip.vision.image_mean": [0.0, 0.0, 0.0],
        "clip.vision.image_std": [1.0, 1.0, 1.0],
    }


def tensors(model: hf.PreTrainedModel) -> Iterator[tuple[str, Array]]:
    """Yield the tensors of the tower by their names in a file."""
    if gemma4_vision.is_unified(model.config):
        yield from _unified(model)
        return
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, model.config.vision_config.num_hidden_layers)
    for name, value in model.state_dict().items():
        array = np.asarray(value.detach().numpy())
        if "language_model" in name or name.startswith("lm_head"):
            continue
        if name.endswith(("embedding_projection.weight", "mm_input_projection_weight")):
            yield "mm.input_projection.weight", array
        elif name.endswith("mm_soft_emb_norm.weight"):
            yield "mm.soft_emb_norm.weight", array + 1
        elif is_gemma4(model):
            yield from _pooled(names, name, array)
        else:
            published = name.replace("model.vision_tower.", "vision_tower.vision_model.")
            yield names.get_name(published, try_suffixes=_SUFFIXES), array


def _pooled(names: gguf.TensorNameMap, name: str, array: Array) -> Iterator[tuple[str, Array]]:
    if name.endswith("patch_embedder.input_proj.weight"):
        side = int((array.shape[1] // 3) ** 0.5)
        array = np.ascontiguousarray(array.reshape(-1, side, side, 3).transpose(0, 3, 1, 2))
    published = name.replace("model.vision_tower.encoder.", "vision_model.model.").replace(".linear.weight", ".weight")
    if name.endswith("position_embedding_table"):
        published += ".weight"
    found = names.get_name(published, try_suffixes=_SUFFIXES)
    assert found is not None, published
    yield found, array.reshape(1) if array.ndim == 0 else array


def _unified(model: hf.PreTrainedModel) -> Iterator[tuple[str, Array]]:
    """The tensors of an embedder of images, which the installed gguf does not know yet: the channels of a pixel are
    apart, and so are the tables of columns and of rows."""
    for name, value in model.state_dict().items():
        array: Array = np.asarray(value.detach().numpy())
        found = next((found for begin, found in _EMBEDDER.items() if name.startswith(begin)), None)
        if found is None:
            continue
        if "patch_ln1" in name or "patch_dense.weight" in name:
            pixels = array.reshape(*array.shape[:-1], -1, 3)
            array = np.ascontiguousarray(pixels.swapaxes(-1, -2)).reshape(array.shape)
        if "pos_embedding" in name:
            yield found, np.ascontiguousarray(array.swapaxes(0, 1))
        else:
            yield f"{found}.{name.rpartition('.')[2]}", array
