"""A model of a billion parameters that says nearly what the demo says: the demo in a larger one, filled up with zeros.

What a draft model gains depends on how often it is right, and models of random weights never agree. Here the demo
itself can be the draft model: it differs by the rounding of its weights and activations. All zeros are read and
multiplied like any weights.
"""

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from numaserve.server.tokenizer import load_tokenizer
from safetensors.torch import save_file

Floats = npt.NDArray[np.float32]

HEAD = 64
HIDDEN, OWN_HIDDEN = 1536, 576
HEADS, KV_HEADS, OWN_HEADS, OWN_KV_HEADS = 24, 8, 9, 3
MLP, OWN_MLP = 6144, 1536
_SHAPES = {  # of HF's names, by those of the file
    "attn_q": ("self_attn.q_proj", HEADS * HEAD, HIDDEN),
    "attn_k": ("self_attn.k_proj", KV_HEADS * HEAD, HIDDEN),
    "attn_v": ("self_attn.v_proj", KV_HEADS * HEAD, HIDDEN),
    "attn_output": ("self_attn.o_proj", HIDDEN, HEADS * HEAD),
    "ffn_gate": ("mlp.gate_proj", MLP, HIDDEN),
    "ffn_up": ("mlp.up_proj", MLP, HIDDEN),
    "ffn_down": ("mlp.down_proj", HIDDEN, MLP),
}
_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}


def save_larger(demo: Path, folder: Path) -> Path:
    """Write the larger model of the `demo`, a SmolLM2 GGUF, as a Hugging Face folder in bf16."""
    reader = GGUFReader(str(demo))
    tensors = {each.name: dequantize(each.data, each.tensor_type) for each in reader.tensors}
    layers = 1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("blk."))
    made = {
        "model.embed_tokens.weight": _padded(tensors["token_embd.weight"], len(tensors["token_embd.weight"]), HIDDEN)
    }
    made["model.norm.weight"] = _norm(tensors["output_norm.weight"])
    for layer in range(layers):
        of, to = f"blk.{layer}.", f"model.layers.{layer}."
        for name, (hf, rows, columns) in _SHAPES.items():
            own = tensors[f"{of}{name}.weight"]
            if name in ("attn_q", "attn_k"):
                own = _halves(own)
            made[f"{to}{hf}.weight"] = _padded(own, rows, columns)
        for name, hf in _NORMS.items():
            made[f"{to}{hf}.weight"] = _norm(tensors[f"{of}{name}.weight"])
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: torch.from_numpy(each).to(torch.bfloat16) for name, each in made.items()}, folder / "model.safetensors"
    )
    _save_configuration(folder, demo, layers)
    return folder


def _save_configuration(folder: Path, demo: Path, layers: int) -> None:
    tokenizer = load_tokenizer(demo)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "vocab_size": tokenizer.vocab_size,
        "max_position_embeddings": 8192,
        "rope_theta": 100000.0,
        "rms_norm_eps": 1e-5 * OWN_HIDDEN / HIDDEN,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(tokenizer.definition())
    about = {"chat_template": tokenizer.chat_template, "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    tokenizer.close()


def _padded(own: Floats, rows: int, columns: int) -> Floats:
    larger = np.zeros((rows, columns), dtype=np.float32)
    larger[: own.shape[0], : own.shape[1]] = own
    return larger


def _norm(own: Floats) -> Floats:
    """The mean is over more numbers, of which the others are zeros."""
    larger = np.zeros(HIDDEN, dtype=np.float32)
    larger[: len(own)] = own * (OWN_HIDDEN / HIDDEN) ** 0.5
    return larger


def _halves(own: Floats) -> Floats:
    """llama.cpp keeps the two numbers that are rotated together side by side, Hugging Face half a head apart."""
    heads = own.shape[0] // HEAD
    return own.reshape(heads, HEAD // 2, 2, -1).swapaxes(1, 2).reshape(own.shape)
