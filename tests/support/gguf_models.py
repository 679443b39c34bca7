"""GGUF files of transformers' models, as llama.cpp's converter writes them."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers as hf

from tests.support.gguf_files import Array, add, begin, finish
from tests.support.gguf_metadata import Form, form_of, metadata, unsplit
from tests.support.launches import count

TURNED = ("gpt_oss", "llama4_text")  # types of models whose experts have in features first
CENTRED = ("gemma2", "gemma3", "qwen3_5", "qwen3_next")  # types of models whose norms' weights lack one
_KNOWN = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}
# Tensors that stay fp32, as biases and other vectors do.
_PLAIN = re.compile(r"\.(ffn_gate_inp(_shexp)?\.weight|ssm_(conv1d\w*\.weight|a|d|norm\.weight)|shortconv\.conv\..*)$")
# Parts that the table lacks, or that it has under other names.
_NAMES = {"router": "ffn_gate_inp.weight", "scale": "ffn_gate_inp.scale", "per_expert_scale": "ffn_down_exps.scale"}
_NUMBERS = {"gate": "w1", "down": "w2", "up": "w3"}
View = torch.Tensor


@dataclass(frozen=True)
class Entry:
    """A tensor of a file: views of the model's values that lie one below the other, each in a shape of its own."""

    name: str
    pieces: tuple[tuple[View, tuple[int, ...]], ...]

    def array(self) -> Array:
        """Return the values."""
        whole = torch.cat([view.reshape(shape) for view, shape in self.pieces])
        return np.ascontiguousarray(whole.detach().float().numpy())

    def keep(self, values: Array, dtype: torch.dtype) -> None:
        """Give the model the values that the file holds, rounded to `dtype`."""
        sizes = [view.reshape(shape).shape[0] for view, shape in self.pieces]
        parts = torch.from_numpy(values.copy()).to(dtype).split(sizes)
        for (view, _), part in zip(self.pieces, parts, strict=True):
            view.copy_(part.reshape(view.shape))


