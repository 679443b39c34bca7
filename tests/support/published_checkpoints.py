"""Tiny checkpoints in every layout that quantized ones are published in."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from tests.support import checkpoints
from tests.support.gguf_models import TURNED
from tests.support.kimi import kimi_around, published_name
from tests.support.published import LAYOUTS
from tests.support.published_writers import rounded_anew

# 9 heads of 64 on 2 or 3 ranks begin where no group of 128 does; the MLP is divided at whole groups.
SIZES = checkpoints.sizes(576, 9, 3, 640, tie_word_embeddings=False)

_KIMI_IGNORES = ("self_attn", "shared_experts", r"mlp\.(gate|up|gate_up|down)_proj", "vision_tower", "mm_projector")


def small_llama() -> hf.PreTrainedModel:
    """A random Llama whose widths are multiples of the groups."""
    return checkpoints.build(hf.LlamaConfig(**SIZES))


def small_qwen2_moe() -> hf.PreTrainedModel:
    """The same with experts."""
    sizes = checkpoints.sizes(256, 4, 2, 256, moe_intermediate_size=256, shared_expert_intermediate_size=384)
    return checkpoints.build(hf.Qwen2MoeConfig(**sizes, num_experts=6, num_experts_per_tok=2))


_DELTA = {
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 128,
    "layer_types": ["linear_attention", "full_attention"],
}


def small_qwen3_5() -> hf.PreTrainedModel:
    """The same with a gated delta network before gated attention."""
    return checkpoints.build(hf.Qwen3_5TextConfig(**checkpoints.sizes(384, 6, 3, 384, head_dim=128) | _DELTA))


def small_qwen3_5_moe() -> hf.PreTrainedModel:
    """The same with experts."""
    sizes = checkpoints.sizes(384, 6, 3, 384, head_dim=128, moe_intermediate_size=128, num_experts=5)
    experts = {"shared_expert_intermediate_size": 128, "num_experts_per_tok": 2}
    return checkpoints.build(hf.Qwen3_5MoeTextConfig(**sizes | experts | _DELTA))


# Rows of 256 columns and more, which all block formats can have: a block of 256 spans four value heads.
_BLOCKS_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 64,
    "layer_types": ["linear_attention", "full_attention"],
}
_BLOCKS_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 256,
}
_HYBRIDS = {"qwen3_5": hf.Qwen3_5TextConfig, "qwen3_5_moe": hf.Qwen3_5MoeTextConfig, "qwen3_next": hf.Qwen3NextConfig}


def small_hybrid(name: str, **changes: object) -> hf.PreTrainedModel:
    """A random model with a gated delta network before gated attention, whose matrices are whole blocks of GGUF."""
    experts = {} if name == "qwen3_5" else _BLOCKS_EXPERTS
    sizes = checkpoints.sizes(256, 4, 2, 256, head_dim=64)
    return checkpoints.build(_HYBRIDS[name](**sizes | _BLOCKS_DELTA | experts | changes))


def small_lfm2() -> hf.PreTrainedModel:
    """The same with a short convolution before attention."""
    sizes = checkpoints.sizes(256, 4, 2, 512, layer_types=["conv", "full_attention"])
    return checkpoints.build(hf.Lfm2Config(**sizes, block_auto_adjust_ff_dim=False, tie_word_embeddings=False))


def small_lfm2_moe() -> hf.PreTrainedModel:
    """The same with experts in the second layer."""
    sizes = checkpoints.sizes(256, 4, 2, 256, moe_intermediate_size=128, num_experts=4, num_experts_per_tok=2)
    return checkpoints.build(
        hf.Lfm2MoeConfig(**sizes, layer_types=["conv", "full_attention"], num_dense_layers=1, tie_word_embeddings=False)
    )


def small_granite_hybrid() -> hf.PreTrainedModel:
    """The same with a state space before attention."""
    sizes = checkpoints.sizes(256, 4, 2, 256, shared_intermediate_size=256, num_local_experts=0, mamba_n_heads=4)
    return checkpoints.build(hf.GraniteMoeHybridConfig(**sizes, layer_types=["mamba", "attention"], mamba_d_state=64))


def small_deepseek(**changes: int) -> hf.PreTrainedModel:
    """The same with latents, and a dense layer before that with experts."""
    sizes = checkpoints.sizes(384, 3, 3, 256, q_lora_rank=128, kv_lora_rank=128, n_routed_experts=8)
    dims = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "first_k_dense_replace": 1}
    experts = {"moe_intermediate_size": 128, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2}
    return checkpoints.build(hf.DeepseekV3Config(**sizes | dims | experts | changes))


def small_kimi(**changes: int) -> hf.PreTrainedModel:
    """The same without groups, in a model that sees."""
    text = small_deepseek(n_group=1, topk_group=1, **changes).config
    return checkpoints.build(kimi_around(text))


def small_mimo() -> hf.PreTrainedModel:
    """The same with values narrower than keys, and a dense layer before one that slides and has experts."""
    sizes = checkpoints.sizes(256, 4, 2, 256, head_dim=192, v_head_dim=128, moe_intermediate_size=128)
    return checkpoints.build(
        hf.MiMoV2FlashConfig(**sizes, n_routed_experts=6, num_experts_per_tok=2, sliding_window=16)
    )


def small_kimi_linear() -> hf.PreTrainedModel:
    """The same with Kimi Delta Attention in the first layer."""
    sizes = checkpoints.sizes(384, 3, 3, 256, kv_lora_rank=128, num_local_experts=8, num_experts_per_tok=2)
    dims = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "moe_intermediate_size": 128}
    kinds = {"layer_types": ["linear_attention", "full_attention"], "mlp_layer_types": ["dense", "sparse"]}
    return checkpoints.build(hf.KimiLinearConfig(**sizes | dims | kinds, linear_num_heads=3, linear_head_dim=128))


def matrices(model: hf.PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """What may be quantized: names of modules as checkpoints have them, and weights [out features, in features] that
    are the model's own. Experts are Qwen's, MiniMax's, LFM2's, Kimi Linear's or Llama 4's."""
    is_minimax, is_turned = model.config.model_type == "minimax_m2", model.config.model_type in TURNED
    has_numbers = model.config.model_type in ("minimax_m2", "lfm2_moe", "kimi_linear")
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and not name.endswith(("lm_head", "shared_expert_gate")):
            yield name, module.weight.data
        if name.endswith(".experts"):
            stacks = [each.mT if is_turned else each for each in (module.gate_up_proj.data, module.down_proj.data)]
            for index, (gate_up, down) in enumerate(zip(*stacks, strict=True)):
                weights = *gate_up.chunk(2), down
                parts = ("w1", "w3", "w2") if has_numbers else ("gate_proj", "up_proj", "down_proj")
                at = name.replace(".mlp.", ".block_sparse_moe.") if is_minimax else name
                yield from zip((f"{at}.{index}.{part}" for part in parts), weights, strict=True)


def save_published(
    model: hf.PreTrainedModel,
    folder: Path,
    layout: str,
    *,
    skip: Callable[[str], bool] = lambda _: False,
    named: Callable[[str], str] = str,
) -> Path:
    """Save `model` in one of `LAYOUTS`, but for modules to `skip`, which the configuration does not name. The model is
    given the weights that are kept of the checkpoint: it stays the reference. `named` makes names of the checkpoint of
    the model's."""
    published = LAYOUTS[layout]
    checkpoints.save(model, folder)
    tensors = load_file(folder / "model.safetensors")
    if model.config.model_type in (
        *TURNED,
        "gemma4_text",
    ):  # quantized checkpoints have a tensor for each expert
        tensors = {name: each for name, each in tensors.items() if each.ndim < 3}
    for name, weight in matrices(model):
        if skip(name):
            continue
        written = published.write(weight.numpy())
        tensors.pop(f"{named(name)}.weight", None)
        tensors |= {f"{named(name)}.{suffix}": tensor for suffix, tensor in written.tensors.items()}
        weight.copy_(torch.from_numpy(written.values if published.exact else rounded_anew(written.values)))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    edit_config(folder, quantization_config=published.config)
    return folder


