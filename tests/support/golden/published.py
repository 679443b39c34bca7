"""Checkpoints in the layouts that quantized ones are published in, whose matrices `tests.support.published` writes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from tests.support.golden.checkpoints import Model, write_folder
from tests.support.golden.families import deepseek, gpt_oss, llama, qwen2_moe
from tests.support.published import LAYOUTS

_DTYPES = {
    torch.int32: "I32",
    torch.int64: "I64",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.float16: "F16",
    torch.float32: "F32",
    torch.float8_e4m3fn: "F8_E4M3",
}
E = tuple[str, np.ndarray]
_KEPT = ("model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head")
_MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": _KEPT}
_MATRICES = ("_proj.weight", "_proj_with_mqa.weight")


def _stored(tensor: torch.Tensor) -> E:
    raw = tensor.view(torch.uint8) if tensor.dtype is torch.float8_e4m3fn else tensor
    return _DTYPES[tensor.dtype], np.ascontiguousarray(raw.numpy())


def _plain(values: np.ndarray) -> E:
    return "BF16", (np.ascontiguousarray(values).view(np.uint32) >> 16).astype(np.uint16)


def save_published(model: Model, layout: str, folder: Path) -> Path:
    """A model whose matrices, but for the embedding, the output and what routes, are in one of `LAYOUTS`."""
    published = LAYOUTS[layout]
    tensors: dict[str, E] = {}
    for name, values in model.tensors.items():
        if not name.endswith(_MATRICES):
            tensors[name] = _plain(values)
            continue
        module = name.removesuffix("weight")
        tensors |= {f"{module}{part}": _stored(each) for part, each in published.write(values).tensors.items()}
    return write_folder(folder, model.config | {"quantization_config": published.config}, tensors)


def save_mxfp4(model: Model, folder: Path) -> Path:
    """A gpt-oss with its experts in MXFP4."""
    tensors: dict[str, E] = {}
    for name, values in model.tensors.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            tensors[name] = _plain(values)
            continue
        experts, columns, rows = values.shape
        # Any byte is two codes. The exponents make weights of the usual size: a code is up to 6.
        random = np.random.RandomState(experts + columns + rows)
        blocks = random.randint(0, 256, (experts, rows, columns // 32, 16)).astype(np.uint8)
        scales = random.randint(121, 124, (experts, rows, columns // 32)).astype(np.uint8)
        tensors |= {f"{name}_blocks": ("U8", blocks), f"{name}_scales": ("U8", scales)}
    return write_folder(folder, model.config | {"quantization_config": _MXFP4}, tensors)


# Heads of 64 on 2 or 3 ranks begin where no group of 128 does.
_MODELS: dict[str, Callable[[], Model]] = {
    "llama": lambda: llama(320, 5, 5, 384),
    "qwen2_moe": lambda: qwen2_moe(256, 128, 384, 6),
    "deepseek_v3": lambda: deepseek(3, 256, 3, 128, 128, 128, nope=128, rope_dim=64, value=128),
}
_OF_OTHERS = {
    "qwen2_moe": ("gptq", "awq", "w4a16 act-order", "w8a8", "fp8 blocks"),
    "deepseek_v3": ("gptq 8 bits", "w4a16 asymmetric", "fp8 blocks"),
}
_PAIRS = [("llama", layout) for layout in LAYOUTS]
_PAIRS += [(name, layout) for name, layouts in _OF_OTHERS.items() for layout in layouts]

PUBLISHED: dict[str, Callable[[Path], Path]] = {
    f"{name}, {layout}": (lambda path, name=name, layout=layout: save_published(_MODELS[name](), layout, path))
    for name, layout in _PAIRS
} | {"gpt_oss, mxfp4": lambda path: save_mxfp4(gpt_oss(160), path)}
