"""Reads `quantization_config` of a config.json: which modules are quantised, and in which layout.

Every method has its own words for the same few things; a file of this package for each says which ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.quantization_methods import (
    Rule,
    auto_round,
    awq,
    compressed_tensors,
    fp8,
    gptq,
    mxfp4,
)
from numaserve.workers.models.family import Family
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.models.stored import Stored

LM_HEAD = "lm_head"

# From the configuration to what decides on each module.
_METHODS: dict[str, Callable[[Fields], Rule]] = {
    "gptq": gptq,
    "awq": awq,
    "auto-round": auto_round,
    "intel/auto-round": auto_round,
    "fp8": fp8,
    "mxfp4": mxfp4,
    "compressed-tensors": compressed_tensors,
}


def read_quantization(fields: Fields, config: ModelConfig, family: Family) -> dict[str, Stored]:
    """The quantised matrices of a config.json. Raises `OperatorError` for a method or scheme that is not supported."""
    found = _find(fields)
    if found is None:
        return {}
    rule = found.choice("quant_method", _METHODS)(found)
    modules = {}
    for module in matrix_modules(config, family):
        stored = rule(_names(module, family))
        if stored is not None:
            modules[module] = stored
    return modules


def matrix_modules(config: ModelConfig, family: Family) -> list[str]:
    """The modules with a matrix that may be quantised, without what stands before "layers.". Nobody quantises a router,
    whatever a configuration seems to say."""
    attention = [name for name, _ in family.attention_matrices(config)]
    within = {}
    for moe in {None, config.moe}:
        mlps = [name for mlp, _ in family.mlps(config, moe) for name in (mlp.gate, mlp.up, mlp.down)]
        within[moe] = dict.fromkeys((*attention, family.names.o, *mlps))
    layers = [f"layers.{layer}.{name}" for layer in range(config.num_layers) for name in within[config.moe_of(layer)]]
    return layers if config.tie_word_embeddings else [*layers, LM_HEAD]


def _find(fields: Fields) -> Fields | None:
    text = fields.child("text_config")
    for holder in (fields, text):
        for key in ("quantization_config", "compression_config"):
            if holder.has(key):
                return holder.child(key)
    return None


def _names(module: str, family: Family) -> Sequence[str]:
    """What a configuration may call a module: checkpoints of a family nest it differently."""
    if module == LM_HEAD:
        return [LM_HEAD, *(f"{prefix.removesuffix('model.')}{LM_HEAD}" for prefix in family.prefixes)]
    return [f"{prefix}{module}" for prefix in family.prefixes]
