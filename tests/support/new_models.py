"""Tiny models of families that the project does not have."""

from pathlib import Path

import torch

from tests.support.checkpoints import VOCAB
from tests.support.newcomer.echo import TAPS
from tests.support.random_checkpoint import save_random

LAYERS, INNER = 4, 80
_COMMON = {
    "hidden_size": 96,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 6,
    "vocab_size": VOCAB,
    "max_position_embeddings": 768,
    "tie_word_embeddings": True,
}
TWO_GEOMETRIES = _COMMON | {
    "architectures": ["TwoGeometriesForCausalLM"],
    "num_key_value_heads": 3,
    "head_dim": 64,
    "wide_key_value_heads": 2,
    "wide_head_dim": 128,
    "sliding_window": 100,
}
ECHO = _COMMON | {
    "architectures": ["EchoForCausalLM"],
    "num_key_value_heads": 3,
    "head_dim": 16,
    "inner_size": INNER,
}


def save_two_geometries(folder: Path) -> Path:
    """Heads of 64 and of 128 dimensions, in other numbers, the wide ones with a window."""
    return save_random(folder, TWO_GEOMETRIES)


def save_echo(folder: Path) -> Path:
    """Layers that pass on their input of the token before, between layers of attention."""
    return save_random(folder, ECHO, conv=torch.tensor([1.0, 0.0]).repeat(INNER), out_proj=torch.randn(96, INNER) * 0.2)


assert TAPS == 2  # the weights of `save_echo`
