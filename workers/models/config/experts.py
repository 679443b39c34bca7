"""What the families with experts read from config.json in the same way."""

from __future__ import annotations

from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import MAX_INTERMEDIATE, MAX_LAYERS, read_layer_count
from numaserve.workers.models.spec import MoeConfig

_MAX_EXPERTS = 2**10  # of a layer
_MAX_ALL_EXPERTS = 2**16  # of all layers: each has modules by name


def read_experts(fields: Fields, key: str) -> tuple[int, int]:
    """How many experts a layer has, the field `key`, and how many of them a token goes to. Raises `OperatorError` for
    numbers out of range, and for an activation that experts do not have."""
    fields.refuse("hidden_act", "silu", "swish")
    experts = fields.integer(key, 1, _MAX_EXPERTS)
    if experts * read_layer_count(fields) > _MAX_ALL_EXPERTS:
        raise fields.error(f"{experts} experts in each layer are too many; supported are {_MAX_ALL_EXPERTS} in all")
    return experts, fields.integer("num_experts_per_tok", 1, experts)


def read_qwen_moe(fields: Fields) -> tuple[MoeConfig, tuple[int, ...]]:
    """The experts of Qwen's models, and the layers that have them. What is missing has transformers' default."""
    # The second is what transformers 5 saves.
    key = "num_local_experts" if fields.has("num_local_experts") else "num_experts"
    experts, top_k = read_experts(fields, key)
    moe = MoeConfig(
        num_experts=experts,
        top_k=top_k,
        intermediate_size=fields.integer("moe_intermediate_size", 1, MAX_INTERMEDIATE),
        renormalize=fields.flag("norm_topk_prob", False),
    )
    step = fields.integer("decoder_sparse_step", 1, MAX_LAYERS, 1)
    dense = set(fields.integers("mlp_only_layers", 0, MAX_LAYERS))
    layers = (layer for layer in range(read_layer_count(fields)) if (layer + 1) % step == 0)
    return moe, tuple(layer for layer in layers if layer not in dense)
