"""Settings of a small Program and of its slots, and fields with which each kind of operation can be added to it.

Some kinds could be if it had a ring.
"""

from typing import Any

import kernel_ops
import numpy as np
from msgspec import structs
from numaserve.kernels import AdapterWeights, PackedMatrix, Program, RopeTable, Team, Vector
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.protocol import SamplingParams, SlotInit
from numaserve.workers.program.slots import slot_settings

HIDDEN, DIM = 64, 32
PLACE = (0, 256, -1)
EXACT = (0, HIDDEN, -1)
HEADS = (0, DIM, -1)
QUANTIZED = (PLACE, HIDDEN, 0)
# Fields that a node needs in place of one that is None.
INSTEAD: dict[tuple[str, str], dict[str, Any]] = {("rope_store", "rope"): {"rope_rows": PLACE, "pairs": DIM // 2}}
NEEDS_LATENTS = frozenset({"latent_store"})
MAKES_NO_NODE = frozenset({"pooled"})
NEEDS_RING = frozenset({"gather_columns", "gather_queries", "divided_attention"})

SETTINGS: dict[str, Any] = {
    **structs.asdict(structs.replace(Capacity.of_program(32, 8, 2, 2, 4), num_snapshots=2)),
    "vocabulary": 16,
    "extra_tokens": 0,
    "context_parallel": None,
    "caches": [(1, 1, 0, 0, DIM, 0, False, 0, False, False, False, 1, 0)],
    "states": [(3 * HIDDEN * 4, 0, 2 * HIDDEN * 4, 1)],
    "kv_dtype": "bf16",
    "arena_bytes": 1 << 20,
}

# A sequence of which the most likely token is taken.
GREEDY = slot_settings(SlotInit(SamplingParams(temperature=0.0, seed=1)))


def program(*, latent: bool = False) -> Program:
    """One rank, one layer with one head."""
    latents = {"caches": [(1, 1, 0, 0, 2 * DIM, DIM, True, 0, False, False, False, 1, 0)]} if latent else {}
    return Program(Team([-1]), None, SETTINGS | latents)


def vector(size: int = HIDDEN) -> Vector:
    return Vector(np.ones(size, np.float32))


def matrix(rows: int = HIDDEN, columns: int = HIDDEN) -> PackedMatrix:
    return kernel_ops.packed(np.zeros((rows, columns), np.uint16))


def rope() -> RopeTable:
    table = np.ones((64, DIM // 2), np.float32)
    return RopeTable(table, table)


def places(*names: str) -> dict[str, tuple[int, int, int]]:
    return dict.fromkeys(names, PLACE)


def fields() -> dict[str, dict[str, Any]]:
    """Of each kind, with weights and vectors of its own."""
    return {
        "embed": {"table": matrix(), "first_row": 0, "scale": 1.0, "out": EXACT}
        | {"index": "token", "accumulate": False},
        "layer_norm": places("x", "out") | {"weight": vector(), "bias": vector(), "eps": 1e-5, "rounded": False},
        "rms_norm": places("x", "out")
        | {"weight": vector(), "cols": HIDDEN, "eps": 1e-5, "quantized": QUANTIZED, "beside": False},
        "quantize": places("x") | {"out": QUANTIZED, "rows_per_token": 1, "logits": False},
        "linear": places("x", "out")
        | {"name": "linear", "weight": matrix(), "bias": vector(), "activation": "none"}
        | {"widened": False, "accumulate": False, "logits": False, "joins_before": False, "reads_alone": False}
        | {"adapters": None, "shrunk": None},
        "lora_shrink": places("x", "out") | {"adapters": AdapterWeights(1, 8, 1, HIDDEN, [[0]] * (HIDDEN // 16))},
        "reduce": places("partial", "residual", "sum")
        | {"cols": HIDDEN, "assign": False, "bias": vector(), "post_norm": vector(), "eps": 1e-5, "scale": None}
        | {"joins_before": False},
        "rope_store": {"qkv": (0, 3 * DIM, -1), "q": HEADS, "cache": (0, 0)}
        | {"rope": rope(), "rope_rows": None, "pairs": 0}
        | {"q_norm": vector(DIM), "k_norm": vector(DIM), "eps": 1e-5, "norm": "before"}
        | {"source": "projected", "norm_values": True},
        "attention": places("out", "partial")
        | {"q": HEADS, "cache": (0, 0), "scale": 1.0, "softcap": 0.0, "value_scale": 1.0}
        | {"sinks": vector(1), "joins_before": False},
        "causal_conv": places("x", "out")
        | {"weight": vector(4 * HIDDEN), "bias": vector(), "taps": 4, "activation": "silu", "state": (0, 0)},
        "gated_delta": places("x", "gates", "out")
        | {"decay": vector(2), "decay_bias": vector(2), "heads": (1, 2, 8, 4, 2), "state": (0, 0), "offset": 0},
        "state_space": places("x", "gates", "out")
        | {"decay": vector(2), "decay_bias": vector(2), "skip": vector(2), "least_step": 0.0, "most_step": 1.0}
        | {"heads": (1, 2, 8, 4, 1), "state": (0, 0), "offset": 0},
        "key_decays": places("b", "x", "out") | {"decay": vector(2), "bias": vector(16)},
        "key_delta": places("x", "gates", "out") | {"heads": (1, 2, 8, 4, 9), "state": (0, 0), "offset": 0},
        "gated_head_norm": places("x", "gate", "out") | {"weight": vector(DIM), "eps": 1e-5, "heads": 2, "silu": True},
        "sigmoid_gate": places("x", "gate") | {"cols": HIDDEN},
        "divided_norm": places("x", "message")
        | {"weights": [vector(DIM), vector(5)], "counted": [DIM, 5], "columns": [DIM, 5], "eps": 1e-5},
        "group_norm": {"x": PLACE, "out": EXACT, "weights": [vector(DIM), vector(DIM)], "eps": 1e-5},
        "place_rows": places("residual", "pool") | {"add": False, "rows": 8, "cols": HIDDEN},
        "rotary_rows": places("out") | {"rope": rope(), "axes": ["time"] * (DIM // 2)},
        "embed_taps": places("weights") | {"out": EXACT, "table": matrix(), "first_row": 0, "taps": 4},
        "merge_rows": places("x", "out")
        | {"cols": HIDDEN, "item_bytes": 2, "side": 4, "factor": 2, "extra": 0}
        | {"many": False},
        "mean_rows": places("x", "out")
        | {"cols": HIDDEN, "side": 4, "factor": 2, "many": False, "shift": vector(), "weight": vector(), "eps": 1e-6},
        "clamp": places("x", "out") | {"cols": HIDDEN, "rounded": True, "bounds": vector(2)},
        "narrow": places("x", "beside") | {"out": EXACT, "beside_out": EXACT},
        "add_norm": places("x", "residual") | {"weight": vector(), "eps": 1e-5, "scale": vector(1)},
        "layer_inputs": places("x", "out")
        | {"weight": vector(DIM), "eps": 1e-5, "table": matrix(columns=2 * DIM), "scale": 1.0},
        "multiply": places("x", "y", "out") | {"activation": "silu", "cols": HIDDEN, "rounded": True},
        "gather": places("x", "out"),
        "pool": places("x", "out") | {"pooling": "last", "weight": vector(), "cols": HIDDEN, "eps": 1e-5},
        "pooled": places("x") | {"cols": HIDDEN},
        "token_rows": places("x", "out") | {"cols": HIDDEN},
        "gather_columns": places("message", "out") | {"bounds": [0, 32, 64]},
        "sample": places("logits", "tokens") | {"vocab_first": [0, 16], "softcap": 0.0},
        "moe_route": places("logits", "x", "sorted", "routes", "counts")
        | {"item_bytes": 2, "first_expert": 0, "local_experts": 4, "shared_gate": False, "num_experts": 4, "top_k": 2}
        | {"scoring": "sigmoid", "renormalize": True, "scale": 1.0, "correction": vector(4)}
        | {"num_groups": 1, "top_groups": 1, "group_score": "max", "factors": vector(4)}
        | {"weighs_input": False, "cols": HIDDEN, "group": 0},
        "moe_experts": places("x", "out", "counts", "shared_x", "shared_out")
        | {"name": "moe", "weights": [matrix(), matrix()], "bias": vector(2 * HIDDEN), "shared": matrix()}
        | {"activation": "none", "limit": 0.0, "item_bytes": 2, "widened": False, "shared_widened": False}
        | {"reads_alone": False},
        "moe_combine": places("y", "routes", "shared", "out") | {"top_k": 2, "accumulate": False},
        "latent_store": places("q", "kv", "nope")
        | {
            "query": (0, 2 * DIM, -1),
            "cache": (0, 0),
            "nope_dim": DIM,
            "rope": rope(),
            "norm": vector(DIM),
            "eps": 1e-5,
        },
        "head_linear": places("x", "out")
        | {"name": "heads", "x_stride": HIDDEN, "weight": matrix(), "num_heads": 1}
        | {"widened": False, "out_stride": HIDDEN},
        "quantize_heads": places("x")
        | {"x_stride": HIDDEN, "out": QUANTIZED, "out_stride": 2 * HIDDEN, "num_heads": 1},
        "gather_queries": places("query", "message", "gathered"),
        "divided_attention": places("q", "message", "out", "partial") | {"cache": (0, 0), "scale": 1.0},
    }


KINDS = [*fields()]