def save_kimi(model: hf.PreTrainedModel, folder: Path) -> Path:
    """Save `small_kimi` as Kimi K2.5 is published: experts in INT4, of which the text model's configuration says."""
    layout = "w4a16 groups of 32"
    save_published(model, folder, layout, skip=lambda name: ".experts." not in name, named=published_name)
    ignored = ["lm_head", *(f"re:.*{each}.*" for each in _KIMI_IGNORES)]
    text = json.loads((folder / "config.json").read_text())["text_config"]
    quantization = LAYOUTS[layout].config | {"ignore": ignored}
    edit_config(folder, quantization_config=None, text_config=text | {"quantization_config": quantization})
    return folder


def save_mimo(model: hf.PreTrainedModel, folder: Path) -> Path:
    """Save `small_mimo` as MiMo-V2-Flash is published: in FP8 but for output projections."""
    save_published(model, folder, "fp8 blocks", skip=lambda name: name.endswith("o_proj"))
    ignored = [f"model.layers.{layer}.self_attn.o_proj" for layer in range(model.config.num_hidden_layers)]
    quantization = LAYOUTS["fp8 blocks"].config | {"ignored_layers": ignored}
    edit_config(folder, quantization_config=quantization, **mimo_fields(model.config))
    return folder


def mimo_fields(config: hf.PreTrainedConfig) -> dict[str, Any]:
    """Return the changes of a config.json that transformers writes to one as MiMo-V2-Flash is published."""
    ropes = config.rope_parameters
    heads = {"num_attention_heads": config.num_attention_heads, "head_dim": config.head_dim}
    renamed = ("layer_types", "mlp_layer_types", "rope_parameters", "rms_norm_eps")
    return {
        **dict.fromkeys(renamed),
        **{f"swa_{key}": value for key, value in (heads | {"v_head_dim": config.v_head_dim}).items()},
        "swa_num_key_value_heads": 2 * config.num_key_value_heads,
        "hybrid_layer_pattern": [int(kind == "sliding_attention") for kind in config.layer_types],
        "moe_layer_freq": [int(kind == "sparse") for kind in config.mlp_layer_types],
        "layernorm_epsilon": config.rms_norm_eps,
        "rope_theta": ropes["full_attention"]["rope_theta"],
        "swa_rope_theta": ropes["sliding_attention"]["rope_theta"],
        "partial_rotary_factor": ropes["full_attention"]["partial_rotary_factor"],
        "sliding_window": config.sliding_window - 1,
        "sliding_window_size": config.sliding_window - 1,
        "attention_chunk_size": config.sliding_window - 1,
        "add_full_attention_sink_bias": False,
        "add_swa_attention_sink_bias": True,
        "routed_scaling_factor": None,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
    }


def save_qwen3_5(model: hf.PreTrainedModel, folder: Path, layout: str) -> Path:
    """Save `small_qwen3_5` or `small_qwen3_5_moe` as Qwen3.5 is published: gates and convolutions in bf16."""
    return save_but_for(model, folder, layout, ("in_proj_a", "in_proj_b", "conv1d"))


def save_but_for(model: hf.PreTrainedModel, folder: Path, layout: str, kept: tuple[str, ...]) -> Path:
    """Save `model` in one of `LAYOUTS`, but for modules with these last names, which the configuration excepts."""
    save_published(model, folder, layout, skip=lambda name: name.endswith(tuple(f".{each}" for each in kept)))
    exceptions = {
        "modules_to_not_convert": [*kept, "lm_head"],
        "ignore": ["lm_head", *(rf"re:.*\.{re.escape(each)}$" for each in kept)],
        "dynamic": {rf"-:.*\.{re.escape(each)}$": {} for each in kept},
    }
    edit_config(folder, quantization_config=LAYOUTS[layout].config | exceptions)
    return folder


def edit_config(folder: Path, **changes: object) -> None:
    """Change fields of config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
