"""The row of a family in the table, and sizes that rows share."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import transformers as hf

VOCAB = 499
MAX_POSITION = 512
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "max_position_embeddings": MAX_POSITION,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def sizes(hidden: int, heads: int, kv_heads: int, intermediate: int, layers: int = 2, **more: Any) -> dict[str, Any]:
    """A configuration's sizes, and `more` fields."""
    return COMMON | {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        **more,
    }


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


OLMO3_ROPE = {
    "rope_parameters": {
        "full_attention": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "rope_theta": 5e5,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
    }
}
LLAMA4 = {"attention_chunk_size": 40, "floor_scale": 24, "attn_scale": 0.3}
GRANITE = {"attention_multiplier": 0.15, "logits_scaling": 1.7}
MINISTRAL = {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
# Value heads that no number of ranks divides evenly, of other widths than key heads.
DELTA = {
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 40,
}
LATENT_HEADS = {"qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 64}
# Sizes of models whose matrices are whole blocks of all types of GGUF files: rows of 256 columns.
BLOCKS = sizes(256, 4, 2, 256, head_dim=64)
EXPERT_BLOCKS = {
    "num_experts": 4,
    "num_experts_per_tok": 4,  # all: rounding chooses no others
    "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 256,
}
# A block of 256 columns spans four value heads.
HYBRID_BLOCKS = BLOCKS | {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 64,
    "layer_types": ["linear_attention", "full_attention"],
}


@dataclass(frozen=True)
class Row:
    """A family, or a feature of one: a tiny random checkpoint, and what the tests of all families need to know of it.

    `tensors` are names that published checkpoints have. `gguf` are changes of the configuration for a GGUF file, which
    has only some variants; None: there is no test of a file. `blocks` are fields of a model whose matrices are whole
    blocks of GGUF's types, and `expands` ends the names of modules whose weights are expanded to bf16 all the same.
    `published` ends the names of modules that quantized checkpoints of such a model leave in bf16; None: there is no
    test of one.
    """

    kind: Callable[..., hf.PreTrainedConfig]
    fields: Mapping[str, Any] = field(default_factory=dict)
    tensors: tuple[str, ...] = ()
    gguf: Mapping[str, Any] | None = None
    blocks: Mapping[str, Any] | None = None
    expands: tuple[str, ...] = ()
    published: tuple[str, ...] | None = None

    def config(self) -> hf.PreTrainedConfig:
        """Return the configuration of the checkpoint."""
        return self.kind(**copy.deepcopy(dict(self.fields)))

    def in_gguf(self) -> hf.PreTrainedConfig:
        """Return the configuration of a model that a GGUF file can have."""
        config = self.config()
        for name, value in (self.gguf or {}).items():
            setattr(config, name, value)
        return config

    def in_blocks(self) -> hf.PreTrainedConfig:
        """Return the configuration of a model whose matrices are whole blocks."""
        return type(self.config())(**self.blocks or {})
