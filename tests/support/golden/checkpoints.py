"""Tiny checkpoints of every family, from numpy alone: no library's random generator or defaults show in their bytes.

The sizes are odd on purpose: heads that no number of ranks divides, widths that are no multiple of a tile.
"""

import json
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

VOCAB = 499
Floats = npt.NDArray[np.float32]
Config = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Model:
    """config.json, and the tensors by name, whose values bf16 holds."""

    config: Config
    tensors: dict[str, Floats]


def random_values(name: str, shape: tuple[int, ...], scale: float, shift: float = 0.0) -> Floats:
    """Values of bf16 around `shift`. They follow from the name, and from integers that numpy promises not to change."""
    integers = np.random.RandomState(zlib.crc32(name.encode())).randint(-(2**15), 2**15, shape)
    values = integers.astype(np.float32) * np.float32(scale / 2**15) + np.float32(shift)
    return (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def make_model(config: Config, shapes: Shapes) -> Model:
    """A model whose predictions are neither flat nor certain."""
    gemma = config["model_type"].startswith("gemma")
    tensors = {}
    for name, shape in shapes.items():
        if name.endswith("norm.weight"):
            tensors[name] = random_values(name, shape, 0.35, 0.0 if gemma else 1.0)
        elif len(shape) == 1 or name.endswith("_bias"):
            tensors[name] = random_values(name, shape, 1.7 if name.endswith("sinks") else 0.35)
        elif "embed_tokens" in name:
            # More, and a tied head would predict the token it was given. Gemma multiplies by sqrt(hidden size).
            tensors[name] = random_values(name, shape, 0.05 if gemma else 0.14)
        else:
            width = shape[1] if name.endswith(("gate_up_proj", "down_proj")) else shape[-1]
            tensors[name] = random_values(name, shape, 2.6 / math.sqrt(width))
    return Model(config, tensors)


def base_config(
    kind: str, architecture: str, hidden: int, heads: int, kv_heads: int, inner: int, **more: Any
) -> Config:
    """Fields that all families have, and `more`."""
    return {
        "architectures": [architecture],
        "model_type": kind,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
        "num_hidden_layers": 2,
        "head_dim": hidden // heads,
        "vocab_size": VOCAB,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **more,
    }


def attention_shapes(c: Config, *, bias: bool = False, qk_norm: bool = False) -> Shapes:
    """Within a layer. `attention_bias` of the configuration is of the result too."""
    hidden, width = c["hidden_size"], c["head_dim"]
    rows = {"q": c["num_attention_heads"] * width, "k": c["num_key_value_heads"] * width}
    rows["v"] = rows["k"]
    shapes: Shapes = {f"self_attn.{each}_proj.weight": (count, hidden) for each, count in rows.items()}
    shapes["self_attn.o_proj.weight"] = (hidden, rows["q"])
    if bias:
        shapes |= {f"self_attn.{each}_proj.bias": (count,) for each, count in rows.items()}
    if c.get("attention_bias"):
        shapes["self_attn.o_proj.bias"] = (hidden,)
    if qk_norm:
        shapes |= {f"self_attn.{each}_norm.weight": (width,) for each in "qk"}
    return shapes


def mlp_shapes(hidden: int, inner: int, at: str = "mlp", names: tuple[str, str, str] | None = None) -> Shapes:
    """A gated MLP's."""
    gate, up, down = names or ("gate_proj", "up_proj", "down_proj")
    both: Shapes = {f"{at}.{name}.weight": (inner, hidden) for name in (gate, up)}
    return both | {f"{at}.{down}.weight": (hidden, inner)}


def norm_shapes(hidden: int, *names: str) -> Shapes:
    """Of the two norms that every layer has, and others."""
    return {f"{name}.weight": (hidden,) for name in ("input_layernorm", "post_attention_layernorm", *names)}


def model_shapes(c: Config, *layers: Shapes) -> Shapes:
    """Of a whole model; the last of the layers repeats."""
    shapes: Shapes = {"model.embed_tokens.weight": (VOCAB, c["hidden_size"])}
    for index in range(c["num_hidden_layers"]):
        layer = layers[min(index, len(layers) - 1)]
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = (c["hidden_size"],)
    return shapes if c["tie_word_embeddings"] else shapes | {"lm_head.weight": (VOCAB, c["hidden_size"])}


def save_model(model: Model, folder: Path) -> Path:
    """As a folder, in bf16."""
    arrays = {name: (values.view(np.uint32) >> 16).astype(np.uint16) for name, values in model.tensors.items()}
    return write_folder(folder, model.config, {name: ("BF16", array) for name, array in arrays.items()})


def write_folder(folder: Path, config: Config, tensors: dict[str, tuple[str, npt.NDArray[Any]]]) -> Path:
    """config.json, and a safetensors file of tensors by name: their type there, and an array of their bytes."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    header: dict[str, object] = {}
    end = 0
    for name, (dtype, array) in tensors.items():
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())
    return folder
