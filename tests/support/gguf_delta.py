"""GGUF files of models with gated delta networks, as llama.cpp's converter writes them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers as hf

from tests.support import checkpoints
from tests.support.k_quants import fitting, quantize

ARCHITECTURES = {"qwen3_next": "qwen3next", "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe"}
Q = gguf.GGMLQuantizationType
Written = tuple[str, torch.Tensor, Callable[[torch.Tensor], object] | None]
_PLAIN = ("conv1d.weight", "mlp.gate.weight", "shared_expert_gate.weight")  # matrices that stay fp32


# Rows of 256 columns and more, which all block formats can have: a block of 256 spans four value heads.
_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 64,
    "layer_types": ["linear_attention", "full_attention"],
}
_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 256,
}
_KINDS = {"qwen3_5": hf.Qwen3_5TextConfig, "qwen3_5_moe": hf.Qwen3_5MoeTextConfig, "qwen3_next": hf.Qwen3NextConfig}


def small_hybrid(name: str, **changes: object) -> hf.PreTrainedModel:
    """A random model with a gated delta network before gated attention."""
    experts = {} if name == "qwen3_5" else _EXPERTS
    return checkpoints.build(
        _KINDS[name](**checkpoints.sizes(256, 4, 2, 256, head_dim=64) | _DELTA | experts | changes)
    )


def save_gguf_delta(
    model: hf.PreTrainedModel, path: Path, kind: str, *, extra: dict[str, torch.Tensor] | None = None
) -> Path:
    """Matrices are of `kind` where their columns allow it. The model is given the values that the file holds. `extra`
    are tensors of a layer that predicts, by their names in `mtp.`."""
    config = model.config
    architecture = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, architecture)
    layers = config.num_hidden_layers
    _add_metadata(writer, config, predictors=1 if extra else 0)
    known = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}
    table = gguf.get_tensor_name_map(known[architecture], layers + 1)
    for name, values, give_back in (*_converted(model), *_predictor(extra or {}, layers)):
        array = np.ascontiguousarray(values.float().numpy())
        is_plain = array.ndim == 1 or name.endswith(_PLAIN)
        qtype = fitting(Q.F32 if is_plain else Q[kind], array.shape[-1])
        data = quantize(array.reshape(-1, array.shape[-1]), qtype)
        found = name if name.startswith("blk.") else table.get_name(name, try_suffixes=(".weight", ".bias"))
        shape = (-1,) if array.ndim == 1 or "shared_expert_gate" in name else (*array.shape[:-1], data.shape[-1])
        writer.add_tensor(found, data.reshape(shape), raw_dtype=qtype)
        if give_back is not None:
            give_back(torch.from_numpy(gguf.quants.dequantize(data, qtype).reshape(array.shape).astype(np.float32)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_metadata(writer: gguf.GGUFWriter, config: hf.PreTrainedConfig, *, predictors: int) -> None:
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers + predictors)
    if predictors:
        writer.add_nextn_predict_layers(predictors)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(int(config.head_dim * config.rope_parameters["partial_rotary_factor"]))
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_ssm_state_size(config.linear_key_head_dim)
    writer.add_ssm_group_count(config.linear_num_key_heads)
    writer.add_ssm_time_step_rank(config.linear_num_value_heads)
    writer.add_ssm_inner_size(config.linear_value_head_dim * config.linear_num_value_heads)
    writer.add_full_attention_interval(config.layer_types.index("full_attention") + 1)
    writer.add_eos_token_id(config.eos_token_id)
    writer.add_bos_token_id(config.bos_token_id)
    if "moe" in config.model_type or config.model_type == "qwen3_next":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    else:
        writer.add_feed_forward_length(config.intermediate_size)


def _converted(model: hf.PreTrainedModel) -> Iterator[Written]:
    """The names that the table knows or the file's own, values as the file has them, and how the model gets them."""
    for name, parameter in model.named_parameters():
        values = parameter.data
        module, _, part = name.rpartition(".")
        at = f"blk.{name.split('.')[2]}." if name.startswith("model.layers.") else ""
        if part == "A_log":
            yield f"{at}ssm_a", -torch.exp(values)[_order(model)], None
        elif part == "dt_bias":
            yield f"{at}ssm_dt.bias", values[_order(model)], None
        elif name.endswith("norm.weight"):
            yield name, values if "linear_attn" in name else values + 1, None
        elif name.endswith("conv1d.weight"):
            yield name, values[:, 0][_rows(model)], None
        elif part == "gate_up_proj":
            for each, half in zip(("gate_proj", "up_proj"), values.chunk(2, dim=1), strict=True):
                yield f"{module}.{each}.weight", half, half.copy_
        elif part == "down_proj":
            yield f"{name}.weight", values, values.copy_
        elif module.endswith("in_proj_qkvz"):
            qkv, z = _apart(model)
            yield f"{at}attn_qkv.weight", values[qkv], _into(values, qkv)
            yield f"{at}attn_gate.weight", values[z], _into(values, z)
        elif module.endswith("out_proj"):
            turned = values.T
            rows = _rows_of_values(model)
            yield name, turned[rows].T, lambda kept, turned=turned, rows=rows: _into(turned, rows)(kept.T)
        else:
            rows = _rows_of(module, model)
            yield name, values if rows is None else values[rows], _into(values, rows)


