"""Llama 4 as two GGUF files, a text model and a tower, as llama.cpp's converter writes them."""

from collections.abc import Iterator
from pathlib import Path

import gguf
import transformers as hf

from tests.support import checkpoints, llama4_vision
from tests.support.gguf_files import Array, add, begin, finish


def save(model: hf.PreTrainedModel, folder: Path) -> Path:
    """Write both files into `folder`, and return that of the text model."""
    save_tower(model, folder / "mmproj-model.gguf")
    tokens = [f"token{index}" for index in range(checkpoints.VOCAB)]
    tokens[llama4_vision.IMAGE_TOKEN] = llama4_vision.PLACEHOLDER
    changes = {"tokenizer.ggml.tokens": tokens}
    return checkpoints.save_gguf(model.language_model, folder / "model.gguf", "BF16", changes=changes)


def save_tower(model: hf.PreTrainedModel, path: Path, kind: str = "BF16") -> Path:
    """Write the tower."""
    config, settings = model.config.vision_config, llama4_vision.processor_settings()
    values = {
        "clip.has_vision_encoder": True,
        "clip.projector_type": "llama4",
        "clip.vision.projection_dim": model.config.text_config.hidden_size,
        "clip.vision.image_size": config.image_size,
        "clip.vision.patch_size": config.patch_size,
        "clip.vision.embedding_length": config.hidden_size,
        "clip.vision.feed_forward_length": config.intermediate_size,
        "clip.vision.block_count": config.num_hidden_layers,
        "clip.vision.attention.head_count": config.num_attention_heads,
        "clip.vision.attention.layer_norm_epsilon": config.norm_eps,
        "clip.vision.projector.scale_factor": int(1.0 / config.pixel_shuffle_ratio),
        "clip.vision.image_mean": settings["image_mean"],
        "clip.vision.image_std": settings["image_std"],
        "clip.use_gelu": True,
    }
    writer = begin(path, "clip", values)
    for name, array in tensors(model):
        add(writer, name, array, "F32" if array.ndim == 1 else kind)
    finish(writer)
    return path


def tensors(model: hf.PreTrainedModel) -> Iterator[tuple[str, Array]]:
    """Yield the tensors of the tower by their names in a file."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, model.config.vision_config.num_hidden_layers)
    for name, parameter in model.named_parameters():
        if name.startswith("language_model."):
            continue
        if name == "multi_modal_projector.linear_1.weight":
            found = "mm.model.fc.weight"
        else:
            known = f"{name}.weight" if name.endswith("embedding_vlm") else name
            found = names.get_name(known, try_suffixes=(".weight", ".bias"))
            # The table has a second name since Gemma 4, which llama.cpp does not read for this model.
            found = found.replace("attn_post_norm", "ln2")
        yield found, parameter.detach().numpy()
