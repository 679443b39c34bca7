"""DeepSeek's metadata in a GGUF file (architecture deepseek2, or mistral4), converted to the fields of config.json.

There are two generations of files. Since llama.cpp absorbs the expansion of latents, `attention.key_length` and
`value_length` describe its cache, `key_length_mla` and `value_length_mla` describe a head, and the file has `attn_k_b`
and `attn_v_b` in place of `attn_kv_b`. Before, the first two described a head. Rotated dimensions lie in pairs in both,
as in DeepSeek's own checkpoints: the converter moves no rows.
"""

from collections.abc import Mapping

from numaserve.workers.models.config.fields import Fields

ARCHITECTURE = "deepseek2"
_SOFTMAX, SIGMOID = 1, 2  # LLAMA_EXPERT_GATING_FUNC_TYPE_SOFTMAX and _SIGMOID
_GLM_FLASH = ((47, 154880), (48, 154880))  # layers, with or without the one that predicts, and tokens
_MAX_DIM = 2**12


def has_sigmoid_scores(metadata: Fields) -> bool:
    """Return whether experts are chosen as in DeepSeek-V3, not as in V2. Files of V2 may not state it, nor do the first
    files of GLM-4.7-Flash, which llama.cpp recognises by their sizes too."""
    stated = metadata.values.get(f"{ARCHITECTURE}.expert_gating_func") or None
    sizes = (metadata.values.get(f"{ARCHITECTURE}.{key}") for key in ("block_count", "vocab_size"))
    return stated == SIGMOID or (stated is None and tuple(sizes) in _GLM_FLASH)


def deepseek_values(metadata: Fields, values: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of `latent_values`, and the way in which experts are chosen."""
    metadata.refuse(f"{ARCHITECTURE}.expert_gating_func", 0, _SOFTMAX, SIGMOID)
    metadata.refuse(f"{ARCHITECTURE}.attention.temperature_scale", 0.0)
    found = latent_values(metadata, values)
    return found | {"topk_method": "noaux_tc" if has_sigmoid_scores(metadata) else _greedy(found["n_group"])}


def latent_values(metadata: Fields, values: Mapping[str, object]) -> dict[str, object]:
    """Return the fields that other architectures lack or use with another meaning. Missing fields have llama.cpp's
    defaults. Raises `OperatorError` for lengths of heads that do not fit each other."""
    name = metadata.text("general.architecture")

    def get(key: str) -> object:
        return metadata.values.get(f"{name}.{key}")

    rotated = metadata.integer(f"{name}.rope.dimension_count", 1, _MAX_DIM)
    of_head = "_mla" if get("attention.key_length_mla") is not None else ""
    key = metadata.integer(f"{name}.attention.key_length{of_head}", rotated + 1, _MAX_DIM)
    return expert_values(metadata, name) | {
        "num_key_value_heads": get("attention.head_count"),  # in the file there is one: the latent
        "head_dim": rotated,
        "q_lora_rank": get("attention.q_lora_rank"),
        "kv_lora_rank": get("attention.kv_lora_rank"),
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": key - rotated,
        "v_head_dim": get(f"attention.value_length{of_head}"),
    }


def expert_values(metadata: Fields, name: str) -> dict[str, object]:
    """Return the fields of config.json on layers with experts, and on skipped layers, of architecture `name`. Missing
    fields have llama.cpp's defaults."""
    layers = metadata.integer(f"{name}.block_count", 1, 2**16)
    skipped = metadata.integer(f"{name}.nextn_predict_layers", 0, layers - 1, 0)
    groups = metadata.integer(f"{name}.expert_group_count", 0, 2**10, 0) or 1
    return {
        "num_hidden_layers": layers - skipped,
        "num_nextn_predict_layers": skipped,
        "first_k_dense_replace": metadata.integer(f"{name}.leading_dense_block_count", 0, layers, 0),
        "n_routed_experts": metadata.values.get(f"{name}.expert_count"),
        "n_shared_experts": metadata.integer(f"{name}.expert_shared_count", 0, 2**10, 0),
        "num_experts_per_tok": metadata.values.get(f"{name}.expert_used_count"),
        "moe_intermediate_size": metadata.values.get(f"{name}.expert_feed_forward_length"),
        "routed_scaling_factor": metadata.number(f"{name}.expert_weights_scale", 0.0, 1e6, 0.0) or 1.0,
        "norm_topk_prob": metadata.flag(f"{name}.expert_weights_norm", False),
        "n_group": groups,
        "topk_group": metadata.integer(f"{name}.expert_group_used_count", 0, groups, 0) or 1,
    }


def mscale(metadata: Fields) -> dict[str, object]:
    """Return yarn's factors on the scores, which are one in all published models. The file has a tenth of the factor,
    in single precision."""
    name = metadata.text("general.architecture")
    tenth = metadata.optional_number(f"{name}.rope.scaling.yarn_log_multiplier", 0.0, 10.0)
    both = None if tenth is None else round(10 * tenth, 6)
    return {"mscale": both, "mscale_all_dim": both}


def _greedy(groups: object) -> str:
    return "greedy" if groups == 1 else "group_limited_greedy"