def _into(values: torch.Tensor, rows: torch.Tensor | None) -> Callable[[torch.Tensor], object]:
    def give_back(kept: torch.Tensor) -> None:
        values[slice(None) if rows is None else rows] = kept

    return give_back


def _predictor(extra: dict[str, torch.Tensor], layers: int) -> Iterator[Written]:
    """The layer for multi-token prediction, as one more layer."""
    names = {
        "fc": "eh_proj",
        "pre_fc_norm_embedding": "enorm",
        "pre_fc_norm_hidden": "hnorm",
        "norm": "shared_head_norm",
    }
    for name, values in extra.items():
        first = name.removeprefix("mtp.").split(".")[0]
        added = 1 if name.endswith("norm.weight") or first.startswith("pre_fc_norm") else 0
        if first in names:
            yield f"blk.{layers}.nextn.{names[first]}.weight", values.float() + added, None
        else:
            yield name.replace("mtp.layers.0.", f"model.layers.{layers}."), values.float() + added, None


def _order(model: hf.PreTrainedModel) -> torch.Tensor:
    """The value heads in the order of the file: round-robin, but for Qwen3-Next."""
    heads = torch.arange(model.config.linear_num_value_heads)
    if model.config.model_type == "qwen3_next":
        return heads
    return heads.view(model.config.linear_num_key_heads, -1).T.reshape(-1)


def _rows_of_values(model: hf.PreTrainedModel) -> torch.Tensor:
    dim = model.config.linear_value_head_dim
    return (_order(model)[:, None] * dim + torch.arange(dim)).reshape(-1)


def _rows(model: hf.PreTrainedModel) -> torch.Tensor:
    keys = 2 * model.config.linear_num_key_heads * model.config.linear_key_head_dim
    return torch.cat([torch.arange(keys), keys + _rows_of_values(model)])


def _rows_of(module: str, model: hf.PreTrainedModel) -> torch.Tensor | None:
    rows = {"in_proj_qkv": _rows, "in_proj_z": _rows_of_values, "in_proj_a": _order, "in_proj_b": _order}
    found = rows.get(module.rpartition(".")[2])
    return None if found is None else found(model)


def _apart(model: hf.PreTrainedModel) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of queries, keys and values, and those of z, where each key head has all of its own."""
    config = model.config
    key, heads = config.linear_key_head_dim, config.linear_num_key_heads
    value = config.linear_num_value_heads // heads * config.linear_value_head_dim
    by_head = torch.arange(heads * 2 * (key + value)).view(heads, -1).split([key, key, value, value], dim=1)
    q, k, v, z = (each.reshape(-1) for each in by_head)
    return torch.cat([q, k, v]), z
