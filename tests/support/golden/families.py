"""The families: config.json and the tensors of a tiny model of each, as its checkpoints have them."""

from collections.abc import Callable
from typing import Any

from tests.support.golden.checkpoints import (
    Model,
    Shapes,
    attention_shapes,
    base_config,
    make_model,
    mlp_shapes,
    model_shapes,
    norm_shapes,
)


def _dense(kind: str, architecture: str, *sizes: int, bias: bool = False, qk_norm: bool = False, **more: Any) -> Model:
    c = base_config(kind, architecture, *sizes, **more)
    layer = attention_shapes(c, bias=bias, qk_norm=qk_norm) | mlp_shapes(c["hidden_size"], c["intermediate_size"])
    extra = ("pre_feedforward_layernorm", "post_feedforward_layernorm") if kind.startswith("gemma") else ()
    return make_model(c, model_shapes(c, layer | norm_shapes(c["hidden_size"], *extra)))


def _rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


_YARN = _rope("yarn", factor=4.0, original_max_position_embeddings=128)
_GRANITE = {"attention_multiplier": 0.15, "residual_multiplier": 0.22, "logits_scaling": 1.7}
_LLAMA3 = _rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)


def llama(*sizes: int, **more: Any) -> Model:
    """A Llama of these sizes: hidden, heads, key-value heads, intermediate."""
    return _dense("llama", "LlamaForCausalLM", *sizes, **more)


def qwen2(*sizes: int) -> Model:
    """A Qwen2, likewise."""
    return _dense("qwen2", "Qwen2ForCausalLM", *sizes, bias=True)


def qwen3(*sizes: int, **more: Any) -> Model:
    """A Qwen3, likewise."""
    return _dense("qwen3", "Qwen3ForCausalLM", *sizes, qk_norm=True, **more)


def gemma2() -> Model:
    """Windows in every second layer, soft caps, norms after each part."""
    return _dense(
        "gemma2",
        "Gemma2ForCausalLM",
        *(144, 6, 3, 192),
        head_dim=48,
        sliding_window=16,
        query_pre_attn_scalar=24,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=4.0,
        hidden_activation="gelu_pytorch_tanh",
        tie_word_embeddings=True,
    )


def gemma3() -> Model:
    """Two ropes."""
    return _dense(
        "gemma3_text",
        "Gemma3ForCausalLM",
        *(128, 4, 1, 160),
        qk_norm=True,
        sliding_window=16,
        query_pre_attn_scalar=32,
        num_hidden_layers=3,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        hidden_activation="gelu_pytorch_tanh",
        tie_word_embeddings=True,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    )


def phi3(*, scaled: bool = True) -> Model:
    """q, k and v, and gate and up, are one tensor each. `scaled`: long sequences have a rope of their own."""
    factors = {"short_factor": [1.0 + 0.05 * i for i in range(30)], "long_factor": [1.0 + 0.5 * i for i in range(30)]}
    c = base_config("phi3", "Phi3ForCausalLM", 160, 2, 1, 224, original_max_position_embeddings=256)
    c |= (
        {}
        if not scaled
        else _rope("longrope", partial_rotary_factor=0.75, original_max_position_embeddings=256, **factors)
    )
    layer: Shapes = {
        "self_attn.qkv_proj.weight": (320, 160),
        "self_attn.o_proj.weight": (160, 160),
        "mlp.gate_up_proj.weight": (448, 160),
        "mlp.down_proj.weight": (160, 224),
    }
    return make_model(c, model_shapes(c, layer | norm_shapes(160)))


def mixtral(hidden: int = 96, inner: int = 104) -> Model:
    """Experts in every layer, and a window."""
    c = base_config("mixtral", "MixtralForCausalLM", hidden, 4, 2, inner, num_local_experts=5, num_experts_per_tok=2)
    c["sliding_window"] = 16
    layer = attention_shapes(c) | norm_shapes(hidden) | {"block_sparse_moe.gate.weight": (5, hidden)}
    for expert in range(5):
        layer |= mlp_shapes(hidden, inner, f"block_sparse_moe.experts.{expert}", ("w1", "w3", "w2"))
    return make_model(c, model_shapes(c, layer))


