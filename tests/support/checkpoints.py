"""Tiny random checkpoints, made on the spot with transformers: one for each family and for each feature of one.

The sizes are odd on purpose: heads that no number of ranks divides, widths that are no multiple of a tile.
"""

import copy
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import transformers as hf

from tests.support import gemma4, gguf_models, kimi
from tests.support.families import row
from tests.support.families.table import FAMILIES
from tests.support.gguf_models import CENTRED, TURNED
from tests.support.launches import count

# Tests take these from here.
VOCAB, COMMON, sizes, rope = row.VOCAB, row.COMMON, row.sizes, row.rope
save_gguf = gguf_models.save_gguf
_UNIT = (  # about one
    "norm.weight",
    "layernorm_1.weight",
    "layernorm_2.weight",
    "layer_norm1.weight",
    "layer_norm2.weight",
    "ln_pre.weight",
    "layernorm_pre.weight",
    "layernorm_post.weight",
    "post_layernorm.weight",
    "router.scale",
    "per_expert_scale",
)
_K_QUANTS = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
_GRIDS = ("IQ3_XXS", "IQ3_S", "IQ2_XXS", "IQ2_XS", "IQ2_S")
GGUF_BLOCKS = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", *_K_QUANTS, "IQ4_NL", "IQ4_XS", "MXFP4", *_GRIDS)
GGUF_TYPES = ("F32", "F16", "BF16", *GGUF_BLOCKS)


# By configuration and seed: to make a model takes ten times as long as to copy it, and tests want hundreds of few.
_BUILT: dict[tuple[str, int], hf.PreTrainedModel] = {}


def random_model(case: str, seed: int = 0) -> hf.PreTrainedModel:
    """A model of a row of the table in fp32 whose weights are random bf16 values."""
    return build(FAMILIES[case].config(), seed)


def build(config: hf.PreTrainedConfig, seed: int = 0) -> hf.PreTrainedModel:
    """The same for another configuration."""
    key = (config.to_json_string(use_diff=False), seed)
    if key not in _BUILT:
        model = blank_model(config, dtype=torch.float32, attn_implementation="eager")
        _BUILT[key] = randomise(_recurrent(model), seed)
    return copy.deepcopy(_BUILT[key])


def blank_model(config: hf.PreTrainedConfig, **options: Any) -> hf.PreTrainedModel:
    """Make a model whose weights the caller writes, without initial random values: drawing them takes half of the time.

    Zeros take their place: `trunc_normal_` draws until all values are within bounds, which those of fresh memory need
    not be. transformers' `no_init_weights` was rejected: it leaves out buffers with constants too.
    """
    draws = {name: lambda tensor, *_, **__: tensor.zero_() for name in ("normal_", "uniform_")}
    with mock.patch.multiple(torch.Tensor, **draws):
        return model_class(config).from_config(config, **options).eval()


def _recurrent(model: hf.PreTrainedModel) -> hf.PreTrainedModel:
    """Let models with gated delta networks compute token by token, as is done here, not by solving a system of
    equations for each chunk."""
    code = sys.modules[type(model).__module__]
    for rule in ("torch_{}_gated_delta_rule", "{}_kimi_delta_attention"):
        if hasattr(code, rule.format("chunk")):
            setattr(code, rule.format("chunk"), getattr(code, rule.format("recurrent")))
    return model


def model_class(config: hf.PreTrainedConfig) -> type[Any]:
    """Return transformers' class for models of this configuration."""
    is_nested = hasattr(config, "vision_config")
    return hf.AutoModelForImageTextToText if is_nested else hf.AutoModelForCausalLM


def architecture(config: hf.PreTrainedConfig) -> str:
    """Return the name of that class."""
    return model_class(config)._model_mapping[type(config)].__name__


def randomise(model: hf.PreTrainedModel, seed: int = 0) -> hf.PreTrainedModel:
    """Give a model random bf16 values, spread so that its predictions are neither flat nor certain."""
    generator = torch.Generator().manual_seed(seed)
    is_centred_model = model.config.model_type.startswith(CENTRED)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith(".sinks"):
                value = noise
            elif parameter.ndim == 1 or name.endswith("_bias"):
                is_other = name.endswith("linear_attn.norm.weight") or "vision_tower" in name
                is_centred = is_centred_model and not is_other
                is_unit_norm = name.endswith(_UNIT) and not is_centred
                value = 0.2 * noise + (1.0 if is_unit_norm else 0.0)
            elif "embed_tokens_per_layer" in name:
                value = 0.2 * noise
            elif "embed_tokens" in name:
                # More, and a tied head would predict the token it was given. Gemma multiplies by sqrt(hidden size).
                value = (0.03 if model.config.model_type.startswith("gemma") else 0.08) * noise
            else:
                is_turned = model.config.model_type in TURNED and parameter.ndim == 3
                inputs = parameter.shape[1 if is_turned else -1] if parameter.ndim < 4 else parameter[0].numel()
                value = noise * 1.5 * inputs**-0.5
            parameter.copy_(value.to(torch.bfloat16).float())
        for name, buffer in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "expert_bias", "layer_scalar")):
                noise = 0.1 * torch.randn(buffer.shape, generator=generator)
                buffer.copy_((noise + name.endswith("layer_scalar")).to(torch.bfloat16).float())
    return model


def _rounded_weights(model: hf.PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return the weights in bf16; those that are tied stay tied."""
    rounded: dict[tuple[int, torch.Size], torch.Tensor] = {}
    weights = {}
    for name, weight in model.state_dict().items():
        place = weight.data_ptr(), weight.shape
        if place not in rounded:
            rounded[place] = weight.to(torch.bfloat16) if weight.is_floating_point() else weight
        weights[name] = rounded[place]
    return weights


def save(model: hf.PreTrainedModel, folder: Path, *, sharded: bool = False) -> Path:
    """Save a model as bf16 safetensors, in one file or in several with an index."""
    count("checkpoints")
    # Not a copy of the model, which takes longer to make than to write. Casting the model itself to bf16 and back would
    # round its rope frequencies too.
    config, model.config = model.config, copy.copy(model.config)
    try:
        with mock.patch.object(type(model), "dtype", torch.bfloat16):
            model.save_pretrained(
                folder, state_dict=_rounded_weights(model), max_shard_size="100KB" if sharded else "1GB"
            )
    finally:
        model.config = config
    if model.config.model_type == "kimi_k25":
        kimi.publish_k25(folder)
    if model.config.model_type == "kimi_linear":
        kimi.publish_linear(folder)
    if model.config.model_type.startswith("gemma4") and not sharded:
        gemma4.save_as_published(folder)
    return folder
