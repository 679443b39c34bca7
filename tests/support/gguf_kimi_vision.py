"""Kimi K2.5 as two GGUF files, a text model and a tower, as llama.cpp's converter writes them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import transformers as hf

from tests.support import checkpoints, kimi_vision
from tests.support.gguf_files import Array, add, begin, finish
from tests.support.grid_vision import IMAGE_TOKEN

_NAMES = (
    ("patch_embed.pos_emb.position_embeddings", "patch_embed.pos_emb.weight"),
    ("attn.qkv.", "wqkv."),
    ("attn.proj.", "wo."),
    ("norm1.", "norm0."),
    ("norm2.", "norm1."),
    ("mlp.fc1.", "mlp.fc0."),
    ("mlp.fc2.", "mlp.fc1."),
    ("mm_projector.in_proj.", "mm_projector.proj.linear_1."),
    ("mm_projector.out_proj.", "mm_projector.proj.linear_2."),
)


def save(model: hf.PreTrainedModel, folder: Path, **changes: Any) -> Path:
    """Write both files into `folder`, with `changes` of the tower's metadata, and return that of the text model."""
    save_tower(model, folder / "mmproj-model.gguf", **changes)
    return save_text(model, folder / "model.gguf")


def save_text(model: hf.PreTrainedModel, path: Path) -> Path:
    """Write the text model, with a vocabulary that has the placeholder of images."""
    text = checkpoints.build(model.config.text_config)
    state = {f"model.{name}": value for name, value in model.model.language_model.state_dict().items()}
    text.load_state_dict(state | {"lm_head.weight": model.lm_head.weight})
    tokens = [f"token{index}" for index in range(checkpoints.VOCAB)]
    tokens[IMAGE_TOKEN] = kimi_vision.PLACEHOLDER
    return checkpoints.save_gguf(text, path, "BF16", changes={"tokenizer.ggml.tokens": tokens})


def save_tower(model: hf.PreTrainedModel, path: Path, kind: str = "BF16", **changes: Any) -> Path:
    """Write the tower, with `changes` of its metadata."""
    config, patch = model.config.vision_config, kimi_vision.PATCH
    values = {
        "clip.has_vision_encoder": True,
        "clip.projector_type": "kimik25",
        "clip.vision.projection_dim": model.config.text_config.hidden_size,
        "clip.vision.image_size": config.pos_emb_height * patch,
        "clip.vision.patch_size": patch,
        "clip.vision.embedding_length": config.hidden_size,
        "clip.vision.feed_forward_length": config.intermediate_size,
        "clip.vision.block_count": config.num_hidden_layers,
        "clip.vision.attention.head_count": config.num_attention_heads,
        "clip.vision.attention.layer_norm_epsilon": 1e-5,
        "clip.vision.projector.scale_factor": kimi_vision.FACTOR,
        "clip.vision.image_mean": [0.5, 0.5, 0.5],
        "clip.vision.image_std": [0.5, 0.5, 0.5],
        "clip.vision.image_min_pixels": 8 * patch**2,
        "clip.vision.image_max_pixels": kimi_vision.PATCHES * patch**2,
        "clip.use_gelu": True,
    } | {key.replace("__", "."): value for key, value in changes.items()}
    writer = begin(path, "clip", values)
    for name, array in tensors(model):
        add(writer, name, array, "F32" if array.ndim == 1 else kind)
    finish(writer)
    return path


def tensors(model: hf.PreTrainedModel) -> Iterator[tuple[str, Array]]:
    """Yield the tensors of the tower by their names in a file.

    transformers has rotated dimensions in halves, with the coordinates alternating within each; a file has them in
    pairs, those of the column before those of the row.
    """
    config = model.config.vision_config
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, max(3, config.num_hidden_layers))
    state = model.state_dict()
    for name, value in state.items():
        if "vision_tower" not in name and "mm_projector" not in name:
            continue
        if ".attn.k_proj." in name or ".attn.v_proj." in name:
            continue
        array: Array = np.asarray(value.detach().numpy())
        if ".attn.q_proj." in name:
            parts = [state[name.replace("q_proj", f"{each}_proj")].detach().numpy() for each in "qkv"]
            array = np.concatenate([*(_in_pairs(each, config.num_attention_heads) for each in parts[:2]), parts[2]])
            name = name.replace("q_proj", "qkv")  # noqa: PLW2901
        yield names.get_name(_published(name), try_suffixes=(".weight", ".bias")), array


def _in_pairs(array: Array, heads: int) -> Array:
    halves = array.reshape(heads, 2, -1, 2, *array.shape[1:])  # heads, halves, frequencies, coordinates
    return np.ascontiguousarray(np.moveaxis(halves, (3, 2, 1), (1, 2, 3))).reshape(array.shape)


def _published(name: str) -> str:
    name = name.removeprefix("model.").replace("vision_tower.layers.", "vision_tower.encoder.blocks.")
    name = name.replace("vision_tower.final_layernorm", "vision_tower.encoder.final_layernorm")
    for ours, theirs in _NAMES:
        if ours in name:
            return name.replace(ours, theirs)
    return name