def qwen2_moe(hidden: int, inner: int, shared: int, experts: int, **more: Any) -> Model:
    """A shared expert behind a gate."""
    c = base_config("qwen2_moe", "Qwen2MoeForCausalLM", hidden, 4, 2, 160, moe_intermediate_size=inner, **more)
    c |= {"shared_expert_intermediate_size": shared, "num_experts": experts, "num_experts_per_tok": 3}
    common = attention_shapes(c, bias=True) | norm_shapes(hidden)
    routed = common | {"mlp.gate.weight": (experts, hidden), "mlp.shared_expert_gate.weight": (1, hidden)}
    routed |= mlp_shapes(hidden, shared, "mlp.shared_expert")
    for expert in range(experts):
        routed |= mlp_shapes(hidden, inner, f"mlp.experts.{expert}")
    dense = common | mlp_shapes(hidden, 160)
    layers = [dense if index in c.get("mlp_only_layers", ()) else routed for index in range(c["num_hidden_layers"])]
    return make_model(c, model_shapes(c, *layers))


def qwen3_moe() -> Model:
    """Weights of experts that are made to sum to one."""
    c = base_config("qwen3_moe", "Qwen3MoeForCausalLM", 160, 4, 1, 160, head_dim=32, moe_intermediate_size=96)
    c |= {"num_experts": 16, "num_experts_per_tok": 4, "norm_topk_prob": True, "tie_word_embeddings": True}
    layer = attention_shapes(c, qk_norm=True) | norm_shapes(160) | {"mlp.gate.weight": (16, 160)}
    for expert in range(16):
        layer |= mlp_shapes(160, 96, f"mlp.experts.{expert}")
    return make_model(c, model_shapes(c, layer))


def gpt_oss(inner: int = 104) -> Model:
    """Sinks, biases everywhere, and experts whose limit is met now and then."""
    experts = 5
    c = base_config("gpt_oss", "GptOssForCausalLM", 96, 6, 3, inner, head_dim=32, sliding_window=16, swiglu_limit=1.5)
    c |= {"num_local_experts": experts, "num_experts_per_tok": 2}
    c |= _rope("yarn", factor=4.0, original_max_position_embeddings=128, truncate=False)
    layer = attention_shapes(c, bias=True) | norm_shapes(96)
    layer |= {
        "self_attn.o_proj.bias": (96,),
        "self_attn.sinks": (6,),
        "mlp.router.weight": (experts, 96),
        "mlp.router.bias": (experts,),
        "mlp.experts.gate_up_proj": (experts, 96, 2 * inner),
        "mlp.experts.gate_up_proj_bias": (experts, 2 * inner),
        "mlp.experts.down_proj": (experts, inner, 96),
        "mlp.experts.down_proj_bias": (experts, 96),
    }
    return make_model(c, model_shapes(c, layer))


