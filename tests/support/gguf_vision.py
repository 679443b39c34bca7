"""Models that see as two GGUF files, a text model and a tower, as llama.cpp's converter writes them."""

from pathlib import Path
from typing import Any

import gguf
import transformers as hf

from tests.support import checkpoints, vision
from tests.support.gguf_files import add, begin, finish

_SWAPPED = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}


def save_text(model: hf.PreTrainedModel, path: Path, kind: str = "BF16") -> Path:
    """Write the text model, with a vocabulary that has the placeholder of images."""
    text = checkpoints.build(model.config.text_config)
    state = {f"model.{name}": value for name, value in model.model.text_model.state_dict().items()}
    text.load_state_dict(state | {"lm_head.weight": model.lm_head.weight})
    tokens = [f"token{index}" for index in range(checkpoints.VOCAB)]
    tokens[vision.IMAGE_TOKEN] = "<image>"
    return checkpoints.save_gguf(text, path, kind, changes={"tokenizer.ggml.tokens": tokens})


def save_tower(
    model: hf.PreTrainedModel, path: Path, kind: str = "F16", *, swapped: bool = False, **changes: Any
) -> Path:
    """Write the tower, with `changes` of its metadata. Older files have both matrices of an MLP `swapped`."""
    config = model.config.vision_config
    settings = vision.processor_settings(config.image_size)
    values = {
        "clip.has_vision_encoder": True,
        "clip.projector_type": "idefics3",
        "clip.vision.projection_dim": model.config.text_config.hidden_size,
        "clip.vision.image_size": config.image_size,
        "clip.vision.patch_size": config.patch_size,
        "clip.vision.embedding_length": config.hidden_size,
        "clip.vision.feed_forward_length": config.intermediate_size,
        "clip.vision.block_count": config.num_hidden_layers,
        "clip.vision.attention.head_count": config.num_attention_heads,
        "clip.vision.attention.layer_norm_epsilon": config.layer_norm_eps,
        "clip.vision.projector.scale_factor": model.config.scale_factor,
        "clip.vision.image_mean": settings["image_mean"],
        "clip.vision.image_std": settings["image_std"],
        "clip.vision.preproc_image_size": settings["size"]["longest_edge"],
        "clip.use_gelu": True,
    } | {key.replace("__", "."): value for key, value in changes.items()}
    writer = begin(path, "clip", values)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, config.num_hidden_layers)
    for name, parameter in model.named_parameters():
        if "text_model" in name or name.startswith("lm_head"):
            continue
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        for old, new in _SWAPPED.items() if swapped else ():
            if f".{old}." in found:
                found = found.replace(old, new)
                break
        array = parameter.detach().numpy()
        # As forced by the converter: embeddings are in fp32.
        add(writer, found, array, "F32" if array.ndim == 1 or ".embeddings." in name else kind)
    finish(writer)
    return path
