"""Models with Pixtral's tower as two GGUF files, a text model and a tower, as llama.cpp's converter writes them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import transformers as hf

from tests.support import checkpoints, grid_vision, pixtral
from tests.support.gguf_files import Array, add, begin, finish


def save(model: hf.PreTrainedModel, folder: Path, **changes: Any) -> Path:
    """Write both files into `folder`, with `changes` of the tower's metadata, and return that of the text model."""
    save_tower(model, folder / "mmproj-model.gguf", **changes)
    return save_text(model, folder / "model.gguf")


def save_text(model: hf.PreTrainedModel, path: Path) -> Path:
    """Write the text model, with a vocabulary that has the placeholder of images."""
    config = model.config.text_config
    if config.model_type == "mistral":  # Llama, without a window
        config = hf.LlamaConfig(**config.to_dict() | {"model_type": "llama"})
    # transformers lists no class for Mistral 4 alone.
    text = hf.Mistral4ForCausalLM(config) if config.model_type == "mistral4" else checkpoints.build(config)
    state = {f"model.{name}": value for name, value in model.model.language_model.state_dict().items()}
    text.load_state_dict(state | {"lm_head.weight": model.lm_head.weight})
    tokens = [f"token{index}" for index in range(checkpoints.VOCAB)]
    tokens[grid_vision.IMAGE_TOKEN] = pixtral.PLACEHOLDER
    return checkpoints.save_gguf(text, path, "BF16", changes={"tokenizer.ggml.tokens": tokens})


def save_tower(model: hf.PreTrainedModel, path: Path, kind: str = "BF16", **changes: Any) -> Path:
    """Write the tower, with `changes` of its metadata."""
    config, settings = model.config.vision_config, pixtral.processor_settings(model.config)
    factor = pixtral.factor_of(model.config)
    values = {
        "clip.has_vision_encoder": True,
        "clip.projector_type": "pixtral",
        "clip.vision.projection_dim": model.config.text_config.hidden_size,
        "clip.vision.image_size": config.image_size,
        "clip.vision.patch_size": config.patch_size,
        "clip.vision.embedding_length": config.hidden_size,
        "clip.vision.feed_forward_length": config.intermediate_size,
        "clip.vision.block_count": config.num_hidden_layers,
        "clip.vision.attention.head_count": config.num_attention_heads,
        "clip.vision.attention.layer_norm_epsilon": 1e-5,
        "clip.vision.image_mean": settings["image_mean"],
        "clip.vision.image_std": settings["image_std"],
        "clip.use_silu": True,
        **({"clip.vision.spatial_merge_size": factor} if factor > 1 else {}),
    } | {key.replace("__", "."): value for key, value in changes.items()}
    writer = begin(path, "clip", values)
    for name, array in tensors(model):
        add(writer, name, array, "F32" if array.ndim == 1 else kind)
    finish(writer)
    return path


def tensors(model: hf.PreTrainedModel) -> Iterator[tuple[str, Array]]:
    """Yield the tensors of the tower by their names in a file. Rotated dimensions lie in pairs there."""
    heads = model.config.vision_config.num_attention_heads
    layers = max(3, model.config.vision_config.num_hidden_layers)  # the projector has numbers up to 2
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, layers)
    for name, parameter in model.model.named_parameters():
        if name.startswith("language_model."):
            continue
        array: Array = parameter.detach().numpy()
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            halves = array.reshape(heads, 2, -1, array.shape[1])
            array = halves.swapaxes(1, 2).reshape(array.shape)
        yield names.get_name(name, try_suffixes=(".weight", ".bias")), array
    embeddings: Array = model.model.language_model.embed_tokens.weight.detach().numpy()
    yield "v.token_embd.img_break", embeddings[pixtral.BREAK_TOKEN]