def save_gguf(
    model: hf.PreTrainedModel,
    path: Path,
    kind: str,
    *,
    embedding: str | None = None,
    expanded: bool = True,
    split_kv_b: bool = True,
    more: Mapping[str, torch.Tensor] | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model as a GGUF file whose matrices are of `kind`, the embedding maybe of another. Not Phi-3, nor models
    with dense layers between those with experts. `split_kv_b`: latents' as newer files have it.

    The model is given the values that the file holds, where `expanded` rounded to bf16: it stays the reference. `more`
    are tensors of a layer that predicts, and `changes` metadata of the architecture; None leaves out a key.
    """
    count("checkpoints")
    config, form = model.config, form_of(model.config)
    values = metadata(config, form) | ({} if split_kv_b else dict(unsplit(config)))
    if more:
        last = max(int(name.split(".")[2]) for name in more)
        values |= {"block_count": last + 1, "nextn_predict_layers": 1}
    table = gguf.get_tensor_name_map(_KNOWN[form.architecture], values["block_count"])
    writer = begin(path, form.architecture, values | dict(changes or {}))
    with torch.no_grad():
        for entry in _entries(model, form, more or {}, split=split_kv_b):
            found = table.get_name(as_converted(entry.name), (".weight", ".bias")) or _unknown(entry.name)
            array = entry.array()
            if array.ndim == 1 or found.endswith(".bias") or _PLAIN.search(found):
                chosen = "F32"
            elif "_exps." in found:
                chosen = form.experts or kind
            else:
                chosen = embedding or kind if found == "token_embd.weight" else kind
            held = add(writer, found, array.reshape(-1) if "inp_shexp" in found else array, chosen)
            entry.keep(held.reshape(array.shape), torch.bfloat16 if expanded else torch.float32)
    finish(writer)
    return path


def _unknown(name: str) -> str:
    """Return the name in a file of a tensor that the table does not know: of a layer that predicts, or its own."""
    return re.sub(r"^model\.layers\.(\d+)\.", r"blk.\1.nextn.", name.replace("shared_head.norm", "shared_head_norm"))


def as_converted(name: str) -> str:
    """Return what llama.cpp's converter makes of a tensor's name before it asks the table."""
    if name.endswith((".sinks", ".attention_sink_bias", ".layer_scalar")):
        return f"{name}.weight"
    name = re.sub(
        r"(block_sparse_moe)\.\d+\.(\w+)_proj", lambda found: f"{found[1]}.experts.{_NUMBERS[found[2]]}", name
    )
    name = name.replace(".shared_mlp.", ".mlp.shared_mlp.").replace(".forget_gate.", ".")
    name = re.sub(r"experts\.\d+", "experts", name).replace("e_score_correction_bias", "e_score_correction.bias")
    name = re.sub(r"^model\.(layers\.\d+\.feed_forward\.experts\.w)", r"\1", name)
    name = re.sub(r"^model\.(layers\.\d+\.(mixer|norm)\.|norm_f)", r"backbone.\1", name)
    return name.replace(".dt_bias", ".dt_proj.bias").replace(".expert_bias", ".expert_bias.bias")


def _entries(
    model: hf.PreTrainedModel, form: Form, more: Mapping[str, torch.Tensor], *, split: bool
) -> Iterator[Entry]:
    buffers = ("e_score_correction_bias", "expert_bias", "layer_scalar")
    named = [*model.named_parameters(), *(each for each in model.named_buffers() if each[0].endswith(buffers))]
    for name, values in (*named, *more.items()):
        yield from _of(name, values.data, model.config, form, split=split)
    if model.config.model_type == "gemma4_text":
        yield Entry("rope_freqs.weight", _whole(_divisors(model.config)))


def _of(name: str, values: View, config: hf.PreTrainedConfig, form: Form, *, split: bool) -> Iterator[Entry]:
    """Yield the tensors of a file that a model's parameter becomes, by names that the table knows or the file's own."""
    part = name.removesuffix(".weight").rpartition(".")[2]
    at = f"blk.{name.split('.')[2]}." if name.startswith("model.layers.") else ""
    if config.model_type.startswith(("qwen3_5", "qwen3_next")) and "linear_attn" in name:
        yield from _of_delta(name, values, config)
    elif part in ("A_log", "D", "conv1d", "conv") or name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
        yield from _of_states(name, values, config)
    elif name.endswith("norm.weight") and config.model_type.startswith(CENTRED):
        yield Entry(name, _whole(values.float() + 1))
    elif part == "kv_b_proj" and split:
        each = values.unflatten(0, (config.num_attention_heads, -1))
        yield Entry(f"{at}attn_k_b.weight", _whole(each[:, : config.qk_nope_head_dim].mT))
        yield Entry(f"{at}attn_v_b.weight", _whole(each[:, config.qk_nope_head_dim :]))
    elif part in ("q_proj", "k_proj") and form.pairs:
        heads = config.num_attention_heads if part == "q_proj" else config.num_key_value_heads
        pairs = values.view(heads, 2, len(values) // heads // 2, *values.shape[1:]).transpose(1, 2)
        yield Entry(name, ((pairs, tuple(values.shape)),))
    elif part in ("input_linear", "output_linear"):
        suffix = "_shexp" if config.num_local_experts else ""
        parts = zip(("gate", "up"), values.chunk(2), strict=True) if part == "input_linear" else [("down", values)]
        for each, rows in parts:
            yield Entry(f"{at}ffn_{each}{suffix}.weight", _whole(rows))
    elif ".experts." in name:
        yield from _of_experts(at, part, values, config)
    else:
        yield Entry(f"{at}{_NAMES[part]}" if part in _NAMES else name, _whole(values))


def _whole(view: View) -> tuple[tuple[View, tuple[int, ...]]]:
    return ((view, tuple(view.shape)),)


def _of_states(name: str, values: View, config: hf.PreTrainedConfig) -> Iterator[Entry]:
    """Yield the tensors of state spaces, of Kimi Delta Attention and of short convolutions."""
    part = name.removesuffix(".weight").rpartition(".")[2]
    if part == "A_log":
        decays = -torch.exp(values)
        yield Entry(name, _whole(decays if "forget_gate" in name else decays[:, None]))
    elif part == "norm":
        groups = config.mamba_n_groups if ".mamba." in name else config.n_groups
        yield Entry(name, _whole(values.view(groups, -1)))
    elif part == "conv1d" and "self_attn" in name:
        for each, rows in zip("qkv", values.chunk(3), strict=True):
            yield Entry(f"blk.{name.split('.')[2]}.ssm_conv1d_{each}.weight", _whole(rows[None]))
    else:
        yield Entry(name, _whole(values[:, None] if part == "D" else values[:, 0]))


def _of_experts(at: str, part: str, values: View, config: hf.PreTrainedConfig) -> Iterator[Entry]:
    """Yield the stacks of gates, of what goes up and of what goes down, with out features first."""
    is_bias = part.endswith("_bias")
    suffix, turned = (".bias", values) if is_bias else (".weight", values)
    if config.model_type in TURNED and not is_bias:
        turned = values.mT
    stack = part.removesuffix("_bias").removesuffix("_proj")
    if stack != "gate_up" or config.model_type == "gemma4_text":
        yield Entry(f"{at}ffn_{stack}_exps{suffix}", _whole(turned))
        return
    rows = turned if not is_bias else turned[..., None]
    halves = (rows[:, 0::2], rows[:, 1::2]) if config.model_type == "gpt_oss" else rows.chunk(2, dim=1)
    for each, half in zip(("gate", "up"), halves, strict=True):
        yield Entry(f"{at}ffn_{each}_exps{suffix}", _whole(half[..., 0] if is_bias else half))


def _of_delta(name: str, values: View, config: hf.PreTrainedConfig) -> Iterator[Entry]:
    """Yield the tensors of a gated delta network. Value heads lie round-robin, but for Qwen3-Next."""
    keys, heads, dim = config.linear_num_key_heads, config.linear_num_value_heads, config.linear_value_head_dim
    of_keys = keys * config.linear_key_head_dim
    at, part = f"blk.{name.split('.')[2]}.", name.removesuffix(".weight").rpartition(".")[2]

    def in_order(rows: View, of_head: int) -> tuple[View, tuple[int, ...]]:
        """The rows of value heads, `of_head` of each."""
        by_key = rows.unflatten(0, (keys, heads // keys, of_head))
        return by_key if config.model_type == "qwen3_next" else by_key.transpose(0, 1), tuple(rows.shape)

    if part == "A_log":
        yield Entry(f"{at}ssm_a", (in_order(-torch.exp(values), 1),))
    elif part == "dt_bias":
        yield Entry(f"{at}ssm_dt.bias", (in_order(values, 1),))
    elif part in ("conv1d", "in_proj_qkv"):
        rows = values[:, 0] if part == "conv1d" else values
        yield Entry(name, (*_whole(rows[: 2 * of_keys]), in_order(rows[2 * of_keys :], dim)))
    elif part == "in_proj_qkvz":
        key, value = config.linear_key_head_dim, heads // keys * dim
        q, k, v, z = values.unflatten(0, (keys, -1)).split([key, key, value, value], dim=1)
        pieces = [(each, (each.shape[0] * each.shape[1], each.shape[2])) for each in (q, k, v, z)]
        yield Entry(f"{at}attn_qkv.weight", tuple(pieces[:3]))
        yield Entry(f"{at}attn_gate.weight", tuple(pieces[3:]))
    elif part == "out_proj":
        columns, shape = in_order(values.T, dim)
        yield Entry(name, ((columns.movedim(-1, 0), shape[::-1]),))
    elif part in ("in_proj_z", "in_proj_a", "in_proj_b"):
        yield Entry(name, (in_order(values, dim if part == "in_proj_z" else 1),))
    else:
        yield Entry(name, _whole(values))


def _divisors(config: hf.PreTrainedConfig) -> torch.Tensor:
    """Return the divisors of the frequencies of Gemma 4's layers that see all tokens, of which few turn."""
    half = config.per_layer_config[config.layer_types.index("full_attention")].head_dim // 2
    turning = int(config.rope_parameters["full_attention"]["partial_rotary_factor"] * half)
    return torch.tensor([1.0] * turning + [1e30] * (half - turning))
