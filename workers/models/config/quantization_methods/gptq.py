"""quant_method "gptq": AutoGPTQ, GPTQModel, Optimum.

From their `QuantizeConfig`: `dynamic` (GPTQModel) has settings for modules that a pattern matches, "-:pattern" leaves
them as they are; `modules_in_block_to_quantize` (Optimum) names those of a layer that are quantized.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from numaserve.workers.layers.stored import REQUANTIZED_GROUP, ROW, CodeFormat, Layout, Stored
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.quantization_methods.rules import (
    Modules,
    Rule,
    is_head,
    pattern,
    read_bits,
    read_group,
)

_FORMATS: dict[str, Layout] = {"gptq": "gptq", "gptq_v2": "gptq_v2"}
CODES: dict[int, CodeFormat] = {2: "int4", 3: "int4", 4: "int4", 8: "int8_group"}


def gptq(fields: Fields) -> Rule:
    """Return the rule for modules. Raises `OperatorError` for codes of other than 2, 3, 4 or 8 bits."""
    format_key = "checkpoint_format" if fields.has("checkpoint_format") else "format"
    layout = fields.choice(format_key, _FORMATS, "gptq")
    base = _read(fields, layout)
    dynamic = [_override(fields, key, value, layout) for key, value in fields.child("dynamic").values.items()]
    chosen = Modules(_modules_in_block(fields))
    head = fields.flag("lm_head", False)

    def rule(names: Sequence[str]) -> Stored | None:
        if is_head(names) and not head:
            return None
        if chosen and not is_head(names) and not chosen.contains(names):
            return None
        for compiled, stored in dynamic:
            if any(compiled.match(name) for name in names):
                return stored
        return base

    return rule


def grouped(layout: Layout, bits: int, group: int, *, symmetric: bool, reordered: bool = False) -> Stored:
    """Return a matrix in GPTQ's or AWQ's layout."""
    stored = Stored(layout, CODES[bits], group, bits=bits, symmetric=symmetric)
    # With one group the order does not matter.
    if not reordered or group == ROW:
        return stored.regrouped()
    return replace(stored, native="int8_group", group=REQUANTIZED_GROUP, reordered=True, source_group=group)


def _read(fields: Fields, layout: Layout) -> Stored:
    reordered = fields.flag("desc_act", False) and not fields.flag("static_groups", False)
    return grouped(
        layout,
        read_bits(fields, "bits", *CODES),
        read_group(fields, "group_size"),
        symmetric=fields.flag("sym", True),
        reordered=reordered,
    )


def _override(fields: Fields, key: str, value: object, layout: Layout) -> tuple[re.Pattern[str], Stored | None]:
    if key.startswith("-:"):
        return pattern(fields, key.removeprefix("-:")), None
    if not isinstance(value, dict):
        raise fields.error(f"dynamic: {key[:60]!r} must be an object")
    merged = Fields({**fields.values, **value}, fields.where)
    return pattern(fields, key.removeprefix("+:")), _read(merged, layout)


def _modules_in_block(fields: Fields) -> list[str]:
    groups = fields.values.get("modules_in_block_to_quantize")
    if groups is None:
        return []
    if not isinstance(groups, list):
        raise fields.error("modules_in_block_to_quantize must be a list")
    names = list(chain.from_iterable(each if isinstance(each, list) else [each] for each in groups))
    if not all(isinstance(name, str) for name in names):
        raise fields.error("modules_in_block_to_quantize must hold module names")
    return names
