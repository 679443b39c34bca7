"""Experts in a GGUF file's metadata, converted to the fields of config.json."""

from collections.abc import Mapping

from numaserve.workers.models.config.fields import Fields

_SOFTMAX = 1  # LLAMA_EXPERT_GATING_FUNC_TYPE_SOFTMAX
SOFTMAX_OF_CHOSEN = 3  # LLAMA_EXPERT_GATING_FUNC_TYPE_SOFTMAX_WEIGHT: equal to dividing by the sum


def has_experts(metadata: Fields) -> bool:
    """Whether the file is of a model with experts."""
    return bool(metadata.values.get(f"{metadata.text('general.architecture')}.expert_count"))


def has_no_experts(metadata: Fields) -> bool:
    """Whether the file is of a model without experts."""
    return not has_experts(metadata)


def expert_values(
    metadata: Fields, values: Mapping[str, object], *, renormalized: bool, gating: tuple[int, ...] = ()
) -> dict[str, object]:
    """Return the fields of models with experts. Fields that are missing, or in none of these files, have llama.cpp's
    defaults. `renormalized` states whether llama.cpp divides the experts' weights by their sum. `gating` are further
    ways of choosing experts with the same result."""
    name = metadata.text("general.architecture")
    metadata.refuse(f"{name}.expert_gating_func", _SOFTMAX, *gating)
    metadata.refuse(f"{name}.expert_weights_scale", 0.0, 1.0)
    used = metadata.integer(f"{name}.expert_used_count", 1, 2**10)
    width = metadata.optional_integer(f"{name}.feed_forward_length", 1, 2**20)  # without it the others are there
    of_each = None if width is None else width // used
    return {
        "num_local_experts": metadata.values.get(f"{name}.expert_count"),
        "num_experts_per_tok": used,
        "norm_topk_prob": renormalized,
        "moe_intermediate_size": metadata.integer(f"{name}.expert_feed_forward_length", 1, 2**20, of_each),
        "shared_expert_intermediate_size": metadata.integer(
            f"{name}.expert_shared_feed_forward_length", 1, 2**20, width
        ),
        "rope_theta": metadata.number(f"{name}.rope.freq_base", 1.0, 1e12, 10000.0),
    }
