"""Tiny checkpoints in every layout that quantised ones are published in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import checkpoints
import torch
import transformers as hf
from published import LAYOUTS, rounded_anew
from safetensors.torch import load_file, save_file

# 9 heads of 64 on 2 or 3 ranks begin where no group of 128 does; the MLP is divided at whole groups.
SIZES = checkpoints.sizes(576, 9, 3, 640, tie_word_embeddings=False)


def small_llama() -> hf.PreTrainedModel:
    """A random Llama whose widths are multiples of the groups."""
    config = hf.LlamaConfig(**SIZES)
    model = hf.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    return checkpoints.randomise(model.eval())


def save_published(
    model: hf.PreTrainedModel, folder: Path, layout: str, *, skip: Callable[[str], bool] = lambda _: False
) -> Path:
    """Save `model` in one of `LAYOUTS`, but for modules to `skip`, which the configuration does not name. The model is
    given the weights that are kept of the checkpoint: it stays the reference."""
    published = LAYOUTS[layout]
    checkpoints.save(model, folder)
    tensors = load_file(folder / "model.safetensors")
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear) or name == "lm_head" or skip(name):
            continue
        written = published.write(module.weight.detach().numpy())
        del tensors[f"{name}.weight"]
        tensors |= {f"{name}.{suffix}": tensor for suffix, tensor in written.tensors.items()}
        module.weight.data = torch.from_numpy(written.values if published.exact else rounded_anew(written.values))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    edit_config(folder, quantization_config=published.config)
    return folder


def edit_config(folder: Path, **changes: object) -> None:
    """Change fields of config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
