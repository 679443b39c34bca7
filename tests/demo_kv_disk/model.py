"""Models of about a billion parameters with random weights and a tokenizer: what a long prompt costs depends on
neither."""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import transformers as hf

from tests.support import tokenizer_builders

CONTEXT = 32_768
_COMMON = {"max_position_embeddings": CONTEXT, "tie_word_embeddings": True}


def _dense(vocab_size: int) -> hf.PreTrainedConfig:
    """Llama-3.2-1B's sizes, but for the vocabulary."""
    return hf.LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        rope_theta=500_000.0,
        **_COMMON,
    )


def _hybrid(vocab_size: int) -> hf.PreTrainedConfig:
    """Qwen3.5-0.8B's sizes, but for the vocabulary: three of four layers are recurrent."""
    return hf.Qwen3_5TextConfig(
        vocab_size=vocab_size,
        hidden_size=1024,
        intermediate_size=3584,
        num_hidden_layers=24,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=256,
        linear_num_key_heads=16,
        linear_num_value_heads=16,
        **_COMMON,
    )


SHAPES: Mapping[str, Callable[[int], hf.PreTrainedConfig]] = {"dense": _dense, "hybrid": _hybrid}


def write_model(folder: Path, shape: str = "dense") -> Path:
    """Write a model of one of `SHAPES`, unless it is there, and return its folder."""
    if not (folder / "tokenizer_config.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer = tokenizer_builders.byte_level_backend()
        tokenizer.save(str(folder / "tokenizer.json"))
        torch.manual_seed(0)
        config = SHAPES[shape](tokenizer.get_vocab_size())
        hf.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
        (folder / "tokenizer_config.json").write_text("{}")  # the last file: what is not complete is written again
    return folder
