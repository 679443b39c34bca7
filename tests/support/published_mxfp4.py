"""Writes gpt-oss as it is published, with experts in MXFP4, from the description of the format: slow, plain, and with
nothing in common with the code that reads it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from tests.support import checkpoints
from tests.support.published import Tensors, Values, Written
from tests.support.published_checkpoints import edit_config

GROUP = 32
MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
CONFIG = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}


def mxfp4(weight: Values) -> Written:
    """A matrix [out features, in features]: `blocks` and `scales`."""
    n, k = weight.shape
    groups = -(-k // GROUP)
    padded = np.pad(weight, ((0, 0), (0, groups * GROUP - k))).reshape(n, groups, GROUP)
    peaks = np.abs(padded).max(axis=2)
    # The largest magnitude of a group comes to lie from 4 to 8, of which up to 6 can be had.
    exponents = np.floor(np.log2(np.where(peaks > 0, peaks, 1))).astype(np.int32) - 2
    scaled = np.ldexp(padded, -exponents[:, :, None])
    nearest = np.abs(np.abs(scaled)[..., None] - MAGNITUDES).argmin(axis=-1)
    codes = (nearest + 8 * (scaled < 0)).astype(np.uint8)
    values = np.ldexp(MAGNITUDES[nearest] * np.where(scaled < 0, np.float32(-1), np.float32(1)), exponents[:, :, None])
    tensors = {
        "blocks": torch.from_numpy(codes[:, :, 0::2] | codes[:, :, 1::2] << 4),
        "scales": torch.from_numpy((exponents + 127).astype(np.uint8)),
    }
    return Written(tensors, values.reshape(n, -1)[:, :k].astype(np.float32))


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
