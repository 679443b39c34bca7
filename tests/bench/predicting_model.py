"""A model of experts and latents, in the manner of DeepSeek-V3, whose layer that predicts is always right.

Models of random weights have nothing that could be predicted. This one says the tokens in a fixed order: embeddings are
rows of ones and minus ones, each the one before it turned by a place, and no layer adds anything to them, though all
are computed. To follow them is then a matrix, which is what the predictor joins its inputs with.
"""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numaserve.workers.bench.shapes import random_bf16, write_tensors
from numaserve.workers.layers.names import TensorNames
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.registry import family_of
from numaserve.workers.weights.tensors import expected_tensors

HIDDEN, VOCABULARY, LAYERS = 2048, 16384, 48
_SILENT = ("o_proj.weight", "down_proj.weight")  # what adds to the residual stream
CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_nextn_predict_layers": 1,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": 512,
    "kv_lora_rank": 256,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "intermediate_size": 4096,
    "moe_intermediate_size": 512,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}


def save_predicting(folder: Path) -> Path:
    """Write it as a Hugging Face folder in bf16, 4 GB."""
    config = family_of(CONFIG["architectures"][0], "").configure(Fields(CONFIG, ""), CONFIG["architectures"][0])
    tensors, _ = expected_tensors(config, TensorNames("model.", "lm_head"))
    embedding = _embedding()
    own = {
        "model.embed_tokens.weight": embedding,
        # Each row is what follows the token, turned back: the token has the highest product with it.
        "lm_head.weight": np.roll(embedding, -1, axis=1),
        f"model.layers.{LAYERS}.eh_proj.weight": np.roll(np.eye(HIDDEN, 2 * HIDDEN, HIDDEN, np.float32), 1, axis=0),
    }
    randoms = cache(random_bf16)

    def values(name: str) -> bytes:
        if name in own:
            return (own[name].view(np.uint32) >> 16).astype(np.uint16).tobytes()
        if name.endswith(_SILENT):
            return bytes(2 * int(np.prod(tensors[name])))
        return randoms(tensors[name])

    write_tensors(folder, CONFIG, tensors, values)
    return folder


def _embedding() -> npt.NDArray[np.float32]:
    """Groups of as many tokens as there are places, of which each is the one before it turned by one."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(VOCABULARY // HIDDEN):
        first = rng.choice(np.array([-1.0, 1.0], np.float32), HIDDEN)
        rows += [np.roll(first, turned) for turned in range(HIDDEN)]
    return np.stack(rows)
