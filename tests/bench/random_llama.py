"""A checkpoint of Llama-3.2-1B's shape with random weights: large enough to measure, made in seconds, no download."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 2048, 16, 32, 8, 64, 8192
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "intermediate_size": INTERMEDIATE,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}


def write_random_llama(folder: Path, vocab: int) -> Path:
    """Write the folder; returns it. About 2.1 GB with a vocabulary of 49152."""
    (folder / "config.json").write_text(json.dumps(CONFIG | {"vocab_size": vocab}))
    layer = {
        "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
        "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj": (HIDDEN, INTERMEDIATE),
        "input_layernorm": (HIDDEN,),
        "post_attention_layernorm": (HIDDEN,),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (vocab, HIDDEN), "model.norm": (HIDDEN,)}
    shapes |= {f"model.layers.{index}.{name}": shape for index in range(LAYERS) for name, shape in layer.items()}
    # Tensors of one shape share their values, and so their memory: what is computed with them does not matter.
    _write_safetensors(
        folder / "model.safetensors", shapes, {shape: _random_bf16(shape) for shape in set(shapes.values())}
    )
    return folder


def _write_safetensors(path: Path, shapes: dict[str, tuple[int, ...]], values: dict[tuple[int, ...], bytes]) -> None:
    """The format's own few lines: the library's writers want every tensor in memory of its own."""
    header, offset = {}, 0
    for name, shape in shapes.items():
        end = offset + len(values[shape])
        header[f"{name}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes.values():
            file.write(values[shape])


def _random_bf16(shape: tuple[int, ...]) -> bytes:
    """Small normal numbers; ones for a norm."""
    if len(shape) == 1:
        return np.full(shape, 0x3F80, np.uint16).tobytes()
    numbers = np.random.default_rng(0).standard_normal(shape, np.float32)
    numbers *= shape[1] ** -0.5
    return (numbers.view(np.uint32) >> 16).astype(np.uint16).tobytes()
