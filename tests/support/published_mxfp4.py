"""Writes gpt-oss as it is published, with experts in MXFP4."""

from pathlib import Path

import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from tests.support import checkpoints
from tests.support.published_checkpoints import edit_config
from tests.support.published_writers import Tensors, mxfp4

CONFIG = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}


def small_gpt_oss(**more: object) -> hf.PreTrainedModel:
    """A random gpt-oss whose widths are multiples of the groups, but not of what ranks get evenly."""
    sizes = checkpoints.sizes(96, 6, 3, 160, head_dim=32, num_local_experts=5, num_experts_per_tok=2)
    options = {"sliding_window": 16, "swiglu_limit": 1.5} | more
    return checkpoints.build(hf.GptOssConfig(**sizes | options))


def save_mxfp4(model: hf.PreTrainedModel, folder: Path) -> Path:
    """Save a gpt-oss with its experts in MXFP4. The model is given the weights that this stands for: it stays the
    reference."""
    checkpoints.save(model, folder)
    tensors: Tensors = load_file(folder / "model.safetensors")
    for name, module in model.named_modules():
        if not name.endswith(".experts"):
            continue
        for part in ("gate_up_proj", "down_proj"):
            weights = getattr(module, part).data
            written = [mxfp4(each.T.numpy()) for each in weights]
            del tensors[f"{name}.{part}"]
            for suffix in ("blocks", "scales"):
                tensors[f"{name}.{part}_{suffix}"] = torch.stack([each.tensors[suffix] for each in written])
            weights.copy_(torch.stack([torch.from_numpy(each.values.T) for each in written]))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    edit_config(folder, quantization_config=CONFIG)
    return folder
