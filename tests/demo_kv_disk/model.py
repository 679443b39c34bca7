"""A model of a billion parameters with random weights and a tokenizer: what a long prompt costs depends on neither."""

from pathlib import Path

import torch
import transformers as hf

from tests.support import tokenizer_builders

CONTEXT = 32_768
_SIZES = {  # of Llama-3.2-1B, but for its vocabulary
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
}


def write_model(folder: Path) -> Path:
    """Write the model, unless it is there, and return its folder."""
    if not (folder / "tokenizer_config.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer = tokenizer_builders.byte_level_backend()
        tokenizer.save(str(folder / "tokenizer.json"))
        torch.manual_seed(0)
        config = hf.LlamaConfig(
            vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=CONTEXT, rope_theta=500_000.0, **_SIZES
        )
        hf.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
        (folder / "tokenizer_config.json").write_text("{}")  # the last file: what is not complete is written again
    return folder
