"""quant_method "auto-round": Intel's AutoRound, in one of the packings of GPTQ and AWQ.

`packing_format` (`backend` in old files): "auto_round:auto_gptq" has zero points minus one, "auto_round" and
"auto_round:gptqmodel" have them as they are, "auto_round:auto_awq" is AWQ's. `extra_config` has settings for single
modules; `block_name_to_quantize` says which blocks are quantized.
"""

from collections.abc import Sequence

from numaserve.workers.layers.stored import Layout, Stored
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.quantization_methods.gptq import CODES, grouped
from numaserve.workers.models.config.quantization_methods.rules import Modules, Rule, is_head, read_bits, read_group

_PACKINGS: dict[str, Layout] = {
    "auto_round:auto_gptq": "gptq",
    "auto_round:gptq": "gptq",
    "auto_round:gptq:exllamav2": "gptq",
    "auto_gptq": "gptq",
    "auto_round": "gptq_v2",
    "auto_round:gptqmodel": "gptq_v2",
    "auto_round:auto_awq": "awq",
    "auto_round:awq": "awq",
    "auto_awq": "awq",
}
_UNQUANTIZED_BITS = 16


def auto_round(fields: Fields) -> Rule:
    """Return the rule for modules. Raises `OperatorError` for another packing, and for quantized activations."""
    fields.refuse("data_type", "int")
    fields.refuse("act_bits", *range(_UNQUANTIZED_BITS, 65))
    packing = "packing_format" if fields.has("packing_format") else "backend"
    layout = fields.choice(packing, _PACKINGS, "auto_round:auto_gptq")
    base = _read(fields, layout)
    single = {name: _read(_settings(fields, name), layout) for name in fields.child("extra_config").values}
    blocks = Modules(_blocks(fields))

    def rule(names: Sequence[str]) -> Stored | None:
        for name in names:
            if name in single:
                return single[name]
        if blocks:
            return base if blocks.contains(names) else None
        return None if is_head(names) else base

    return rule


def _read(fields: Fields, layout: Layout) -> Stored | None:
    if fields.integer("bits", 1, 64) >= _UNQUANTIZED_BITS:
        return None
    bits = read_bits(fields, "bits", *((4,) if layout == "awq" else CODES))
    return grouped(layout, bits, read_group(fields, "group_size"), symmetric=fields.flag("sym", True))


def _settings(fields: Fields, name: str) -> Fields:
    extra = fields.child("extra_config").child(name)
    return Fields({**fields.values, **extra.values}, extra.where)


def _blocks(fields: Fields) -> list[str]:
    for key in ("block_name_to_quantize", "to_quant_block_names"):
        value = fields.values.get(key)
        if isinstance(value, str):
            return [name.strip() for name in value.split(",") if name.strip()]
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return value
        if value is not None:
            raise fields.error(f"{key} must be a list of block names")
    return []
