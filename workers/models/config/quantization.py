"""Reads `quantization_config` of a config.json: the quantized modules, and their layout.

Every method has its own names for the same few settings; a file of this package for each method maps them.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from numaserve.workers.interface.files import is_there, read_json
from numaserve.workers.layers.embedding import HEAD
from numaserve.workers.layers.formats import units_of
from numaserve.workers.layers.layer import Layer
from numaserve.workers.layers.names import all_aliased
from numaserve.workers.layers.parameters import MatrixParameter
from numaserve.workers.layers.stored import Stored
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.quantization_methods import (
    Rule,
    auto_round,
    awq,
    compressed_tensors,
    fp8,
    gptq,
    has_fixed_inputs,
    modelopt,
    modelopt_settings,
    mxfp4,
)
from numaserve.workers.models.spec import ModelConfig

# Each method's reader of the configuration, which gives the rule for modules.
_METHODS: dict[str, Callable[[Fields], Rule]] = {
    "gptq": gptq,
    "awq": awq,
    "auto-round": auto_round,
    "intel/auto-round": auto_round,
    "fp8": fp8,
    "mxfp4": mxfp4,
    "compressed-tensors": compressed_tensors,
    "modelopt": modelopt,
}
_OWN_FILE = "hf_quant_config"  # of ModelOpt's older checkpoints


def with_quantization_file(fields: Fields, folder: Path) -> Fields:
    """Return the fields of the config.json of `folder` with a quantization that is in a file of its own. Raises
    `OperatorError` for a file that cannot be read."""
    path = folder / f"{_OWN_FILE}.json"
    if _find(fields) is not None or not is_there(path):
        return fields
    return fields.with_values(**{_OWN_FILE: {"quant_method": "modelopt"} | read_json(path)})


def read_quantization(fields: Fields, config: ModelConfig) -> dict[str, Stored]:
    """Return the quantized matrices of a config.json. Raises `OperatorError` for a method or scheme that is not
    supported."""
    found = _find(fields)
    if found is None:
        return {}
    rule = found.choice("quant_method", _METHODS)(found)
    modules, decoder = {}, config.decoder
    if decoder.tower is not None and decoder.tower.plain:
        decoder = replace(decoder, tower=None)
    for module in matrix_modules(decoder):
        stored = rule(_names(module, config))
        if stored is not None:
            modules[module] = stored
    return modules


def left_out(fields: Fields) -> tuple[str, ...]:
    """Return sentences for the operator about quantization settings of a config.json that are not used."""
    found = _find(fields)
    if found is None:
        return ()
    found = modelopt_settings(found)
    schemes = found.child("config_groups")
    activations = [schemes.child(name).child("input_activations").values for name in schemes.values]
    notes = []
    is_static = found.values.get("activation_scheme") == "static" or has_fixed_inputs(found)
    # "local": of NVFP4, whose groups have scales of their own within a fixed scale of the tensor
    if is_static or any(each.get("dynamic") in (False, "local") for each in activations):
        notes.append(
            "the checkpoint's static activation scales are not used: activations are quantized dynamically or not at "
            "all, which is more exact"
        )
    if found.has("kv_cache_scheme") or found.has("kv_cache_quant_algo"):
        notes.append(
            "the checkpoint's KV cache scales are not used: --kv-cache-dtype sets the data type of the KV cache"
        )
    return tuple(notes)


def matrix_modules(decoder: Layer) -> list[str]:
    """Return the modules with a matrix that may be quantized, without the prefix before "layers.". No method quantizes
    a router, whatever a configuration seems to say."""
    found = (
        source.named(unit)
        for parameter in decoder.parameters()
        if isinstance(parameter, MatrixParameter)
        for source in parameter.sources
        if source.quantizable
        for unit in units_of(parameter)
    )
    return list(dict.fromkeys(found))


def _find(fields: Fields) -> Fields | None:
    text = fields.child("text_config")
    for holder in (fields, text):
        for key in ("quantization_config", "compression_config", _OWN_FILE):
            if holder.has(key):
                return holder.child(key)
    return None


def _names(module: str, config: ModelConfig) -> Sequence[str]:
    """Return the names that a configuration may give a module: checkpoints of a family nest it differently."""
    if module == HEAD:
        return [HEAD, *(f"{prefix.removesuffix('model.')}{HEAD}" for prefix in config.prefixes)]
    return all_aliased(module, config.aliases) or [f"{prefix}{module}" for prefix in config.prefixes]
