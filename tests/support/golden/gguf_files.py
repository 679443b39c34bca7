"""GGUF files of tiny models, with the names and metadata that llama.cpp's converter gives them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

from tests.support.golden.checkpoints import Config, Floats, Model
from tests.support.golden.families import (
    deepseek,
    gemma2,
    gemma3,
    gpt_oss,
    llama,
    mixtral,
    phi3,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
)
from tests.support.k_quants import fitting, quantize

_ARCHITECTURES = {
    "mixtral": "llama",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "gpt_oss": "gpt-oss",
    "gemma3_text": "gemma3",
}
_ENUM_NAMES = {"gpt-oss": "GPT_OSS"}
_PLAIN = ("mlp.gate.weight", "block_sparse_moe.gate.weight", "mlp.router.weight", "shared_expert_gate.weight")
# What the package's table of names does not know as these checkpoints spell it.
_OWN_NAMES = {
    "mlp.router": "ffn_gate_inp",
    "post_attention_layernorm": "post_attention_norm",
    "self_attn.sinks": "attn_sinks",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
}


def save_gguf(model: Model, path: Path, kind: Kind, *, experts: Kind | None = None, split: bool = True) -> Path:
    """Matrices in `kind`, or what llama.cpp takes instead for narrow ones, those of experts maybe in another. `split`:
    what expands DeepSeek's latents is in two tensors, as in newer files."""
    config = model.config
    arch = _ARCHITECTURES.get(config["model_type"], config["model_type"])
    path = path.with_suffix(".gguf")
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, arch)
    _add_metadata(writer, config, split)
    names = gguf.get_tensor_name_map(
        getattr(gguf.MODEL_ARCH, _ENUM_NAMES.get(arch, arch.upper())), config["num_hidden_layers"]
    )
    for name, values in _tensors(model, split):
        at = _file_name(name, names, arch)
        plain = values.ndim == 1 or name.endswith((*_PLAIN, "bias"))
        wanted = Kind.F32 if plain else experts if experts is not None and ".experts." in name else kind
        qtype = fitting(wanted, values.shape[-1])
        rows = quantize(np.ascontiguousarray(values.reshape(-1, values.shape[-1])), qtype)
        flat = values.ndim == 1 or name.endswith("shared_expert_gate.weight")
        writer.add_tensor(at, rows.reshape(-1) if flat else rows.reshape(*values.shape[:-1], -1), raw_dtype=qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _file_name(name: str, names: gguf.TensorNameMap, arch: str) -> str:
    found = names.get_name(name, try_suffixes=(".weight", ".bias"))
    parts = name.split(".", 3)
    for own, theirs in _OWN_NAMES.items():
        if parts[1:2] == ["layers"] and parts[3].startswith(own) and (found is None or arch == "gpt-oss"):
            rest = parts[3].removeprefix(own)
            return f"blk.{parts[2]}.{theirs}{rest or ('' if '.' in theirs else '.weight')}"
    if found is None:
        raise KeyError(name)
    return found


def _tensors(model: Model, split: bool) -> Iterator[tuple[str, Floats]]:
    """The model's tensors as the converter has them: experts of a layer in one, and so on."""
    config, groups = model.config, dict[str, list[Floats]]()
    gemma = config["model_type"].startswith("gemma")
    for name, values in model.tensors.items():
        layer, _, rest = name.partition(".experts.")
        if rest and config["model_type"] != "gpt_oss":
            groups.setdefault(f"{layer}.experts.{rest.split('.', 1)[1]}", []).append(values)
        elif rest:
            yield from _gpt_oss_parts(layer, rest, values)
        elif ".kv_b_proj." in name and split:
            each = values.reshape(config["num_attention_heads"], -1, values.shape[1])
            nope = config["qk_nope_head_dim"]
            yield name.replace("kv_b_proj", "k_b_proj"), each[:, :nope].transpose(0, 2, 1)
            yield name.replace("kv_b_proj", "v_b_proj"), each[:, nope:]
        elif name.endswith(("q_proj.weight", "k_proj.weight")) and config["model_type"] in {"llama", "mixtral"}:
            halves = values.reshape(-1, 2, config["head_dim"] // 2, values.shape[1])
            yield name, halves.swapaxes(1, 2).reshape(values.shape)
        else:
            yield name, values + np.float32(1) if gemma and name.endswith("norm.weight") else values
    yield from ((name, np.stack(each)) for name, each in groups.items())


def _gpt_oss_parts(layer: str, part: str, values: Floats) -> Iterator[tuple[str, Floats]]:
    kind = "bias" if part.endswith("_bias") else "weight"
    turned = values if kind == "bias" else values.transpose(0, 2, 1)
    if part.startswith("down"):
        yield f"{layer}.experts.down_proj.{kind}", turned
    else:
        for half, name in enumerate(("gate", "up")):
            yield f"{layer}.experts.{name}_proj.{kind}", turned[:, half::2]


def _add_metadata(writer: gguf.GGUFWriter, c: Config, split: bool) -> None:
    writer.add_embedding_length(c["hidden_size"])
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_rope_freq_base(c["rope_theta"])
    writer.add_eos_token_id(c["eos_token_id"])
    writer.add_bos_token_id(c["bos_token_id"])
    rope = c.get("rope_parameters", {})
    if rope.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if "sliding_window" in c and c["model_type"] != "mixtral":
        writer.add_sliding_window(c["sliding_window"])
    if c["model_type"] == "gemma2":
        writer.add_attn_logit_softcapping(c["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(c["final_logit_softcapping"])
    if c["model_type"].startswith("deepseek"):
        _add_latent_metadata(writer, c, split)
        return
    writer.add_head_count_kv(c["num_key_value_heads"])
    writer.add_key_length(c["head_dim"])
    writer.add_value_length(c["head_dim"])
    writer.add_rope_dimension_count(c["head_dim"])
    count = c.get("num_experts", c.get("num_local_experts"))
    if count:
        writer.add_expert_count(count)
        writer.add_expert_used_count(c["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(c.get("moe_intermediate_size", c["intermediate_size"]))
    if "shared_expert_intermediate_size" in c:
        writer.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])


def _add_latent_metadata(writer: gguf.GGUFWriter, c: Config, split: bool) -> None:
    query, latent = c["qk_nope_head_dim"] + c["qk_rope_head_dim"], c["kv_lora_rank"]
    writer.add_head_count_kv(1 if split else c["num_attention_heads"])
    writer.add_key_length(latent + c["qk_rope_head_dim"] if split else query)
    writer.add_value_length(latent if split else c["v_head_dim"])
    if split:
        writer.add_key_length_mla(query)
        writer.add_value_length_mla(c["v_head_dim"])
    writer.add_kv_lora_rank(latent)
    if c["q_lora_rank"] is not None:
        writer.add_q_lora_rank(c["q_lora_rank"])
    writer.add_rope_dimension_count(c["qk_rope_head_dim"])
    writer.add_rope_scaling_yarn_log_mul(0.1 * c["rope_parameters"]["mscale_all_dim"])
    writer.add_leading_dense_block_count(c["first_k_dense_replace"])
    writer.add_expert_count(c["n_routed_experts"])
    writer.add_expert_used_count(c["num_experts_per_tok"])
    writer.add_expert_shared_count(c["n_shared_experts"])
    writer.add_expert_feed_forward_length(c["moe_intermediate_size"])
    writer.add_expert_weights_scale(c["routed_scaling_factor"])
    writer.add_expert_group_count(c["n_group"])
    writer.add_expert_group_used_count(c["topk_group"])
    if c["model_type"] == "deepseek_v3":
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_norm(c["norm_topk_prob"])


def _wide_deepseek() -> Model:
    return deepseek(3, 256, 3, 128, 128, 128, nope=128, rope_dim=64, value=128)


_MODELS: dict[str, Callable[[], Model]] = {
    "llama": lambda: llama(256, 4, 2, 512, tie_word_embeddings=True),
    "qwen2": lambda: qwen2(192, 6, 3, 256),
    "qwen3": lambda: qwen3(128, 4, 2, 224, head_dim=64),
    "mixtral": lambda: mixtral(hidden=128, inner=256),
    "qwen2_moe": lambda: qwen2_moe(128, 96, 256, 7),
    "qwen3_moe": qwen3_moe,
    "gemma2": gemma2,
    "gemma3": gemma3,
    "phi3": lambda: phi3(scaled=False),
    "deepseek_v2": lambda: deepseek(2, 160, 5, None, 64, 64),
    "deepseek_v3": _wide_deepseek,
}
_KINDS = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]
_KINDS += ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"]
_PAIRS = [("llama", kind) for kind in _KINDS]
_PAIRS += [("qwen2", "Q4_0"), ("qwen3", "Q5_1"), ("mixtral", "Q4_K"), ("qwen2_moe", "Q8_0"), ("qwen3_moe", "Q4_1")]
_PAIRS += [("gemma2", "F16"), ("gemma3", "Q8_0"), ("phi3", "Q4_0")]
_PAIRS += [("deepseek_v2", "Q8_0"), ("deepseek_v3", "Q4_K")]

GGUF_FILES: dict[str, Callable[[Path], Path]] = {
    f"{name}, GGUF {kind}": (lambda path, name=name, kind=kind: save_gguf(_MODELS[name](), path, Kind[kind]))
    for name, kind in _PAIRS
} | {
    "deepseek_v3, GGUF Q8_0 in one": lambda path: save_gguf(_wide_deepseek(), path, Kind.Q8_0, split=False),
    "gpt_oss, GGUF MXFP4": lambda path: save_gguf(gpt_oss(160), path, Kind.Q8_0, experts=Kind.MXFP4),
}
