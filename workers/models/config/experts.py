"""Fields of config.json that all families with experts read in the same way."""

from collections.abc import Callable

from numaserve.workers.layers.experts import ExpertNames, Experts
from numaserve.workers.layers.layer import FeedForward
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import MAX_INTERMEDIATE, MAX_LAYERS, Common, read_layer_count
from numaserve.workers.program.ops.experts import Routing

_MAX_EXPERTS = 2**10  # of a layer
_MAX_TOP_K = 64  # experts of a token
_MAX_ALL_EXPERTS = 2**16  # of all layers: each has modules by name
_APART = ExpertNames()


def read_experts(fields: Fields, key: str) -> tuple[int, int]:
    """Return the number of experts in a layer, from the field `key`, and the number of experts of a token.

    Raises `OperatorError` for numbers out of range, and for an activation that experts do not support.
    """
    fields.refuse("hidden_act", "silu", "swish")
    experts = fields.integer(key, 1, _MAX_EXPERTS)
    if experts * read_layer_count(fields) > _MAX_ALL_EXPERTS:
        raise fields.error(
            f"{experts} experts per layer are too many; the limit for all layers together is {_MAX_ALL_EXPERTS}"
        )
    return experts, fields.integer("num_experts_per_tok", 1, min(experts, _MAX_TOP_K))


def read_qwen_experts(common: Common, *, shared: int = 0, names: ExpertNames = _APART) -> Callable[[int], FeedForward]:
    """Return the function that makes the MLP of a layer of Qwen's models; a layer has experts or, in some layers, none.

    Tokens also go to a gated shared expert of `shared` columns. Missing fields have transformers' defaults.
    """
    fields = common.fields
    # transformers 5 saves the name `num_local_experts`.
    key = "num_local_experts" if fields.has("num_local_experts") else "num_experts"
    num_experts, top_k = read_experts(fields, key)
    width = fields.integer("moe_intermediate_size", 1, MAX_INTERMEDIATE)
    renormalize = fields.flag("norm_topk_prob", False)
    routing = Routing(num_experts=num_experts, top_k=top_k, renormalize=renormalize, shared_gate=shared > 0)
    step = fields.integer("decoder_sparse_step", 1, MAX_LAYERS, 1)
    dense = set(fields.integers("mlp_only_layers", 0, MAX_LAYERS))

    def mlp(layer: int) -> FeedForward:
        if layer in dense or (layer + 1) % step:
            return common.mlp(layer)
        return Experts(f"layers.{layer}.", common.hidden, routing, width, shared, names=names)

    return mlp