def deepseek(
    version: int, hidden: int, heads: int, query_rank: int | None, latent: int, inner: int, **more: Any
) -> Model:
    """Latents; a dense layer first, then groups of experts of which half can be chosen."""
    nope, rope, value = (more.pop(key, size) for key, size in (("nope", 32), ("rope_dim", 32), ("value", 64)))
    experts, shared = 8, 3 - version + 1
    c = base_config(f"deepseek_v{version}", f"DeepseekV{version}ForCausalLM", hidden, heads, heads, 160)
    c |= {"num_hidden_layers": 3, "q_lora_rank": query_rank, "kv_lora_rank": latent, "first_k_dense_replace": 1}
    c |= {"qk_nope_head_dim": nope, "qk_rope_head_dim": rope, "v_head_dim": value, "head_dim": rope}
    c |= {"n_routed_experts": experts, "n_shared_experts": shared, "moe_intermediate_size": inner}
    c |= {"num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5, "norm_topk_prob": True}
    c |= _rope("yarn", factor=4.0, original_max_position_embeddings=128, mscale=0.707, mscale_all_dim=0.707)
    c |= {"topk_method": "group_limited_greedy" if version == 2 else "noaux_tc"}
    if version == 2:
        c["norm_topk_prob"] = False
    else:
        c["scoring_func"] = "sigmoid"
    at = "self_attn."
    layer: Shapes = norm_shapes(hidden) | {
        f"{at}kv_a_proj_with_mqa.weight": (latent + rope, hidden),
        f"{at}kv_a_layernorm.weight": (latent,),
        f"{at}kv_b_proj.weight": (heads * (nope + value), latent),
        f"{at}o_proj.weight": (hidden, heads * value),
    }
    queries = heads * (nope + rope)
    if query_rank is None:
        layer[f"{at}q_proj.weight"] = (queries, hidden)
    else:
        layer |= {f"{at}q_a_proj.weight": (query_rank, hidden), f"{at}q_a_layernorm.weight": (query_rank,)}
        layer[f"{at}q_b_proj.weight"] = (queries, query_rank)
    routed = layer | {"mlp.gate.weight": (experts, hidden)} | mlp_shapes(hidden, shared * inner, "mlp.shared_experts")
    if version == 3:
        routed["mlp.gate.e_score_correction_bias"] = (experts,)
    for expert in range(experts):
        routed |= mlp_shapes(hidden, inner, f"mlp.experts.{expert}")
    return make_model(c, model_shapes(c, layer | mlp_shapes(hidden, 160), routed))


def granite4() -> Model:
    """Gate and up are one tensor, and nothing is rotated."""
    c = base_config("granitemoehybrid", "GraniteMoeHybridForCausalLM", 96, 4, 2, 40, **_GRANITE)
    c |= {"shared_intermediate_size": 104, "num_local_experts": 0, "layer_types": ["attention"] * 2}
    layer: Shapes = {"shared_mlp.input_linear.weight": (208, 96), "shared_mlp.output_linear.weight": (96, 104)}
    return make_model(c, model_shapes(c, attention_shapes(c) | layer | norm_shapes(96)))


def hunyuan() -> Model:
    """Norms of heads after the rotation, and a base that an alpha widens."""
    c = base_config("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", 120, 5, 1, 160)
    c |= _rope("dynamic", alpha=50.0)
    norms: Shapes = {f"self_attn.{each}_layernorm.weight": (24,) for each in ("query", "key")}
    return make_model(c, model_shapes(c, attention_shapes(c) | norms | mlp_shapes(120, 160) | norm_shapes(120)))


def glm4_moe() -> Model:
    """A dense layer first, then groups of experts behind half-rotated heads."""
    experts, inner = 8, 72
    c = base_config("glm4_moe", "Glm4MoeForCausalLM", 96, 6, 2, 160, head_dim=32, num_hidden_layers=3)
    c |= {"n_routed_experts": experts, "n_shared_experts": 1, "moe_intermediate_size": inner, "use_qk_norm": True}
    c |= {"num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5}
    layer = attention_shapes(c, qk_norm=True) | norm_shapes(96)
    routed: Shapes = layer | {"mlp.gate.weight": (experts, 96), "mlp.gate.e_score_correction_bias": (experts,)}
    for expert in ("shared_experts", *(f"experts.{index}" for index in range(experts))):
        routed |= mlp_shapes(96, inner, f"mlp.{expert}")
    return make_model(c, model_shapes(c, layer | mlp_shapes(96, 160), routed))


FAMILIES: dict[str, Callable[[], Model]] = {
    "llama": lambda: llama(144, 9, 3, 164, tie_word_embeddings=True),
    "llama-llama3": lambda: llama(96, 3, 1, 160, bias=True, attention_bias=True, **_LLAMA3),
    "llama-yarn": lambda: llama(128, 4, 4, 224, **_YARN),
    "llama-linear": lambda: llama(96, 2, 2, 96, **_rope("linear", factor=4.0)),
    "mistral": lambda: _dense("mistral", "MistralForCausalLM", 128, 8, 2, 160, sliding_window=16),
    "qwen2": lambda: qwen2(192, 6, 3, 256),
    "qwen3": lambda: qwen3(128, 4, 2, 224, head_dim=64, tie_word_embeddings=True),
    "gemma2": gemma2,
    "gemma3": gemma3,
    "phi3": phi3,
    "mixtral": mixtral,
    "qwen2_moe": lambda: qwen2_moe(128, 72, 200, 7, num_hidden_layers=3, mlp_only_layers=[1]),
    "qwen3_moe": qwen3_moe,
    "gpt_oss": gpt_oss,
    "deepseek_v2": lambda: deepseek(2, 160, 5, None, 64, 40),
    "deepseek_v3": lambda: deepseek(3, 96, 3, 72, 96, 96),
}
# Cases of these are chosen apart: those above are as they were recorded.
NEWER_FAMILIES: dict[str, Callable[[], Model]] = {
    "smollm3": lambda: _dense("smollm3", "SmolLM3ForCausalLM", *(120, 5, 1, 160), no_rope_layers=[1, 0]),
    "ministral3": lambda: _dense(
        *("ministral3", "Ministral3ForCausalLM", 96, 6, 2, 160),
        **_rope("yarn", factor=4.0, original_max_position_embeddings=512, llama_4_scaling_beta=0.1),
    ),
    "granite": lambda: _dense("granite", "GraniteForCausalLM", *(120, 5, 1, 160), embedding_multiplier=3.0, **_GRANITE),
    "granite4": granite4,
    "ernie4_5": lambda: _dense("ernie4_5", "Ernie4_5ForCausalLM", *(144, 6, 2, 160)),
    "hunyuan": hunyuan,
    "glm4_moe": glm4_moe,
}
